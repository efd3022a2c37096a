"""What an adversary gets out of every defense of a section, and which defenses can be told apart by it.

Everything is over outside non-members: inside ones leak through their own clients, so one half is no floor among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.core.metrics.tpr import TF01_FPR
from fedbench.leaderboard.statistics.chosen import Choice, signs, strongest
from fedbench.leaderboard.statistics.pooled import MAX_FPR, MIN_FALSE_POSITIVES, Sample, pooled_value
from fedbench.leaderboard.statistics.ranks import holm, rank_ranges
from fedbench.leaderboard.statistics.rates import tf01_of
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.sheet import Key, Part, parts_of
from fedbench.leaderboard.statistics.spread import Measured, Unit, by_unit, over_units, p_value

Weights = Mapping[int, Mapping[Key, float]]
"""fold -> signed weights of AUCs: the statistic is one half + sum of weight x (AUC - one half)"""


@dataclass(frozen=True, kw_only=True)
class Worst:
    """What an adversary gets who picks attack and sign on other folds. ``attack``: the one picked most often; ``picks``: by
    fold; ``largest``: the plain maximum over attacks of the mean AUC with its sign, biased upward, and its attack."""

    found: Interval
    attack: str
    picks: Mapping[int, Choice]
    largest: tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class WorstRate:
    """The same of TF01, in percent; ``attack``: the one picked most often."""

    found: Interval
    attack: str


@dataclass(frozen=True)
class Difference:
    """Of two rows' worst cases, paired on the same candidates; ``p``: adjusted for the number of rows compared (Holm)."""

    found: Interval
    p: float

    @property
    def shown(self) -> bool:
        """Whether it is told from none."""
        return self.p <= 1 - LEVEL


class Contest:
    """``rows`` against ``attacks`` on ``units``; everything is worked out when asked for, once."""

    def __init__(self, rows: Sequence[Row], attacks: Sequence[str], units: Sequence[Unit]) -> None:
        self.rows, self.attacks, self.units = tuple(rows), tuple(attacks), tuple(units)

    @cached_property
    def parts(self) -> list[Part]:
        """UserError when two records that should share their candidates do not."""
        return parts_of(self.rows, self.units)

    @cached_property
    def base(self) -> Row | None:
        """The undefended row."""
        return next((r for r in self.rows if r.undefended), None)

    @cached_property
    def eligible(self) -> tuple[str, ...]:
        """The attacks that beat chance on the undefended run at 95 %, all together (Holm): only they judge defenses.

        All, where there is no undefended run. With a single seed the error from the candidates alone must do.
        """
        if self.base is None:
            return self.attacks
        found = {a: self._signed_units(self.base.label, a) for a in self.attacks}
        above = {
            (a, ""): p_value({u: Measured(m.value - 0.5, m.error) for u, m in units.items()}, one_training=True)
            for a, units in found.items() if units
        }  # fmt: skip
        adjusted = holm(above)
        means = {a: float(np.mean([m.value for m in units.values()])) for a, units in found.items() if units}
        return tuple(a for a in self.attacks if a in means and means[a] > 0.5 and adjusted[a, ""] <= 1 - LEVEL)

    # -- one attack against one row -------------------------------------------------------------------------------------

    @cache  # noqa: B019 - as long-lived as its section
    def sign(self, label: str, attack: str) -> dict[int, int]:
        """Fold -> sign."""
        return signs(self.parts, (label, attack))

    @cache  # noqa: B019
    def signed(self, label: str, attack: str) -> Interval | None:
        """AUC of an adversary who decides the sign on other folds; None without scores."""
        return over_units(self._signed_units(label, attack))

    def _signed_units(self, label: str, attack: str) -> dict[Unit, Measured]:
        return self._own_units(label, {fold: Choice(attack, s) for fold, s in self.sign(label, attack).items()})

    def _own_units(self, label: str, picks: Mapping[int, Choice]) -> dict[Unit, Measured]:
        """Of what is picked on each fold, over all candidates that count for it."""
        found = []
        for part in self.parts:
            pick = picks.get(part.fold)
            if pick is not None and (label, pick.attack) in part.own:
                own = part.own[label, pick.attack]
                found.append((part.unit, Measured(0.5 + pick.sign * (own.auc - 0.5), own.error)))
        return by_unit(found)

    def turned(self, label: str, attack: str) -> bool:
        """Whether low scores mean members on every fold."""
        found = self.sign(label, attack)
        return bool(found) and all(s < 0 for s in found.values())

    @cache  # noqa: B019
    def tf01(self, label: str, attack: str) -> Interval | None:
        """TF01 in percent over all units pooled, with the same sign; None with too few non-members, or without scores."""
        return tf01_of(self._samples(label, {f: Choice(attack, s) for f, s in self.sign(label, attack).items()}))

    def _samples(self, label: str, picks: Mapping[int, Choice], without: int | None = None) -> list[Sample]:
        found = []
        for part in self.parts:
            pick = picks.get(part.fold)
            if pick is not None and part.fold != without and (label, pick.attack) in part.own:
                found.append(part.own[label, pick.attack].signed(pick.sign))
        return found

    # -- over attacks ---------------------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def worst(self, label: str) -> Worst | None:
        """None without an eligible attack that has scores."""
        picks = strongest(self.parts, label, self.eligible)
        means = {a: i.mean for a in self.eligible if (i := self.signed(label, a)) is not None}
        if not picks or not means:
            return None
        interval = over_units(self._own_units(label, picks))
        if interval is None:
            return None
        largest = max(means, key=lambda a: means[a])
        attack = _most([p.attack for p in picks.values()])
        return Worst(found=interval, attack=attack, picks=picks, largest=(largest, means[largest]))

    @cache  # noqa: B019
    def worst_tf01(self, label: str) -> WorstRate | None:
        """Over the eligible attacks, picked by TF01 on the other folds."""
        own = [a for a in self.eligible if self.tf01(label, a) is not None]
        picks: dict[int, Choice] = {}
        for fold in sorted({p.fold for p in self.parts}) if own else []:
            value = {a: self._elsewhere(label, a, fold) for a in own}
            best = max(own, key=lambda a: value[a])
            if fold in self.sign(label, best):
                picks[fold] = Choice(best, self.sign(label, best)[fold])
        found = tf01_of(self._samples(label, picks))
        return WorstRate(found=found, attack=_most([p.attack for p in picks.values()])) if found else None

    def _elsewhere(self, label: str, attack: str, fold: int) -> float:
        """Pooled TPR on the other folds; of one false positive more where these have too few non-members."""
        picks = {f: Choice(attack, s) for f, s in self.sign(label, attack).items()}
        samples = self._samples(label, picks, without=fold)
        n = sum(len(s.nonmember) for s in samples)
        found = pooled_value(samples, max(TF01_FPR, MIN_FALSE_POSITIVES / (n + 1))) if n >= MIN_FALSE_POSITIVES / MAX_FPR else None
        return found or 0.0

    @cache  # noqa: B019
    def mean(self, label: str) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of them have a score."""
        cells = {a: i.mean for a in self.eligible if (i := self.signed(label, a)) is not None}
        weights = {
            fold: {(label, a): self.sign(label, a).get(fold, 1) / len(cells) for a in cells}
            for fold in {p.fold for p in self.parts}
        }
        found = [(p.unit, m) for p in self.parts if (m := _measured(p, weights[p.fold])) is not None]
        interval = over_units(by_unit(found))
        # the width where every attack has a score, around the mean of the cells as they are shown
        return None if interval is None else replace(interval, mean=float(np.mean(list(cells.values()))))

    def _worst_weights(self, label: str) -> Weights:
        worst = self.worst(label)
        return {f: {(label, p.attack): float(p.sign)} for f, p in worst.picks.items()} if worst else {}

    def _cell_weights(self, label: str, attack: str) -> Weights:
        return {f: {(label, attack): float(s)} for f, s in self.sign(label, attack).items()}

    # -- who is told apart ----------------------------------------------------------------------------------------------

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Labels of the rows with a rank: complete, no floor, judged by some eligible attack."""
        return tuple(r.label for r in self.rows if r.complete and not r.floor and self.worst(r.label) is not None)

    @cached_property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """Label -> (best, worst) rank, 95 % simultaneous."""
        return self._ranges(self.ranked, self._worst_weights)

    @cache  # noqa: B019
    def leader(self, attack: str) -> str | None:
        """The one complete row that an attack does worst against, if it is told from all others."""
        labels = [r.label for r in self.rows if r.entries[attack].complete and not r.floor]
        if len(labels) < 2:
            return None
        ranges = self._ranges(labels, lambda label: self._cell_weights(label, attack))
        return next((label for label, (_, high) in ranges.items() if high == 1), None)

    def _ranges(self, labels: Sequence[str], weights: Callable[[str], Weights]) -> dict[str, tuple[int, int]]:
        found = {pair: self._differences(weights(pair[0]), weights(pair[1])) for pair in combinations(labels, 2)}
        p_values = {pair: p_value(units) if units else 1.0 for pair, units in found.items()}
        means = {pair: float(np.mean([m.value for m in units.values()])) if units else 0.0 for pair, units in found.items()}
        return rank_ranges(labels, means, p_values)

    def _differences(self, one: Weights, other: Weights) -> dict[Unit, Measured]:
        found = []
        for part in self.parts:
            if part.fold in one and part.fold in other:
                weights = dict(one[part.fold])
                for key, w in other[part.fold].items():
                    weights[key] = weights.get(key, 0.0) - w
                if (measured := _measured(part, weights, 0.0)) is not None:
                    found.append((part.unit, measured))
        return by_unit(found)

    @cache  # noqa: B019
    def against(self, reference: str) -> dict[str, Difference]:
        """Label -> its worst case minus that of the ``reference`` row, of every other row that has both."""
        theirs = self._worst_weights(reference)
        found = {
            r.label: units for r in self.rows
            if r.label != reference and (units := self._differences(self._worst_weights(r.label), theirs))
        }  # fmt: skip
        adjusted = holm({(label, reference): p_value(units) for label, units in found.items()})
        intervals = {label: over_units(units) for label, units in found.items()}
        return {label: Difference(i, adjusted[label, reference]) for label, i in intervals.items() if i is not None}


def _measured(part: Part, weights: Mapping[Key, float], centre: float = 0.5) -> Measured | None:
    """``centre`` + sum of weight x (AUC - one half) and its standard error; None where an AUC is missing."""
    if not weights or not weights.keys() <= part.at.keys():
        return None
    at = [part.at[key] for key in weights]
    w = np.array(list(weights.values()))
    value, variance = float(w @ (part.aucs[at] - 0.5)), float(w @ part.covariance[np.ix_(at, at)] @ w)
    return Measured(centre + value, float(np.sqrt(max(variance, 0.0)))) if value == value else None


def _most(names: Sequence[str]) -> str:
    return max(dict.fromkeys(names), key=list(names).count)
