"""TF01 of units too small for thresholds of their own: brought to one scale and judged by one threshold.

From 34 non-members of a unit no line leads to a false-positive rate of 0.1 %, but 25 such units have one non-member in a
thousand together. Each unit's scores are standardised by the mean and deviation of its own non-members, a non-member by those
of the *others*: judged by a mean that it pulled at, it would stand lower than a member like it, and there would be leaks where
there are none. Without a leak the rate is right whatever the scores. With one, units should be alike but for place and scale:
where their tails differ, the longest hold the threshold, which is too high for the members of some units and too low for those
of others. How far off that is: ``python -m fedbench.leaderboard.simulations.tf01_small``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.leaderboard.statistics.pooled import Pooled, Ranks, Sample, count, slope

FEWEST_TOGETHER = 999  # non-members at 0.1 %: the largest of them is the threshold
FEWEST_OF_ONE = 30  # non-members of a unit: its mean and deviation are to be known
FEWEST_SEEDS = 3  # with fewer it does not show how far these differ
TAILS = 0.7  # deviation of log TPR that tails of the units' own give it, where members stand as far out as they can
_FARTHEST = 1e300  # of what stands out where nothing else differs; finite, so that it can be compared


def alignable(sizes: Sequence[int], seeds: int, fpr: float = 0.001) -> bool:
    """Whether units of so many non-members, of so many seeds, can be judged together: 999 in all and 30 each at 0.1 %."""
    return seeds >= FEWEST_SEEDS and fpr * (sum(sizes) + 1) >= 1 and min(sizes) >= FEWEST_OF_ONE


def align(unit: Sample) -> Sample:
    """The unit on the common scale: mean 0 and deviation 1 of its own non-members, of which there must be three."""
    n, member, x = len(unit.nonmember), *(np.asarray(a, dtype=np.float64) for a in (unit.member, unit.nonmember))
    largest = float(np.abs(x).max()) or 1.0  # squares are not to overflow
    member, x = member / largest, x / largest
    centred = x - x.mean()
    of_others = -centred / (n - 1)  # the mean without each one
    variance = np.maximum((centred @ centred - centred**2 * n / (n - 1)) / (n - 2), 0.0)
    rounding = float(max(1e-20 * (x @ x), 1e-14 * (centred @ centred)) / n)
    return Sample(
        unit.seed, _over(member - x.mean(), centred @ centred / (n - 1), rounding),
        _over(centred - of_others, variance, rounding), unit.ids,
    )  # fmt: skip


def _over(away: np.ndarray, variance: np.ndarray | float, rounding: float) -> np.ndarray:
    """Distances in deviations; where nothing varies, whatever differs is farther than anything else."""
    away, variance = np.broadcast_arrays(away, variance)
    flat = variance <= rounding
    same = away**2 <= rounding
    found = np.divide(away, np.sqrt(variance), out=np.sign(away) * _FARTHEST, where=~flat)
    return np.where(flat & same, 0.0, np.clip(found, -_FARTHEST, _FARTHEST))


def aligned_tpr(units: Sequence[Sample], fpr: float = 0.001) -> Pooled | None:
    """Share of all members above the one threshold of ``fpr``; None with too few non-members (:func:`alignable`).

    Invariant to a change of place and scale of a unit's scores. ValueError: scores that cannot be judged.
    """
    sizes, seeds = [len(unit.nonmember) for unit in units], {unit.seed for unit in units}
    return _together(units, fpr).estimate() if alignable(sizes, len(seeds), fpr) else None


def aligned_value(units: Sequence[Sample], fpr: float = 0.001) -> float:
    """The same number without its interval, at as low a rate as there are non-members for; 0 of hardly any."""
    usable = [unit for unit in units if len(unit.nonmember) >= FEWEST_OF_ONE]
    lowest = 1 / (sum(len(unit.nonmember) for unit in usable) + 1)
    return _together(usable, max(fpr, lowest)).value() if usable else 0.0


def _together(units: Sequence[Sample], fpr: float) -> _OneThreshold:
    """One unit of all: its non-members are the same where seed and id are."""
    moved = [align(unit) for unit in units]
    seeds = np.concatenate([np.full(len(unit.nonmember), unit.seed) for unit in moved])
    ids = np.concatenate([np.asarray(unit.ids) for unit in moved])
    _, which = np.unique(np.stack([seeds, ids]), axis=1, return_inverse=True)
    merged = Sample(
        0, np.concatenate([unit.member for unit in moved]), np.concatenate([unit.nonmember for unit in moved]), which.ravel()
    )
    whose = np.concatenate([np.full(len(unit.member), i) for i, unit in enumerate(moved)])
    return _OneThreshold((merged,), (count(merged, fpr),), fpr, whose, np.array([unit.seed for unit in moved])[whose])


@dataclass(frozen=True)
class _OneThreshold(Ranks):
    """Units that share their threshold; ``whose`` and ``seeds`` [m]: the unit and the seed of each member."""

    whose: np.ndarray
    seeds: np.ndarray

    def between_seeds(self, of_thresholds: float, rate: float) -> float:
        """As for thresholds of their own, but they share the threshold's noise, so none of it is between them; and between units
        where that is more: what a mean and a deviation are unsure of moves all members of a unit together, and tails of their
        own set units apart."""
        (merged,), (counted,) = self.units, self.counted
        hit = merged.member > np.sort(merged.nonmember)[-max(1, round(counted.rank))]
        if not 0 < rate < 1:
            return 0.0
        near, far = self.hits
        _, a = slope(np.array([near]), np.array([far]), self.members, counted.rank)
        of_tails = (TAILS * max(1 - float(a[0]), 0.0)) ** 2
        return max(_between(hit, group, rate) for group in (self.seeds, self.whose)) + of_tails


def _between(hit: np.ndarray, group: np.ndarray, rate: float) -> float:
    """Relative variance of the mean ``rate`` that comes from true differences between groups, by moments; 0 below 3 of them."""
    _, which = np.unique(group, return_inverse=True)
    members, hits = np.bincount(which), np.bincount(which, hit)
    if len(members) < 3:
        return 0.0
    excess = (hits / members).var(ddof=1) - np.mean(rate * (1 - rate) / members)
    return float(max(excess, 0) / len(members) / rate**2)
