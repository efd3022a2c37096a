"""A section's rows against attacks that are calibrated by its other seeds.

Where the seeds of a setting share one pool of data (``data_seed``) and membership is a coin
(``test_by: coin``), every seed is a federation that an attacker could have trained, with and
without each candidate. An attack's score in one of them is then judged by its scores in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import ndarray

from fedbench.core import EXCLUDED, MEMBER, OFL
from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.statistics.calibration import (
    found,
    lira,
    lira_of_vectors,
    lira_offline,
    rmia,
    share_of,
)
from fedbench.leaderboard.statistics.epsilon import LEVEL, Guesses, approximate_dp, guesses_of
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.scores import Key, SectionScores

TOGETHER = "all attacks together"
LOG_PROBABILITY = "blackbox-loss"
"""the attack with the log-probability of the true class as its score"""
Method = Callable[[ndarray, ndarray], ndarray]
METHODS: dict[str, Method] = {"LiRA": lira, "offline LiRA": lira_offline}


@dataclass(frozen=True)
class Pool:
    """One attack on one row and target, over the F seeds that have its scores."""

    seeds: tuple[int, ...]
    ids: ndarray
    """[m] samples of the client, in ascending order"""
    scores: ndarray
    """[F, m]"""
    member: ndarray
    """[F, m]"""
    canary: ndarray
    """[m]"""


def pool_of(by_seed: Mapping[int, Candidates]) -> Pool:
    """Return the samples that are a member or an outsider on every seed."""
    counted = {}
    for seed, c in by_seed.items():
        counted[seed] = np.flatnonzero((c.kind == MEMBER) | (c.kind == OFL))
    ids = None
    for seed, rows in counted.items():
        of_seed = by_seed[seed].ids[rows]
        ids = np.unique(of_seed) if ids is None else np.intersect1d(ids, of_seed)
    assert ids is not None, "a row against an attack has a seed"
    scores, member = np.empty((len(by_seed), len(ids))), np.empty((len(by_seed), len(ids)), bool)
    for f, (seed, c) in enumerate(by_seed.items()):
        rows = counted[seed][np.argsort(c.ids[counted[seed]])]
        rows = rows[np.isin(c.ids[rows], ids)]
        scores[f], member[f], canary = c.scores[rows], c.kind[rows] == MEMBER, c.canary[rows]
    return Pool(tuple(by_seed), ids, scores, member, canary)


class Calibrated(SectionScores):
    """Scores of a section's rows after calibration: each attack in each way, and all together.

    The attacks of its rows are ``NAME, LiRA`` and so on. ``measured``: the scores before.
    """

    def __init__(self, measured: SectionScores) -> None:
        super().__init__([_with_methods(row) for row in measured.rows], measured.units)
        self._measured = measured

    @cached_property
    def pools(self) -> dict[tuple[int, Key], Pool]:
        """Target, row and attack -> its scores over seeds. Raises UserError where two records of a
        target differ in candidates.
        """
        pools: dict[tuple[int, Key], Pool] = {}
        for row in self._measured.rows:
            scores = SectionScores([row], self._measured.units)
            by_key: dict[tuple[int, Key], dict[int, Candidates]] = {}
            for seed, targets in self._targets():
                for target, candidates in scores.candidates(seed, targets).items():
                    for key, c in candidates.items():
                        by_key.setdefault((target, key), {})[seed] = c
            pools |= {place: pool_of(by_seed) for place, by_seed in by_key.items()}
        return pools

    def _targets(self) -> Iterator[tuple[int, list[int]]]:
        for seed in sorted({seed for seed, _ in self.units}):
            yield seed, [target for s, target in self.units if s == seed]

    @cached_property
    def _ratios(self) -> dict[tuple[int, Key], tuple[Pool, ndarray]]:
        """Target, row and calibrated attack -> its pool and [F, m] scores."""
        ratios: dict[tuple[int, Key], tuple[Pool, ndarray]] = {}
        by_row: dict[tuple[int, str], list[Pool]] = {}
        for (target, (label, attack)), pool in self.pools.items():
            by_row.setdefault((target, label), []).append(pool)
            for name, method in methods_of(attack).items():
                place = target, (label, f"{attack}, {name}")
                ratios[place] = pool, method(pool.scores, pool.member)
        for (target, label), pools in by_row.items():
            same = [pool for pool in pools if pool.seeds == pools[0].seeds]
            vectors = np.stack([pool.scores for pool in same], axis=2)
            together = lira_of_vectors(vectors, same[0].member)
            ratios[target, (label, TOGETHER)] = same[0], together
        return ratios

    def candidates(
        self, seed: int, targets: Sequence[int]
    ) -> Mapping[int, Mapping[Key, Candidates]]:
        """Return target -> row and calibrated attack -> scored candidates of the pool."""
        by_target: dict[int, dict[Key, Candidates]] = {}
        for (target, key), (pool, ratios) in self._ratios.items():
            if target in targets and seed in pool.seeds:
                f = pool.seeds.index(seed)
                kind = np.where(pool.member[f], MEMBER, OFL)
                kind[np.isnan(ratios[f])] = EXCLUDED
                in_mix = np.ones(len(kind), bool)
                scored = Candidates(ratios[f], kind, pool.ids, in_mix, pool.canary)
                by_target.setdefault(target, {})[key] = scored
        return by_target


def methods_of(attack: str) -> dict[str, Method]:
    """Return name -> method of the calibrations of an attack's score."""
    return METHODS | {"RMIA": rmia} if attack == LOG_PROBABILITY else METHODS


def _with_methods(row: DefenseRow) -> DefenseRow:
    entries = {}
    for attack, entry in row.entries.items():
        for name in methods_of(attack):
            entries[f"{attack}, {name}"] = replace(entry, attack=f"{attack}, {name}")
    first = next(iter(row.entries.values()))
    return replace(row, entries={**entries, TOGETHER: replace(first, attack=TOGETHER)})


@dataclass(frozen=True)
class Found:
    """Shares of the federations with a candidate in which it is found at its own FPR of 1 %."""

    shares: ndarray
    """[m] of the candidates of all targets, in descending order"""
    tenth: float
    """mean over the tenth with the largest shares in every second federation, in the others: what
    is chosen and judged on the same federations is too large
    """


def found_by(scores: Calibrated, label: str, attack: str) -> Found | None:
    """Return how often an attack finds each candidate of a row; None without scores."""
    matrices = []
    for (_, key), pool in scores.pools.items():
        if key == (label, attack):
            matrices.append(found(pool.scores, pool.member))
    if not matrices:
        return None
    shares = np.concatenate([share_of(matrix) for matrix in matrices])
    halves = []
    for first in (0, 1):
        parts = [share_of(matrix[first::2]) for matrix in matrices]
        halves.append(np.concatenate(parts))
    means = [_mean_of_top(*pair) for pair in (halves, halves[::-1])]
    ordered = np.sort(shares[~np.isnan(shares)])[::-1]
    return Found(ordered, float(np.mean(means)))


def _mean_of_top(choosing: ndarray, judging: ndarray) -> float:
    """Return the mean of ``judging`` [m] over the tenth with the largest ``choosing`` [m]."""
    known = ~np.isnan(choosing + judging)
    order = np.argsort(-choosing[known], kind="stable")
    return float(judging[known][order[: max(1, len(order) // 10)]].mean())


# -- epsilon ---------------------------------------------------------------------------------------

SIZES = (50, 100, 200, 400, 800, 1600)
"""numbers of guesses to choose from"""
DELTA = 1e-5


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bound on a row's epsilon, with the largest that its coins could have shown."""

    epsilon: float
    limit: float
    attack: str
    guesses: Guesses


def epsilon_bound(scores: Calibrated, label: str, delta: float = DELTA) -> EpsilonBound | None:
    """Return the lower bound of a row at ``delta``; None without scores on two seeds.

    Attack, direction and number of guesses are those with the largest bound on the first half of
    the seeds; the bound is that of the coins of the others, all targets together: runs of their own
    coins are one mechanism. Only as many coins count as leave the term of ``delta`` small.
    """
    halves: list[dict[tuple[str, int], tuple[ndarray, ndarray]]] = [{}, {}]
    for half, sides in enumerate(halves):
        for attack, pools in _pools_of(scores, label).items():
            rows = [_half_of(pool, half) for pool in pools]
            values, member = (
                np.concatenate(parts)[: _most(delta)] for parts in zip(*rows, strict=True)
            )
            for sign in (1, -1):
                sides[attack, sign] = sign * values, member
    if not halves[0] or not all(len(member) for side in halves for _, member in side.values()):
        return None

    def bound(half: int, choice: tuple[tuple[str, int], int]) -> tuple[float, Guesses]:
        key, size = choice
        values, member = halves[half][key]
        guesses = guesses_of(values, member, min(size, len(member)))
        return approximate_dp(guesses, delta), guesses

    choices = [(key, size) for key in halves[0] for size in SIZES]
    best = max(choices, key=lambda choice: bound(0, choice)[0])
    epsilon, guesses = bound(1, best)
    perfect = replace(guesses, right=guesses.guessed)
    return EpsilonBound(epsilon, approximate_dp(perfect, delta), best[0][0], guesses)


def _most(delta: float) -> int:
    """Return the number of coins at which 2 m delta is at most the level of the test."""
    return 10**6 if not delta else max(100, int(LEVEL / (2 * delta)))


def _pools_of(scores: Calibrated, label: str) -> dict[str, list[Pool]]:
    by_attack: dict[str, list[Pool]] = {}
    for (_, (row, attack)), pool in sorted(scores.pools.items()):
        if row == label:
            by_attack.setdefault(attack, []).append(pool)
    return by_attack


def _half_of(pool: Pool, half: int) -> tuple[ndarray, ndarray]:
    """Return scores and memberships of the first (0) or second half of a pool's seeds."""
    middle = len(pool.seeds) // 2
    seeds = slice(middle) if half == 0 else slice(middle, None)
    return pool.scores[seeds].ravel(), pool.member[seeds].ravel()
