"""What an adversary gets out of every defense of a section, and which defenses can be told apart by it.

Everything is over outside non-members: inside ones leak through their own clients, so one half is no floor among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics import sheets
from fedbench.leaderboard.statistics.aligned import alignable
from fedbench.leaderboard.statistics.chosen import Choice, picked_most, signs, strongest
from fedbench.leaderboard.statistics.once import once
from fedbench.leaderboard.statistics.pairs import Tests, all_tests, ranges
from fedbench.leaderboard.statistics.pooled import enough
from fedbench.leaderboard.statistics.ranks import holm, rank_ranges
from fedbench.leaderboard.statistics.rates import rates_elsewhere, tf01_of
from fedbench.leaderboard.statistics.rivals import Difference, Rival, Weights, differences, told_apart, weighted
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.sample import Sample
from fedbench.leaderboard.statistics.sheet import Kept, Key, Own, Part, parts_of_kinds
from fedbench.leaderboard.statistics.spread import Measured, Unit, by_unit, mean_over_units, over_units, p_of_chance, reaching
from fedbench.leaderboard.statistics.worst import Worst, WorstRate


class Contest:
    """``rows`` against ``attacks`` on ``units``, of ``only`` the candidates that are clean, or mislabelled; everything is worked
    out when asked for, once."""

    def __init__(self, rows: Sequence[Row], attacks: Sequence[str], units: Sequence[Unit], only: Kept = "all") -> None:
        self.rows, self.attacks, self.units, self.only = tuple(rows), tuple(attacks), tuple(units), only
        self._twins: tuple[Contest, ...] = ()

    @cached_property
    def by_kind(self) -> tuple[Contest, Contest]:
        """The same on the candidates that are clean, and on those that are mislabelled; their scores are read together."""
        clean, canary = (Contest(self.rows, self.attacks, self.units, only) for only in ("clean", "canary"))
        clean._twins = canary._twins = (clean, canary)
        return clean, canary

    @cached_property
    def parts(self) -> list[Part]:
        """UserError when two records that should share their candidates do not. Where there are many contests, those of the
        ones that were asked longest ago are forgotten, and read again when they are asked for."""
        found = parts_of_kinds(self.rows, self.units, [twin.only for twin in self._twins or (self,)])
        for twin in self._twins:
            if twin is not self:
                twin.parts = sheets.kept(twin, found[twin.only])
        return sheets.kept(self, found[self.only])

    @once
    def judged(self) -> bool:
        """Whether there is any part."""
        return bool(self.parts)

    @cached_property
    def base(self) -> Row | None:
        """The undefended row."""
        return next((r for r in self.rows if r.undefended), None)

    @cached_property
    def eligible(self) -> tuple[str, ...]:
        """The attacks that beat chance on the undefended run at 95 %, all together (Holm): only they judge defenses.

        All, where there is no undefended run. An attack that finds nothing scores members and non-members alike in every
        training, so the error from the candidates is all there is, and two or three seeds can tell.
        """
        return self._eligible()

    @once
    def _eligible(self) -> tuple[str, ...]:
        if self.base is None:
            return self.attacks
        found = {a: self._signed_units(self.base.label, a) for a in self.attacks}
        above = {
            (a, ""): p_of_chance({u: replace(m, value=m.value - 0.5) for u, m in units.items()})
            for a, units in found.items() if units
        }  # fmt: skip
        adjusted = holm(above)
        means = {a: float(np.mean([m.value for m in units.values()])) for a, units in found.items() if units}
        return tuple(a for a in self.attacks if a in means and means[a] > 0.5 and adjusted[a, ""] <= 1 - LEVEL)

    # -- one attack against one row -------------------------------------------------------------------------------------

    @once
    def sign(self, label: str, attack: str) -> dict[int, int]:
        """Fold -> sign."""
        return signs(self.parts, (label, attack))

    @once
    def signed(self, label: str, attack: str) -> Interval | None:
        """AUC of an adversary who decides the sign on other folds; None without scores."""
        interval, plain = over_units(self._signed_units(label, attack)), self._plain(label, (attack,))
        return reaching(interval, plain[1]) if interval and plain else None

    @once
    def _plain(self, label: str, attacks: tuple[str, ...]) -> tuple[Choice, float] | None:
        """What all folds together say is the strongest of ``attacks``, and its mean AUC: a maximum, biased upward."""
        means = {a: mean for a in attacks if (mean := self._raw(label, a)) is not None}
        if not means:
            return None
        attack = max(means, key=lambda a: abs(means[a] - 0.5))
        return Choice(attack, -1 if means[attack] < 0.5 else 1), 0.5 + abs(means[attack] - 0.5)

    @once
    def _raw(self, label: str, attack: str) -> float | None:
        """Its mean AUC as measured."""
        return mean_over_units(self._own_units(label, {p.fold: Choice(attack, 1) for p in self.parts}))

    def _signed_units(self, label: str, attack: str) -> dict[Unit, Measured]:
        return self._own_units(label, {fold: Choice(attack, s) for fold, s in self.sign(label, attack).items()})

    def _own_units(self, label: str, picks: Mapping[int, Choice]) -> dict[Unit, Measured]:
        """Of what is picked on each fold, over all candidates that count for it."""
        found = []
        for part in self.parts:
            pick = picks.get(part.fold)
            if pick is not None and (label, pick.attack) in part.own:
                own = part.own[label, pick.attack]
                value = 0.5 + pick.sign * (own.auc - 0.5)
                found.append((part.unit, Measured(value, own.error, pick.sign * own.pulls, own.sample.ids)))
        return by_unit(found)

    def turned(self, label: str, attack: str) -> bool:
        """Whether low scores mean members on every fold."""
        found = self.sign(label, attack)
        return bool(found) and all(s < 0 for s in found.values())

    @once
    def tf01(self, label: str, attack: str) -> Interval | None:
        """TF01 in percent over all units pooled, with the same sign; None with too few non-members, or without scores."""
        return self._rate(label, {f: Choice(attack, s) for f, s in self.sign(label, attack).items()})

    @once
    def aligned(self) -> bool:
        """Whether TF01 is that of one threshold for all units, which are too small for thresholds of their own."""
        sizes = [max(len(own.sample.nonmember) for own in part.own.values()) for part in self.parts]
        return alignable(sizes, len({seed for seed, _ in self.units})) and not enough(sizes)

    def _rate(self, label: str, picks: Mapping[int, Choice]) -> Interval | None:
        return tf01_of(self._samples(label, picks), len(self._own_units(label, picks)), self.aligned())

    def _samples(self, label: str, picks: Mapping[int, Choice]) -> list[Sample]:
        found = []
        for part in self.parts:
            pick = picks.get(part.fold)
            if pick is not None and (label, pick.attack) in part.own:
                found.append(self._own_of(part)[label, pick.attack].signed(pick.sign))
        return found

    def _own_of(self, part: Part) -> Mapping[Key, Own]:
        return part.on_one_scale if self.aligned() else part.own

    # -- over attacks ---------------------------------------------------------------------------------------------------

    @once
    def worst(self, label: str) -> Worst | None:
        """None without an eligible attack that has scores."""
        picks = strongest(self.parts, label, self.eligible)
        interval, plain = over_units(self._own_units(label, picks)), self._plain(label, self.eligible)
        if interval is None or plain is None:
            return None
        attack = picked_most(picks)
        return Worst(found=reaching(interval, plain[1]), attack=attack, picks=picks, largest=(plain[0].attack, plain[1]))

    @once
    def worst_tf01(self, label: str) -> WorstRate | None:
        """Over the eligible attacks, picked by TF01 on the other folds."""
        values = {a: self._rates_elsewhere(label, a) for a in self.eligible if self.tf01(label, a) is not None}
        picks: dict[int, Choice] = {}
        for fold in sorted({p.fold for p in self.parts}) if values else []:
            there = [a for a in values if fold in self.sign(label, a)]
            if there:
                best = max(there, key=lambda a: values[a][fold])
                picks[fold] = Choice(best, self.sign(label, best)[fold])
        found = self._rate(label, picks)
        return WorstRate(found=found, attack=picked_most(picks), picks=picks) if found else None

    def _rates_elsewhere(self, label: str, attack: str) -> dict[int, float]:
        """Fold -> TPR on the other folds, with the sign that these ask for: that of the fold, in which it has no say."""
        parts = [p for p in self.parts if (label, attack) in p.own]
        signs, found = self.sign(label, attack), dict[int, float]()
        for sign in set(signs.values()):
            samples = [self._own_of(p)[label, attack].signed(sign) for p in parts]
            rates = rates_elsewhere(samples, [p.fold for p in parts], self.aligned())
            found |= {fold: rates[fold] for fold, s in signs.items() if s == sign}
        return found

    @once
    def mean(self, label: str) -> Interval | None:
        """Mean over the eligible attacks of the AUC with its sign; None without a unit where all of them have a score."""
        cells = {a: i.mean for a in self.eligible if (i := self.signed(label, a)) is not None}
        weights = {
            fold: {(label, a): self.sign(label, a).get(fold, 1) / len(cells) for a in cells}
            for fold in {p.fold for p in self.parts}
        }
        measured = [(p.unit, m) for p in self.parts if (m := weighted(p, weights[p.fold])) is not None]
        interval = over_units(by_unit(measured))
        if interval is None:
            return None
        # the width where every attack has a score, around the mean of the cells as they are shown
        plain = [found[1] for a in cells if (found := self._plain(label, (a,))) is not None]
        return reaching(replace(interval, mean=float(np.mean(list(cells.values())))), float(np.mean(plain)))

    def worst_rival(self, label: str) -> Rival:
        """The row's worst case as one side of a comparison."""
        worst = self.worst(label)
        return self._rival(label, worst.picks if worst else {}, self.eligible)

    def cell_rival(self, label: str, attack: str) -> Rival:
        """One attack on the row as one side of a comparison."""
        return self._rival(label, {f: Choice(attack, s) for f, s in self.sign(label, attack).items()}, (attack,))

    def mean_rival(self, label: str) -> Rival:
        """The row's mean over the eligible attacks as one side of a comparison, of the folds that have all of them."""
        cells = [self.cell_rival(label, a) for a in self.eligible if self.signed(label, a) is not None]
        folds = set.intersection(*(set(c.picked) for c in cells)) if cells else set()

        def mean(sides: Sequence[Weights]) -> Weights:
            return {f: {key: w / len(sides) for side in sides for key, w in side[f].items()} for f in folds}

        return Rival(mean([c.picked for c in cells]), mean([c.plain for c in cells]))

    def _rival(self, label: str, picks: Mapping[int, Choice], attacks: tuple[str, ...]) -> Rival:
        plain = self._plain(label, attacks)
        picked = {f: {(label, p.attack): float(p.sign)} for f, p in picks.items()}
        return Rival(picked, {f: {(label, plain[0].attack): float(plain[0].sign)} for f in picked} if plain else {})

    # -- who is told apart ----------------------------------------------------------------------------------------------

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Labels of the rows with a rank: complete, no floor, judged by some eligible attack."""
        return tuple(r.label for r in self.rows if r.complete and not r.floor and self.worst(r.label) is not None)

    @cached_property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """Label -> (best, worst) rank, 95 % simultaneous."""
        return self.ranks_among(self.ranked)

    def ranks_among(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """The same of some rows alone: of the ``labels`` that have a rank, as if the section had no others."""
        return self._ranks_among(tuple(label for label in self.ranked if label in labels))

    @once
    def _ranks_among(self, labels: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        return rank_ranges(labels, *self.tests_among(labels))

    @once
    def tests_among(self, labels: tuple[str, ...]) -> Tests:
        """The tests of all pairs of these rows' worst cases, the p-values not yet adjusted."""
        return all_tests(self.parts, {label: self.worst_rival(label) for label in labels})

    @once
    def leader(self, attack: str) -> str | None:
        """The one complete row that an attack does worst against, if it is told from all others."""
        labels = [r.label for r in self.rows if r.entries[attack].complete and not r.floor]
        if len(labels) < 2:
            return None
        found = ranges(self.parts, {label: self.cell_rival(label, attack) for label in labels})
        return next((label for label, (_, high) in found.items() if high == 1), None)

    @once
    def against(self, reference: str) -> dict[str, Difference]:
        """Label -> its worst case minus that of the ``reference`` row, of every other row that has both."""
        theirs = self.worst_rival(reference)
        rivals = {r.label: self.worst_rival(r.label) for r in self.rows if r.label != reference}
        intervals = {label: over_units(differences(self.parts, rival.picked, theirs.picked)) for label, rival in rivals.items()}
        found = {label: i for label, i in intervals.items() if i is not None}
        adjusted = holm({(label, reference): told_apart(self.parts, rivals[label], theirs)[1] for label in found})
        return {label: Difference(i, adjusted[label, reference]) for label, i in found.items()}

    def between(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Difference]:
        """Worst case of the first minus that of the second, of the pairs that have both; adjusted for their number."""
        return self._between(tuple(pairs))

    @once
    def _between(self, pairs: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], Difference]:
        rivals = {pair: (self.worst_rival(pair[0]), self.worst_rival(pair[1])) for pair in pairs}
        intervals = {pair: over_units(differences(self.parts, a.picked, b.picked)) for pair, (a, b) in rivals.items()}
        found = {pair: i for pair, i in intervals.items() if i is not None}
        adjusted = holm({pair: told_apart(self.parts, *rivals[pair])[1] for pair in found})
        return {pair: Difference(i, adjusted[pair]) for pair, i in found.items()}
