"""Leak of a row to an attack: sign, AUC and TF01; and to what an adversary picks among attacks.

Signs are chosen on the other folds (:mod:`fedbench.leaderboard.statistics.scores`). Beside outside
non-members alone: inside ones were trained on by other clients, so chance level for them is not
0.5, and an attack keeps its own sign on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import (
    Estimate,
    SeedSums,
    UnitValue,
    estimate,
    extend_to,
    widen_for_sign,
)
from fedbench.leaderboard.statistics.scores import (
    CandidateFilter,
    EntryScores,
    Key,
    Part,
    SectionScores,
)
from fedbench.leaderboard.statistics.tf01 import (
    alignable,
    aligned_rate,
    enough,
    has_rate,
    low_rate,
    tf01_of,
)

Picks = Mapping[int, tuple[str, int]]
"""fold -> (attack, its sign: +1, or -1 where low scores mean members)"""


class Plain(NamedTuple):
    """Mean AUC over all folds with the sign chosen on these, biased upward."""

    attack: str
    sign: int
    auc: float


class Leaks:
    """Leaks of a section, on candidates of one kind."""

    def __init__(self, scores: SectionScores, kind: CandidateFilter = "all") -> None:
        self.scores = scores
        self.kind = kind
        self._by_key: dict[Key, Leak] = {}

    @property
    def parts(self) -> list[Part]:
        """Parts, read from the files on first access. Raises UserError where two records of a
        target differ in candidates.
        """
        return self.scores.parts(self.kind)

    @cached_property
    def excesses(self) -> dict[Key, dict[int, float]]:
        """Row and attack with scores -> fold -> mean AUC minus one half over its parts."""
        values: dict[Key, dict[int, list[float]]] = {}
        for part in self.parts:
            for key, scores in part.entries.items():
                folds = values.setdefault(key, {})
                folds.setdefault(part.fold, []).append(scores.auc - 0.5)
        means: dict[Key, dict[int, float]] = {}
        for key, folds in values.items():
            means[key] = {fold: float(np.mean(aucs)) for fold, aucs in folds.items()}
        return means

    def of(self, label: str, attack: str) -> Leak:
        """Return the leak of a row to an attack, which may have no scores."""
        key = label, attack
        if key not in self._by_key:
            self._by_key[key] = Leak(self, key)
        return self._by_key[key]

    def _picked(self, label: str, picks: Picks) -> Iterator[tuple[Part, EntryScores, int]]:
        """Yield each part with the scores of what is picked of a row, and their sign."""
        for part in self.parts:
            attack, sign = picks.get(part.fold, ("", 1))
            scores = part.entries.get((label, attack))
            if scores is not None:
                yield part, scores, sign

    def estimate(self, label: str, picks: Picks) -> Estimate | None:
        """Return the AUC of what is picked of a row, over all candidates that count for it."""
        parts = []
        for part, scores, sign in self._picked(label, picks):
            auc = 0.5 + sign * (scores.auc - 0.5)
            pulls = sign * scores.pulls
            parts.append((part.unit, UnitValue(auc, scores.error, pulls, scores.sample.ids)))
        return estimate(parts)

    def by_seed(self, label: str, picks: Picks) -> dict[int, float]:
        """Return seed -> mean over its targets of the AUC of what is picked of a row."""
        estimated = self.estimate(label, picks)
        if estimated is None:
            return {}
        aucs: dict[int, list[float]] = {}
        for (seed, _), unit in estimated.by_unit.items():
            aucs.setdefault(seed, []).append(unit.value)
        return {seed: float(np.mean(values)) for seed, values in aucs.items()}

    def rate(self, label: str, picks: Picks) -> Interval | None:
        """Return the TF01 in percent of what is picked of a row, all units pooled."""
        picked = list(self._picked(label, picks))
        samples = [scores.sample.signed(sign) for _, scores, sign in picked]
        return tf01_of(samples, len({part.unit for part, *_ in picked}))

    def has_rate(self, label: str, picks: Picks) -> bool:
        """Tell whether :meth:`rate` has enough non-members."""
        return has_rate([scores.sample for _, scores, _ in self._picked(label, picks)])

    def interval(self, label: str, picks: Picks, attacks: Iterable[str]) -> Interval | None:
        """Return the AUC of what is picked of a row, wide enough to reach the plain maximum over
        ``attacks`` and, where a sign is a guess, both signs; None without scores.
        """
        picked = self.estimate(label, picks)
        strongest = self.strongest(label, attacks)
        if picked is None or strongest is None:
            return None
        interval = extend_to(picked.interval, strongest.auc)
        if all(self.of(label, attack).settled for attack, _ in picks.values()):
            return interval
        return widen_for_sign(interval, *readings(interval.mean))

    def strongest(self, label: str, attacks: Iterable[str]) -> Plain | None:
        """Return the attack with the largest mean AUC on a row; None without scores."""
        plain = [self.of(label, attack).plain for attack in attacks]
        return max(filter(None, plain), key=lambda attack: attack.auc, default=None)

    @cached_property
    def aligned(self) -> bool:
        """Whether TF01 is that of one threshold for all units, which are too small for thresholds
        of their own.
        """
        sizes = []
        for part in self.parts:
            nonmembers = [len(scores.sample.nonmember) for scores in part.entries.values()]
            if nonmembers:
                sizes.append(max(nonmembers))
        return alignable(sizes, len(self.scores.targets)) and not enough(sizes)


class Leak:
    """Leak of a row to an attack. Every result is computed on first access."""

    def __init__(self, leaks: Leaks, key: Key) -> None:
        self._leaks = leaks
        self._key = key

    @property
    def _excesses(self) -> dict[int, float]:
        return self._leaks.excesses.get(self._key, {})

    def excess_elsewhere(self, fold: int) -> float:
        """Return the mean AUC minus one half over the other folds; 0 where there are none."""
        excesses = [excess for f, excess in self._excesses.items() if f != fold]
        return float(np.mean(excesses)) if excesses else 0.0

    @cached_property
    def signs(self) -> dict[int, int]:
        """Map a fold to the sign of the other folds' mean; +1 where there are none, where it is 0,
        and where signs are not chosen.
        """
        return {fold: self._sign(self.excess_elsewhere(fold)) for fold in self._excesses}

    def _sign(self, excess: float) -> int:
        return -1 if excess < 0 and self._leaks.scores.chooses_signs else 1

    @property
    def turned(self) -> bool:
        """Whether low scores mean members on every fold."""
        return bool(self.signs) and all(sign < 0 for sign in self.signs.values())

    @cached_property
    def settled(self) -> bool:
        """Whether the sign is no guess: the same on every fold, and significant by the errors of
        the candidates that choose it; where signs are not chosen it is the attack's own.
        """
        if not self._leaks.scores.chooses_signs:
            return True
        if len(set(self.signs.values())) != 1:
            return False
        return all(p <= 1 - LEVEL for p in self._p_elsewhere())

    def _p_elsewhere(self) -> Iterable[float]:
        """Yield the p-value of chance on the other folds of each fold; 1 without scores there."""
        if not self._leaks.scores.halves:
            assert self._unsigned is not None, "it has signs"
            return self._unsigned.without_each.p_of_chance
        label, attack = self._key
        halves = [{f: (attack, 1) for f in self.signs if f != fold} for fold in self.signs]
        elsewhere = [self._leaks.estimate(label, half) for half in halves]
        return [1.0 if auc is None else auc.p_of_chance for auc in elsewhere]

    @cached_property
    def _unsigned(self) -> SeedSums | None:
        """AUC over all folds as measured; None without scores."""
        label, attack = self._key
        auc = self._leaks.estimate(label, dict.fromkeys(self._excesses, (attack, 1)))
        return None if auc is None else auc.sums

    @property
    def picks(self) -> Picks:
        """The attack with its signs."""
        return {fold: (self._key[1], sign) for fold, sign in self.signs.items()}

    @cached_property
    def auc(self) -> Interval | None:
        """AUC of an adversary who decides the sign on other folds, spanning both signs where it is
        not :attr:`settled`; None without scores.
        """
        label, attack = self._key
        return self._leaks.interval(label, self.picks, (attack,))

    @cached_property
    def plain(self) -> Plain | None:
        """Mean AUC over all folds, the sign chosen on these; None without scores."""
        if self._unsigned is None:
            return None
        excess = float(self._unsigned.mean) - 0.5
        sign = self._sign(excess)
        return Plain(self._key[1], sign, 0.5 + sign * excess)

    @cached_property
    def tf01(self) -> Interval | None:
        """TF01 in percent over all units pooled, with the same sign; None with too few non-members,
        or without scores.
        """
        return self._leaks.rate(self._key[0], self.picks)

    @cached_property
    def has_tf01(self) -> bool:
        """Whether there are scores, and enough non-members for TF01."""
        return self._leaks.has_rate(self._key[0], self.picks)

    def rates_elsewhere(self) -> dict[int, float]:
        """Return fold -> TPR on the other folds, with the fold's sign, which is chosen on these."""
        parts = [part for part in self._leaks.parts if self._key in part.entries]
        rate = aligned_rate if self._leaks.aligned else low_rate
        rates = {}
        for fold, sign in self.signs.items():
            others = [part.entries[self._key].sample for part in parts if part.fold != fold]
            rates[fold] = rate([sample.signed(sign) for sample in others])
        return rates


def readings(mean: float) -> tuple[float, float]:
    """Return the lower and the higher AUC of both signs."""
    return min(mean, 1 - mean), max(mean, 1 - mean)
