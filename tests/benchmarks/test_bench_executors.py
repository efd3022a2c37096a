"""Two local workers beside one, and one Ray node beside local workers, on the same runs. Reported,
not asserted.

    pytest -m benchmark -s tests/benchmarks/test_bench_executors.py
    FEDBENCH_RUNS=8 FEDBENCH_ROUNDS=600 FEDBENCH_REPEATS=2 pytest ...     fewer and longer runs

Each figure is a ratio of wall times of whole commands, taken in turn: planning and the board are in
both. The Ray node stands already, as a cluster's would, so that joining it counts and starting it
does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from running import changed, fingerprint
from workloads import ratio

pytestmark = pytest.mark.benchmark

RUNS, ROUNDS, REPEATS = (
    int(os.environ.get(f"FEDBENCH_{name}", n))
    for name, n in (("RUNS", 24), ("ROUNDS", 60), ("REPEATS", 3))
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A suite of many runs of some seconds each."""
    folder = tmp_path_factory.mktemp("suite")
    federation = {
        "clients": 10,
        "rounds": ROUNDS,
        "local_epochs": 4,
        "batch_size": 20,
        "optimizer": {"lr": 0.1, "momentum": 0.9},
    }
    model = {"name": "mlp", "params": {"hidden": [128]}}
    return changed(
        folder,
        {"federation": federation, "model": model, "audit": {"every": 10, "nonmembers": 80}},
        seeds=list(range(RUNS)),
        attacks=["loss-series", "fedmia-i"],
    )


def seconds(path, results, *words):
    began = time.perf_counter()
    call = [
        sys.executable,
        "-m",
        "fedbench.core.cli.main",
        "run",
        path,
        "--results",
        results,
        "--no-plots",
        *words,
    ]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.perf_counter() - began


def compare(what, path, folder, one, other, between=lambda: None):
    """Time of ``one`` over time of ``other``, in turn; their records are the same."""
    taken = []
    for i in range(REPEATS):
        first = seconds(path, folder / f"{i}-one", *one)
        between()
        taken.append((first, seconds(path, folder / f"{i}-other", *other)))
        assert fingerprint(folder / f"{i}-one") == fingerprint(folder / f"{i}-other")
    print(
        f"\n{what}, wall time: {ratio(*zip(*taken, strict=True))}, {RUNS} runs of {ROUNDS} rounds "
        "each"
    )


def test_two_local_workers_beside_one(path, tmp_path):
    compare("one local worker / two", path, tmp_path, ("--workers", "1"), ("--workers", "2"))


def test_one_ray_node_beside_local(path, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedbench-privacy[ray]'")
    from ray_nodes import AUTHENTICATION, Node

    for name, value in AUTHENTICATION.items():
        monkeypatch.setenv(name, value)
    node = Node("bench", tmp_path, cpus=2)

    def forget():
        """What one repetition trained would spare the next its training."""
        shutil.rmtree(tmp_path / "cache-bench" / "fedbench" / "trainings", ignore_errors=True)

    ray = ("--executor", "ray", "--ray-address", node.address)
    try:
        compare(
            "two local workers / one Ray node with two cores",
            path,
            tmp_path,
            ("--workers", "2"),
            ray,
            forget,
        )
    finally:
        node.end()
