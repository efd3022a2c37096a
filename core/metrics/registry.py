"""Every number that an attack's scores are boiled down to: one line a metric, from which records, checks and boards follow.

A new metric is a function of (scores, member) and its line here: it is then measured, stored, checked on reading, listed
and, where ``board`` says so, a table of every section of a board.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbench.core.metrics.bootstrap import BootstrapResult
from fedbench.core.metrics.roc import auc
from fedbench.core.metrics.threshold import advantage, balanced_accuracy
from fedbench.core.metrics.tpr import tf01

Direction = Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """``value``: (scores [n], member [n] bool) -> the number, None where it does not apply; ``error``: its standard error
    from the bootstrap over both classes. ``direction``: what is better for whoever is attacked. ``low``..``high``: what is
    possible at all, in ``unit``. ``digits``: behind the point, in tables. ``board``: whether it has a table of its own."""

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
        name="auc", title="AUC", summary="chance that a member is ranked above a non-member", unit="", direction="lower",
        low=0, high=1, digits=3, value=auc, error=lambda b: b.auc_se, board=True,
    ),
    Metric(
        name="tf01", title="TF01", summary="TPR at FPR <= 0.1 %; none with fewer than 1,999 non-members", unit="%",
        direction="lower", low=0, high=100, digits=2, value=tf01, error=lambda b: b.tf01_se, board=True,
    ),
    Metric(
        name="advantage", title="advantage", summary="largest TPR - FPR over the thresholds, signed", unit="",
        direction="lower", low=-1, high=1, digits=3, value=advantage,
    ),
    Metric(
        name="balanced_accuracy", title="balanced accuracy", summary="(TPR + TNR) / 2 at the threshold of the advantage",
        unit="", direction="lower", low=0, high=1, digits=3, value=balanced_accuracy,
    ),
)  # fmt: skip


def metric(name: str) -> Metric:
    """The metric of that name; raises ``KeyError`` for an unknown one."""
    return {m.name: m for m in METRICS}[name]
