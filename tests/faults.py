"""What a run meets: signals at any moment, and settings at the edge of what their types allow. Each says how it ended.

``signals(folder, seed, n)``: n runs, each ended at a random moment and finished by the same command; ``extremes(folder)``: every
edge with every method of a handful.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hostile_methods import SHOWN, STATE, install_harms, names
from ruamel.yaml import YAML
from running import called, changed, fingerprint, invoke, records, start, suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.cache import Packed, cache_path, load

HELD, CHANGED, LOST, FAILED, REFUSED = "held", "CHANGED", "LOST", "FAILED", "refused when planned"
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def signals(folder: Path, seed: int, n: int) -> Counter[str]:
    """How n runs of two workers ended that got a signal each (SIGKILL every third time) and were finished afterwards."""
    draw, ended = random.Random(seed), Counter[str]()
    path = suite(folder, seeds=[0, 1], defenses=["none", "mixup"], attacks=["loss-series", "fedmia-i"])
    invoke(path, "--results", folder / "whole")
    whole, began = fingerprint(folder / "whole"), time.monotonic()
    start(path, folder / "timed", folder, workers=2).communicate()
    takes = time.monotonic() - began
    for i in range(n):
        results = folder / f"cut{i}"
        process = start(path, results, folder, workers=2, start_new_session=True)
        time.sleep(draw.uniform(0, takes))
        which = SIGNALS[i % len(SIGNALS)]
        if process.poll() is None:
            os.kill(process.pid, which)
        process.communicate()
        there = fingerprint(results) if (results / "records").exists() else {}
        kept = {name for name in there if name.endswith(".json")}
        complete = all(there[name] == whole[name] and there[name[:-5] + ".npz"] == whole[name[:-5] + ".npz"] for name in kept)
        invoke(path, "--results", results)
        ended[HELD if complete and fingerprint(results) == whole else CHANGED] += 1
    return ended


def caches(folder: Path, seed: int, n: int) -> Counter[str]:
    """How reading a training cache with n damages ended: as no cache, or as what it was."""
    path = suite(folder)
    invoke(path, "--results", folder / "r")
    (job,) = build_plan(path, (), folder / "r", "cpu").jobs
    draw, ended = random.Random(seed), Counter[str]()
    file, whole = cache_path(job), load(job)
    assert whole is not None
    content = file.read_bytes()
    for i in range(n):
        file.write_bytes(cache_damage(content, ("flip", "cut", "swap")[i % 3], draw.randrange(len(content)), draw.randrange(8)))
        found = load(job)
        ended[HELD if found is None or _same(found, whole) else CHANGED] += 1
    return ended


def cache_damage(content: bytes, kind: str, at: int, bit: int) -> bytes:
    """The content with a bit flipped at a place, cut there, or its two parts there swapped."""
    flipped = content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
    return {"flip": flipped, "cut": content[:at], "swap": content[at:] + content[:at]}[kind]


def _same(one: Packed, other: Packed) -> bool:
    arrays = one[1].keys() == other[1].keys() and all(np.array_equal(one[1][n], a, equal_nan=True) for n, a in other[1].items())
    return one[0] == other[0] and arrays


# these take the process or the answer with them, so their own cells fail; every other method has its score
FATAL = {"exits", "leaves", "aborts", "raises", "generator-exit"}


def methods(folder: Path) -> Counter[str]:
    """Every hostile method, a neighbour of others: whether all of these have the bits that they have alone, and whether each
    has an outcome."""
    sys.path.insert(0, str(install_harms(folder / "site")))
    alone, company = _neighbours(folder / "attacks", "attacks", ["loss-series", "neighbour", "rmia"], names("a", STATE | SHOWN))
    held = {"a": alone.items() <= company.items()}
    alone, company = _neighbours(folder / "defenses", "defenses", ["none"], names("d", STATE))
    held["d"] = alone.items() <= company.items()
    alone, company = _neighbours(folder / "analyses", "analyses", ["counts"], names("n", STATE))
    findings = [[json.loads(c)["analyses"]["counts"] for n, c in f.items() if n.endswith(".json")] for f in (alone, company)]
    held["n"] = findings[0] == findings[1]
    kinds = {"a": STATE | SHOWN, "d": STATE, "n": STATE}
    return Counter(HELD if held[part] else CHANGED for part, those in kinds.items() for _ in those)


def _neighbours(folder: Path, part: str, good: list[str], hostile: list[str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of the good ones alone, and those of all."""
    found = []
    for name, listed in (("alone", good), ("company", [good[0], *hostile, *good[1:]])):
        (folder / name).mkdir(parents=True)
        called(suite_of_neighbours(folder / name, **{part: listed}), "--results", folder / name / "r")
        found.append(fingerprint(folder / name / "r"))
    return found[0], found[1]


def suite_of_neighbours(folder: Path, **more: Any) -> Path:
    """The tiny suite with shadow models and limits that a test can wait for."""
    shadow = {"samples": 40, "models": 2, "epochs": 1}
    limits = {"run_seconds": 60, "idle_seconds": 60}
    return changed(folder, {"audit": {"every": 2, "nonmembers": 40, "shadow": shadow}}, limits=limits, **more)


# Changes of the tiny setting's parts: each is allowed, none is sensible.
EDGES: dict[str, dict[str, Any]] = {
    "one round": {"federation": {"rounds": 1}},
    "audited beyond the end": {"audit": {"every": 1000}},
    "batches of one": {"federation": {"batch_size": 1}},
    "a batch larger than the data": {"federation": {"batch_size": 100_000}},
    "a vanishing rate": {"federation": {"optimizer": {"lr": 1e-30}}},
    "a rate that diverges": {"federation": {"optimizer": {"lr": 1e6}}},
    "momentum near one": {"federation": {"optimizer": {"lr": 0.2, "momentum": 0.9999}}},
    "a decay that forgets": {"federation": {"optimizer": {"lr": 0.2, "weight_decay": 5.0}}},
    "two clients": {"federation": {"clients": 2}},
    "a client for every five samples": {"federation": {"clients": 300, "rounds": 1}, "audit": {"targets": [0, 1, 299]}},
    "one non-member": {"audit": {"nonmembers": 1}},
    "one target": {"audit": {"targets": [0]}},
    "everybody together": {"audit": {"targets": "honest", "members": 1, "nonmembers": 1}},
    "redrawn non-members": {"audit": {"align_nonmembers": False}},
    "absent members": {"audit": {"members_from": "holdout", "nonmembers": 30}},
    "a tenth takes part": {"federation": {"participation": 0.1, "rounds": 6}},
    "rows from long ago": {"federation": {"max_delay": 50}},
    "bfloat16": {"federation": {"precision": "bf16"}},
    "Adam": {"federation": {"optimizer": {"name": "adam", "lr": 0.01}}},
    "a class a client": {"partition": {"name": "dirichlet", "beta": 0.001, "min_samples": 1}},
    "its own group's labels alone": {"partition": {"name": "group-bias", "bias": 1.0}},
    "one hidden unit": {"model": {"name": "mlp", "params": {"hidden": [1]}}},
    "nothing but noise": {"dataset": {"name": "digits", "params": {"test": 100, "holdout": 100, "label_noise": 1.0}}},
    "a test set of one": {"dataset": {"name": "digits", "params": {"test": 1, "holdout": 100, "label_noise": 0.3}}},
}
DEFENSES = ["none", "cofedmid", "dp-sgd", "hamp", "median", "norm-clipping"]
ATTACKS = ["loss-series", "avg-cosine", "fedmia-ii", "fta-l", "seqmia", "fedpoisonmia"]


def extremes(folder: Path, edges: dict[str, dict[str, Any]] = EDGES) -> Counter[str]:
    """Outcomes of all cells at the edges; a refusal counts once. A cell must not fail: no method is at fault there."""
    ended = Counter[str]()
    for i, parts in enumerate(edges.values()):
        ended.update(_at_edge(folder / str(i), parts))
    return ended


def _at_edge(folder: Path, parts: dict[str, Any]) -> Counter[str]:
    folder.mkdir(parents=True)
    base = YAML(typ="safe").load(suite(folder))["settings"][0]
    parts = {k: v if "name" in v else {**base[k], **v} for k, v in parts.items()}
    path = changed(folder, parts, defenses=DEFENSES, attacks=ATTACKS)
    try:
        called(path, "--results", folder / "r")
    except UserError:
        return Counter([REFUSED])
    found = Counter(r["outcome"] for r in records(folder / "r").values())
    return Counter({FAILED if outcome in ("failed", "timeout") else outcome: n for outcome, n in found.items()})
