"""Worst case per defense over attacks and signs, and pairwise significance of defenses.

Everything is over outside non-members unless another population is asked for: inside ones were
trained on by other clients, so chance level for them is not 0.5, and an attack keeps its own sign
on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import (
    Estimates,
    Measured,
    Unit,
    by_unit,
    holm,
    over_units,
    p_of_chance,
    raised,
    reaching,
    smallest_shown,
    spanning,
)
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.scores import (
    CandidateFilter,
    CellScores,
    Key,
    Part,
    Population,
    parts_of,
)
from fedbench.leaderboard.statistics.tf01 import (
    alignable,
    enough,
    lowest_fpr,
    rates_elsewhere,
    tf01_of,
    tpr_at_lowest,
)

Weights = Mapping[int, Mapping[Key, float]]
"""fold -> signed weights of AUCs: the statistic is one half + sum of weight x (AUC - one half)"""
Pair = tuple[str, str]
Tests = Mapping[Pair, tuple[float, float]]
"""of pairs of rows: (the first's value minus the second's, the p-value of no difference, not
adjusted for their number)
"""
Picks = Mapping[int, tuple[str, int]]
"""fold -> (attack, its sign: +1, or -1 where low scores mean members)"""


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """AUC, or TF01 in percent, of an adversary who picks attack and sign on other folds.
    ``attack``: the one picked most often; ``picks``: by fold; ``largest``: the plain maximum over
    attacks and signs of the mean AUC, biased upward, and its attack.
    """

    found: Interval
    picks: Picks
    largest: tuple[str, float] = ("", float("nan"))

    @property
    def attack(self) -> str:
        names = [attack for attack, _ in self.picks.values()]
        return max(dict.fromkeys(names), key=names.count)


@dataclass(frozen=True)
class Rival:
    """One side of a comparison: what is ``picked`` on other folds, and its ``plain`` maximum over
    attacks and signs.
    """

    picked: Weights
    plain: Weights


@dataclass(frozen=True)
class Difference:
    """Of two rows' worst cases, paired on the same candidates; ``p``: adjusted for the number of
    rows compared (Holm).
    """

    found: Interval
    p: float

    @property
    def shown(self) -> bool:
        """Whether it is significantly different from 0."""
        return self.p <= 1 - LEVEL


_CACHED = (
    "sign",
    "settled",
    "signed",
    "_plain",
    "tf01",
    "lowest",
    "worst",
    "worst_tf01",
    "mean",
    "leader",
    "against",
)


class Comparison:
    """``rows`` against ``attacks`` on ``units``, with the non-members of a ``population``; every
    result is computed on first access.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        attacks: Sequence[str],
        units: Sequence[Unit],
        population: Population = "outside",
    ) -> None:
        self.rows, self.attacks, self.units, self.population = (
            tuple(rows),
            tuple(attacks),
            tuple(units),
            population,
        )
        self._whole: Comparison = self
        self._only: CandidateFilter = "all"
        for name in _CACHED:  # a decorator's cache would keep every comparison
            setattr(self, name, cache(getattr(self, name)))

    def _of_kind(self, only: CandidateFilter) -> Comparison:
        """The same on candidates of one kind."""
        made = Comparison(self.rows, self.attacks, self.units)
        made._whole, made._only = self, only
        return made

    @cached_property
    def by_kind(self) -> tuple[Comparison, Comparison]:
        """The same on the candidates that are clean, and on those that are mislabelled."""
        return self._of_kind("clean"), self._of_kind("canary")

    def held_against(self, population: Population) -> Comparison:
        """The same with other non-members, judged by the attacks that are eligible here."""
        if population == self.population:
            return self
        made = Comparison(self.rows, self.attacks, self.units, population)
        made.eligible = self.eligible
        return made

    @cached_property
    def parts(self) -> list[Part]:
        """Raises UserError when two records that should share their candidates do not."""
        return self._whole._parts_by_kind[self._only]

    @cached_property
    def _parts_by_kind(self) -> dict[CandidateFilter, list[Part]]:
        return parts_of(self.rows, self.units, self.population)

    def forget_scores(self) -> None:
        """Free the memory of the scores, which are read again on access; results are kept."""
        self.__dict__.pop("parts", None)
        self._whole.__dict__.pop("_parts_by_kind", None)

    @cached_property
    def base(self) -> Row | None:
        """The undefended row; None where it is refuted."""
        return next((r for r in self.rows if r.undefended and not r.refuted), None)

    @cached_property
    def eligible(self) -> tuple[str, ...]:
        """The attacks that beat chance on the undefended run at 95 %, all together (Holm): only
        they judge defenses.

        All, where there is no undefended run. An attack that finds nothing scores members and
        non-members alike in every training, so the error from the candidates is all there is, and
        two or three seeds can tell.
        """
        if self.base is None:
            return self.attacks
        base = self.base.label
        found = {
            a: units
            for a in self.attacks
            if (units := self._own_units(base, self._signed_picks(base, a)))
        }
        adjusted = holm({a: p_of_chance(units) for a, units in found.items()})
        means = {a: np.mean([m.value for m in units.values()]) for a, units in found.items()}
        return tuple(a for a in found if means[a] > 0.5 and adjusted[a] <= 1 - LEVEL)

    # -- one attack against one row ----------------------------------------------------------------

    @cached_property
    def _leans(self) -> dict[Key, dict[int, float]]:
        """Fold -> mean AUC minus one half over its parts, of those that have one."""
        found: dict[Key, dict[int, list[float]]] = {}
        for part in self.parts:
            for key, own in part.own.items():
                found.setdefault(key, {}).setdefault(part.fold, []).append(own.auc - 0.5)
        return {
            key: {fold: float(np.mean(aucs)) for fold, aucs in folds.items()}
            for key, folds in found.items()
        }

    def _lean_elsewhere(self, key: Key, fold: int) -> float:
        """Mean over the other folds; 0 where there are none."""
        others = [lean for other, lean in self._leans[key].items() if other != fold]
        return float(np.mean(others)) if others else 0.0

    def sign(self, label: str, attack: str) -> dict[int, int]:
        """Fold -> the sign of the other folds' mean; +1 where there are none, or where it is 0, and
        of other than outside non-members.
        """
        key = label, attack
        return {
            fold: self._sign(self._lean_elsewhere(key, fold)) for fold in self._leans.get(key, {})
        }

    def _sign(self, lean: float) -> int:
        return -1 if lean < 0 and self.population == "outside" else 1

    def turned(self, label: str, attack: str) -> bool:
        """Whether low scores mean members on every fold."""
        found = self.sign(label, attack)
        return bool(found) and all(s < 0 for s in found.values())

    def settled(self, label: str, attack: str) -> bool:
        """Whether the sign is no guess: the same on every fold, and significant by the errors of
        the candidates that choose it; of other than outside non-members it is the attack's own.
        """
        if self.population != "outside":
            return True
        signs = self.sign(label, attack)
        others = [
            self._own_units(label, {f: (attack, 1) for f in signs if f != fold}) for fold in signs
        ]
        return len(set(signs.values())) == 1 and all(
            units and p_of_chance(units) <= 1 - LEVEL for units in others
        )

    def signed(self, label: str, attack: str) -> Interval | None:
        """AUC of an adversary who decides the sign on other folds, spanning both signs where it is
        not :meth:`settled`; None without scores.
        """
        return self._interval(label, self._signed_picks(label, attack), (attack,))

    def _signed_picks(self, label: str, attack: str) -> Picks:
        return {fold: (attack, sign) for fold, sign in self.sign(label, attack).items()}

    def _interval(self, label: str, picks: Picks, attacks: tuple[str, ...]) -> Interval | None:
        """AUC of what is picked, wide enough to reach the plain maximum over ``attacks``, and both
        signs of a guess.
        """
        interval, plain = over_units(self._own_units(label, picks)), self._plain(label, attacks)
        if interval is None or plain is None:
            return None
        settled = all(self.settled(label, attack) for attack, _ in picks.values())
        return spanning(reaching(interval, plain[2]), *readings(interval.mean, settled))

    def _plain(self, label: str, attacks: tuple[str, ...]) -> tuple[str, int, float] | None:
        """The strongest of ``attacks`` over all folds, its sign and its mean AUC: a maximum, biased
        upward.
        """
        means: dict[str, float] = {}
        for a in attacks:
            units = self._own_units(
                label, {fold: (a, 1) for fold in self._leans.get((label, a), {})}
            )
            means |= {a: float(np.mean([m.value for m in units.values()]))} if units else {}
        if not means:
            return None
        found = {
            a: (sign := self._sign(mean - 0.5), 0.5 + sign * (mean - 0.5))
            for a, mean in means.items()
        }
        attack = max(found, key=lambda a: found[a][1])
        return attack, *found[attack]

    def _picked(self, label: str, picks: Picks) -> list[tuple[Part, CellScores, int]]:
        """Every part that has a score of what is picked on its fold, with that score and the sign."""
        there = [(part, *picks[part.fold]) for part in self.parts if part.fold in picks]
        return [
            (part, part.own[label, attack], sign)
            for part, attack, sign in there
            if (label, attack) in part.own
        ]

    def _own_units(self, label: str, picks: Picks) -> dict[Unit, Measured]:
        """Of what is picked on each fold, over all candidates that count for it."""
        return by_unit(
            [
                (
                    part.unit,
                    Measured(
                        0.5 + sign * (own.auc - 0.5), own.error, sign * own.pulls, own.sample.ids
                    ),
                )
                for part, own, sign in self._picked(label, picks)
            ]
        )

    def tf01(self, label: str, attack: str) -> Interval | None:
        """TF01 in percent over all units pooled, with the same sign; None with too few non-members,
        or without scores.
        """
        return self._rate(label, self._signed_picks(label, attack))

    def lowest(self, label: str, attack: str) -> Interval | None:
        """TPR in percent at :attr:`lowest_fpr`, with the same sign; None without scores."""
        there = self._picked(label, self._signed_picks(label, attack))
        return tpr_at_lowest([own.sample.signed(sign) for _, own, sign in there], self.lowest_fpr)

    @cached_property
    def sizes(self) -> list[int]:
        """Non-members of each part, under the row and attack that have most."""
        return [
            max(len(own.sample.nonmember) for own in part.own.values())
            for part in self.parts
            if part.own
        ]

    @cached_property
    def lowest_fpr(self) -> float:
        """The smallest false-positive rate of at least 0.1 % that a threshold of each part's own
        attains.
        """
        return lowest_fpr(self.sizes)

    @cached_property
    def aligned(self) -> bool:
        """Whether TF01 is that of one threshold for all units, which are too small for thresholds
        of their own.
        """
        return alignable(self.sizes, len({seed for seed, _ in self.units})) and not enough(
            self.sizes
        )

    def _rate(self, label: str, picks: Picks) -> Interval | None:
        there = self._picked(label, picks)
        return tf01_of(
            [own.sample.signed(sign) for _, own, sign in there], len({p.unit for p, *_ in there})
        )

    # -- over attacks ------------------------------------------------------------------------------

    def worst(self, label: str) -> WorstCase | None:
        """None without an eligible attack that has scores.

        The attack of each fold is the one with the largest deviation from one half on the other
        folds. Chosen on the judged scores themselves this would be a maximum of noisy numbers,
        above one half without any leak. At least the mean over attacks, which an adversary has who
        picks at random (docs/method.md#worst-case).
        """
        keys = {a: (label, a) for a in self.eligible if (label, a) in self._leans}
        picks = self._strongest(
            label,
            {
                a: {
                    fold: sign * self._lean_elsewhere(key, fold)
                    for fold, sign in self.sign(*key).items()
                }
                for a, key in keys.items()
            },
        )
        interval, plain = (
            self._interval(label, picks, self.eligible),
            self._plain(label, self.eligible),
        )
        if interval is None or plain is None:
            return None
        return WorstCase(
            found=raised(interval, self.mean(label)), picks=picks, largest=(plain[0], plain[2])
        )

    def _strongest(self, label: str, found: Mapping[str, Mapping[int, float]]) -> Picks:
        """On each fold the attack with the largest of the numbers ``found`` of it, attack -> fold
        -> number.
        """
        picks: dict[int, tuple[str, int]] = {}
        for fold in sorted({fold for of in found.values() for fold in of}):
            best = max((a for a in found if fold in found[a]), key=lambda a: found[a][fold])
            picks[fold] = best, self.sign(label, best)[fold]
        return picks

    def worst_tf01(self, label: str) -> WorstCase | None:
        """Over the eligible attacks, picked by TF01 on the other folds."""
        rates = {
            a: self._rates_elsewhere(label, a)
            for a in self.eligible
            if self.tf01(label, a) is not None
        }
        picks = self._strongest(label, rates)
        found = self._rate(label, picks)
        return WorstCase(found=found, picks=picks) if found else None

    def _rates_elsewhere(self, label: str, attack: str) -> dict[int, float]:
        """Fold -> TPR on the other folds, with the fold's sign, which is chosen on these."""
        parts = [p for p in self.parts if (label, attack) in p.own]
        signs, found = self.sign(label, attack), dict[int, float]()
        for sign in set(signs.values()):
            samples = [p.own[label, attack].sample.signed(sign) for p in parts]
            rates = rates_elsewhere(samples, [p.fold for p in parts], self.aligned)
            found |= {fold: rates[fold] for fold, s in signs.items() if s == sign and fold in rates}
        return found

    def mean(self, label: str) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of
        them have a score.
        """
        cells = {a: i.mean for a in self.eligible if (i := self.signed(label, a)) is not None}
        if not cells:
            return None
        weights = self.mean_rival(label).picked
        interval = paired(self.parts, [weights, {fold: {} for fold in weights}]).interval(1)
        if interval is None:
            return None
        # the width where every attack has a score, around the mean of the cells as they are shown
        plain = [found[2] for a in cells if (found := self._plain(label, (a,))) is not None]
        reached = reaching(
            replace(interval, mean=float(np.mean(list(cells.values())))), float(np.mean(plain))
        )
        low, high = np.mean(
            [readings(mean, self.settled(label, a)) for a, mean in cells.items()], axis=0
        )
        return spanning(reached, float(low), float(high))

    # -- tests of differences ----------------------------------------------------------------------

    def worst_rival(self, label: str) -> Rival:
        """The row's worst case as one side of a comparison."""
        worst = self.worst(label)
        return self._rival(label, worst.picks if worst else {}, self.eligible)

    def cell_rival(self, label: str, attack: str) -> Rival:
        """One attack on the row as one side of a comparison."""
        return self._rival(label, self._signed_picks(label, attack), (attack,))

    def mean_rival(self, label: str) -> Rival:
        """The row's mean over the eligible attacks as one side of a comparison, of the folds that
        have all of them.
        """
        cells = [
            self.cell_rival(label, a) for a in self.eligible if self.signed(label, a) is not None
        ]
        folds = set.intersection(*(set(c.picked) for c in cells)) if cells else set()

        def mean(sides: Sequence[Weights]) -> Weights:
            return {
                f: {key: w / len(sides) for side in sides for key, w in side[f].items()}
                for f in folds
            }

        return Rival(mean([c.picked for c in cells]), mean([c.plain for c in cells]))

    def _rival(self, label: str, picks: Picks, attacks: tuple[str, ...]) -> Rival:
        plain = self._plain(label, attacks)
        picked = {fold: {(label, attack): float(sign)} for fold, (attack, sign) in picks.items()}
        return Rival(
            picked, {fold: {(label, plain[0]): float(plain[1])} for fold in picked} if plain else {}
        )

    @cached_property
    def _tests(self) -> PairTests:
        """Of the worst cases of all rows."""
        return PairTests(self.parts, {r.label: self.worst_rival(r.label) for r in self.rows})

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Labels of the rows with a rank: complete, no floor, judged by some eligible attack."""
        return tuple(
            r.label
            for r in self.rows
            if r.complete and not r.floor and self.worst(r.label) is not None
        )

    @cached_property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """Label -> (best, worst) rank, 95 % simultaneous."""
        return self.ranks_among(self.ranked)

    @cached_property
    def better(self) -> frozenset[Pair]:
        """(lower, higher): the pairs of ranked rows with a significant difference of worst cases,
        all pairs together.

        Ranges of ranks say less: two that overlap may belong to such a pair.
        """
        return frozenset(ordered(self.tests_among(self.ranked)))

    def tied(self, label: str) -> tuple[str, ...]:
        """The other ranked rows that the tests do not distinguish from a ranked row."""
        others = [other for other in self.ranked if other != label and label in self.ranked]
        return tuple(
            other for other in others if self.better.isdisjoint(((label, other), (other, label)))
        )

    def ranks_among(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """The same of some rows alone: of the ``labels`` that have a rank, as if the section had no
        others.
        """
        known = [label for label in self.ranked if label in labels]
        return rank_ranges(known, self.tests_among(known))

    @cached_property
    def smallest_difference(self) -> float | None:
        """The difference of two ranked rows' worst cases that is shown with a power of 80 % where
        all pairs are tested together; None with one seed or one row.
        """
        pairs = list(combinations(self.ranked, 2))
        found = [d for pair in pairs if (d := self._tests.deviation(*pair)) == d]
        return smallest_shown(found, len({seed for seed, _ in self.units}), len(pairs))

    def tests_among(self, labels: Sequence[str]) -> Tests:
        """The tests of all pairs of these rows' worst cases."""
        return self._tests.among(labels)

    def leader(self, attack: str) -> str | None:
        """The one complete row with the lowest AUC of an attack, if it is significantly lower than
        all others.
        """
        labels = [
            r.label for r in self.rows if r.entries[attack].complete and not (r.floor or r.refuted)
        ]
        if len(labels) < 2:
            return None
        tests = PairTests(
            self.parts, {label: self.cell_rival(label, attack) for label in labels}
        ).among(labels)
        return next(
            (label for label, (_, high) in rank_ranges(labels, tests).items() if high == 1), None
        )

    def against(self, reference: str) -> dict[str, Difference]:
        """Label -> its worst case minus that of the ``reference`` row, of every other row that has
        both.
        """
        found = self.between([(r.label, reference) for r in self.rows if r.label != reference])
        return {label: difference for (label, _), difference in found.items()}

    def between(self, pairs: Sequence[Pair]) -> dict[Pair, Difference]:
        """Worst case of the first minus that of the second, of the pairs that have both and are not
        refuted; adjusted for their number.
        """
        refuted = {r.label for r in self.rows if r.refuted}
        found = {
            pair: i
            for pair in pairs
            if refuted.isdisjoint(pair) and (i := self._tests.interval(*pair)) is not None
        }
        adjusted = holm({pair: self._tests.test(*pair)[1] for pair in found})
        return {pair: Difference(i, adjusted[pair]) for pair, i in found.items()}


class PairTests:
    """Every row minus every other on the same candidates; ``margin``: the difference that is tested
    against.

    What is picked on the other folds is unbiased, but picks of different folds depend on each
    other, and where no attack or sign is clearly the strongest the mean can be far too low: without
    any leak, for one row in ten of six seeds by more than its interval. So the lower row's plain
    maximum, too high if anything, must be lower than the other row with significance, too
    (docs/method.md#worst-case).
    """

    def __init__(
        self, parts: Sequence[Part], rivals: Mapping[str, Rival], margin: float = 0.0
    ) -> None:
        self._at, n = {label: i for i, label in enumerate(rivals)}, len(rivals)
        self._found = paired(
            parts, [*(r.picked for r in rivals.values()), *(r.plain for r in rivals.values())]
        )
        means, p_values = (
            x.reshape(2 * n, 2 * n)
            for x in (self._found.mean - margin, self._found.p_values(margin))
        )
        lower = means[:n, :n] < 0
        guard, p_guard = (np.where(lower, x[n:, :n], x[:n, n:]) for x in (means, p_values))
        agree = np.where(lower, guard < 0, guard > 0)
        self._means = np.nan_to_num(means[:n, :n])
        self._p_values = np.where(agree, np.fmax(p_values[:n, :n], p_guard), 1.0)

    def test(self, one: str, other: str) -> tuple[float, float]:
        """(mean difference minus the margin, p-value); (0, 1) where no unit has both."""
        at = self._at[one], self._at[other]
        return float(self._means[at]), float(self._p_values[at])

    def among(self, labels: Sequence[str]) -> Tests:
        """Of all pairs of these."""
        return {pair: self.test(*pair) for pair in combinations(labels, 2)}

    def interval(self, one: str, other: str) -> Interval | None:
        """Of the first minus the second; None where no unit has both."""
        return self._found.interval(self._place(one, other))

    def deviation(self, one: str, other: str) -> float:
        """Standard deviation of that difference from seed to seed; NaN with fewer than two."""
        seeds, _, error = (found[self._place(one, other)] for found in self._found.of_seeds)
        return float(error * np.sqrt(seeds))

    def _place(self, one: str, other: str) -> int:
        return 2 * len(self._at) * self._at[one] + self._at[other]


def paired(parts: Sequence[Part], sides: Sequence[Weights]) -> Estimates:
    """Each of S weighted sums of AUCs minus each other one: S x S statistics, on the units that
    have both.

    A difference of two sums has the variance G[a, a] + G[b, b] - 2 G[a, b], where G = W C W' is the
    covariance of all sums of a part; and so have the pulls that targets of a seed have in common,
    with G the products of the pulls themselves.
    """
    units = list(dict.fromkeys(part.unit for part in parts))
    n, values, variances = np.zeros((3, len(units), len(sides), len(sides)))
    made = [(units.index(part.unit), part.ids, *_sums(part, sides)) for part in parts]
    for u, _, sums, products, _ in made:
        differences = sums[:, None] - sums[None, :]
        known = ~np.isnan(differences)
        n[u] += known
        values[u] += np.where(known, differences, 0.0)
        variances[u] += np.where(known, np.maximum(_of_differences(products), 0.0), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        values, variances = values / n, variances / n**2
    shared = np.zeros((len(sides), len(sides)))
    for (u, ids, sums, _, pulls), (v, other_ids, other_sums, _, other_pulls) in combinations(
        made, 2
    ):
        if u != v and units[u][0] == units[v][0]:
            _, at, other_at = np.intersect1d(ids, other_ids, return_indices=True)
            both = (n[u] * n[v] > 0) & ~np.isnan(
                sums[:, None] + sums[None, :] + other_sums[:, None] + other_sums[None, :]
            )
            product = _of_differences(pulls[:, at] @ other_pulls[:, other_at].T)
            shared += np.where(both, 2 * product / np.maximum(n[u] * n[v], 1), 0.0)
    flat = len(units), len(sides) ** 2
    return Estimates(
        np.array([seed for seed, _ in units]),
        values.reshape(flat),
        variances.reshape(flat),
        shared.ravel(),
    )


def _sums(part: Part, sides: Sequence[Weights]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sums [S], NaN where a side lacks an AUC of the part, their covariance [S, S], their pulls
    [S, n]).
    """
    weights = np.zeros((len(sides), len(part.at)))
    lacking = np.zeros(len(sides), bool)
    for s, side in enumerate(sides):
        own = side.get(part.fold)
        lacking[s] = (
            own is None
            or not own.keys() <= part.at.keys()
            or (bool(own) and bool(np.isnan(part.aucs).any()))
        )
        for key, w in {} if own is None or lacking[s] else own.items():
            weights[s, part.at[key]] = w
    used = weights.any(axis=0)
    weights = weights[:, used]
    sums = np.where(lacking, np.nan, weights @ (part.aucs[used] - 0.5))
    return (
        sums,
        weights @ part.covariance[np.ix_(used, used)] @ weights.T,
        weights @ part.pulls[used],
    )


def _of_differences(products: np.ndarray) -> np.ndarray:
    """[S, S]: of the products [S, S] of vectors a and b, those of all differences: aa' + bb' - ab'
    - ba'.
    """
    own = np.diag(products)
    return np.asarray(own[:, None] + own[None, :] - products - products.T)


def readings(mean: float, settled: bool) -> tuple[float, float]:
    """(lower, higher) AUC of both signs, or twice the mean where the sign is settled."""
    return (mean, mean) if settled else (min(mean, 1 - mean), max(mean, 1 - mean))


def ordered(tests: Tests) -> list[Pair]:
    """(lower, higher): the pairs that differ with significance where all are tested together
    (Holm).
    """
    adjusted = holm({pair: p for pair, (_, p) in tests.items()})
    different = [
        (pair, mean)
        for pair, (mean, _) in tests.items()
        if adjusted[pair] <= 1 - LEVEL and mean != 0
    ]
    return [pair if mean < 0 else pair[::-1] for pair, mean in different]


def rank_ranges(labels: Sequence[str], tests: Tests) -> dict[str, tuple[int, int]]:
    """Label -> (best, worst) rank that the ``tests`` of all pairs leave open, 1 being the lowest
    value.

    Rows that are significantly better rank before a row, significantly worse ones behind it, the
    others on either side: with 95 % confidence all true ranks lie within their ranges (Al Mohamad
    et al., Statistica Neerlandica 2022).
    """
    pairs = ordered(tests)
    better, worse = (Counter(pair[side] for pair in pairs) for side in (1, 0))
    return {label: (1 + better[label], len(labels) - worse[label]) for label in labels}
