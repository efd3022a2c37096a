"""A suite of many cells, and a valid record with drawn scores for each of them, made without training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from fedbench.core.cli.run import build_plan
from fedbench.core.execution.clock import Clock
from fedbench.core.execution.planned import Plan
from fedbench.core.execution.worker import record_for
from fedbench.core.metrics.maximum import SHUFFLES
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.recount import Recount, recount
from fedbench.core.store.results import Results

ATTACKS = ["loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", {"name": "seqmia", "params": {"epochs": 20}}]
SIGMAS = [i / 100 for i in range(1, 26)]
DEFENSES: list[Any] = ["none", {"name": "grad-noise", "grid": {"sigma": SIGMAS}}]  # 26 rows of a coalition
CANDIDATES = {0: 90, 1: 100, 2: 190}  # kind -> how many of a target
N_TEST = 397
DRAWN = 64  # different scores of a seed


def write_suite(folder: Path, settings: int) -> Path:
    """A suite of so many settings that differ in their rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "schema": 1, "name": "many_cells", "seeds": [0, 1, 2, 3, 4], "coalitions": ["pair", "half", "uniform"],
        "defenses": DEFENSES, "attacks": ATTACKS, "settings": [{
            "name": f"digits-{i:03d}",
            "dataset": {"name": "digits", "params": {"test": N_TEST, "holdout": 500, "label_noise": 0.3}},
            "model": {"name": "mlp", "params": {"hidden": [256, 128]}},
            "federation": {"clients": 10, "rounds": 20 + i, "local_epochs": 3, "batch_size": 20, "optimizer": {"lr": 0.1}},
            "audit": {"every": 10, "nonmembers": 200, "outside": 100, "targets": [0, 1]},
        } for i in range(settings)],
    }  # fmt: skip
    path = folder / "many_cells.yaml"
    YAML().dump(spec, path)
    return path


def write_results(suite: Path, root: Path) -> Plan:
    """A results folder in which every cell of the suite has its record."""
    plan = build_plan(str(suite), (), root, "cpu")
    store = Results.create(root, plan.suite)
    store.set_manifest(plan.cells, plan.title, plan.published, plan.analyses, plan.asked)
    drawn = {seed: list(_drawn(seed)) for seed in {job.seed for job in plan.jobs}}
    measured = Clock.start().outside()
    for job in plan.jobs:
        history = [{"round": t, "accuracy": 0.8, "train_loss": 0.5} for t in sorted(job.audited_rounds)]
        for cell in job.cells:
            scores, sha256, found = drawn[job.seed][int(cell.key[:4], 16) % DRAWN]
            digests = {**job.digests, "scores": sha256}
            store.write(cell.stem, record_for(job, cell, "ok", "", measured, digests=digests, history=history, **found), scores)
    return plan


def _drawn(seed: int) -> Iterator[tuple[bytes, str, dict[str, Any]]]:
    """The scores of one cell after another: their file, its sha256, and what a record says of them."""
    for i in range(DRAWN):
        rng = np.random.default_rng([seed, i])
        arrays, targets, parts = {}, [], []
        for target in (0, 1):
            shared = np.random.default_rng([seed, target])  # who is asked about is the same for all
            kind = shared.permutation(np.repeat(list(CANDIDATES), list(CANDIDATES.values()))).astype(np.int8)
            ids = shared.permutation(1400)[: len(kind)].astype(np.int64)
            scores = rng.normal(size=len(kind)) + 1.5 * i / DRAWN * (kind == 0)
            canary, in_mix = ids % 3 == 0, np.ones(len(kind), bool)
            nulls = (0.5 + 0.1 * rng.random((2, SHUFFLES))).astype(np.float32)
            arrays |= {
                f"t{target}_scores": scores, f"t{target}_kind": kind, f"t{target}_ids": ids, f"t{target}_canary": canary,
                f"t{target}_owner": kind.astype(np.int32), f"t{target}_in_mix": in_mix,
                f"t{target}_null_auc": nulls[0], f"t{target}_null_advantage": nulls[1] - 0.4,
            }  # fmt: skip
            parts.append((scores, kind, canary, in_mix))
            maximum = {"auc": 0.6, "advantage": 0.2, "rounds": 3}
            targets.append({"target": target, "groups": _groups(recount(*parts[-1])), "maximum": maximum})
        correct = rng.random(N_TEST) < 0.8
        content = npz_bytes({**arrays, "test_correct": correct})
        pooled = _groups(recount(*map(np.concatenate, zip(*parts, strict=True))))
        utility = {"accuracy": float(correct.mean()), "n_test": N_TEST}
        yield content, hashlib.sha256(content).hexdigest(), {"targets": targets, "pooled": pooled, "utility": utility}


def _groups(found: dict[Any, Recount]) -> dict[str, Any]:
    return {
        name: {
            "values": {
                "auc": {"value": r.auc, "error": 0.03}, "tf01": {"value": r.tf01, "error": None},
                "advantage": {"value": 0.2, "error": None}, "balanced_accuracy": {"value": 0.6, "error": None},
            },
            "n_members": r.n_members, "n_nonmembers": r.n_nonmembers,
        }
        for name, r in found.items()
    }  # fmt: skip
