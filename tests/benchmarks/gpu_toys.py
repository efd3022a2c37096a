"""Every suite's toy version on a device and on the CPU: whether scores repeat bit by bit, and how far the AUCs are apart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oracle.toys import images_in, toy
from running import suite

from fedbench.core.spec.shipped import shipped_suites


def all_toys(folder: Path, device: str, tiny: bool, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """What is known after each suite; ``left``: seconds until a run is cut off. ``tiny``: one suite of a second."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images = folder / "images" if any((folder / "images").iterdir()) else images_in(folder / "images")
    names = ["tiny"] if tiny else sorted(shipped_suites(), key=lambda n: ("/" in n, n))
    found: dict[str, Any] = {}
    for name in names:
        path = suite(folder) if tiny else toy(name, images, folder)
        found[name] = compared(path, folder, device, left)
        yield {"suites": found, "not_reached": [n for n in names if n not in found]}


def compared(path: Path, folder: Path, device: str, left: Callable[[], float]) -> dict[str, Any]:
    """One suite: twice on the device, once on the CPU."""
    runs = {which: folder / f"{path.stem}-{which}" for which in ("one", "two", "cpu")}
    ended = [run(path, results, "cpu" if which == "cpu" else device, left) for which, results in runs.items()]
    one, two, cpu = (scores(results) for results in runs.values())
    aucs = [(one[cell]["auc"], cpu[cell]["auc"]) for cell in one.keys() & cpu.keys()]
    apart = [abs(a - b) for a, b in aucs if a is not None and b is not None]
    return {
        "ended": ended, "cells": len(one), "bit_equal": bool(one) and one == two, "auc_apart": max(apart, default=None),
        "notes": sorted({n for cell in one.values() for n in cell["notes"]}),
    }  # fmt: skip


def run(path: Path, results: Path, device: str, left: Callable[[], float]) -> int | str:
    """`fedbench run`, whose output goes to a log beside the results; its exit status."""
    words = [sys.executable, "-m", "fedbench.core.cli.main", "run", str(path), "--results", str(results), "--no-plots"]
    try:
        ended = subprocess.run([*words, "--device", device], capture_output=True, text=True, timeout=max(1.0, left()))
    except subprocess.TimeoutExpired:
        return "cut off"
    (results.parent / f"{results.name}.log").write_text(ended.stdout + ended.stderr)
    return ended.returncode


def scores(results: Path) -> dict[str, Any]:
    """Cell -> outcome, digest of its scores, AUC over all targets, and what its record notes on capture."""
    found = {}
    for path in sorted((results / "records").glob("*.json")):
        r = json.loads(path.read_text())
        auc = ((r.get("pooled") or {}).get("mix") or {}).get("values", {}).get("auc", {}).get("value")
        name = "/".join(map(str, (r["setting"], r["coalition"], r["defense"]["label"], r["attack"]["label"], r["seed"])))
        notes = [n for n in r.get("notes", []) if "captured" in n]
        found[name] = {"scores": r["digests"].get("scores"), "outcome": r["outcome"], "auc": auc, "notes": notes}
    return found
