"""A board's page, and its tests of all pairs of rows beside one pair at a time.

pytest -n 0 -m benchmark tests/benchmarks/test_bench_board.py

``FEDBENCH_BOARD=FOLDER`` names the results folder of the page; without it one of 128 cells is made.
``extra_info`` has the number of cells, their CPU seconds, and the peak memory of the process in MB.
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
from fedbench.leaderboard.statistics.paired import difference, differences

pytestmark = pytest.mark.benchmark(group="board")

ROWS, SEEDS, TARGETS = 20, 5, 2


def test_all_pairs_of_rows(benchmark):
    kind = np.repeat([MEMBER, OFL], [80, 500])
    rng = numpy_rng(0, "pairs of a board")
    scores = {}
    for row in range(ROWS):
        by_seed = {seed: dict(enumerate(rng.normal(size=(TARGETS, 580)))) for seed in range(SEEDS)}
        scores[f"row{row}"] = {"attack": by_seed}
    parts = judged(scores, kind).leaks.parts
    rows = [{seed: {(row, "attack"): 1.0} for seed in range(SEEDS)} for row in scores]
    began = time.process_time()
    one_by_one = [difference(parts, a, b).p_value() for a, b in product(rows, rows)]
    benchmark.extra_info["one by one, CPU s"] = time.process_time() - began
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    benchmark.extra_info |= {"cells": len(source_of(folder).records), "peak MB": peak / 1024}
