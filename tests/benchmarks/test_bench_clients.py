"""CPU time of training and of the signals where the same data are split among more clients.
Reported, not asserted.

    FEDBENCH_DATA=FOLDER pytest -m benchmark -s tests/benchmarks/test_bench_clients.py

MNIST, an MLP, two targets, three attacks of the server's view, one audited round of three.
"""

from __future__ import annotations

import pytest
from running import changed, invoke, records

pytestmark = pytest.mark.benchmark

DATA = {
    "dataset": {"name": "mnist", "params": {"train": 10_000, "test": 1000}},
    "model": {"name": "mlp"},
}


@pytest.mark.parametrize("references", ["all", 64])
@pytest.mark.parametrize("clients", [10, 100, 1000])
def test_signals_beside_training(tmp_path, clients, references):
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
    invoke(path, "--results", tmp_path / "r", "--no-plots")
    measured = next(iter(records(tmp_path / "r").values()))["measured"]
    spent = ", ".join(f"{what} {measured[f'{what}_cpu_s']:.1f}" for what in ("train", "signals"))
    print(f"\n{clients:,} clients, references {references}: CPU s {spent}")
