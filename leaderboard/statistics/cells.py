"""One attack on one row: the sign of its scores, its AUC and its TF01.

Signs are chosen on the other folds (:mod:`fedbench.leaderboard.statistics.scores`). Beside outside
non-members alone: inside ones were trained on by other clients, so chance level for them is not
0.5, and an attack keeps its own sign on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import (
    Measured,
    Unit,
    by_unit,
    over_units,
    p_of_chance,
    reaching,
    spanning,
)
from fedbench.leaderboard.statistics.scores import (
    CandidateFilter,
    CellScores,
    Key,
    Part,
    SectionScores,
)
from fedbench.leaderboard.statistics.tf01 import alignable, enough, rates_elsewhere, tf01_of

Picks = Mapping[int, tuple[str, int]]
"""fold -> (attack, its sign: +1, or -1 where low scores mean members)"""
Picked = tuple[Part, CellScores, int]
"""a part, the scores of what is picked on its fold, and their sign"""


class Cells:
    """The cells of a section, on candidates of one kind."""

    def __init__(self, scores: SectionScores, kind: CandidateFilter = "all") -> None:
        self.scores, self.kind = scores, kind
        self._cells: dict[Key, Cell] = {}

    @property
    def parts(self) -> list[Part]:
        """Read the scores. Raises UserError where two records of a target differ in candidates."""
        return self.scores.parts(self.kind)

    @cached_property
    def leans(self) -> dict[Key, dict[int, float]]:
        """Fold -> mean AUC minus one half over its parts, of the cells and folds that have one."""
        aucs: dict[Key, dict[int, list[float]]] = {}
        for part in self.parts:
            for key, scores in part.own.items():
                aucs.setdefault(key, {}).setdefault(part.fold, []).append(scores.auc - 0.5)
        leans: dict[Key, dict[int, float]] = {}
        for key, folds in aucs.items():
            leans[key] = {fold: float(np.mean(values)) for fold, values in folds.items()}
        return leans

    def of(self, label: str, attack: str) -> Cell:
        """Return the cell, which may have no scores."""
        key = label, attack
        if key not in self._cells:
            self._cells[key] = Cell(self, key)
        return self._cells[key]

    def picked(self, label: str, picks: Picks) -> list[Picked]:
        """Return what is picked of a row, part by part; parts without its scores are left out."""
        chosen: list[Picked] = []
        for part in self.parts:
            if part.fold in picks:
                attack, sign = picks[part.fold]
                scores = part.own.get((label, attack))
                if scores is not None:
                    chosen.append((part, scores, sign))
        return chosen

    def units(self, label: str, picks: Picks) -> dict[Unit, Measured]:
        """Return the AUC of what is picked of a row, over all candidates that count for it."""
        picked = self.picked(label, picks)
        return by_unit([(part.unit, _measured(scores, sign)) for part, scores, sign in picked])

    def rate(self, label: str, picks: Picks) -> Interval | None:
        """Return the TF01 in percent of what is picked of a row, all units pooled."""
        picked = self.picked(label, picks)
        samples = [scores.sample.signed(sign) for _, scores, sign in picked]
        return tf01_of(samples, len({part.unit for part, *_ in picked}))

    def interval(self, label: str, picks: Picks, attacks: Iterable[str]) -> Interval | None:
        """Return the AUC of what is picked of a row, wide enough to reach the plain maximum over
        ``attacks`` and, where a sign is a guess, both signs; None without scores.
        """
        interval, plain = over_units(self.units(label, picks)), self.strongest(label, attacks)
        if interval is None or plain is None:
            return None
        settled = all(self.of(label, attack).settled for attack, _ in picks.values())
        return spanning(reaching(interval, plain[2]), *readings(interval.mean, settled))

    def strongest(self, label: str, attacks: Iterable[str]) -> tuple[str, int, float] | None:
        """Return the strongest attack on a row over all folds, its sign and mean AUC: a maximum,
        biased upward. None without scores.
        """
        plain = {attack: self.of(label, attack).plain for attack in attacks}
        known = {attack: sign_and_auc for attack, sign_and_auc in plain.items() if sign_and_auc}
        if not known:
            return None
        attack = max(known, key=lambda name: known[name][1])
        return attack, *known[attack]

    @cached_property
    def aligned(self) -> bool:
        """Whether TF01 is that of one threshold for all units, which are too small for thresholds
        of their own.
        """
        sizes = []
        for part in self.parts:
            if part.own:
                sizes.append(max(len(scores.sample.nonmember) for scores in part.own.values()))
        seeds = len({seed for seed, _ in self.scores.units})
        return alignable(sizes, seeds) and not enough(sizes)


class Cell:
    """One attack on one row. Every result is computed on first access."""

    def __init__(self, cells: Cells, key: Key) -> None:
        self._cells, self._key = cells, key

    def lean_elsewhere(self, fold: int) -> float:
        """Return the mean AUC minus one half over the other folds; 0 where there are none."""
        leans = self._cells.leans[self._key]
        others = [lean for other, lean in leans.items() if other != fold]
        return float(np.mean(others)) if others else 0.0

    @cached_property
    def signs(self) -> dict[int, int]:
        """Fold -> the sign of the other folds' mean; +1 where there are none, or where it is 0, and
        beside other than outside non-members.
        """
        folds = self._cells.leans.get(self._key, {})
        return {fold: self._sign(self.lean_elsewhere(fold)) for fold in folds}

    def _sign(self, lean: float) -> int:
        return -1 if lean < 0 and self._cells.scores.population == "outside" else 1

    @property
    def turned(self) -> bool:
        """Whether low scores mean members on every fold."""
        return bool(self.signs) and all(sign < 0 for sign in self.signs.values())

    @cached_property
    def settled(self) -> bool:
        """Whether the sign is no guess: the same on every fold, and significant by the errors of
        the candidates that choose it; beside other than outside non-members it is the attack's own.
        """
        if self._cells.scores.population != "outside":
            return True
        label, attack = self._key
        if len(set(self.signs.values())) != 1:
            return False
        for fold in self.signs:
            others = {other: (attack, 1) for other in self.signs if other != fold}
            units = self._cells.units(label, others)
            if not units or p_of_chance(units) > 1 - LEVEL:
                return False
        return True

    @property
    def picks(self) -> Picks:
        """The cell's attack with its signs."""
        return {fold: (self._key[1], sign) for fold, sign in self.signs.items()}

    @cached_property
    def auc(self) -> Interval | None:
        """AUC of an adversary who decides the sign on other folds, spanning both signs where it is
        not :attr:`settled`; None without scores.
        """
        label, attack = self._key
        return self._cells.interval(label, self.picks, (attack,))

    @cached_property
    def plain(self) -> tuple[int, float] | None:
        """(sign, mean AUC) over all folds, the sign chosen on these; None without scores."""
        label, attack = self._key
        folds = self._cells.leans.get(self._key, {})
        units = self._cells.units(label, {fold: (attack, 1) for fold in folds})
        if not units:
            return None
        mean = float(np.mean([unit.value for unit in units.values()]))
        sign = self._sign(mean - 0.5)
        return sign, 0.5 + sign * (mean - 0.5)

    @cached_property
    def tf01(self) -> Interval | None:
        """TF01 in percent over all units pooled, with the same sign; None with too few non-members,
        or without scores.
        """
        return self._cells.rate(self._key[0], self.picks)

    def rates_elsewhere(self) -> dict[int, float]:
        """Return fold -> TPR on the other folds, with the fold's sign, which is chosen on these."""
        parts = [part for part in self._cells.parts if self._key in part.own]
        by_fold: dict[int, float] = {}
        for sign in set(self.signs.values()):
            samples = [part.own[self._key].sample.signed(sign) for part in parts]
            rates = rates_elsewhere(samples, [part.fold for part in parts], self._cells.aligned)
            for fold, of_fold in self.signs.items():
                if of_fold == sign and fold in rates:
                    by_fold[fold] = rates[fold]
        return by_fold


def _measured(scores: CellScores, sign: int) -> Measured:
    value = 0.5 + sign * (scores.auc - 0.5)
    return Measured(value, scores.error, sign * scores.pulls, scores.sample.ids)


def readings(mean: float, settled: bool) -> tuple[float, float]:
    """Return (lower, higher) AUC of both signs, or twice the mean where the sign is settled."""
    return (mean, mean) if settled else (min(mean, 1 - mean), max(mean, 1 - mean))
