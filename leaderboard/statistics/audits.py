"""A section's rows against attacks that are calibrated by its other seeds.

Where the seeds of a setting share one pool of data (``data_seed``) and membership is a coin
(``test_by: coin``), every seed is a federation that an attacker could have trained, with and
without each candidate. An attack's score in one of them is then judged by its scores in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy import ndarray

from fedbench.core import EXCLUDED, MEMBER, OFL
from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.statistics.calibration import (
    lira,
    lira_of_vectors,
    lira_offline,
    passes,
    rmia,
    share_of,
)
from fedbench.leaderboard.statistics.epsilon import (
    LEVEL,
    ChosenBound,
    Coins,
    approximate_dp,
    chosen_bound,
)
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.scores import Key, SectionScores

TOGETHER = "all attacks together"
LOG_PROBABILITY = "blackbox-loss"
"""the attack with the log-probability of the true class as its score"""
Method = Callable[[ndarray, ndarray, ndarray], ndarray]
METHODS: dict[str, Method] = {"LiRA": lira, "offline LiRA": lira_offline}
SHARED = 3**0.5
"""standard error of a mean over federations of online ratios, beside that of independent ones, at
most: without a leak a ratio is a sum of products of two or three federations' deviations, and each
product counts in the ratios of all of them
"""


def shared(attack: str) -> float:
    """Return the factor of the errors of a calibrated attack."""
    return SHARED if attack == TOGETHER or attack.endswith(", LiRA") else 1.0


@dataclass(frozen=True)
class Pool:
    """One attack on one row and target, over the F seeds that have its scores."""

    seeds: tuple[int, ...]
    ids: ndarray
    """[m] samples of the client, in ascending order"""
    scores: ndarray
    """[F, m]"""
    member: ndarray
    """[F, m] trained on"""
    outside: ndarray
    """[F, m] not in the client's data; what it holds and does not train on is neither"""
    canary: ndarray
    """[m]"""


def pool_of(by_seed: Mapping[int, Candidates]) -> Pool:
    """Return the client's samples, which are a member or an outsider on some seed, as far as every
    seed asks about them.
    """
    sides = []
    for c in by_seed.values():
        sides.append(c.ids[(c.kind == MEMBER) | (c.kind == OFL)])
    ids = np.unique(np.concatenate(sides))
    for c in by_seed.values():
        ids = np.intersect1d(ids, c.ids)
    scores, kind = np.empty((2, len(by_seed), len(ids)))
    for f, c in enumerate(by_seed.values()):
        order = np.argsort(c.ids)
        rows = order[np.searchsorted(c.ids, ids, sorter=order)]
        scores[f], kind[f], canary = c.scores[rows], c.kind[rows], c.canary[rows]
    return Pool(tuple(by_seed), ids, scores, kind == MEMBER, kind == OFL, canary)


class Calibrated(SectionScores):
    """Scores of a section's rows after calibration: each attack that counts in each way, and all of
    these together.

    The attacks of its rows are ``NAME, LiRA`` and so on. ``measured``: the scores before.
    """

    def __init__(self, measured: SectionScores) -> None:
        super().__init__([_with_methods(row) for row in measured.rows], measured.units)
        self._measured = measured

    @property
    def chooses_signs(self) -> bool:
        """False: a ratio of likelihoods is higher for members."""
        return False

    def factor(self, attack: str) -> float:
        """Return :func:`shared`."""
        return shared(attack)

    @cached_property
    def pools(self) -> dict[tuple[int, Key], Pool]:
        """Target, row and attack -> its scores over seeds. Raises UserError where two records of a
        target differ in candidates.
        """
        pools: dict[tuple[int, Key], Pool] = {}
        for row in self._measured.rows:
            scores = SectionScores([row], self._measured.units)
            by_key: dict[tuple[int, Key], dict[int, Candidates]] = {}
            for seed, targets in self._measured.targets.items():
                for target, candidates in scores.candidates(seed, targets).items():
                    for key, c in candidates.items():
                        by_key.setdefault((target, key), {})[seed] = c
            pools |= {place: pool_of(by_seed) for place, by_seed in by_key.items()}
        return pools

    @cached_property
    def _ratios(self) -> dict[tuple[int, Key], tuple[Pool, ndarray]]:
        """Target, row and calibrated attack -> its pool and [F, m] scores."""
        ratios: dict[tuple[int, Key], tuple[Pool, ndarray]] = {}
        by_row: dict[tuple[int, str], list[Pool]] = {}
        left_out = self._measured.rows[0].left_out
        for (target, (label, attack)), pool in self.pools.items():
            if attack in left_out:
                continue
            by_row.setdefault((target, label), []).append(pool)
            for name, method in methods_of(attack).items():
                place = target, (label, f"{attack}, {name}")
                ratios[place] = pool, method(pool.scores, pool.member, pool.outside)
        for (target, label), pools in by_row.items():
            same = [pool for pool in pools if pool.seeds == pools[0].seeds]
            vectors = np.stack([pool.scores for pool in same], axis=2)
            together = lira_of_vectors(vectors, same[0].member, same[0].outside)
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
                kind = np.where(pool.member[f], MEMBER, np.where(pool.outside[f], OFL, EXCLUDED))
                kind[np.isnan(ratios[f])] = EXCLUDED
                in_mix = np.ones(len(kind), bool)
                scored = Candidates(ratios[f], kind, pool.ids, in_mix, pool.canary)
                by_target.setdefault(target, {})[key] = scored
        return by_target


def methods_of(attack: str) -> dict[str, Method]:
    """Return name -> method of the calibrations of an attack's score."""
    return METHODS | {"RMIA": rmia} if attack == LOG_PROBABILITY else METHODS


def _with_methods(row: DefenseRow) -> DefenseRow:
    counted = [entry for attack, entry in row.entries.items() if attack not in row.left_out]
    entries = {}
    for entry in counted:
        for name in methods_of(entry.attack):
            attack = f"{entry.attack}, {name}"
            entries[attack] = replace(entry, attack=attack)
    general = min(counted, key=lambda entry: entry.adaptive)
    return replace(row, entries={**entries, TOGETHER: replace(general, attack=TOGETHER)})


@dataclass(frozen=True)
class Found:
    """Shares of the federations with a candidate in which it is found at its own FPR of 1 %."""

    shares: ndarray
    """[m] of the candidates of all targets, in descending order"""
    tenth: float
    """mean over the tenth with the largest shares in every second federation, in the others, each
    half with thresholds of its own: what chooses and what judges share no score
    """
    canaries: float
    """mean over the mislabelled candidates; NaN without any"""


def found_by(scores: Calibrated, label: str, attack: str, sign: int) -> Found | None:
    """Return how often an attack finds each candidate of a row; None without scores. ``sign``: -1
    where its low scores mean members.
    """
    pools = _pools_of(scores, label).get(attack, [])
    if not pools:
        return None
    shares = _shares(pools, sign, slice(None))
    even, odd = _shares(pools, sign, slice(0, None, 2)), _shares(pools, sign, slice(1, None, 2))
    tenth = (_mean_of_top(even, odd) + _mean_of_top(odd, even)) / 2
    judged = ~np.isnan(shares)
    of_canaries = shares[judged & np.concatenate([pool.canary for pool in pools])]
    canaries = float(of_canaries.mean()) if len(of_canaries) else float("nan")
    return Found(np.sort(shares[judged])[::-1], tenth, canaries)


def _shares(pools: Sequence[Pool], sign: int, seeds: slice) -> ndarray:
    """Return [m] how often each candidate of all targets is found, of these federations alone."""
    shares = []
    for pool in pools:
        member, outside = pool.member[seeds], pool.outside[seeds]
        shares.append(share_of(passes(sign * pool.scores[seeds], member, outside)))
    return np.concatenate(shares)


def _mean_of_top(choosing: ndarray, judging: ndarray) -> float:
    """Return the mean of ``judging`` [m] over the tenth with the largest ``choosing`` [m]; NaN
    where no candidate has both.
    """
    both = ~np.isnan(choosing + judging)
    if not both.any():
        return float("nan")
    order = np.argsort(-choosing[both], kind="stable")
    return float(judging[both][order[: max(1, len(order) // 10)]].mean())


@dataclass(frozen=True)
class VulnerableCandidate:
    """Candidate of a target with how often an attack finds it at its own FPR of 1 %."""

    target: int
    sample: int
    found: int
    """federations that train on it and in which its score passes"""
    federations: int
    """federations that train on it"""
    deviation: float
    """mean over these of its score, in standard deviations above its mean without it"""


def most_vulnerable(
    scores: Calibrated, label: str, attack: str, sign: int
) -> list[VulnerableCandidate]:
    """Return the candidates of a row, those that are found in the largest share of federations
    first, then by their deviation. They are chosen by what is printed, so the first look worse than
    they are.
    """
    candidates = []
    for (target, key), pool in scores.pools.items():
        if key != (label, attack):
            continue
        values = sign * pool.scores
        passed = passes(values, pool.member, pool.outside)
        deviations = lira_offline(values, pool.member, pool.outside)
        judged = ~np.isnan(passed)
        for i in np.flatnonzero(judged.any(0)).tolist():
            of_sample = judged[:, i]
            found, deviation = passed[of_sample, i].sum(), deviations[of_sample, i].mean()
            candidates.append(
                VulnerableCandidate(
                    target=target,
                    sample=int(pool.ids[i]),
                    found=int(found),
                    federations=int(of_sample.sum()),
                    deviation=float(deviation),
                )
            )
    return sorted(candidates, key=lambda c: (-c.found / c.federations, -c.deviation, c.sample))


# -- epsilon ---------------------------------------------------------------------------------------

DELTA = 1e-5


def epsilon_bound(scores: Calibrated, label: str, delta: float = DELTA) -> ChosenBound | None:
    """Return the lower bound of a row at ``delta``; None without scores of all coins.

    Choices are made on the first half of the seeds, among all attacks on the row: a bound holds
    whether or not other rows have its attack. The bound is that of the other seeds, all targets
    together: runs of their own coins are one mechanism. What a client holds out of its training is
    in its data, so that coin is heads. With more coins than are counted the term of delta, 2 m
    delta, would be above the level of the test.
    """
    most = sum(pool.scores.size for pool in scores.pools.values())
    if delta > 0:
        most = int(min(most, LEVEL / (2 * delta)))
    halves: tuple[dict[str, Coins], dict[str, Coins]] = {}, {}
    for attack, pools in _pools_of(scores, label).items():
        for half, by_attack in enumerate(halves):
            rows = [_half_of(pool, half) for pool in pools]
            values = np.concatenate([of_pool for of_pool, _ in rows])[:most]
            heads = np.concatenate([of_pool for _, of_pool in rows])[:most]
            if np.isfinite(values).all() and len(heads):
                by_attack[attack] = Coins(values, heads)
    if not halves[0] or halves[0].keys() != halves[1].keys():
        return None
    return chosen_bound(*halves, partial(approximate_dp, delta=delta))


def _pools_of(scores: Calibrated, label: str) -> dict[str, list[Pool]]:
    by_attack: dict[str, list[Pool]] = {}
    for (_, (row, attack)), pool in sorted(scores.pools.items(), key=lambda place: place[0]):
        if row == label:
            by_attack.setdefault(attack, []).append(pool)
    return by_attack


def _half_of(pool: Pool, half: int) -> tuple[ndarray, ndarray]:
    """Return scores and coins of the first (0) or second half of a pool's seeds."""
    middle = len(pool.seeds) // 2
    seeds = slice(middle) if half == 0 else slice(middle, None)
    return pool.scores[seeds].ravel(), ~pool.outside[seeds].ravel()
