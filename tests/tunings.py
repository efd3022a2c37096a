"""Results folders of suites with tuning seeds: defenses at several strengths, each as leaky and as accurate as told."""

from __future__ import annotations

import numpy as np
from boards import Folder, escape_stem, sections_of

N_TEST = 400  # test accuracies are exact multiples of 1 / 400
TUNING, REPORTED = (100, 101), (0, 1, 2)
# label -> (leak, accuracy)
ROWS = {
    "none": (2.0, 0.8), "free-rider": (0.0, 0.5), "weak[s=1]": (1.5, 0.8), "weak[s=2]": (0.9, 0.7925), "weak[s=3]": (0.1, 0.7),
    "late[s=1]": (0.6, 0.75), "late[s=2]": (0.2, 0.6), "one": (0.4, 0.79),
    "mine[a=1,b=2]": (0.0, 0.795), "mine[a=2,b=2]": (1.9, 0.81),
}  # fmt: skip


class Tuning(Folder):
    """A folder of strengths; ``rows``: (label -> (leak, accuracy)) of a seed."""

    def __init__(self, root, rows=ROWS, tuning=TUNING, reported=REPORTED, of_seed=None, without=()):
        super().__init__(root, dict.fromkeys(rows, 0.0), ("loss-series",))
        self.tuning, self.rows = tuning, rows
        for seed in (*tuning, *reported):
            self.now = {**rows, **((of_seed or {}).get(seed, {}))}
            self.leak = {label: leak for label, (leak, _) in self.now.items()}
            for label in rows:
                for attack in self.attacks:
                    if (label, seed) not in without:
                        self.add(label, attack, seed, stem="-".join(map(escape_stem, (label, attack, str(seed)))))

    def add(self, defense, attack, seed, outcome="ok", **change):
        described = {"dataset": {"name": "gauss", "params": {}}, **({"tuning": True} if seed in self.tuning else {})}
        return super().add(defense, attack, seed, outcome, **{"described": described, **change})

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, _ = super()._measured(defense, attack, seed, targets, ids_from)
        correct = np.arange(N_TEST) < round(self.now[defense][1] * N_TEST)
        return {**arrays, "test_correct": correct}, scored, correct


def section_of(folder):
    (section,) = sections_of(folder)
    return section
