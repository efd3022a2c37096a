"""Metrics of membership inference and of what a defense costs: pure functions on numpy arrays.

Everywhere: ``scores`` [n] float, higher = member; ``member`` [n] bool. Non-finite scores and a
missing class are a ``ValueError``.
"""

from fedbench.core.contract.attack import IFL, MEMBER, OFL, Group
from fedbench.core.contract.board import Interval
from fedbench.core.metrics.intervals import (
    BootstrapResult,
    bootstrap,
    combined_interval,
    exact_interval,
    t_interval,
)
from fedbench.core.metrics.registry import METRICS, Estimate, Metric, Score, metric, score_groups
from fedbench.core.metrics.roc import (
    TF01_MIN_NONMEMBERS,
    advantage,
    auc,
    auc_covariance,
    balanced_accuracy,
    roc_curve,
    tf01,
    tpr_at_fpr,
)
from fedbench.core.metrics.utility import delta_accuracy, hypervolume, pareto_front, run_accuracy

__all__ = [
    "IFL",
    "MEMBER",
    "METRICS",
    "OFL",
    "TF01_MIN_NONMEMBERS",
    "BootstrapResult",
    "Estimate",
    "Group",
    "Interval",
    "Metric",
    "Score",
    "advantage",
    "auc",
    "auc_covariance",
    "balanced_accuracy",
    "bootstrap",
    "combined_interval",
    "delta_accuracy",
    "exact_interval",
    "hypervolume",
    "metric",
    "pareto_front",
    "roc_curve",
    "run_accuracy",
    "score_groups",
    "t_interval",
    "tf01",
    "tpr_at_fpr",
]
