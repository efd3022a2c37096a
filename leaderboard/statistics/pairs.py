"""The tests of all pairs of rows at once: what ``rivals.told_apart`` says of each, from a few products of matrices.

A difference of two weighted sums of AUCs has the variance G[a, a] + G[b, b] - 2 G[a, b], where G = W C W' is the covariance of
all sums of a part; and so have the pulls that targets of a seed have in common, with G the products of the pulls themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np
from scipy.special import ndtr, stdtr

from fedbench.leaderboard.statistics.ranks import Pair, rank_ranges
from fedbench.leaderboard.statistics.rivals import Rival, Weights, told_apart
from fedbench.leaderboard.statistics.sheet import Part
from fedbench.leaderboard.statistics.spread import Unit

Tests = tuple[dict[Pair, float], dict[Pair, float]]
"""of pairs of rows: the first's worst case minus the second's, and the p-value of none, not yet adjusted for their number"""


@dataclass(frozen=True)
class _OfUnit:
    """Of one unit: ``values`` [S] of all sides, the ``variance`` [S, S] of their differences, and their ``pulls`` [S, n] on the
    non-members ``ids`` [n]."""

    values: np.ndarray
    variance: np.ndarray
    pulls: np.ndarray
    ids: np.ndarray


def ranges(parts: Sequence[Part], rivals: Mapping[str, Rival]) -> dict[str, tuple[int, int]]:
    """Label -> (best, worst) rank that the tests of all pairs leave open."""
    return rank_ranges(list(rivals), *all_tests(parts, rivals))


def all_tests(parts: Sequence[Part], rivals: Mapping[str, Rival]) -> Tests:
    """Of all pairs."""
    together = all_told_apart(parts, rivals)
    pairs = {(a, b): (i, j) for (i, a), (j, b) in combinations(enumerate(rivals), 2)}
    if together is None:
        found = {(a, b): told_apart(parts, rivals[a], rivals[b]) for a, b in pairs}
    else:
        found = {pair: (float(together[0][at]), float(together[1][at])) for pair, at in pairs.items()}
    means, p_values = ({pair: values[i] for pair, values in found.items()} for i in (0, 1))
    return means, p_values


def all_told_apart(parts: Sequence[Part], rivals: Mapping[str, Rival]) -> tuple[np.ndarray, np.ndarray] | None:
    """(mean difference, p-value of none) [R, R] of each rival's worst case minus each other's, without a margin. None where some
    rival lacks a score of some unit: then pairs have units of their own."""
    sides = [*(r.picked for r in rivals.values()), *(r.plain for r in rivals.values())]
    found: list[tuple[Unit, _OfUnit]] = []
    for unit, own in groupby(parts, key=lambda part: part.unit):
        measured = [_of_part(part, sides) for part in own]
        whole = [m for m in measured if m is not None]
        if len(whole) < len(measured):
            return None
        found.append((unit, _together(whole)))
    if not found or len({unit for unit, _ in found}) < len(found):
        return None
    n = len(rivals)
    means = _differences(np.mean([of.values for _, of in found], axis=0))
    p_values = _p_values(found)
    lower = means[:n, :n] < 0  # the picked side of the first is the lower one: the second's stands against its plain maximum
    guard, p_guard = means[:n, n:], p_values[:n, n:]  # [a, b]: picked of a minus plain of b
    away, p_away = np.where(lower, guard.T, guard), np.where(lower, p_guard.T, p_guard)
    return means[:n, :n], np.where(away <= 0, 1.0, np.maximum(p_values[:n, :n], p_away))


def _of_part(part: Part, sides: Sequence[Weights]) -> _OfUnit | None:
    """None where a side is not there, or lacks an AUC."""
    if not all(side.get(part.fold) and side[part.fold].keys() <= part.at.keys() for side in sides):
        return None
    used = sorted({part.at[key] for side in sides for key in side[part.fold]})
    column = {at: i for i, at in enumerate(used)}
    weights = np.zeros((len(sides), len(used)))
    for s, side in enumerate(sides):
        for key, w in side[part.fold].items():
            weights[s, column[part.at[key]]] = w
    values = weights @ (part.aucs[used] - 0.5)
    if np.isnan(values).any():
        return None
    variance = _squares(weights @ part.covariance[np.ix_(used, used)] @ weights.T)
    return _OfUnit(values, np.maximum(variance, 0.0), weights @ part.pulls[used], part.ids)


def _together(parts: Sequence[_OfUnit]) -> _OfUnit:
    """Independent parts of a unit: their mean."""
    n = len(parts)
    if n == 1:
        return parts[0]
    return _OfUnit(
        np.mean([p.values for p in parts], axis=0), np.sum([p.variance for p in parts], axis=0) / n**2,
        np.concatenate([p.pulls for p in parts], axis=1) / n, np.concatenate([p.ids for p in parts]),
    )  # fmt: skip


def _differences(values: np.ndarray) -> np.ndarray:
    """[..., S, S]: each minus each other one."""
    return np.asarray(values[..., :, None] - values[..., None, :])


def _squares(products: np.ndarray) -> np.ndarray:
    """[S, S] squared lengths of the differences, of the products [S, S] of vectors with each other."""
    own = np.diag(products)
    return np.asarray(own[:, None] + own[None, :] - 2 * products)


def _p_values(found: Sequence[tuple[Unit, _OfUnit]]) -> np.ndarray:
    """[S, S], as ``spread.p_value`` has it of each difference."""
    by_seed: dict[int, list[_OfUnit]] = {}
    for (seed, _), of in found:
        by_seed.setdefault(seed, []).append(of)
    seeds = sorted(by_seed)
    differences = _differences(np.stack([np.mean([of.values for of in by_seed[seed]], axis=0) for seed in seeds]))
    mean = differences.mean(axis=0)
    if len(seeds) < 2:
        return np.ones_like(mean)
    variance = np.sum([np.sum([of.variance for of in own], axis=0) + _in_common(own) for own in by_seed.values()], axis=0)
    error = np.sqrt(np.maximum(variance, 0.0)) / len(found)
    spread = differences.std(axis=0, ddof=1) / np.sqrt(len(seeds))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.where(spread == 0, 0.0, 2 * stdtr(len(seeds) - 1, -np.abs(mean) / spread))
        within = np.where(error == 0, 0.0, 2 * ndtr(-np.abs(mean) / error))
    return np.where(mean == 0, 1.0, np.maximum(between, within))


def _in_common(targets: Sequence[_OfUnit]) -> np.ndarray:
    """[S, S] twice the sum of the covariances between targets of one seed, as ``spread`` has it of each difference."""
    if len(targets) < 2:
        return np.zeros_like(targets[0].variance)
    pulls = np.concatenate([of.pulls for of in targets], axis=1)
    ids, which = np.unique(np.concatenate([of.ids for of in targets]), return_inverse=True)
    together = np.zeros((len(pulls), len(ids)))
    for side, own in enumerate(pulls):
        together[side] = np.bincount(which, own, minlength=len(ids))
    return np.asarray(_squares(together @ together.T) - _squares(pulls @ pulls.T))
