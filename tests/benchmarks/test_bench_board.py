"""A board's page, its tests of all pairs of rows beside one pair at a time, and calibrated attacks.

pytest -n 0 -m benchmark tests/benchmarks/test_bench_board.py

``FEDBENCH_BOARD=FOLDER`` names the results folder of the page; without it one of 128 cells is made.
``extra_info`` has the number of cells, CPU seconds, and the peak memory of the process in MB.
"""

from __future__ import annotations

import os
import resource
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from boards import Folder
from contests import judged

from fedbench.core import MEMBER, OFL
from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.statistics.audits import (
    LOG_PROBABILITY,
    Calibrated,
    epsilon_bound,
    methods_of,
)
from fedbench.leaderboard.statistics.paired import difference, differences

pytestmark = pytest.mark.benchmark(group="board")

ROWS, SEEDS, TARGETS = 20, 5, 2
FEDERATIONS, CANDIDATES = 32, 1000
CALIBRATED = (LOG_PROBABILITY, *(f"attack{i}" for i in range(11)))


def test_all_pairs_of_rows(benchmark):
    kind = np.repeat([MEMBER, OFL], [80, 500])
    rng = numpy_rng(0, "pairs of a board")
    scores = {}
    for row in range(ROWS):
        by_seed = {seed: dict(enumerate(rng.normal(size=(TARGETS, 580)))) for seed in range(SEEDS)}
        scores[f"row{row}"] = {"attack": by_seed}
    parts = judged(scores, kind).leaks.parts
    rows = [{seed: {(row, "attack"): 1.0} for seed in range(SEEDS)} for row in scores]
    began = time.perf_counter()
    one_by_one = [difference(parts, a, b).p_value() for a, b in product(rows, rows)]
    benchmark.extra_info["one by one, s"] = time.perf_counter() - began
    at_once = benchmark(lambda: differences(parts, rows, rows).p_value())
    np.testing.assert_allclose(at_once.ravel(), one_by_one)


def test_a_page(benchmark, tmp_path):
    folder = Path(os.environ.get("FEDBENCH_BOARD", tmp_path / "results"))
    if not folder.exists():
        leaks = {"none": 1.0} | {f"defense{i}": i / 8 for i in range(7)}
        Folder(folder, leaks, ("fedmia-ii", "loss-series", "avg-cosine", "fta-l")).fill(range(4))
    began = time.process_time()
    benchmark.pedantic(MarkdownBoard().write, (folder, False), rounds=1)
    benchmark.extra_info["CPU s"] = time.process_time() - began
    benchmark.extra_info |= {"cells": len(source_of(folder).records), "peak MB": peak_memory()}


def test_calibrated_attacks_of_a_target(benchmark):
    rng = numpy_rng(0, "federations of one pool")
    heads = rng.random((FEDERATIONS, CANDIDATES)) < 0.5
    by_attack = {}
    for attack in CALIBRATED:
        scores = heads + rng.normal(size=heads.shape)
        by_attack[attack] = {f: {0: scores[f]} for f in range(FEDERATIONS)}
    section = judged({"row": by_attack}, lambda f: np.where(heads[f], MEMBER, OFL))
    calibrated = Calibrated(section.scores)
    pool = calibrated.pools[0, ("row", LOG_PROBABILITY)]
    times = [time.process_time()]
    for method in methods_of(LOG_PROBABILITY).values():
        method(pool.scores, pool.member, pool.outside)
    times.append(time.process_time())
    benchmark.pedantic(calibrated.candidates, (0, [0]), rounds=1)
    times.append(time.process_time())
    assert epsilon_bound(calibrated, "row").epsilon > 0
    times.append(time.process_time())
    names = "LiRA and RMIA, CPU s", "all attacks and together, CPU s", "bound, CPU s"
    benchmark.extra_info |= dict(zip(names, np.diff(times).tolist(), strict=True))
    benchmark.extra_info["peak MB"] = peak_memory()


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
