"""Two local workers beside one, and one Ray node beside local workers, on the same runs.

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
from itertools import count

import pytest
from running import changed, fingerprint

pytestmark = pytest.mark.benchmark(group="executors")

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


@pytest.fixture
def command(path, tmp_path):
    """A way to run the suite into a folder of its own; all folders have the same records."""
    number, fingerprints = count(), []

    def way(*options):
        results = tmp_path / str(next(number))
        words = ["run", path, "--results", results, "--no-plots", *options]
        call = [sys.executable, "-m", "fedbench.core.cli.main", *words]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        fingerprints.append(fingerprint(results))

    yield way
    assert all(one == fingerprints[0] for one in fingerprints)


def test_two_local_workers(beside, command):
    ways = {
        "one worker": lambda: command("--workers", "1"),
        "two workers": lambda: command("--workers", "2"),
    }
    beside(ways, REPEATS)


def test_one_ray_node(beside, command, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedbench-privacy[ray]'")
    from ray_nodes import AUTHENTICATION, Node

    for name, value in AUTHENTICATION.items():
        monkeypatch.setenv(name, value)
    node = Node("bench", tmp_path, cpus=2)

    def local():
        command("--workers", "2")
        # what one repetition trained would spare the next its training
        shutil.rmtree(tmp_path / "cache-bench" / "fedbench" / "trainings", ignore_errors=True)

    ray = ("--executor", "ray", "--ray-address", node.address)
    try:
        beside({"two local workers": local, "a node of two cores": lambda: command(*ray)}, REPEATS)
    finally:
        node.end()
