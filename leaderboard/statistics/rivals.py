"""Two rows of a section on the same candidates: whether what an adversary gets out of them differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.sheet import Key, Part
from fedbench.leaderboard.statistics.spread import Measured, Unit, by_unit, p_value

Weights = Mapping[int, Mapping[Key, float]]
"""fold -> signed weights of AUCs: the statistic is one half + sum of weight x (AUC - one half)"""


@dataclass(frozen=True)
class Rival:
    """A row in a comparison: what is ``picked`` on other folds, and its ``plain`` maximum over attacks and signs."""

    picked: Weights
    plain: Weights


@dataclass(frozen=True)
class Difference:
    """Of two rows' worst cases, paired on the same candidates; ``p``: adjusted for the number of rows compared (Holm)."""

    found: Interval
    p: float

    @property
    def shown(self) -> bool:
        """Whether it is told from none."""
        return self.p <= 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class Duel:
    """Row ``first`` minus row ``second``: worst case AUC (``shown``: told from none, all asked pairs together) and accuracy."""

    first: str
    second: str
    worst: Interval | None
    shown: bool
    accuracy: Interval | None


def told_apart(parts: Sequence[Part], one: Rival, other: Rival, margin: float = 0.0) -> tuple[float, float]:
    """(mean difference of what is picked minus ``margin``, p-value of none); (0, 1) where no unit has both.

    What is picked on the other folds is unbiased, but picks of different folds depend on each other, and where no attack
    or sign stands out the mean can be far too low: without any leak, for one row in ten of six seeds by more than its
    interval. So the lower row's plain maximum, too high if anything, must be told from the other row, too
    (docs/method.md#worst-case).
    """
    units = _plus(differences(parts, one.picked, other.picked), -margin)
    if not units:
        return 0.0, 1.0
    mean = _mean(units)
    low, high, away = (one, other, margin) if mean < 0 else (other, one, -margin)
    guard = _plus(differences(parts, high.picked, low.plain), away)
    if not guard or _mean(guard) <= 0:
        return mean, 1.0
    return mean, max(p_value(units), p_value(guard))


def differences(parts: Sequence[Part], one: Weights, other: Weights) -> dict[Unit, Measured]:
    """One minus the other, of the units that have both."""
    found = []
    for part in parts:
        if part.fold in one and part.fold in other:
            weights = dict(one[part.fold])
            for key, w in other[part.fold].items():
                weights[key] = weights.get(key, 0.0) - w
            if (measured := weighted(part, weights, 0.0)) is not None:
                found.append((part.unit, measured))
    return by_unit(found)


def weighted(part: Part, weights: Mapping[Key, float], centre: float = 0.5) -> Measured | None:
    """``centre`` + sum of weight x (AUC - one half) and its standard error; None where an AUC is missing."""
    if not weights or not weights.keys() <= part.at.keys():
        return None
    at = [part.at[key] for key in weights]
    w = np.array(list(weights.values()))
    value, variance = float(w @ (part.aucs[at] - 0.5)), float(w @ part.covariance[np.ix_(at, at)] @ w)
    if value != value:
        return None
    return Measured(centre + value, float(np.sqrt(max(variance, 0.0))), w @ part.pulls[at], part.ids)


def _plus(units: Mapping[Unit, Measured], shift: float) -> dict[Unit, Measured]:
    return {unit: replace(m, value=m.value + shift) for unit, m in units.items()}


def _mean(units: Mapping[Unit, Measured]) -> float:
    return float(np.mean([m.value for m in units.values()]))
