"""The measures that the gate compares: AUC on outside and on inside non-members, TF01 and test
accuracy, by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.core import MEMBER
from fedbench.core.contract.attack import Group
from fedbench.core.metrics import auc, auc_covariance
from fedbench.core.metrics.registry import Direction, group_masks, metric
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.intervals import Measured, candidates_error
from fedbench.leaderboard.statistics.rows import utility_error
from fedbench.leaderboard.statistics.scores import pulls_of
from fedbench.leaderboard.statistics.tf01 import (
    Sample,
    alignable,
    aligned_rate,
    enough,
    pooled_value,
)

ACCURACY = "accuracy"
DIGITS = 5  # a value is rounded to so many, far below every floor: both sides of a comparison alike


@dataclass(frozen=True, kw_only=True)
class Measure:
    """``group``: of the non-members, None where there are none; ``floor``: the smallest change that
    counts, in ``unit``; ``scale`` and ``digits``: of the numbers in tables; ``flips``: whether the
    better direction for an attack is the worse one for a defense.
    """

    name: str
    title: str
    group: Group | None
    unit: str
    direction: Direction
    low: float
    high: float
    floor: float
    digits: int
    scale: float = 1.0
    flips: bool = True

    @property
    def metric(self) -> str:
        """What ``--floor`` calls it."""
        return self.name.partition(":")[0]


def _of(name: str, group: Group, where: str, floor: float) -> Measure:
    """A metric of the registry on one group of non-members."""
    m = metric(name)
    return Measure(
        name=f"{name}:{group}",
        title=f"{m.title}, {where}",
        group=group,
        unit=m.unit,
        direction=m.direction,
        low=m.low,
        high=m.high,
        floor=floor,
        digits=m.digits,
    )


MEASURES = {
    m.name: m
    for m in (
        _of("auc", "ofl", "outside", 0.01),
        _of("auc", "ifl", "inside", 0.01),
        _of("tf01", "ofl", "outside", 1.0),
        # of a run, not of scores, so it does not stand in the metrics' registry; a loss of it is
        # worse for both sides
        Measure(
            name=ACCURACY,
            title="test accuracy",
            group=None,
            unit="%",
            direction="higher",
            low=0,
            high=1,
            floor=0.01,
            digits=2,
            scale=100,
            flips=False,
        ),
    )
}


@dataclass(frozen=True)
class Value:
    """One seed: ``parts`` by target, compared by their mean; standard ``error`` from the
    candidates, None where unknown.
    """

    parts: tuple[float, ...]
    error: float | None

    @property
    def mean(self) -> float:
        """What is compared."""
        return sum(self.parts) / len(self.parts)


Values = dict[str, dict[int, Value]]
"""measure -> seed -> value"""


def values_of(records: Mapping[int, LoadedRecord]) -> Values:
    """The measures of one cell, from the scores of its seeds. ``accuracy`` is its run's:
    :func:`accuracy_of`.

    TF01 is that of a board, worked out seed by seed; it is left out where all seeds together have
    too few non-members for it.
    """
    judged = {seed: _judged(loaded) for seed, loaded in sorted(records.items())}
    found: Values = {}
    for name, m in MEASURES.items():
        if m.group is None or not all(
            m.group in masks for targets in judged.values() for _, masks in targets
        ):
            continue
        by_seed = {
            seed: [(c, masks[m.group]) for c, masks in targets] for seed, targets in judged.items()
        }
        if m.metric == "auc":
            found[name] = {seed: _auc(seed, targets) for seed, targets in by_seed.items()}
        else:
            found |= {name: tf01} if (tf01 := _tf01(by_seed)) else {}
    return found


def accuracy_of(loaded: LoadedRecord) -> Value:
    """Test accuracy of the run, with its standard error."""
    return _value([loaded.record.accuracy], utility_error(loaded))


_Targets = Sequence[tuple[Candidates, np.ndarray]]


def _judged(loaded: LoadedRecord) -> list[tuple[Candidates, dict[Group, np.ndarray]]]:
    """Each target's candidates, and who counts in which group."""
    return [(c, group_masks(c.kind, c.canary, c.in_mix)) for c in loaded.everything()[0].values()]


def _auc(seed: int, targets: _Targets) -> Value:
    found = {}
    for i, (c, mask) in enumerate(targets):
        scores, member = c.scores[mask], c.kind[mask] == MEMBER
        pulls = pulls_of(scores[member], scores[~member])
        found[seed, i] = Measured(*_with_error(scores, member), pulls, c.ids[mask][~member])
    return _value([m.value for m in found.values()], candidates_error(found))


def _with_error(scores: np.ndarray, member: np.ndarray) -> tuple[float, float]:
    if min(member.sum(), (~member).sum()) < 2:
        return auc(scores, member), float("nan")
    aucs, covariance = auc_covariance(scores[None], member)
    return float(aucs[0]), float(np.sqrt(covariance[0, 0]))


def _tf01(by_seed: Mapping[int, _Targets]) -> dict[int, Value]:
    samples = {
        seed: [_sample(seed, c, mask) for c, mask in targets] for seed, targets in by_seed.items()
    }
    sizes = [len(s.nonmember) for own in samples.values() for s in own]
    if not enough(sizes) and not alignable(sizes, len(samples)):
        return {}
    rate = pooled_value if enough(sizes) else aligned_rate
    return {seed: _value([100 * rate(own)], None) for seed, own in samples.items()}


def _sample(seed: int, c: Candidates, mask: np.ndarray) -> Sample:
    member = mask & (c.kind == MEMBER)
    return Sample(seed, c.scores[member], c.scores[mask & ~member], c.ids[mask & ~member])


def _value(parts: Sequence[float], error: float | None) -> Value:
    known = error is not None and error == error
    return Value(
        tuple(round(float(p), DIGITS) for p in parts),
        round(error, DIGITS) if error is not None and known else None,
    )
