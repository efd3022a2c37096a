"""Features of a sample from all signals and rounds of a view: the target's own rows, and against the other clients' rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core import Observations, SkipCell
from fedbench.plugins.attacks.cs_mia import carried
from fedbench.plugins.attacks.measures import grad_cosine, grad_diff, signal
from fedbench.plugins.attacks.series import slope
from fedbench.plugins.attacks.trained.base import SMALLEST

GUARD = 1e-8  # added to the other clients' variance, as FedMIA does


def minus_log(name: str) -> Callable[[Observations], np.ndarray]:
    """-ln of a squared length."""
    return lambda seen: -np.log(np.asarray(seen[name], np.float64) + SMALLEST)


MEASURED: dict[str, tuple[frozenset[str], Callable[[Observations], np.ndarray]]] = {
    **{name: (frozenset({name}), signal(name, sign).of) for name, sign in (
        ("logit-confidence", 1), ("loss", -1), ("margin", 1), ("max-prob", 1), ("std-prob", 1), ("entropy", -1),
        ("modified-entropy", -1), ("uniform-loss", -1),
    )},
    "grad-cosine": (frozenset({"grad-dot", "grad-sq", "update-sq"}), grad_cosine),
    "grad-diff": (frozenset({"grad-dot", "grad-sq"}), grad_diff),
    "grad-norm": (frozenset({"grad-sq"}), minus_log("grad-sq")),
    "upload-grad-norm": (frozenset({"upload-grad-sq"}), minus_log("upload-grad-sq")),
}  # fmt: skip
NEEDS = frozenset().union(*(needs for needs, _ in MEASURED.values()))


def series_of(observations: Observations) -> list[np.ndarray]:
    """[R, n] each: every measurement on the target's row and, where other clients are seen, against theirs.

    In a round without the client its last value before it stands in. Raises ``SkipCell`` where it never took part.
    """
    out = []
    for _, of in MEASURED.values():
        measured = of(observations)
        mine = carried(measured[:, observations.target if measured.shape[1] > 1 else 0])
        out.append(mine)
        if len(observations.clients) > 2 and measured.shape[1] > 2:
            out.append(against(mine, np.delete(measured, observations.target, axis=1)))
    return out


def against(mine: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[R, n]: (value - mean) / deviation of ``mine`` [R, n] among ``others`` [R, M, n]; 0 in a round with fewer than two."""
    there = ~np.isnan(others).any(axis=2)  # [R, M]
    enough = there.sum(axis=1) >= 2
    z = np.zeros_like(mine)
    for r in np.flatnonzero(enough):
        seen = others[r, there[r]]
        z[r] = (mine[r] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0, ddof=1) + GUARD)
    return z


def features(observations: Observations) -> np.ndarray:
    """[n, d] float64: of every series its rounds, its mean, its slope and its spread."""
    columns: list[np.ndarray] = []
    for a in series_of(observations):
        columns += [*a, a.mean(axis=0)]
        if len(a) > 1:
            columns += [slope(observations.rounds, a), a.std(axis=0)]
    x = np.stack(columns, axis=1)
    if not np.isfinite(x).all():
        raise SkipCell("a signal is not finite, so that no classifier can read it")
    return x
