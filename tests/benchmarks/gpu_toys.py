"""A suite's toy version on a device and on the CPU: whether scores repeat bit by bit, and how far
the AUCs are apart.
"""

from __future__ import annotations

import subprocess
import sys

from fedbench.core.store.reading import all_paths, load_records


def compared(path, folder, device, left):
    """Twice on the device, once on the CPU, each with its log beside the results. ``left``: seconds
    until it is cut off.
    """
    ended, found = [], []
    for which, where in (("one", device), ("two", device), ("cpu", "cpu")):
        results = folder / f"{path.stem}-{which}"
        words = [
            sys.executable,
            "-m",
            "fedbench.core.cli.main",
            "run",
            path,
            "--results",
            results,
            "--no-plots",
            "--device",
            where,
        ]
        with open(f"{results}.log", "w") as log:
            try:
                ended.append(
                    subprocess.run(
                        words, stdout=log, stderr=log, timeout=max(1.0, left())
                    ).returncode
                )
            except subprocess.TimeoutExpired:
                ended.append("cut off")
        found.append(scores(results))
    one, two, cpu = found
    aucs = [(one[cell]["auc"], cpu[cell]["auc"]) for cell in one.keys() & cpu.keys()]
    return {
        "ended": ended,
        "cells": len(one),
        "bit_equal": bool(one) and one == two,
        "auc_apart": max(
            (abs(a - b) for a, b in aucs if a is not None and b is not None), default=None
        ),
    }


def scores(results):
    """Cell -> outcome, digest of its scores, AUC over all targets; empty where the run was cut off
    before its first record.
    """
    records = load_records(results) if all_paths(results) else []
    found = {}
    for r in (loaded.record.model_dump(mode="json") for loaded in records):
        name = r["setting"], r["coalition"], r["defense"]["label"], r["attack"]["label"], r["seed"]
        found[name] = {
            "scores": r["digests"].get("scores"),
            "outcome": r["outcome"],
            "auc": r["pooled"]["mix"]["values"]["auc"]["value"] if "mix" in r["pooled"] else None,
        }
    return found
