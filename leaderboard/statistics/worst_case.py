"""The worst case of each row over attacks and signs, and the mean over attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.cells import Cell, Cells, Picks, readings
from fedbench.leaderboard.statistics.intervals import at_least, extend_to, holm, widen_for_sign
from fedbench.leaderboard.statistics.paired import Rival, Weights, difference
from fedbench.leaderboard.statistics.rows import DefenseRow


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
        """The attack that is picked most often."""
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
        rows: Sequence[DefenseRow],
        attacks: Sequence[str],
        eligible: Sequence[str] | None = None,
    ) -> None:
        self._cells, self._rows, self._attacks = cells, rows, tuple(attacks)
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
            auc = self._cells.estimate(base.label, self._cells.of(base.label, attack).picks)
            if auc is not None:
                p_values[attack] = auc.p_of_chance
                means[attack] = auc.mean
        adjusted = holm(p_values)
        return tuple(a for a in means if means[a] > 0.5 and adjusted[a] <= 1 - LEVEL)

    def of(self, label: str) -> RowCase:
        """Return the results of a row."""
        if label not in self._row_cases:
            self._row_cases[label] = RowCase(self._cells, label, self.eligible)
        return self._row_cases[label]


class RowCase:
    """Row against the attacks that judge. Every result is computed on first access."""

    def __init__(self, cells: Cells, label: str, eligible: Sequence[str]) -> None:
        self._cells, self._label, self._eligible = cells, label, eligible

    def _cell(self, attack: str) -> Cell:
        return self._cells.of(self._label, attack)

    @cached_property
    def worst(self) -> WorstCase | None:
        """Worst case of the AUC; None without an eligible attack that has scores.

        The attack of each fold is the one with the largest deviation from one half on the other
        folds. Chosen on the judged scores themselves this would be a maximum of noisy numbers,
        above one half without any leak. At least the mean over attacks, which an adversary has who
        picks at random (docs/method.md#worst-case).
        """
        deviations: dict[str, dict[int, float]] = {}
        for attack in self._eligible:
            cell = self._cell(attack)
            signs = cell.signs.items()
            deviations[attack] = {fold: sign * cell.lean_elsewhere(fold) for fold, sign in signs}
        picks = self._strongest(deviations)
        interval = self._cells.interval(self._label, picks, self._eligible)
        plain = self._cells.strongest(self._label, self._eligible)
        if interval is None or plain is None:
            return None
        largest = plain.attack, plain.auc
        return WorstCase(found=at_least(interval, self.mean), picks=picks, largest=largest)

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
        cells = {attack: self._cell(attack) for attack in self._eligible}
        rates = {a: cell.rates_elsewhere() for a, cell in cells.items() if cell.tf01 is not None}
        picks = self._strongest(rates)
        rate = self._cells.rate(self._label, picks)
        return None if rate is None else WorstCase(found=rate, picks=picks)

    @cached_property
    def mean(self) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of
        them have a score.
        """
        weights = self.mean_rival.picked
        common = difference(self._cells.parts, weights, {fold: {} for fold in weights})
        if common is None:
            return None
        means, maxima, ends = [], [], []
        for attack in self._scored:
            cell = self._cell(attack)
            assert cell.auc is not None and cell.plain is not None
            mean = cell.auc.mean
            means.append(mean)
            maxima.append(cell.plain.auc)
            ends.append((mean, mean) if cell.settled else readings(mean))
        # the width where every attack has a score, around the mean of the cells as they are shown
        interval = replace(common.interval, mean=float(np.mean(means)))
        low, high = np.mean(ends, axis=0)
        return widen_for_sign(extend_to(interval, float(np.mean(maxima))), float(low), float(high))

    @property
    def _scored(self) -> list[str]:
        return [attack for attack in self._eligible if self._cell(attack).auc is not None]

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
        rivals = [self.cell_rival(attack) for attack in self._scored]
        folds = [set(rival.picked) for rival in rivals]
        common = set.intersection(*folds) if folds else set()
        picked = _mean_weights([rival.picked for rival in rivals], common)
        return Rival(picked, _mean_weights([rival.plain for rival in rivals], common))

    def _rival(self, picks: Picks, attacks: Sequence[str]) -> Rival:
        plain = self._cells.strongest(self._label, attacks)
        if plain is None:
            return Rival({}, {})
        picked = {fold: {(self._label, a): float(sign)} for fold, (a, sign) in picks.items()}
        largest = {(self._label, plain.attack): float(plain.sign)}
        return Rival(picked, dict.fromkeys(picked, largest))


def _mean_weights(sides: Sequence[Weights], folds: set[int]) -> Weights:
    means: dict[int, dict[tuple[str, str], float]] = {fold: {} for fold in folds}
    for side in sides:
        for fold, weights in means.items():
            weights |= {key: weight / len(sides) for key, weight in side[fold].items()}
    return means


def base_of(rows: Sequence[DefenseRow]) -> DefenseRow | None:
    """Return the undefended row; None where it is refuted."""
    return next((row for row in rows if row.undefended and not row.refuted), None)
