"""Bootstrap over both classes: members and non-members are resampled separately, ties stay ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedbench.core.metrics.counts import allowed_false_positives, checked
from fedbench.core.metrics.kept import Kept
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


def bootstrap(
    scores: np.ndarray, member: np.ndarray, rng: np.random.Generator, n: int = 200, kept: Kept | None = None
) -> BootstrapResult:
    """Stratified bootstrap of AUC and TF01 with ``n`` replicates (Efron & Tibshirani 1993, ch. 6).

    A resample is how often it holds each candidate, so that a replicate costs one pass over the candidates, no sort, and the
    resamples do not depend on the scores: ``kept`` holds them for the other attacks on the same candidates.
    """
    if n < 2:
        raise ValueError(f"a bootstrap needs at least 2 replicates, got {n}")
    scores, member = checked(scores, member)
    auc, tf01 = _replicates(scores, member, (kept or Kept(0)), rng, n)
    if tf01 is None:
        return BootstrapResult(auc_se=_se(auc), auc=auc)
    return BootstrapResult(auc_se=_se(auc), auc=auc, tf01_se=_se(tf01), tf01=tf01)


def _replicates(
    scores: np.ndarray, member: np.ndarray, kept: Kept, rng: np.random.Generator, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """AUC [n] and TF01 [n] in percent on ``n`` resamples: of each resampled member, how many non-members are below it, and
    whether few enough are not."""
    mine, others = scores[member], scores[~member]
    allowed = allowed_false_positives(len(others), TF01_FPR)
    order = np.argsort(others, kind="stable")
    ascending = others[order]
    left, right = np.searchsorted(ascending, mine, "left"), np.searchsorted(ascending, mine, "right")
    auc, tf01 = np.empty(n), np.empty(n)
    for rows, chosen, other in _resamples(len(mine), len(others), kept, rng, n):
        below = np.zeros((len(other), len(others) + 1), np.int32)  # [b, k]: resampled non-members among the k lowest
        np.cumsum(other.take(order, axis=1), axis=1, out=below[:, 1:])
        under, upto = below.take(left, axis=1), below.take(right, axis=1)
        auc[rows] = np.einsum("bm,bm->b", chosen, 0.5 * (under + upto)) / (len(mine) * len(others))
        tf01[rows] = 100 * (np.where(len(others) - under <= allowed, chosen, 0).sum(axis=1) / len(mine))
    return auc, tf01 if len(others) >= TF01_MIN_NONMEMBERS else None


def _resamples(
    n_members: int, n_nonmembers: int, kept: Kept, rng: np.random.Generator, n: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Chunks (rows, members [b, P], non-members [b, N]): how often each candidate is in each resample of its class."""
    size = max(1, CHUNK // (n_members + n_nonmembers))
    for start in range(0, n, size):
        b = min(size, n - start)
        draw = partial(_both, rng, b, n_members, n_nonmembers)
        chosen, other = kept.draw(rng, (b, n_members, n_nonmembers), draw)
        yield slice(start, start + b), chosen, other


def _both(rng: np.random.Generator, b: int, n_members: int, n_nonmembers: int) -> tuple[np.ndarray, ...]:
    return _drawn(rng, b, n_members), _drawn(rng, b, n_nonmembers)


def _drawn(rng: np.random.Generator, b: int, m: int) -> np.ndarray:
    """[b, m]: ``b`` times ``m`` of ``m`` with replacement, as counts in the smallest whole numbers that hold them."""
    flat = rng.integers(0, m, (b, m)) + m * np.arange(b)[:, None]
    counts = np.bincount(flat.ravel(), minlength=b * m).reshape(b, m)
    return counts.astype(np.min_scalar_type(counts.max()))


def _se(replicates: np.ndarray) -> float:
    return float(replicates.std(ddof=1))
