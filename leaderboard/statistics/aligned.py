"""TF01 of units too small for thresholds of their own: brought to one scale and judged by one threshold.

From 34 non-members of a unit no line leads to a false-positive rate of 0.1 %, but 25 such units have one non-member in a
thousand together. Each unit's scores are standardised by the mean and deviation of its own non-members, a non-member by those
of the *others*: judged by a mean that it pulled at, it would stand lower than a member like it, and there would be leaks where
there are none. Without a leak the rate is right whatever the scores. With one, units should be alike but for place and scale:
where their tails differ, the longest hold the threshold, which is too high for the members of some units and too low for those
of others. How far off that is: ``python -m fedbench.leaderboard.simulation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.leaderboard.statistics.pooled import SPAN, Pooled, Ranks, above, count, rate_at
from fedbench.leaderboard.statistics.sample import Sample

FEWEST_TOGETHER = 999  # non-members at 0.1 %: the largest of them is the threshold
FEWEST_OF_ONE = 30  # non-members of a unit: its mean and deviation are to be known
FEWEST_SEEDS = 3  # with fewer it does not show how far these differ
TAILS = 0.7  # deviation of log TPR that tails of the units' own give it, where members stand as far out as they can


def alignable(sizes: Sequence[int], seeds: int, fpr: float = 0.001) -> bool:
    """Whether units of so many non-members, of so many seeds, can be judged together: 999 in all and 30 each at 0.1 %."""
    return seeds >= FEWEST_SEEDS and fpr * (sum(sizes) + 1) >= 1 and min(sizes) >= FEWEST_OF_ONE


def aligned_tpr(units: Sequence[Sample], fpr: float = 0.001) -> Pooled | None:
    """Share of all members above the one threshold of ``fpr``; None with too few non-members (:func:`alignable`).

    Invariant to a change of place and scale of a unit's scores. ValueError: scores that cannot be judged.
    """
    sizes, seeds = [len(unit.nonmember) for unit in units], {unit.seed for unit in units}
    return _together(units, fpr).estimate() if alignable(sizes, len(seeds), fpr) else None


def values_elsewhere(units: Sequence[Sample], folds: Sequence[int], fpr: float = 0.001) -> dict[int, float]:
    """Fold -> the same number without its interval of the units of all other folds, at as low a rate as these have non-members
    for; 0 of hardly any. ``folds``: that of each unit."""
    usable = [(unit.aligned, fold) for unit, fold in zip(units, folds, strict=True) if len(unit.nonmember) >= FEWEST_OF_ONE]
    asked = list(dict.fromkeys(folds))
    if not usable:
        return dict.fromkeys(asked, 0.0)
    member, of_member = _joined([(unit.member, fold) for unit, fold in usable])
    nonmember, of_nonmember = _joined([(unit.nonmember, fold) for unit, fold in usable])
    order = np.argsort(-nonmember, kind="stable")
    highest, of_highest = nonmember[order], of_nonmember[order]
    counted = np.zeros((5, len(asked)))
    for i, fold in enumerate(asked):
        mine, others = member[of_member != fold], highest[of_highest != fold]
        n = len(others)
        if n:
            rate = max(fpr, 1 / (n + 1))
            rank = max(1.0, rate * (n + 1))
            near, far = (above(mine, others, min(r, float(n))) for r in (rank, SPAN * rank))
            counted[:, i] = rate, near, far, len(mine), rank
    found = np.zeros(len(asked))
    if (hit := counted[1] > 0).any():
        rate, near, far, members, rank = counted[:, hit]
        found[hit] = np.minimum(rate_at(rate, near, far, members, rank, rate), 1.0)
    return dict(zip(asked, found.tolist(), strict=True))


def _joined(parts: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(values, the number of each), behind each other."""
    return np.concatenate([values for values, _ in parts]), np.repeat([i for _, i in parts], [len(values) for values, _ in parts])


def _together(units: Sequence[Sample], fpr: float) -> _OneThreshold:
    """One unit of all: its non-members are the same where seed and id are."""
    place = {seed: i for i, seed in enumerate(dict.fromkeys(unit.seed for unit in units))}
    moved = [unit.aligned for unit in units]
    ids, seeds = _joined([(np.asarray(unit.ids), place[unit.seed]) for unit in moved])
    nonmember = np.concatenate([unit.nonmember for unit in moved])
    member, whose = _joined([(unit.member, i) for i, unit in enumerate(moved)])
    merged = Sample(0, member, nonmember, seeds * (int(ids.max()) - int(ids.min()) + 1) + ids - ids.min())
    return _OneThreshold((merged,), (count(merged, fpr),), fpr, whose, np.array([place[unit.seed] for unit in moved])[whose])


@dataclass(frozen=True)
class _OneThreshold(Ranks):
    """Units that share their threshold; ``whose`` and ``seeds`` [m]: the number of the unit and of the seed of each member."""

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
        of_tails = (TAILS * max(1 - float(self.line[1][0]), 0.0)) ** 2
        return max(_between(hit, group, rate) for group in (self.seeds, self.whose)) + of_tails


def _between(hit: np.ndarray, group: np.ndarray, rate: float) -> float:
    """Relative variance of the mean ``rate`` that comes from true differences between groups (0, 1, ...), by moments; 0 below
    3 of them."""
    members, hits = np.bincount(group), np.bincount(group, hit)
    if len(members) < 3:
        return 0.0
    excess = (hits / members).var(ddof=1) - np.mean(rate * (1 - rate) / members)
    return float(max(excess, 0) / len(members) / rate**2)
