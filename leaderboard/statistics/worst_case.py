"""The worst case of each row over attacks and signs, and the mean over attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import (
    Estimate,
    at_least,
    extend_to,
    holm,
    widen_for_sign,
)
from fedbench.leaderboard.statistics.leaks import Leak, Leaks, Picks, readings
from fedbench.leaderboard.statistics.paired import Rival, Weights, difference


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """AUC, or TF01 in percent, of an adversary who picks attack and sign on other folds."""

    interval: Interval
    picks: Picks
    """by fold"""
    largest: tuple[str, float] = ("", float("nan"))
    """the plain maximum over attacks and signs of the mean AUC, biased upward, and its attack"""

    @property
    def attack(self) -> str:
        """The attack that is picked most often."""
        names = [attack for attack, _ in self.picks.values()]
        return max(dict.fromkeys(names), key=names.count)

    @property
    def sign(self) -> int:
        """The sign that is picked most often for that attack."""
        signs = [sign for attack, sign in self.picks.values() if attack == self.attack]
        return 1 if sum(signs) >= 0 else -1


class WorstCases:
    """Worst cases of the rows of a section, over the attacks that judge.

    ``eligible``: these attacks, where other candidates choose them; by default those that beat
    chance here.
    """

    def __init__(
        self,
        leaks: Leaks,
        attacks: Sequence[str],
        eligible: Sequence[str] | None = None,
    ) -> None:
        self._leaks = leaks
        self._rows = leaks.scores.rows
        self._attacks = tuple(attacks)
        self._chosen_elsewhere = eligible
        self._row_cases: dict[str, RowCase] = {}

    @cached_property
    def eligible(self) -> tuple[str, ...]:
        """The attacks that beat chance on the undefended run at 95 %, all together (Holm): only
        they judge defenses.

        All, where there is no undefended run. An attack that finds nothing scores members and
        non-members alike in every training, so the error from the candidates is all there is, and
        two or three seeds can tell.
        """
        if self._chosen_elsewhere is not None:
            return tuple(self._chosen_elsewhere)
        if self._leaks.scores.base is None:
            return self._attacks
        aucs = self._undefended()
        adjusted = holm({attack: auc.p_of_chance for attack, auc in aucs.items()})
        return tuple(a for a in aucs if aucs[a].mean > 0.5 and adjusted[a] <= 1 - LEVEL)

    @property
    def untested(self) -> bool:
        """Whether no AUC on the undefended run has an error, of the candidates or over seeds."""
        aucs = self._undefended()
        known = [auc.sums.seeds > 1 or not np.isnan(auc.error) for auc in aucs.values()]
        return bool(aucs) and not any(known)

    def _undefended(self) -> dict[str, Estimate]:
        """Return the AUC of each attack that has scores of the undefended run."""
        base = self._leaks.scores.base
        aucs: dict[str, Estimate] = {}
        if base is None:
            return aucs
        for attack in self._attacks:
            auc = self._leaks.estimate(base.label, self._leaks.of(base.label, attack).picks)
            if auc is not None:
                aucs[attack] = auc
        return aucs

    def inapplicable(self, label: str) -> list[str]:
        """Return the attacks that judge other rows, but floors and refuted ones, and have no score
        of this one.
        """
        judging: set[str] = set()
        for row in self._rows:
            if not (row.floor or row.refuted):
                judging.update(a for a in self.eligible if self._leaks.of(row.label, a).signs)
        return [a for a in self.eligible if a in judging and not self._leaks.of(label, a).signs]

    def of(self, label: str) -> RowCase:
        """Return the results of a row."""
        if label not in self._row_cases:
            adaptive: tuple[str, ...] = ()
            if self.eligible:  # else there is nothing to rank by
                adaptive = next((row.adaptive for row in self._rows if row.label == label), ())
            self._row_cases[label] = RowCase(self._leaks, label, self.eligible, adaptive)
        return self._row_cases[label]


class RowCase:
    """Row against the attacks that judge. Every result is computed on first access.

    Args:
        eligible: attacks that judge all rows: their mean is comparable.
        adaptive: attacks on this row alone, which count in its worst case.
    """

    def __init__(
        self,
        leaks: Leaks,
        label: str,
        eligible: Sequence[str],
        adaptive: Sequence[str] = (),
    ) -> None:
        self._leaks = leaks
        self._label = label
        self._eligible = eligible
        self._attacks = (*eligible, *adaptive)

    def _leak(self, attack: str) -> Leak:
        return self._leaks.of(self._label, attack)

    @cached_property
    def worst(self) -> WorstCase | None:
        """Worst case of the AUC; None without an eligible attack that has scores.

        The attack of each fold is the one with the largest deviation from one half on the other
        folds. Chosen on the judged scores themselves this would be a maximum of noisy numbers,
        above one half without any leak. At least the mean over attacks, which an adversary has who
        picks at random (docs/method.md#worst-case).
        """
        deviations: dict[str, dict[int, float]] = {}
        for attack in self._attacks:
            leak = self._leak(attack)
            deviations[attack] = {}
            for fold, sign in leak.signs.items():
                deviations[attack][fold] = sign * leak.excess_elsewhere(fold)
        picks = self._strongest(deviations)
        interval = self._leaks.interval(self._label, picks, self._attacks)
        plain = self._leaks.strongest(self._label, self._attacks)
        if interval is None or plain is None:
            return None
        largest = plain.attack, plain.auc
        return WorstCase(interval=at_least(interval, self.mean), picks=picks, largest=largest)

    def _strongest(self, numbers: Mapping[str, Mapping[int, float]]) -> Picks:
        """Return on each fold the attack with the largest number, of attack -> fold -> number."""
        by_fold: dict[int, dict[str, float]] = {}
        for attack, folds in numbers.items():
            for fold, number in folds.items():
                by_fold.setdefault(fold, {})[attack] = number
        picks: dict[int, tuple[str, int]] = {}
        for fold, attacks in sorted(by_fold.items()):
            strongest = max(attacks, key=attacks.__getitem__)
            picks[fold] = strongest, self._leak(strongest).signs[fold]
        return picks

    @cached_property
    def worst_tf01(self) -> WorstCase | None:
        """Worst case picked by TF01 on the other folds."""
        rates: dict[str, dict[int, float]] = {}
        for attack in self._attacks:
            leak = self._leak(attack)
            if leak.has_tf01:
                rates[attack] = leak.rates_elsewhere()
        picks = self._strongest(rates)
        rate = self._leaks.rate(self._label, picks)
        return None if rate is None else WorstCase(interval=rate, picks=picks)

    @cached_property
    def mean(self) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of
        them have a score.
        """
        weights = self.mean_rival.picked
        common = difference(self._leaks.parts, weights, {fold: {} for fold in weights})
        if common is None:
            return None
        means, maxima, ends = [], [], []
        for attack in self._scored:
            leak = self._leak(attack)
            assert leak.auc is not None and leak.plain is not None
            mean = leak.auc.mean
            means.append(mean)
            maxima.append(leak.plain.auc)
            ends.append((mean, mean) if leak.settled else readings(mean))
        # the width where every attack has a score, around the mean of the AUCs as they are shown
        interval = replace(common.interval, mean=float(np.mean(means)))
        interval = extend_to(interval, float(np.mean(maxima)))
        low, high = np.mean(ends, axis=0)
        return widen_for_sign(interval, float(low), float(high))

    @property
    def _scored(self) -> list[str]:
        return [attack for attack in self._eligible if self._leak(attack).auc is not None]

    @cached_property
    def rival(self) -> Rival:
        """The row's worst case as one side of a comparison."""
        return self._rival(self.worst.picks if self.worst else {}, self._attacks)

    def attack_rival(self, attack: str) -> Rival:
        """Return one attack on the row as one side of a comparison."""
        return self._rival(self._leak(attack).picks, (attack,))

    @cached_property
    def mean_rival(self) -> Rival:
        """The row's mean over the eligible attacks as one side of a comparison, of the folds that
        have all of them.
        """
        rivals = [self.attack_rival(attack) for attack in self._scored]
        folds = [set(rival.picked) for rival in rivals]
        common = set.intersection(*folds) if folds else set()
        picked = _mean_weights([rival.picked for rival in rivals], common)
        plain = _mean_weights([rival.plain for rival in rivals], common)
        return Rival(picked, plain)

    def _rival(self, picks: Picks, attacks: Sequence[str]) -> Rival:
        plain = self._leaks.strongest(self._label, attacks)
        if plain is None:
            return Rival({}, {})
        picked: dict[int, dict[tuple[str, str], float]] = {}
        for fold, (attack, sign) in picks.items():
            picked[fold] = {(self._label, attack): float(sign)}
        largest = {(self._label, plain.attack): float(plain.sign)}
        return Rival(picked, dict.fromkeys(picked, largest))


def _mean_weights(sides: Sequence[Weights], folds: set[int]) -> Weights:
    means: dict[int, dict[tuple[str, str], float]] = {fold: {} for fold in folds}
    for side in sides:
        for fold, weights in means.items():
            for key, weight in side[fold].items():
                weights[key] = weight / len(sides)
    return means
