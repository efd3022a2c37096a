"""Bootstrap over both classes: members and non-members are resampled separately, ties stay ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbench.core.metrics.counts import allowed_false_positives, auc_of_counts, checked, tpr_of_counts
from fedbench.core.metrics.tpr import TF01_FPR, TF01_MIN_NONMEMBERS

CHUNK = 1_000_000  # resampled candidates held at once; bounds memory, and is part of which draws a seed gives


@dataclass(frozen=True, kw_only=True)
class BootstrapResult:
    """Standard errors and the replicates [n] themselves; TF01 in percent.

    The ``tf01`` fields are None with fewer than 1,999 non-members.
    """

    auc_se: float
    auc: np.ndarray
    tf01_se: float | None = None
    tf01: np.ndarray | None = None


def bootstrap(scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, n: int = 200) -> BootstrapResult:
    """Stratified bootstrap of AUC and TF01 with ``n`` replicates (Efron & Tibshirani 1993, ch. 6).

    What is resampled are counts per distinct score, so a replicate costs one pass over the candidates, no sort.
    """
    scores, member = checked(scores, member)
    auc, tf01 = _replicates(scores, member, rng, n)
    if tf01 is None:
        return BootstrapResult(auc_se=_se(auc), auc=auc)
    return BootstrapResult(auc_se=_se(auc), auc=auc, tf01_se=_se(tf01), tf01=tf01)


def _replicates(
    scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """AUC [n] and TF01 [n] in percent on ``n`` resamples."""
    if n < 2:
        raise ValueError(f"a bootstrap needs at least 2 replicates, got {n}")
    wanted = int((~member).sum()) >= TF01_MIN_NONMEMBERS
    allowed = allowed_false_positives(int((~member).sum()), TF01_FPR)
    values, group = np.unique(scores, return_inverse=True)
    auc, tf01 = np.empty(n), np.empty(n)
    for rows, chosen, other in _resamples(member, rng, n):
        members = _counts(group[member][chosen], len(values))
        nonmembers = _counts(group[~member][other], len(values))
        auc[rows] = auc_of_counts(members, nonmembers)
        if wanted:
            tf01[rows] = 100 * tpr_of_counts(members, nonmembers, allowed)
    return auc, tf01 if wanted else None


def _resamples(
    member: np.ndarray, rng: np.random.Generator, n: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Chunks (rows, members [b, P], non-members [b, N]): positions within each class, drawn with replacement."""
    n_members, n_nonmembers = int(member.sum()), int((~member).sum())
    size = max(1, CHUNK // len(member))
    for start in range(0, n, size):
        b = min(size, n - start)
        chosen = rng.integers(0, n_members, (b, n_members))
        yield slice(start, start + b), chosen, rng.integers(0, n_nonmembers, (b, n_nonmembers))


def _counts(groups: np.ndarray, m: int) -> np.ndarray:
    """[b, m] from group numbers [b, k]: how often each group occurs in each row."""
    b = len(groups)
    return np.bincount((groups + m * np.arange(b)[:, None]).ravel(), minlength=b * m).reshape(b, m)


def _se(replicates: np.ndarray) -> float:
    return float(replicates.std(ddof=1))
