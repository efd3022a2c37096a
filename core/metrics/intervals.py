"""Uncertainty of a metric: bootstrap over candidates, and 95 % intervals of a mean over runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from scipy.special import betaincinv, ndtri, stdtrit

from fedbench.core.contract.board import Interval
from fedbench.core.metrics.roc import (
    TF01_FPR,
    TF01_MIN_NONMEMBERS,
    allowed_false_positives,
    checked,
)

ROOM = 128_000_000  # bytes of cached draws; what does not fit is drawn anew each time


class SharedDraws:
    """Cache of arrays drawn from a keyed generator, by the generator's state and the sizes.

    A second request gets the same read-only array, and the generator is advanced as if it had been
    drawn: the cache changes no number.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._cached: dict[tuple[object, ...], tuple[tuple[ndarray, ...], dict[str, Any]]] = {}

    def draw(
        self,
        rng: Generator,
        sizes: tuple[object, ...],
        make: Callable[[], tuple[ndarray, ...]],
    ) -> tuple[ndarray, ...]:
        """Arrays that ``make`` draws from ``rng``; ``sizes``: all else that they depend on."""
        bits = rng.bit_generator
        key = (json.dumps(bits.state, default=ndarray.tolist), *sizes)
        if key in self._cached:
            arrays, bits.state = self._cached[key]
            return arrays
        arrays = make()
        needed = sum(a.nbytes for a in arrays)
        if needed <= self._room:
            self._room -= needed
            for a in arrays:
                a.setflags(write=False)
            self._cached[key] = arrays, dict(bits.state)
        return arrays


# --- bootstrap over the candidates ----------------------------------------------------------------


# resampled candidates held at once; bounds memory, and is part of which draws a seed gives
CHUNK = 1_000_000


@dataclass(frozen=True, kw_only=True)
class BootstrapResult:
    """Standard errors and the replicates [n] themselves; TF01 in percent.

    The ``tf01`` fields are None with fewer than 1,999 non-members.
    """

    auc_se: float
    auc: ndarray
    tf01_se: float | None = None
    tf01: ndarray | None = None


def bootstrap(
    scores: ndarray,
    member: ndarray,
    rng: Generator,
    n: int = 200,
    draws: SharedDraws | None = None,
) -> BootstrapResult:
    """Stratified bootstrap of AUC and TF01 with ``n`` replicates (Efron & Tibshirani 1993, ch. 6).

    A resample counts how often it holds each candidate: a replicate costs one pass and no sort, and
    resamples do not depend on the scores. ``draws`` holds them for other attacks on the same
    candidates.
    """
    if n < 2:
        raise ValueError(f"a bootstrap needs at least 2 replicates, got {n}")
    scores, member = checked(scores, member)
    auc = np.empty(n)
    tf01 = np.empty(n)
    with_tf01 = np.sum(~member) >= TF01_MIN_NONMEMBERS
    replicates = _Replicates(scores[member], scores[~member])
    for columns, members, nonmembers in _resamples(member, draws or SharedDraws(0), rng, n):
        lowest = replicates.lowest(nonmembers)
        auc[columns] = replicates.auc(members, lowest)
        if with_tf01:
            tf01[columns] = replicates.tf01(members, lowest)
    result = BootstrapResult(auc_se=float(auc.std(ddof=1)), auc=auc)
    if not with_tf01:
        return result
    return replace(result, tf01_se=float(tf01.std(ddof=1)), tf01=tf01)


class _Replicates:
    """Metrics of resamples, from how many non-members lie below each member.

    A resample is a column: sums down the columns of all at once need no gaps in memory.
    """

    def __init__(self, members: ndarray, nonmembers: ndarray) -> None:
        self._pairs = len(members) * len(nonmembers)
        self._order = np.argsort(nonmembers, kind="stable")
        ascending = nonmembers[self._order]
        self._left = np.searchsorted(ascending, members, "left")
        self._right = np.searchsorted(ascending, members, "right")

    def lowest(self, nonmembers: ndarray) -> ndarray:
        """[k, b]: resampled non-members among the k lowest, k from 0, from counts [N, b]."""
        sums = np.zeros((len(nonmembers) + 1, nonmembers.shape[1]), np.int32)
        sums[1:] = nonmembers.take(self._order, axis=0)
        return np.cumsum(sums, axis=0, out=sums)

    def auc(self, members: ndarray, lowest: ndarray) -> ndarray:
        """AUC [b] from counts [P, b] and :meth:`lowest`; exact, since sums of halves are."""
        below = lowest.take(self._left, axis=0)
        upto = lowest.take(self._right, axis=0)
        sums = np.einsum("mb,mb->b", members, 0.5 * (below + upto))
        return np.asarray(sums / self._pairs)

    def tf01(self, members: ndarray, lowest: ndarray) -> ndarray:
        """TF01 [b] in percent from counts [P, b] and :meth:`lowest`."""
        n = len(lowest) - 1
        called = n - lowest.take(self._left, axis=0) <= allowed_false_positives(n, TF01_FPR)
        n_called = np.where(called, members, 0).sum(axis=0)
        return np.asarray(100 * (n_called / len(members)))


def _resamples(
    member: ndarray,
    draws: SharedDraws,
    rng: Generator,
    n: int,
) -> Iterator[tuple[slice, ndarray, ndarray]]:
    """Chunks (columns, members [P, b], non-members [N, b]): how often each candidate is in each
    resample of its class.
    """
    sizes = int(member.sum()), int((~member).sum())
    step = max(1, CHUNK // len(member))
    for start in range(0, n, step):
        b = min(step, n - start)
        members, nonmembers = draws.draw(rng, (b, *sizes), partial(_both_classes, rng, b, sizes))
        yield slice(start, start + b), members, nonmembers


def _both_classes(rng: Generator, b: int, sizes: tuple[int, int]) -> tuple[ndarray, ...]:
    return tuple(_resample_counts(rng, b, size) for size in sizes)


def _resample_counts(rng: Generator, b: int, m: int) -> ndarray:
    """[m, b] counts of ``b`` times ``m`` of ``m`` with replacement, in the smallest integers."""
    drawn = rng.integers(0, m, (b, m))
    flat = drawn + m * np.arange(b)[:, None]
    counts = np.bincount(flat.ravel(), minlength=b * m).reshape(b, m)
    return np.ascontiguousarray(counts.T, np.min_scalar_type(counts.max()))


# --- intervals of a mean over runs ----------------------------------------------------------------


LEVEL = 0.95


def t_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of at least 2 independent values."""
    v = _finite(values, "values")
    if len(v) < 2:
        raise ValueError(f"a t interval needs at least 2 values, got {len(v)}")
    quantile = float(stdtrit(len(v) - 1, (1 + LEVEL) / 2))
    half = quantile * v.std(ddof=1) / np.sqrt(len(v))
    return Interval(float(v.mean()), float(half), len(v), between=True)


def combined_interval(values: Sequence[float], within_ses: Sequence[float]) -> Interval:
    """Interval of the mean over seeds x targets.

    With at least 2 values: the t interval, never narrower than the within-run one; with a single
    value: the within-run one and ``between`` False. The mean of n independent values has the
    within-run error sqrt(sum se^2) / n.
    """
    v = _finite(values, "values")
    se = _finite(within_ses, "within_ses")
    if len(v) != len(se) or len(v) == 0:
        raise ValueError(
            f"one standard error a value is needed, got {len(v)} values and {len(se)} errors"
        )
    if (se < 0).any():
        raise ValueError("a standard error is negative")
    quantile = ndtri((1 + LEVEL) / 2)
    within = float(quantile * np.sqrt(np.sum(se**2)) / len(v))
    if len(v) == 1:
        return Interval(float(v[0]), within, 1, between=False)
    t = t_interval(values)
    return replace(t, half_width=max(t.half_width, within))


def exact_interval(hits: int, n: int) -> tuple[float, float]:
    """95 % interval (low, high) of the share ``hits / n``, never too narrow (Clopper & Pearson,
    1934).
    """
    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"expected 0 <= hits <= n and n >= 1, got {hits} of {n}")
    tail = (1 - LEVEL) / 2
    low = 0.0
    high = 1.0
    if hits > 0:
        low = float(betaincinv(hits, n - hits + 1, tail))
    if hits < n:
        high = float(betaincinv(hits + 1, n - hits, 1 - tail))
    return low, high


def _finite(values: Sequence[float], name: str) -> ndarray:
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or not np.isfinite(v).all():
        raise ValueError(f"{name} must be a vector of finite numbers, got {values!r}")
    return v
