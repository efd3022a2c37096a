"""FedMIA's AUC beside ``audit.references``: 100 clients, ten targets, three seeds.

FEDBENCH_DATA=FOLDER python tests/benchmarks/references.py

MNIST with mislabelled canaries and an MLP; every number of references judges the same trainings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).resolve().parents[1]))

from running import invoke, suite

from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.grouping import build_sections
from fedbench.leaderboard.statistics.intervals import UnitValue, over_units

SETTING = {
    "dataset": {"name": "mnist", "params": {"train": 10_000, "test": 1000, "label_noise": 0.2}},
    "model": {"name": "mlp", "params": {"hidden": [64]}},
    "federation": {
        "clients": 100,
        "rounds": 12,
        "local_epochs": 3,
        "batch_size": 20,
        "optimizer": {"lr": 0.1},
    },
}
AUDIT = {"every": 3, "nonmembers": 200, "outside": 300, "targets": [*range(10)]}
NUMBERS, ATTACKS = (8, 16, 32, 64, "all"), ("fedmia-i", "fedmia-ii")


def main(folder):
    """Print AUC by attack and number of references, and its difference from that with all."""
    settings = [SETTING | {"name": f"of-{n}", "audit": AUDIT | {"references": n}} for n in NUMBERS]
    path = suite(
        folder, settings=settings, seeds=[0, 1, 2], attacks=[*ATTACKS], coalitions=["none"]
    )
    invoke(path, "--results", folder / "r", "--no-plots", "--workers", "1")
    rows = {s.setting: s.rows[0] for s in build_sections(load_records(folder / "r"))}
    for attack in ATTACKS:
        every = rows["of-all"].entries[attack].units("ofl")
        for n in NUMBERS:
            entry = rows[f"of-{n}"].entries[attack]
            units = entry.units("ofl")
            less = {
                u: UnitValue(units[u].value("auc") - every[u].value("auc"), float("nan"))
                for u in every
            }
            intervals = entry.interval("auc", "ofl"), over_units(less)
            shown = (f"{i.mean:.4f} +- {i.half_width:.4f}" for i in intervals)
            print(f"{attack}, {n} references: AUC {', minus that with all '.join(shown)}")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
