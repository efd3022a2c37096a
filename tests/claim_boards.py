"""A results folder with what a claim asks for: settings, coalitions and rows, each as leaky and as accurate as told."""

from __future__ import annotations

import numpy as np
from boards import CLIENTS, MEMBERS, Folder, escape_stem, sections_of

from fedbench.core import Number
from fedbench.core.store.record import Found
from fedbench.leaderboard.claims.load import shipped_papers
from fedbench.leaderboard.statistics.claims import judged

NOBODY = "none"
N_TEST = 100_000  # so many that a hundredth of accuracy is told


class Claimed(Folder):
    """``cells``: setting -> (coalition, label) -> (leak, accuracy); the undefended row is of the coalition ``none``."""

    def __init__(self, root, suite, cells, attacks, seeds=range(5), n_ofl=400, tuning=()):
        super().__init__(root, {}, attacks, n_ofl)
        for setting, rows in cells.items():
            for (coalition, label), (leak, accuracy) in rows.items():
                for seed in (*seeds, *tuning):
                    self.coalition, self.accuracy, self.leak = coalition, accuracy, {label: leak}
                    described = {"dataset": {"name": "gauss", "params": {}}, **({"tuning": True} if seed in tuning else {})}
                    for attack in attacks:
                        names = (setting, coalition, label, attack, str(seed))
                        self.add(
                            label, attack, seed, stem="-".join(map(escape_stem, names)), key="/".join(names), suite=suite,
                            setting=setting, described=described, run_key=f"{setting}/{coalition}/{label}/{seed}",
                            **self.found(label, seed, attack),
                        )  # fmt: skip

    def found(self, label, seed, attack):
        """What analyses found in a cell, and their arrays."""
        return {}

    def whose(self, defense):
        return (NOBODY, (), CLIENTS) if self.coalition == NOBODY else (self.coalition, MEMBERS, MEMBERS)

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, _ = super()._measured(defense, attack, seed, targets, ids_from)
        correct = np.arange(N_TEST) < round(self.accuracy * N_TEST)
        return {**arrays, "test_correct": correct}, scored, correct


class Analysed(Claimed):
    """Rows of CoFedMID's ablations with numbers of data usage and TF01 by class, and courses of the loss; ``said``: label ->
    analysis -> name -> number, or (clean members, inside, outside) in the last round. Each varies a little from seed to seed."""

    def __init__(self, root, said, **more):
        self.said = said
        rows = {"digits": {(NOBODY, "none"): (1.0, 0.8), ("half", "cofedmid"): (0.0, 0.8)}}
        super().__init__(root, "cofedmid_ablations", rows, ("seqmia",), **more)

    def found(self, label, seed, attack):
        own, change = self.said.get(label, {}), 0.001 * np.random.default_rng(seed).normal()
        analyses = {
            name: Found(numbers={n: Number(v + change) for n, v in numbers.items()})
            for name, numbers in own.items() if name != "loss-trajectories"
        }  # fmt: skip
        if (last := own.get("loss-trajectories")) is None:
            return {"analyses": analyses}
        inside = np.isin(np.arange(len(CLIENTS)), MEMBERS)
        # a first round and clients outside the coalition that claim the contrary, and a last round without anybody
        arrays = {
            f"clean {side}": np.array([np.full(len(CLIENTS), 9.0 - v), np.where(inside, v + change * (i + 1), -v),
                                       np.full(len(CLIENTS), np.nan)]).ravel()
            for i, (side, v) in enumerate(zip(("members", "inside", "outside"), last, strict=True))
        }  # fmt: skip
        arrays |= {"rounds": np.array([10.0, 20.0, 30.0]), "defends": (inside & (label != "none")).astype(float)}
        analyses["loss-trajectories"] = Found(numbers={}, arrays=dict.fromkeys(arrays, ""))
        return {"analyses": analyses, "arrays": {f"loss-trajectories:{name}": a for name, a in arrays.items()}}


def verdict(shown, claim, paper="cofedmid"):
    """What a board of a folder, or of sections, says of a claim."""
    sections = sections_of(shown) if isinstance(shown, Folder) else shown
    asked = shipped_papers()[paper]
    (found,) = judged(asked.model_copy(update={"claims": [c for c in asked.claims if c.id == claim]}), sections)
    return found.verdict
