"""The measures that two sets of records are compared by: AUC and TF01 by group of non-members, and
test accuracy or the task's utility, each with one value a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from fedbench.core import MEMBER
from fedbench.core.contract.attack import Group
from fedbench.core.metrics.registry import Direction, group_masks, metric
from fedbench.core.metrics.roc import TF01_FPR, allowed_false_positives, placements
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.intervals import Estimate, UnitValue, numbered
from fedbench.leaderboard.statistics.rows import utility_error
from fedbench.leaderboard.statistics.scores import deviations
from fedbench.leaderboard.statistics.tf01 import (
    Sample,
    alignable,
    aligned_rate,
    enough,
    low_rate,
)

ACCURACY = "accuracy"
LOSS = "loss"
"""a task's own utility of which a lower one is better"""
UTILITY = "utility"
"""a task's own utility of which a higher one is better"""
DIGITS = 5  # values of both sides are rounded to so many, far below every floor


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a cell."""

    name: str
    title: str
    group: Group | None = None
    """the non-members that count; None of a number of the run"""
    unit: str = ""
    direction: Direction
    floor: float
    """the smallest change that counts, in ``unit``"""
    digits: int
    """decimals in tables, of the value times ``scale``"""
    scale: float = 1.0
    flips: bool = True
    """whether the better direction for an attack is the worse one for a defense"""

    @property
    def stored_unit(self) -> str:
        """Return the unit of its values, of which tables print ``scale`` times as much."""
        return self.unit if self.scale == 1 else "fraction"

    @property
    def metric(self) -> str:
        """Return the name that ``--floor`` takes."""
        return self.name.partition(":")[0]


_FLOORS = {"auc": 0.01, "tf01": 1.0}
_GROUPS: dict[Group, str] = {
    "ofl": "outside",
    "ifl": "inside",
    "mix": "outside and inside",
    "canary": "canaries",
}


def _measures() -> Iterator[Measure]:
    for name, floor in _FLOORS.items():
        m = metric(name)
        for group, words in _GROUPS.items():
            yield Measure(
                name=f"{name}:{group}",
                title=f"{m.title}, {words}",
                group=group,
                unit=m.unit,
                direction=m.direction,
                floor=floor,
                digits=m.digits,
            )
    yield Measure(
        name=ACCURACY,
        title="test accuracy",
        unit="%",
        direction="higher",
        floor=0.01,
        digits=2,
        scale=100,
        flips=False,
    )
    utility = Measure(
        name=UTILITY,
        title="utility",
        direction="higher",
        floor=0.001,
        digits=4,
        flips=False,
    )
    yield utility
    yield replace(utility, name=LOSS, title="utility (lower is better)", direction="lower")


MEASURES = {m.name: m for m in _measures()}
OF_THE_GATE = ("auc:ofl", "auc:ifl", "tf01:ofl", ACCURACY)


@dataclass(frozen=True)
class Value:
    """A measure of one seed."""

    parts: tuple[float, ...]
    """by target; compared by their mean"""
    error: float | None
    """standard error from the candidates, None where unknown"""
    pulls: np.ndarray | None = field(default=None, compare=False, repr=False)
    """contribution of each sample to the error: their squares add up to its square; None of several
    targets, and in files
    """

    @property
    def mean(self) -> float:
        """Return what is compared."""
        return sum(self.parts) / len(self.parts)


Values = dict[str, dict[int, Value]]
"""measure -> seed -> value"""


def values_of(seeds: Mapping[int, Sequence[Candidates]], measures: Iterable[str]) -> Values:
    """Return measures of one cell from the candidates of its targets, by seed.

    A measure is left out where a target lacks its group; TF01 where all seeds together have too few
    non-members. TF01 is that of a board, seed by seed.
    """
    values: Values = {}
    for name in measures:
        group = MEASURES[name].group
        if group is None:
            continue
        in_group = {}
        sizes = []
        for seed, targets in sorted(seeds.items()):
            in_group[seed] = [_in_group(c, group) for c in targets]
            sizes += [len(c.ids) for c in in_group[seed]]
        if min(sizes, default=0) == 0:
            continue
        if MEASURES[name].metric == "auc":
            values[name] = {seed: _auc(seed, targets) for seed, targets in in_group.items()}
        elif rates := _tf01(in_group):
            values[name] = rates
    return values


def accuracy_of(loaded: LoadedRecord) -> Value:
    """Return the utility of the run, by default its test accuracy, with the standard error."""
    pulls = [deviations(loaded.test_correct())]
    return _value([loaded.record.accuracy], utility_error(loaded), pulls)


def _in_group(c: Candidates, group: Group) -> Candidates:
    """Return the candidates that count in the group; none where it lacks members or non-members."""
    mask = group_masks(c.kind, c.canary, c.in_mix).get(group, np.zeros(len(c.ids), bool))
    return Candidates(*(array[mask] for array in vars(c).values()))


def _auc(seed: int, targets: Sequence[Candidates]) -> Value:
    units, pulls = {}, []
    members = [c.kind == MEMBER for c in targets]
    ids = numbered([c.ids[~member] for c, member in zip(targets, members, strict=True)])
    for i, (c, member) in enumerate(zip(targets, members, strict=True)):
        aucs, below, above = placements(c.scores, member)
        of_members = deviations(below[0])
        of_nonmembers = deviations(above[0])
        pulls.append(np.concatenate([of_members, of_nonmembers]))
        error = float("nan")
        if min(len(of_members), len(of_nonmembers)) > 1:
            error = float(np.linalg.norm(pulls[i]))
        units[seed, i] = UnitValue(float(aucs[0]), error, of_nonmembers, ids[i])
    return _value([m.value for m in units.values()], Estimate(units).error, pulls)


def _tf01(seeds: Mapping[int, Sequence[Candidates]]) -> dict[int, Value]:
    sizes = [int((c.kind != MEMBER).sum()) for c in chain(*seeds.values())]
    together = enough(sizes)
    if not together and not alignable(sizes, len(seeds)):
        return {}
    values = {}
    for seed, targets in seeds.items():
        samples = [_sample(seed, c) for c in targets]
        pulls = [100 * deviations(_called(s)) for s in samples]
        rate = low_rate(samples) if together else aligned_rate(samples)
        values[seed] = _value([100 * rate], None, pulls)
    return values


def _sample(seed: int, c: Candidates) -> Sample:
    member = c.kind == MEMBER
    return Sample(seed, c.scores[member], c.scores[~member], c.ids[~member])


def _called(s: Sample) -> np.ndarray:
    """Return [members] bool: who is called a member at the threshold of TF01."""
    rank = max(allowed_false_positives(len(s.nonmember), TF01_FPR), 0)
    return np.asarray(s.member > np.sort(s.nonmember)[-1 - rank])


def _value(parts: Sequence[float], error: float | None, pulls: Sequence[np.ndarray]) -> Value:
    if error is not None:
        error = None if np.isnan(error) else round(error, DIGITS)
    rounded = tuple(round(float(part), DIGITS) for part in parts)
    return Value(rounded, error, pulls[0] if len(pulls) == 1 else None)
