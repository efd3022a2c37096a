"""The scores of one audited unit, and the same on the scale of its own non-members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_FARTHEST = 1e300  # of what stands out where nothing else differs; finite, so that it can be compared


@dataclass(frozen=True)
class Sample:
    """One audited unit (seed, target): scores on a scale of its own, higher says member."""

    seed: int
    member: np.ndarray
    """[m] float, scores of the members"""
    nonmember: np.ndarray
    """[n] float, scores of the non-members"""
    ids: np.ndarray
    """[n] int: which samples the non-members are; one of several targets of a seed has one id in all of them"""

    @cached_property
    def aligned(self) -> Sample:
        """:func:`align` of it, worked out once."""
        return align(self)

    def negated(self) -> Sample:
        """Of scores where lower says member."""
        found = Sample(self.seed, -self.member, -self.nonmember, self.ids)
        if "aligned" in self.__dict__:
            found.__dict__["aligned"] = self.aligned.negated()
        return found


def align(unit: Sample) -> Sample:
    """The unit on the common scale: mean 0 and deviation 1 of its own non-members, of which there must be three."""
    (found,) = _aligned([unit])
    return found


def align_all(units: Iterable[Sample]) -> None:
    """Work out :attr:`Sample.aligned` of all with three non-members at once: the same, in a fraction of the time."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for unit in units:
        if len(unit.nonmember) > 2:
            groups.setdefault((len(unit.member), len(unit.nonmember)), []).append(unit)
    for alike in groups.values():
        for unit, moved in zip(alike, _aligned(alike), strict=True):
            unit.__dict__["aligned"] = moved


def _aligned(units: Sequence[Sample]) -> list[Sample]:
    """Units [V] of as many members and as many non-members."""
    member, x = (np.stack(of).astype(np.float64) for of in ([u.member for u in units], [u.nonmember for u in units]))
    n = x.shape[1]
    largest = np.abs(x).max(axis=1, keepdims=True)  # squares are not to overflow
    largest[largest == 0] = 1.0
    member, x = member / largest, x / largest
    mean = x.mean(axis=1, keepdims=True)
    centred = x - mean
    squares = (centred**2).sum(axis=1, keepdims=True)
    of_others = -centred / (n - 1)  # the mean without each one
    variance = np.maximum((squares - centred**2 * n / (n - 1)) / (n - 2), 0.0)
    rounding = np.maximum(1e-20 * (x**2).sum(axis=1, keepdims=True), 1e-14 * squares) / n
    moved = _over(member - mean, squares / (n - 1), rounding), _over(centred - of_others, variance, rounding)
    return [Sample(unit.seed, m, o, unit.ids) for unit, m, o in zip(units, *moved, strict=True)]


def _over(away: np.ndarray, variance: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """Distances in deviations; where nothing varies, whatever differs is farther than anything else."""
    flat, same = variance <= rounding, away**2 <= rounding
    found = np.divide(away, np.sqrt(variance), out=np.sign(away) * _FARTHEST, where=np.broadcast_to(~flat, away.shape))
    return np.where(flat & same, 0.0, np.clip(found, -_FARTHEST, _FARTHEST))
