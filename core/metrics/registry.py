"""Every metric of an attack's scores: one line each, from which records, checks and boards follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedbench.core.contract.attack import IFL, MEMBER, OFL, Group
from fedbench.core.metrics.intervals import BootstrapResult, SharedDraws, bootstrap
from fedbench.core.metrics.roc import advantage, auc, balanced_accuracy, tf01

Direction = Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """``value``: (scores [n], member [n] bool) -> the number, None where it does not apply;
    ``error``: its standard error from the bootstrap over both classes. ``direction``: which values
    are better for the defender. ``low``..``high``: what is possible at all, in ``unit``.
    ``digits``: behind the point, in tables. ``board``: whether it has a table of its own.
    """

    name: str
    title: str
    summary: str
    unit: str
    direction: Direction
    low: float
    high: float
    digits: int
    value: Callable[[np.ndarray, np.ndarray], float | None]
    error: Callable[[BootstrapResult], float | None] | None = None
    board: bool = False


METRICS: tuple[Metric, ...] = (
    Metric(
        name="auc",
        title="AUC",
        summary="chance that a member is ranked above a non-member",
        unit="",
        direction="lower",
        low=0,
        high=1,
        digits=3,
        value=auc,
        error=lambda b: b.auc_se,
        board=True,
    ),
    Metric(
        name="tf01",
        title="TF01",
        summary="TPR at FPR <= 0.1 %; none with fewer than 1,999 non-members",
        unit="%",
        direction="lower",
        low=0,
        high=100,
        digits=2,
        value=tf01,
        error=lambda b: b.tf01_se,
        board=True,
    ),
    Metric(
        name="advantage",
        title="advantage",
        summary="largest TPR - FPR over the thresholds, signed",
        unit="",
        direction="lower",
        low=-1,
        high=1,
        digits=3,
        value=advantage,
    ),
    Metric(
        name="balanced_accuracy",
        title="balanced accuracy",
        summary="(TPR + TNR) / 2 at the threshold of the advantage",
        unit="",
        direction="lower",
        low=0,
        high=1,
        digits=3,
        value=balanced_accuracy,
    ),
)


def metric(name: str) -> Metric:
    """The metric of that name; raises ``KeyError`` for an unknown one."""
    return {m.name: m for m in METRICS}[name]


# --- all metrics of a target, by group of candidates ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` of a metric, None where it does not apply, and its standard ``error``, None where
    it is not known.
    """

    value: float | None
    error: float | None = None
    # a record holds these: what it does not know is refused
    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Score:
    """Every metric of one attack over one group of candidates: ``values`` by the names of
    ``metrics.registry``, over so many members (``n_members``) and non-members (``n_nonmembers``).
    """

    values: dict[str, Estimate]
    n_members: int
    n_nonmembers: int
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def value(self, metric: str) -> float | None:
        """The metric's value; None where it does not apply or was not measured."""
        found = self.values.get(metric)
        return None if found is None else found.value

    def error(self, metric: str) -> float | None:
        """Its standard error, None where it is not known."""
        found = self.values.get(metric)
        return None if found is None else found.error


def score_groups(
    scores: np.ndarray,
    kind: np.ndarray,
    canary: np.ndarray,
    rng: np.random.Generator,
    in_mix: np.ndarray | None = None,
    kept: SharedDraws | None = None,
) -> dict[Group, Score]:
    """Metrics per group: ``mix``, ``ofl``, ``ifl`` (all members against those non-members) and
    ``canary``.

    ``scores``: [n] float; ``kind``: [n] int, 0 member, 1 outside the federation, 2 another
    client's, negative excluded; ``canary``: [n] bool, mislabelled samples (they count in the other
    groups too; as a group, members against outside ones). ``in_mix``: [n] bool, who counts in
    ``mix``; by default all. ``kept``: resamples for the other attacks on the same candidates. A
    group without members or without non-members is absent. Raises ValueError on non-finite scores
    of candidates that count.
    """
    scores, kind, canary = np.asarray(scores), np.asarray(kind), np.asarray(canary, dtype=bool)
    if not scores.shape == kind.shape == canary.shape:
        raise ValueError(
            f"scores, kind and canary differ in shape: {scores.shape}, {kind.shape}, {canary.shape}"
        )
    if (kind > IFL).any():
        raise ValueError(f"kind must be 0, 1, 2 or negative, found {int(kind.max())}")
    member = kind == MEMBER
    masks = group_masks(kind, canary, in_mix)
    return {name: _score(scores[mask], member[mask], rng, kept) for name, mask in masks.items()}


def group_masks(
    kind: np.ndarray, canary: np.ndarray, in_mix: np.ndarray | None = None
) -> dict[Group, np.ndarray]:
    """[n] bool: who counts in each group that has members and non-members; ``score_groups`` says
    what the arguments are.
    """
    counted, member = kind >= 0, kind == MEMBER
    outside = member | (kind == OFL)
    groups: dict[Group, np.ndarray] = {
        "mix": counted if in_mix is None else counted & in_mix,
        "ofl": outside,
        "ifl": member | (kind == IFL),
        "canary": outside & canary,
    }
    return {
        name: mask
        for name, mask in groups.items()
        if (mask & member).any() and (mask & ~member).any()
    }


def _score(
    scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, kept: SharedDraws | None
) -> Score:
    n_members = int(member.sum())
    # the spread is unknown with one candidate of a class
    spread = bootstrap(scores, member, rng, kept=kept) if 1 < n_members < len(member) - 1 else None
    return Score(
        {
            m.name: Estimate(
                m.value(scores, member), m.error(spread) if m.error is not None and spread else None
            )
            for m in METRICS
        },
        n_members,
        len(member) - n_members,
    )
