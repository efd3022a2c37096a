"""Verdicts of a board on the papers' claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal, get_args

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import POWER, holm
from fedbench.leaderboard.statistics.scores import Population, SectionScores
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.verdict import LeakStatistics
from fedbench.plugins.papers.claim_files import (
    Bound,
    Claim,
    Contrast,
    Paper,
    Place,
    Predicate,
    Quantity,
    Sweep,
)
from fedbench.plugins.papers.own_tables import OwnTable, own_table
from fedbench.plugins.papers.quantities import (
    BY_SEED,
    CHANCE,
    Missing,
    at_floor,
    compared_with_value,
    contrasted,
    learned,
    measured,
    mixed,
    power,
)
from fedbench.plugins.papers.trends import trend

Verdict = Literal[
    "the paper contradicts itself",
    "contradicted",
    "smaller than claimed",
    "not tested at this scale",
    "not comparable at this scale",
    "cannot decide here",
    "not decided by these intervals",
    "supported",
]
"""of a claim, the first that applies to it or to one of its comparisons"""
UNLEARNED = (
    "is beside an undefended model that is right less than three times as often as by chance"
)
NULLS = dict.fromkeys(("auc", "worst-auc", "mean-auc", "attack-accuracy"), 0.5) | {
    "delta-accuracy": 0.0
}
"""values of no effect, which mean the same at every scale; a runtime has none, since much of a
small network's is the engine's cost of a step
"""
MINOR = dict.fromkeys(("auc", "worst-auc", "mean-auc"), 0.03) | dict.fromkeys(
    ("accuracy", "delta-accuracy"), 1.0
)
"""differences that a comparison must be able to show where the paper prints none: CoFedMID, section
5.3
"""
DIRECTION = 0.5
"""rank correlation that a sweep must be able to show: three of four pairs of points in order"""


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """Test of one number against a value or another number."""

    place: Place
    quantity: Quantity
    value: Interval
    """the number itself"""
    other: str | None
    bound: float
    found: Interval
    """the number or its difference from ``other``, which is tested against ``bound``"""
    claimed: int
    """-1 below, +1 above"""
    p: float
    """two-sided"""
    size: float | None = None
    """a difference from ``other`` that is smaller than this is smaller than claimed"""
    p_smaller: float = 1.0
    """one-sided, of a difference of that ``size``"""
    distance: float | None = None
    """how far beyond the bound the paper has it or, where it prints no number, what is minor"""
    at_scale: bool = False
    """whether the board has the paper's data, model and rounds"""
    power: float = 1.0
    """power to show that distance, 0 if not known"""
    bar: str = ""
    """why it cannot be decided"""
    absolute: bool = False
    """whether the value says nothing at other scales"""
    outside: Interval | None = None
    """the difference of two attacks beside outside non-members, where the claim is about others"""
    along: str = ""
    """the points of a sweep: the numbers are then rank correlations with their order"""

    @property
    def verdict(self) -> Verdict:
        """Verdict of this comparison alone; what is significant at 95 % is decided whatever its
        power.
        """
        if self.absolute:
            return "not comparable at this scale"
        if self.bar:
            return "cannot decide here"
        if self.p <= 1 - LEVEL and self.found.mean != self.bound:
            return "supported" if self._as_claimed else "contradicted"
        if self.p_smaller <= 1 - LEVEL:
            return "smaller than claimed"
        return "cannot decide here" if self.power < POWER else "not decided by these intervals"

    @property
    def _as_claimed(self) -> bool:
        return (self.found.mean - self.bound) * self.claimed > 0

    @property
    def against(self) -> float:
        """One-sided p-value of the claimed sign: the larger, the more this comparison speaks
        against the claim.
        """
        return self.p / 2 if self._as_claimed else 1 - self.p / 2


@dataclass(frozen=True)
class Lack:
    """Part that the board lacks: ``why``, in our words, of ``what``, a name from the claim's
    file.
    """

    place: Place
    why: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Claim with its verdict; no comparisons and lacks where its ``own`` table speaks against
    it.
    """

    claim: Claim
    own: OwnTable
    comparisons: tuple[ClaimTest, ...] = ()
    """in the order of the claim's sections, p-values adjusted for all of it (Holm) on all boards"""
    lacks: tuple[Lack, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The first of ``Verdict`` that applies: a claim that its own table does not hold is not
        judged; one comparison significant the other way contradicts, and one of a difference that
        is significantly smaller than claimed decides; since all must hold, the weakest of the
        others is the claim's: not there, an absolute value, not decidable, not significant. All
        significant as claimed, and nothing lacking, support.
        """
        if self.own.fails:
            return "the paper contradicts itself"
        verdicts = {test.verdict for test in self.comparisons}
        if self.lacks or not verdicts:
            verdicts.add("not tested at this scale")
        return next(verdict for verdict in get_args(Verdict) if verdict in verdicts)


def judged(paper: Paper, sections: Sequence[BoardSection]) -> list[Judged]:
    """Judge the paper's claims that name the suite of a section; several suites on one board are
    judged together.
    """
    suites = {s.suite for s in sections}
    sections = [_without(s, paper.ours) for s in sections]
    of_population: dict[Population, list[BoardSection]] = {}
    claims = []
    for claim in paper.claims:
        places = [place for place in paper.places(claim) if place.suite in suites]
        if places:
            population = claim.nonmembers or paper.nonmembers
            if population not in of_population:
                of_population[population] = [s.held_against(population) for s in sections]
            claims.append(_judge(paper, claim, places, of_population[population], sections))
    for population, others in of_population.items():
        for section in others if population != "outside" else ():
            section.comparison.scores.forget()
    return claims


def _without(section: BoardSection, attacks: Sequence[str]) -> BoardSection:
    """Return the section without these attacks."""
    if not set(attacks) & set(section.attacks):
        return section
    left = tuple(a for a in section.attacks if a not in attacks)
    rows = []
    for row in section.unordered_rows:
        rows.append(replace(row, entries={a: row.entries[a] for a in left}))
    counted = [attack for attack in section.comparison.attacks if attack in left]
    comparison = LeakStatistics(SectionScores(rows, section.units), counted)
    return replace(section, attacks=left, unordered_rows=tuple(rows), comparison=comparison)


def _judge(
    paper: Paper,
    claim: Claim,
    places: Sequence[Place],
    sections: Sequence[BoardSection],
    outside: Sequence[BoardSection],
) -> Judged:
    own = own_table(paper, claim)
    if own.fails:
        return Judged(claim=claim, own=own)
    boards = 1 + len(set(paper.suites(claim)) - {place.suite for place in places})
    tests: list[ClaimTest] = []
    lacks: dict[Lack, None] = {}
    for place, (i, predicate) in product(places, enumerate(claim.holds)):
        at_scale = place.suite in paper.at_scale
        for test in _tests(place, predicate, sections, at_scale, partial(own.distance, i)):
            if isinstance(test, Lack):
                lacks[test] = None
            else:
                tests.append(_weighed(test, sections, (1 - LEVEL) / boards))
    for i, test in enumerate(tests):
        bar = test.bar
        if not bar and _cannot_fail(test, tests):
            bar = "less the slack is at chance"
        same = test.along or sections[0] is outside[0]
        beside = None if same else _beside(test, outside)
        tests[i] = replace(test, bar=bar, outside=beside)
    comparisons = tuple(_adjusted(tests, boards))
    return Judged(claim=claim, own=own, comparisons=comparisons, lacks=tuple(lacks))


def _adjusted(tests: Sequence[ClaimTest], boards: int) -> Iterator[ClaimTest]:
    """Yield the tests with p-values for all of them together, on all boards."""
    decidable = {i: test for i, test in enumerate(tests) if not (test.absolute or test.bar)}
    p = holm({i: test.p for i, test in decidable.items()})
    p_smaller = holm({i: test.p_smaller for i, test in decidable.items()})
    for i, test in enumerate(tests):
        yield replace(
            test,
            p=min(1.0, boards * p.get(i, 1.0)),
            p_smaller=min(1.0, boards * p_smaller.get(i, 1.0)),
        )


def _cannot_fail(test: ClaimTest, tests: Sequence[ClaimTest]) -> bool:
    """Tell whether it claims only that a number lies no more than a slack below another, and chance
    does not lie lower either. With a slack above the other number, too, the claim can fail.
    """
    if test.other is None or test.claimed < 0 or test.bound >= 0:
        return False
    lowest = test.value.mean - test.found.mean + test.bound
    if lowest > CHANCE.get(test.quantity.measure, -1.0):
        return False
    same = (t for t in tests if (t.place, t.other) == (test.place, test.other))
    return all(t.claimed > 0 for t in same if t.quantity == test.quantity)


def _beside(test: ClaimTest, sections: Sequence[BoardSection]) -> Interval | None:
    """Return the same difference of two attacks in other ``sections``, of other non-members; None
    of anything else.
    """
    section, q = _section(test.place, sections, ""), test.quantity
    attacks = q.measure == "auc" and test.other in section.attacks
    if not attacks or not section.comparison.leaks.parts:
        return None
    other = q.model_copy(update={"attack": test.other})
    return contrasted((section, q), (section, other)).interval


def _weighed(test: ClaimTest, sections: Sequence[BoardSection], level: float) -> ClaimTest:
    """Add the power to show the distance."""
    measure = test.quantity.measure
    if test.along:
        chance = power(test.found, DIRECTION, test.claimed, test.found.n, level)
        return replace(test, distance=DIRECTION, power=chance)
    seeds = len(_section(test.place, sections, "").seeds)
    distance = test.distance
    null = NULLS.get(measure, 0.0 if measure in BY_SEED else None)
    return replace(
        test,
        power=power(test.found, distance, test.claimed, seeds, level) if distance else 0.0,
        absolute=not test.other and test.bound != null and not test.at_scale,
    )


def _tests(
    place: Place,
    predicate: Predicate,
    sections: Sequence[BoardSection],
    at_scale: bool,
    printed: Callable[[str | None], float | None],
) -> Iterator[ClaimTest | Lack]:
    """``printed``: name of the other side -> distance that the paper prints."""
    asked = predicate.asked
    if isinstance(asked, Sweep):
        yield _direction(place, predicate.direction, asked, sections)
        return
    try:
        section = _section(place, sections, "")
        q = _quantity(asked)
        value = measured(section, q)
    except Missing as missing:
        yield Lack(place, missing.why, missing.what)
        return
    test = ClaimTest(
        place=place,
        quantity=q,
        value=value,
        other=None,
        bound=0.0,
        found=value,
        claimed=predicate.direction,
        p=1.0,
        distance=printed(None) or MINOR.get(q.measure),
        at_scale=at_scale,
    )
    if isinstance(asked, Bound):
        p = compared_with_value(section, q, asked.value).p
        yield replace(test, bound=asked.value, p=p, bar=mixed(section, q.row))
        return
    for name, elsewhere, other in _others(place, q, asked):
        distance = printed(name) or asked.slack or MINOR.get(q.measure)
        size = None if asked.slack else _size(q.measure, printed(name), at_scale)
        test = replace(test, distance=distance, size=size)
        try:
            yield _against(test, section, _section(elsewhere, sections, name), other, name, asked)
        except Missing as missing:
            yield Lack(place, missing.why, missing.what)


def _direction(
    place: Place, claimed: int, asked: Sweep, sections: Sequence[BoardSection]
) -> ClaimTest | Lack:
    """Return the test of a sweep's direction, or what the board lacks for it."""
    points = []
    try:
        for kind, name in asked.along.points:
            at = place if kind == "row" else place.model_copy(update={kind: name})
            q = _quantity(asked)
            if kind == "row":
                q = q.model_copy(update={"row": name})
            points.append((_section(at, sections, name), q))
        direction = trend(points)
    except Missing as missing:
        return Lack(place, missing.why, missing.what)
    return ClaimTest(
        place=place,
        quantity=_quantity(asked),
        value=direction.interval,
        other=None,
        bound=0.0,
        found=direction.interval,
        claimed=claimed,
        p=direction.p,
        along=", ".join(name for _, name in asked.along.points),
    )


def _quantity(asked: Quantity) -> Quantity:
    return Quantity.model_validate(asked.model_dump(include=set(Quantity.model_fields)))


def _against(
    test: ClaimTest,
    section: BoardSection,
    elsewhere: BoardSection,
    other: Quantity,
    name: str,
    asked: Contrast,
) -> ClaimTest:
    """Return the ``test`` of the other side. Raises :class:`Missing` where it cannot be made."""
    q = test.quantity
    margin = -test.claimed * asked.slack
    difference = contrasted((section, q), (elsewhere, other), margin)
    bar = mixed(section, q.row, other.row)
    if not learned(section):
        bar = UNLEARNED
    elif not bar and test.claimed < 0 and q.row != other.row:
        bar = "is at the floor" if at_floor(section, other, asked.slack) else ""
    test = replace(
        test, other=name, bound=margin, found=difference.interval, p=difference.p, bar=bar
    )
    if bar or test.size is None:
        return test
    claimed = test.claimed * test.size
    p = contrasted((section, q), (elsewhere, other), claimed).p / 2
    smaller = test.claimed * (test.found.mean - claimed) < 0
    return replace(test, p_smaller=p if smaller else 1.0)


def _size(measure: str, printed: float | None, at_scale: bool) -> float | None:
    """Return the least difference that counts as claimed: at the paper's scale what it prints; at
    another, where a difference does not mean the same, what is minor, unless it prints less.
    """
    minor = MINOR.get(measure)
    if at_scale:
        return printed or minor
    return None if minor is None or (printed or minor) < minor else minor


def _others(place: Place, q: Quantity, asked: Contrast) -> Iterator[tuple[str, Place, Quantity]]:
    """Yield (name, place, quantity) of everything that a quantity is compared with."""
    than = asked.than
    for field, labels in (("row", than.rows), ("attack", than.attacks), ("group", than.groups)):
        for label in labels or ():
            yield label, place, q.model_copy(update={field: label})
    if than.section is not None:
        differs = than.section.model_dump(exclude_none=True)
        attack = {"attack": differs.pop("attack", q.attack)}
        elsewhere = place.model_copy(update=differs)
        yield than.section.name, elsewhere, q.model_copy(update=attack)


def _section(place: Place, sections: Sequence[BoardSection], name: str) -> BoardSection:
    for section in sections:
        at = section.suite, section.setting, section.coalition, section.view
        if at == (place.suite, place.setting, place.coalition, place.view):
            return section
    raise Missing("no such section on this board", name)
