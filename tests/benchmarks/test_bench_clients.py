"""CPU time of the signals over that of training where the same data are split among more clients:
MNIST below FEDBENCH_DATA, an MLP, two targets, three attacks of the server's view, one audited
round of three.
"""

from __future__ import annotations

import os

import pytest
from running import changed, invoke, records

pytestmark = pytest.mark.benchmark(group="audit")

DATA = {
    "dataset": {"name": "mnist", "params": {"train": 10_000, "test": 1000}},
    "model": {"name": "mlp"},
}


@pytest.mark.skipif("FEDBENCH_DATA" not in os.environ, reason="no MNIST: FEDBENCH_DATA is not set")
@pytest.mark.parametrize("references", ["all", 64])
@pytest.mark.parametrize("clients", [10, 100, 1000])
def test_signals(benchmark, tmp_path, clients, references):
    federation = {
        "clients": clients,
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 10,
        "optimizer": {"lr": 0.05},
    }
    audit = {"every": 3, "nonmembers": 1000, "targets": [0, 1], "references": references}
    setting = DATA | {"federation": federation, "audit": audit}
    path = changed(tmp_path, setting, attacks=["loss-series", "fedmia-i", "fedmia-ii"])
    benchmark.pedantic(invoke, args=(path, "--results", tmp_path / "r", "--no-plots"))
    measured = next(iter(records(tmp_path / "r").values()))["measured"]
    benchmark.extra_info |= {name: measured[name] for name in ("train_cpu_s", "signals_cpu_s")}
    ratio = measured["signals_cpu_s"] / measured["train_cpu_s"]
    benchmark.extra_info["ratios"] = {"signals / training": [ratio]}
