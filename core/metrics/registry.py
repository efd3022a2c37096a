"""Table of the metrics of an attack's scores; records, checks and boards follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy import ndarray

from fedbench.core.contract.attack import IFL, MEMBER, OFL, Group
from fedbench.core.metrics.intervals import BootstrapResult, SharedDraws, bootstrap
from fedbench.core.metrics.roc import (
    Counts,
    advantage_of,
    auc_of,
    balanced_accuracy_of,
    counts_by_value,
    tf01_of,
)

Direction = Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of scores [n] against members [n] bool."""

    name: str
    title: str
    summary: str
    of: Callable[[Counts], float | None]
    """from counts; None where it does not apply"""
    error: Callable[[BootstrapResult], float | None] | None = None
    """standard error from the bootstrap over both classes"""
    unit: str = ""
    low: float = 0
    """smallest possible value, in ``unit``"""
    high: float = 1
    digits: int = 3
    """decimals, in tables"""
    direction: Direction = "lower"
    """which values are better for the defender"""
    board: bool = False
    """whether it has a table of its own"""

    def value(self, scores: ndarray, member: ndarray) -> float | None:
        """The metric of ``scores`` [n] against ``member`` [n] bool."""
        return self.of(counts_by_value(scores, member))


METRICS: tuple[Metric, ...] = (
    Metric(
        name="auc",
        title="AUC",
        summary="chance that a member is ranked above a non-member",
        of=auc_of,
        error=lambda b: b.auc_se,
        board=True,
    ),
    Metric(
        name="tf01",
        title="TF01",
        summary="TPR at FPR <= 0.1 %; none with fewer than 1,999 non-members",
        of=tf01_of,
        error=lambda b: b.tf01_se,
        unit="%",
        high=100,
        digits=2,
        board=True,
    ),
    Metric(
        name="advantage",
        title="advantage",
        summary="largest TPR - FPR over the thresholds, signed",
        of=advantage_of,
        low=-1,
    ),
    Metric(
        name="balanced_accuracy",
        title="balanced accuracy",
        summary="(TPR + TNR) / 2 at the threshold of the advantage",
        of=balanced_accuracy_of,
    ),
)


def metric(name: str) -> Metric:
    """The metric of that name; raises ``KeyError`` for an unknown one."""
    return {m.name: m for m in METRICS}[name]


# --- all metrics of a target, by group of candidates ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """Value of a metric."""

    value: float | None
    """None where it does not apply"""
    error: float | None = None
    """standard error, None where unknown"""
    # part of a record: unknown fields are refused
    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Score:
    """Metrics of one attack over one group of candidates, by the names of ``METRICS``."""

    values: dict[str, Estimate]
    """by metric; None where one does not apply"""
    n_members: int
    """members of the group"""
    n_nonmembers: int
    """non-members of the group"""
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def value(self, metric: str) -> float | None:
        """A metric's value; None where it does not apply or was not measured."""
        return self.values.get(metric, Estimate(None)).value

    def error(self, metric: str) -> float | None:
        """A metric's standard error; None if unknown."""
        return self.values.get(metric, Estimate(None)).error


def score_groups(
    scores: ndarray,
    kind: ndarray,
    canary: ndarray,
    rng: np.random.Generator,
    in_mix: ndarray | None = None,
    draws: SharedDraws | None = None,
) -> dict[Group, Score]:
    """Metrics of each group that has members and non-members (:data:`Group`).

    Args:
        kind: [n] int, 0 member, 1 outside the federation, 2 another client's, negative excluded.
        canary: [n] bool, mislabelled samples; they count in the other groups too.
        in_mix: [n] bool, candidates that count in ``mix``; by default all.
        draws: resamples for other attacks on the same candidates.

    Raises:
        ValueError: scores of candidates that count are not finite.
    """
    scores = np.asarray(scores)
    kind = np.asarray(kind)
    canary = np.asarray(canary, dtype=bool)
    if not scores.shape == kind.shape == canary.shape:
        raise ValueError(
            f"scores, kind and canary differ in shape: {scores.shape}, {kind.shape}, {canary.shape}"
        )
    if (kind > IFL).any():
        raise ValueError(f"kind must be 0, 1, 2 or negative, found {int(kind.max())}")
    member = kind == MEMBER
    masks = group_masks(kind, canary, in_mix)
    return {name: _score(scores[mask], member[mask], rng, draws) for name, mask in masks.items()}


def group_masks(
    kind: ndarray, canary: ndarray, in_mix: ndarray | None = None
) -> dict[Group, ndarray]:
    """[n] bool of each group that has members and non-members: the candidates that count in it.

    Arguments as for :func:`score_groups`.
    """
    member = kind == MEMBER
    mix = kind >= 0
    outside = member | (kind == OFL)
    if in_mix is not None:
        mix &= in_mix
    groups: dict[Group, ndarray] = {
        "mix": mix,
        "ofl": outside,
        "ifl": member | (kind == IFL),
        "canary": outside & canary,
    }
    for name, mask in list(groups.items()):
        if not (mask & member).any() or not (mask & ~member).any():
            del groups[name]
    return groups


def _score(
    scores: ndarray,
    member: ndarray,
    rng: np.random.Generator,
    draws: SharedDraws | None,
) -> Score:
    n_members = int(member.sum())
    counts = counts_by_value(scores, member)
    values = {m.name: Estimate(m.of(counts)) for m in METRICS}
    if 1 < n_members < len(member) - 1:  # the spread is unknown with one candidate of a class
        spread = bootstrap(scores, member, rng, draws=draws)
        for m in METRICS:
            if m.error is not None:
                values[m.name] = Estimate(values[m.name].value, m.error(spread))
    return Score(values, n_members, len(member) - n_members)
