"""The worst case of each row over attacks and signs, and the mean over attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.cells import Cell, Cells, Picks, readings
from fedbench.leaderboard.statistics.intervals import (
    holm,
    p_of_chance,
    raised,
    reaching,
    spanning,
)
from fedbench.leaderboard.statistics.paired import Rival, Weights, paired
from fedbench.leaderboard.statistics.rows import Row


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """AUC, or TF01 in percent, of an adversary who picks attack and sign on other folds."""

    found: Interval
    picks: Picks
    """by fold"""
    largest: tuple[str, float] = ("", float("nan"))
    """the plain maximum over attacks and signs of the mean AUC, biased upward, and its attack"""

    @property
    def attack(self) -> str:
        """The one picked most often."""
        names = [attack for attack, _ in self.picks.values()]
        return max(dict.fromkeys(names), key=names.count)


class WorstCases:
    """Worst cases of the rows of a section, over the attacks that judge.

    ``eligible``: these attacks, where other candidates choose them; by default those that beat
    chance here.
    """

    def __init__(
        self,
        cells: Cells,
        rows: Sequence[Row],
        attacks: Sequence[str],
        eligible: Sequence[str] | None = None,
    ) -> None:
        self.cells, self._rows, self._attacks = cells, tuple(rows), tuple(attacks)
        self._given = eligible
        self._row_cases: dict[str, RowCase] = {}

    @cached_property
    def eligible(self) -> tuple[str, ...]:
        """The attacks that beat chance on the undefended run at 95 %, all together (Holm): only
        they judge defenses.

        All, where there is no undefended run. An attack that finds nothing scores members and
        non-members alike in every training, so the error from the candidates is all there is, and
        two or three seeds can tell.
        """
        if self._given is not None:
            return tuple(self._given)
        base = base_of(self._rows)
        if base is None:
            return self._attacks
        p_values, means = {}, {}
        for attack in self._attacks:
            units = self.cells.units(base.label, self.cells.of(base.label, attack).picks)
            if units:
                p_values[attack] = p_of_chance(units)
                means[attack] = np.mean([unit.value for unit in units.values()])
        adjusted = holm(p_values)
        return tuple(a for a in means if means[a] > 0.5 and adjusted[a] <= 1 - LEVEL)

    def of(self, label: str) -> RowCase:
        """Return the results of a row."""
        if label not in self._row_cases:
            self._row_cases[label] = RowCase(self.cells, label, self.eligible)
        return self._row_cases[label]


class RowCase:
    """One row against the attacks that judge. Every result is computed on first access."""

    def __init__(self, cells: Cells, label: str, eligible: Sequence[str]) -> None:
        self._cells, self._label, self._eligible = cells, label, eligible

    def _cell(self, attack: str) -> Cell:
        return self._cells.of(self._label, attack)

    @cached_property
    def worst(self) -> WorstCase | None:
        """None without an eligible attack that has scores.

        The attack of each fold is the one with the largest deviation from one half on the other
        folds. Chosen on the judged scores themselves this would be a maximum of noisy numbers,
        above one half without any leak. At least the mean over attacks, which an adversary has who
        picks at random (docs/method.md#worst-case).
        """
        deviations: dict[str, dict[int, float]] = {}
        for attack in self._eligible:
            cell = self._cell(attack)
            if (self._label, attack) in self._cells.leans:
                signs = cell.signs.items()
                deviations[attack] = {f: sign * cell.lean_elsewhere(f) for f, sign in signs}
        picks = self._strongest(deviations)
        interval = self._cells.interval(self._label, picks, self._eligible)
        plain = self._cells.strongest(self._label, self._eligible)
        if interval is None or plain is None:
            return None
        at_least_mean = raised(interval, self.mean)
        return WorstCase(found=at_least_mean, picks=picks, largest=(plain[0], plain[2]))

    def _strongest(self, numbers: Mapping[str, Mapping[int, float]]) -> Picks:
        """Return on each fold the attack with the largest number, of attack -> fold -> number."""
        picks: dict[int, tuple[str, int]] = {}
        for fold in sorted(set().union(*numbers.values())):
            of_fold = {a: folds[fold] for a, folds in numbers.items() if fold in folds}
            best = max(of_fold, key=lambda attack: of_fold[attack])
            picks[fold] = best, self._cell(best).signs[fold]
        return picks

    @cached_property
    def worst_tf01(self) -> WorstCase | None:
        """Worst case over the eligible attacks, picked by TF01 on the other folds."""
        rates: dict[str, dict[int, float]] = {}
        for attack in self._eligible:
            if self._cell(attack).tf01 is not None:
                rates[attack] = self._cell(attack).rates_elsewhere()
        picks = self._strongest(rates)
        rate = self._cells.rate(self._label, picks)
        return None if rate is None else WorstCase(found=rate, picks=picks)

    @cached_property
    def mean(self) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of
        them have a score.
        """
        aucs = {a: auc.mean for a in self._eligible if (auc := self._cell(a).auc) is not None}
        if not aucs:
            return None
        weights = self.mean_rival.picked
        nothing: Weights = {fold: {} for fold in weights}
        interval = paired(self._cells.parts, [weights, nothing]).interval(1)
        if interval is None:
            return None
        # the width where every attack has a score, around the mean of the cells as they are shown
        maxima = [plain[1] for a in aucs if (plain := self._cell(a).plain) is not None]
        shown = replace(interval, mean=float(np.mean(list(aucs.values()))))
        ends = [readings(mean, self._cell(a).settled) for a, mean in aucs.items()]
        low, high = np.mean(ends, axis=0)
        return spanning(reaching(shown, float(np.mean(maxima))), float(low), float(high))

    @cached_property
    def rival(self) -> Rival:
        """The row's worst case as one side of a comparison."""
        return self._rival(self.worst.picks if self.worst else {}, self._eligible)

    def cell_rival(self, attack: str) -> Rival:
        """Return one attack on the row as one side of a comparison."""
        return self._rival(self._cell(attack).picks, (attack,))

    @cached_property
    def mean_rival(self) -> Rival:
        """The row's mean over the eligible attacks as one side of a comparison, of the folds that
        have all of them.
        """
        scored = [attack for attack in self._eligible if self._cell(attack).auc is not None]
        rivals = [self.cell_rival(attack) for attack in scored]
        folds = set.intersection(*(set(r.picked) for r in rivals)) if rivals else set()
        picked, plain = [r.picked for r in rivals], [r.plain for r in rivals]
        return Rival(_mean_weights(picked, folds), _mean_weights(plain, folds))

    def _rival(self, picks: Picks, attacks: Sequence[str]) -> Rival:
        plain = self._cells.strongest(self._label, attacks)
        picked = {fold: {(self._label, a): float(sign)} for fold, (a, sign) in picks.items()}
        if plain is None:
            return Rival(picked, {})
        attack, sign, _ = plain
        return Rival(picked, {fold: {(self._label, attack): float(sign)} for fold in picked})


def _mean_weights(sides: Sequence[Weights], folds: set[int]) -> Weights:
    means: dict[int, dict[tuple[str, str], float]] = {}
    for fold in folds:
        means[fold] = {}
        for side in sides:
            means[fold] |= {key: weight / len(sides) for key, weight in side[fold].items()}
    return means


def base_of(rows: Sequence[Row]) -> Row | None:
    """Return the undefended row; None where it is refuted."""
    return next((row for row in rows if row.undefended and not row.refuted), None)
