"""The uncertainty of a metric: bootstrap over the candidates, and 95 % intervals of a mean over
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
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
        self._drawn: dict[tuple[object, ...], tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {}

    def draw(
        self,
        rng: np.random.Generator,
        sizes: tuple[object, ...],
        make: Callable[[], tuple[np.ndarray, ...]],
    ) -> tuple[np.ndarray, ...]:
        """What ``make`` draws from ``rng``; ``sizes``: everything else that it depends on."""
        key = (repr(rng.bit_generator.state), *sizes)
        if key in self._drawn:
            arrays, after = self._drawn[key]
            rng.bit_generator.state = after
            return arrays
        arrays = make()
        needed = sum(a.nbytes for a in arrays)
        if needed <= self._room:
            self._room -= needed
            for a in arrays:
                a.setflags(write=False)
            self._drawn[key] = arrays, dict(rng.bit_generator.state)
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
    auc: np.ndarray
    tf01_se: float | None = None
    tf01: np.ndarray | None = None


def bootstrap(
    scores: np.ndarray,
    member: np.ndarray,
    rng: np.random.Generator,
    n: int = 200,
    kept: SharedDraws | None = None,
) -> BootstrapResult:
    """Stratified bootstrap of AUC and TF01 with ``n`` replicates (Efron & Tibshirani 1993, ch. 6).

    A resample is how often it holds each candidate, so that a replicate costs one pass over the
    candidates, no sort, and the resamples do not depend on the scores: ``kept`` holds them for the
    other attacks on the same candidates.
    """
    if n < 2:
        raise ValueError(f"a bootstrap needs at least 2 replicates, got {n}")
    scores, member = checked(scores, member)
    auc, tf01 = _replicates(scores, member, (kept or SharedDraws(0)), rng, n)
    if tf01 is None:
        return BootstrapResult(auc_se=_se(auc), auc=auc)
    return BootstrapResult(auc_se=_se(auc), auc=auc, tf01_se=_se(tf01), tf01=tf01)


def _replicates(
    scores: np.ndarray, member: np.ndarray, kept: SharedDraws, rng: np.random.Generator, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """AUC [n] and TF01 [n] in percent on ``n`` resamples: of each resampled member, how many
    non-members are below it, and whether few enough are not.
    """
    mine, others = scores[member], scores[~member]
    allowed = allowed_false_positives(len(others), TF01_FPR)
    order = np.argsort(others, kind="stable")
    ascending = others[order]
    left, right = (
        np.searchsorted(ascending, mine, "left"),
        np.searchsorted(ascending, mine, "right"),
    )
    auc, tf01 = np.empty(n), np.empty(n)
    for rows, chosen, other in _resamples(len(mine), len(others), kept, rng, n):
        # [b, k]: resampled non-members among the k lowest
        below = np.zeros((len(other), len(others) + 1), np.int32)
        np.cumsum(other.take(order, axis=1), axis=1, out=below[:, 1:])
        under, upto = below.take(left, axis=1), below.take(right, axis=1)
        auc[rows] = np.einsum("bm,bm->b", chosen, 0.5 * (under + upto)) / (len(mine) * len(others))
        tf01[rows] = 100 * (
            np.where(len(others) - under <= allowed, chosen, 0).sum(axis=1) / len(mine)
        )
    return auc, tf01 if len(others) >= TF01_MIN_NONMEMBERS else None


def _resamples(
    n_members: int, n_nonmembers: int, kept: SharedDraws, rng: np.random.Generator, n: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Chunks (rows, members [b, P], non-members [b, N]): how often each candidate is in each
    resample of its class.
    """
    size = max(1, CHUNK // (n_members + n_nonmembers))
    for start in range(0, n, size):
        b = min(size, n - start)
        draw = partial(_both, rng, b, n_members, n_nonmembers)
        chosen, other = kept.draw(rng, (b, n_members, n_nonmembers), draw)
        yield slice(start, start + b), chosen, other


def _both(
    rng: np.random.Generator, b: int, n_members: int, n_nonmembers: int
) -> tuple[np.ndarray, ...]:
    return _drawn(rng, b, n_members), _drawn(rng, b, n_nonmembers)


def _drawn(rng: np.random.Generator, b: int, m: int) -> np.ndarray:
    """[b, m]: ``b`` times ``m`` of ``m`` with replacement, as counts in the smallest whole numbers
    that hold them.
    """
    flat = rng.integers(0, m, (b, m)) + m * np.arange(b)[:, None]
    counts = np.bincount(flat.ravel(), minlength=b * m).reshape(b, m)
    return counts.astype(np.min_scalar_type(counts.max()))


def _se(replicates: np.ndarray) -> float:
    return float(replicates.std(ddof=1))


# --- intervals of a mean over runs ----------------------------------------------------------------


LEVEL = 0.95


def t_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of at least 2 independent values."""
    v = _finite(values, "values")
    if len(v) < 2:
        raise ValueError(f"a t interval needs at least 2 values, got {len(v)}")
    half = _student(len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))
    return Interval(float(v.mean()), float(half), len(v), between=True)


@cache
def _student(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def combined_interval(values: Sequence[float], within_ses: Sequence[float]) -> Interval:
    """Interval of the mean over seeds x targets, with the within-run standard errors of the same
    values.

    With at least 2 values: the t interval, never narrower than the within-run one; of a single
    value: the within-run one and ``between`` False. Within: the mean of n independent values has
    the error sqrt(sum se^2) / n.
    """
    v, se = _finite(values, "values"), _finite(within_ses, "within_ses")
    if len(v) != len(se) or len(v) == 0:
        raise ValueError(
            f"one standard error a value is needed, got {len(v)} values and {len(se)} errors"
        )
    if (se < 0).any():
        raise ValueError("a standard error is negative")
    within = float(ndtri((1 + LEVEL) / 2) * np.sqrt(np.sum(se**2)) / len(v))
    if len(v) < 2:
        return Interval(float(v.mean()), within, len(v), between=False)
    t = t_interval(values)
    return Interval(t.mean, max(t.half_width, within), t.n, between=True)


def exact_interval(hits: int, of: int) -> tuple[float, float]:
    """(low, high) of a share, 95 %, of which ``hits`` of ``of`` were counted; never too narrow
    (Clopper & Pearson, 1934).
    """
    if not 0 <= hits <= of or of < 1:
        raise ValueError(f"expected 0 <= hits <= of and of >= 1, got {hits} of {of}")
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, of - hits + 1, tail))
    return low, 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 1 - tail))


def _finite(values: Sequence[float], name: str) -> np.ndarray:
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or not np.isfinite(v).all():
        raise ValueError(f"{name} must be a vector of finite numbers, got {values!r}")
    return v
