"""All statistics of a section's rows against attacks: leaks, worst cases, tests of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.audits import Calibrated, Found, found_by
from fedbench.leaderboard.statistics.intervals import holm, smallest_shown
from fedbench.leaderboard.statistics.leaks import Leaks
from fedbench.leaderboard.statistics.paired import Pair, PairTests, ordered, rank_ranges
from fedbench.leaderboard.statistics.scores import CandidateFilter, Population, SectionScores
from fedbench.leaderboard.statistics.worst_case import WorstCase, WorstCases


@dataclass(frozen=True)
class Difference:
    """Two rows' worst cases, the first minus the second, paired on the same candidates."""

    interval: Interval
    p: float
    """adjusted for the number of rows compared (Holm)"""

    @property
    def shown(self) -> bool:
        """Whether it is significantly different from 0."""
        return self.p <= 1 - LEVEL


class Pairwise:
    """Tests of all pairs of rows' worst cases, and the ranks that follow."""

    def __init__(self, leaks: Leaks, worst_cases: WorstCases) -> None:
        self._leaks = leaks
        self._worst_cases = worst_cases
        self._rows = leaks.scores.rows
        self._leaders: dict[str, str | None] = {}
        self._intervals: dict[Pair, Interval | None] = {}

    @cached_property
    def tests(self) -> PairTests:
        """Tests of the rows' worst cases."""
        rivals = {row.label: self._worst_cases.of(row.label).rival for row in self._rows}
        return PairTests(self._leaks, rivals)

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Labels of the rows with a rank: complete, no floor, judged by every eligible attack: a
        worst case over fewer attacks is no rank.
        """
        labels = [row.label for row in self._rows if row.complete and not row.floor]
        cases = self._worst_cases
        labels = [label for label in labels if not cases.inapplicable(label)]
        return tuple(label for label in labels if cases.of(label).worst is not None)

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
        return frozenset(ordered(self.tests.among(self.ranked)))

    def tied(self, label: str) -> tuple[str, ...]:
        """Return the other ranked rows that the tests do not distinguish from a ranked row."""
        if label not in self.ranked:
            return ()
        distinguished = {label}
        for pair in self.better:
            if label in pair:
                distinguished.update(pair)
        return tuple(name for name in self.ranked if name not in distinguished)

    def ranks_among(self, labels: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the ranks of those of ``labels`` that have one, as if there were no other rows."""
        ranked = [label for label in self.ranked if label in labels]
        return rank_ranges(ranked, self.tests.among(ranked))

    @cached_property
    def smallest_difference(self) -> float | None:
        """The difference of two ranked rows' worst cases that is shown with a power of 80 % where
        all pairs are tested together; None with one seed or one row.
        """
        pairs = list(combinations(self.ranked, 2))
        deviations = [d for d in map(self.tests.deviation, pairs) if d is not None]
        return smallest_shown(deviations, len(self._leaks.scores.targets), len(pairs))

    def leader(self, attack: str) -> str | None:
        """Return the one complete row with the lowest AUC of an attack, if it is significantly
        lower than all others.
        """
        if attack not in self._leaders:
            self._leaders[attack] = self._leader(attack)
        return self._leaders[attack]

    def _leader(self, attack: str) -> str | None:
        rivals = {}
        for row in self._rows:
            if not (row.floor or row.refuted) and row.entries[attack].complete:
                rivals[row.label] = self._worst_cases.of(row.label).attack_rival(attack)
        if len(rivals) < 2:
            return None
        labels = list(rivals)
        tests = PairTests(self._leaks, rivals)
        lowest = labels[0]
        for label in labels[1:]:
            if tests.test((label, lowest))[0] < 0:
                lowest = label
        # an adjusted p-value is no lower: most attacks have no leader, and few pairs show it
        for label in labels:
            if label != lowest and tests.test((lowest, label))[1] > 1 - LEVEL:
                return None
        _, worst_rank = rank_ranges(labels, tests.among(labels))[lowest]
        return lowest if worst_rank == 1 else None

    def against(self, reference: str) -> dict[str, Difference]:
        """Return label -> its worst case minus that of the ``reference`` row, of every other row
        that has both.
        """
        pairs = [(row.label, reference) for row in self._rows if row.label != reference]
        differences = self.between(pairs)
        return {label: difference for (label, _), difference in differences.items()}

    def between(self, pairs: Sequence[Pair]) -> dict[Pair, Difference]:
        """Return the worst case of the first minus that of the second, of the pairs that have both,
        over the same attacks, and are not refuted; adjusted for their number.
        """
        left_out: set[str] = set()
        for row in self._rows:
            if row.refuted or self._worst_cases.inapplicable(row.label):
                left_out.add(row.label)
        intervals: dict[Pair, Interval] = {}
        for pair in pairs:
            interval = self._interval(pair)
            if interval is not None and left_out.isdisjoint(pair):
                intervals[pair] = interval
        adjusted = holm({pair: self.tests.test(pair)[1] for pair in intervals})
        return {pair: Difference(i, adjusted[pair]) for pair, i in intervals.items()}

    def _interval(self, pair: Pair) -> Interval | None:
        if pair not in self._intervals:
            difference = self.tests.difference(pair)
            self._intervals[pair] = None if difference is None else difference.interval
        return self._intervals[pair]


class LeakStatistics:
    """Rows of a section against ``attacks``, by its ``scores`` on candidates of one ``kind``.

    ``eligible``: the attacks that judge, where other non-members choose them.
    """

    def __init__(
        self,
        scores: SectionScores,
        attacks: Sequence[str],
        eligible: Sequence[str] | None = None,
        kind: CandidateFilter = "all",
    ) -> None:
        self.scores = scores
        self.attacks = tuple(attacks)
        self.leaks = Leaks(scores, kind)
        self.worst_cases = WorstCases(self.leaks, self.attacks, eligible)
        self.pairwise = Pairwise(self.leaks, self.worst_cases)

    @cached_property
    def by_kind(self) -> tuple[LeakStatistics, LeakStatistics]:
        """The comparison on the candidates that are clean, and on those that are mislabelled."""
        clean = LeakStatistics(self.scores, self.attacks, kind="clean")
        return clean, LeakStatistics(self.scores, self.attacks, kind="canary")

    @cached_property
    def clean_base(self) -> WorstCase | None:
        """The undefended row's worst case on clean candidates, for which no other row is read."""
        base = self.scores.base
        if base is None:
            return None
        alone = SectionScores([base], self.scores.units, self.scores.population)
        clean = LeakStatistics(alone, self.attacks, kind="clean")
        return clean.worst_cases.of(base.label).worst

    @cached_property
    def calibrated_scores(self) -> Calibrated:
        """The scores after calibration by the section's other seeds, which share a pool."""
        return Calibrated(self.scores)

    @cached_property
    def calibrated(self) -> LeakStatistics:
        """The comparison by these scores."""
        entries = self.calibrated_scores.rows[0].entries.items()
        attacks = [attack for attack, entry in entries if not entry.adaptive]
        return LeakStatistics(self.calibrated_scores, attacks)

    def found(self, label: str) -> Found | None:
        """Return how often the attack of a row's worst case finds each candidate; None without
        scores.
        """
        worst = self.worst_cases.of(label).worst
        if worst is None:
            return None
        return found_by(self.calibrated_scores, label, worst.attack, worst.sign)

    def held_against(self, population: Population) -> LeakStatistics:
        """Return the comparison with other non-members, judged by the attacks eligible here."""
        if population == self.scores.population:
            return self
        scores = SectionScores(self.scores.rows, self.scores.units, population)
        return LeakStatistics(scores, self.attacks, self.worst_cases.eligible)
