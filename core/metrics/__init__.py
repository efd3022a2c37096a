"""Metrics of membership inference and of what a defense costs: pure functions on numpy arrays.

Everywhere: ``scores`` [n] float, higher = member; ``member`` [n] bool. Non-finite scores and a missing class are a
``ValueError``.
"""

from fedbench.core.contract.candidates import IFL, MEMBER, OFL, Group
from fedbench.core.contract.interval import Interval
from fedbench.core.metrics.bootstrap import BootstrapResult, bootstrap
from fedbench.core.metrics.delong import auc_covariance
from fedbench.core.metrics.groups import Estimate, Score, score_groups
from fedbench.core.metrics.intervals import combined_interval, exact_interval, t_interval
from fedbench.core.metrics.pareto import hypervolume, pareto_front
from fedbench.core.metrics.registry import METRICS, Metric, metric
from fedbench.core.metrics.roc import auc, roc_curve
from fedbench.core.metrics.threshold import advantage, balanced_accuracy
from fedbench.core.metrics.tpr import TF01_MIN_NONMEMBERS, tf01, tpr_at_fpr
from fedbench.core.metrics.utility import delta_accuracy

__all__ = [
    "IFL", "MEMBER", "METRICS", "OFL", "TF01_MIN_NONMEMBERS", "BootstrapResult", "Estimate", "Group", "Interval", "Metric",
    "Score", "advantage", "auc", "auc_covariance", "balanced_accuracy", "bootstrap", "combined_interval", "delta_accuracy",
    "exact_interval", "hypervolume", "metric", "pareto_front", "roc_curve", "score_groups", "t_interval", "tf01", "tpr_at_fpr",
]  # fmt: skip
