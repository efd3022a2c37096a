"""Verdicts of a board on the papers' claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import POWER, holm
from fedbench.leaderboard.statistics.scores import SectionScores
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Comparison
from fedbench.plugins.papers.claim_files import (
    Bound,
    Claim,
    Contrast,
    Paper,
    Place,
    Predicate,
    Quantity,
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

Verdict = Literal[
    "the paper contradicts itself",
    "contradicted",
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


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """One number against a value or another number. ``value``: the number itself; ``found``: the
    number or its difference from ``other``, which is tested against ``bound``; ``claimed``: -1
    below, +1 above; ``p``: two-sided; ``distance``: how far beyond the bound the paper has it,
    ``power`` to show that, 0 if not known; ``bar``: why it cannot be decided; ``absolute``: a value
    that says nothing at other scales; ``outside``: the difference of two attacks beside outside
    non-members, where the claim is about others.
    """

    place: Place
    quantity: Quantity
    value: Interval
    other: str | None
    bound: float
    found: Interval
    claimed: int
    p: float
    distance: float | None = None
    power: float = 1.0
    bar: str = ""
    absolute: bool = False
    outside: Interval | None = None

    @property
    def verdict(self) -> Verdict:
        """Of this comparison alone; what is significant at 95 % is decided whatever its power."""
        if self.absolute or self.bar:
            return "not comparable at this scale" if self.absolute else "cannot decide here"
        if self.p > 1 - LEVEL or self.found.mean == self.bound:
            return "cannot decide here" if self.power < POWER else "not decided by these intervals"
        return "supported" if (self.found.mean - self.bound) * self.claimed > 0 else "contradicted"

    @property
    def against(self) -> float:
        """One-sided p-value of the claimed sign: the larger, the more this comparison speaks
        against the claim.
        """
        return self.p / 2 if (self.found.mean - self.bound) * self.claimed > 0 else 1 - self.p / 2


@dataclass(frozen=True)
class Lack:
    """What the board does not have: ``why``, in our words, of ``what``, a name from the claim's
    file.
    """

    place: Place
    why: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its verdict; ``comparisons``, their p-values adjusted for all of the claim
    (Holm) on all boards, and ``lacks`` in the order of the claim's sections; none of both where its
    ``own`` table speaks against it.
    """

    claim: Claim
    own: OwnTable
    comparisons: tuple[ClaimTest, ...] = ()
    lacks: tuple[Lack, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The first of ``Verdict`` that applies: a claim that its own table does not hold is not
        judged; one comparison significant the other way contradicts; since all must hold, the
        weakest of the others is the claim's: not there, an absolute value, not decidable, not
        significant. All significant as claimed, and nothing lacking, support.
        """
        found = {c.verdict for c in self.comparisons} | (
            {"not tested at this scale"} if self.lacks else set()
        )
        if self.own.fails:
            found = {"the paper contradicts itself"}
        return next((v for v in get_args(Verdict) if v in found), "not tested at this scale")


def judged(paper: Paper, sections: Sequence[Section]) -> list[Judged]:
    """The paper's claims that name the suite of a section; several suites on one board are judged
    together.
    """
    suites = {s.suite for s in sections}
    sections = [_without(s, paper.ours) for s in sections]
    named = [
        (claim, [p for p in paper.places(claim) if p.suite in suites]) for claim in paper.claims
    ]
    asked = {claim.nonmembers or paper.nonmembers for claim, places in named if places}
    held = {population: [s.held_against(population) for s in sections] for population in asked}
    found = [
        _judge(paper, claim, places, held[claim.nonmembers or paper.nonmembers], sections)
        for claim, places in named
        if places
    ]
    for section in (s for population, own in held.items() if population != "outside" for s in own):
        section.comparison.scores.forget()
    return found


def _without(section: Section, attacks: Sequence[str]) -> Section:
    """The section without these attacks."""
    if not set(attacks) & set(section.attacks):
        return section
    kept = tuple(a for a in section.attacks if a not in attacks)
    rows = tuple(replace(row, entries={a: row.entries[a] for a in kept}) for row in section.found)
    counted = [attack for attack in section.comparison.attacks if attack in kept]
    comparison = Comparison(SectionScores(rows, section.units), counted)
    return replace(section, attacks=kept, found=rows, comparison=comparison)


def _judge(
    paper: Paper,
    claim: Claim,
    places: Sequence[Place],
    sections: Sequence[Section],
    outside: Sequence[Section],
) -> Judged:
    own = own_table(paper, claim)
    if own.fails:
        return Judged(claim=claim, own=own)
    level = (1 - LEVEL) / (boards := 1 + len(set(paper.suites(claim)) - {p.suite for p in places}))
    found = [
        one
        if isinstance(one, Lack)
        else _weighed(one, own.distance(i, one.other), paper, sections, level)
        for place in places
        for i, predicate in enumerate(claim.holds)
        for one in _tests(place, predicate, sections)
    ]
    tests, lacks = (
        [x for x in found if isinstance(x, ClaimTest)],
        [x for x in found if isinstance(x, Lack)],
    )
    tests = [
        replace(t, bar="less the slack is at chance") if not t.bar and _cannot_fail(t, tests) else t
        for t in tests
    ]
    if sections[0] is not outside[0]:
        tests = [replace(t, outside=_beside(t, outside)) for t in tests]
    adjusted = holm({i: test.p for i, test in enumerate(tests) if not (test.absolute or test.bar)})
    comparisons = tuple(
        replace(test, p=min(1.0, boards * adjusted.get(i, 1.0))) for i, test in enumerate(tests)
    )
    return Judged(claim=claim, own=own, comparisons=comparisons, lacks=tuple(dict.fromkeys(lacks)))


def _cannot_fail(test: ClaimTest, tests: Sequence[ClaimTest]) -> bool:
    """Whether it claims only that a number lies no more than a slack below another, and chance does
    not lie lower either. With a slack above the other number, too, the claim can fail.
    """
    lowest = test.value.mean - test.found.mean + test.bound
    if (
        test.other is None
        or test.claimed < 0
        or test.bound >= 0
        or lowest > CHANCE.get(test.quantity.measure, -1.0)
    ):
        return False
    at = test.place, test.quantity, test.other
    return all(
        other.claimed > 0 for other in tests if (other.place, other.quantity, other.other) == at
    )


def _beside(test: ClaimTest, sections: Sequence[Section]) -> Interval | None:
    """The same difference of two attacks in other ``sections``, of other non-members; None of
    anything else.
    """
    section, own = _section(test.place, sections, ""), test.quantity
    if (
        own.measure != "auc"
        or test.other not in section.attacks
        or not section.comparison.cells.parts
    ):
        return None
    theirs = own.model_copy(update={"attack": test.other})
    return contrasted((section, own), (section, theirs)).interval


def _weighed(
    test: ClaimTest, distance: float | None, paper: Paper, sections: Sequence[Section], level: float
) -> ClaimTest:
    """With the paper's distance or, where it is not printed, the slack or what is minor, and the
    power at that.
    """
    q, seeds = test.quantity, len(_section(test.place, sections, "").seeds)
    distance = distance or (abs(test.bound) if test.other else 0.0) or MINOR.get(q.measure)
    null = NULLS.get(q.measure, 0.0 if q.measure in BY_SEED else None)
    return replace(
        test,
        distance=distance,
        power=power(test.found, distance, test.claimed, seeds, level) if distance else 0.0,
        absolute=test.other is None
        and test.bound != null
        and test.place.suite not in paper.at_scale,
    )


def _tests(
    place: Place, predicate: Predicate, sections: Sequence[Section]
) -> Iterator[ClaimTest | Lack]:
    asked, direction = predicate.asked, predicate.direction
    try:
        section = _section(place, sections, "")
        quantity = Quantity.model_validate(asked.model_dump(include=set(Quantity.model_fields)))
        value = measured(section, quantity)
    except Missing as missing:
        yield Lack(place, missing.why, missing.what)
        return
    test = ClaimTest(
        place=place,
        quantity=quantity,
        value=value,
        other=None,
        bound=0.0,
        found=value,
        claimed=direction,
        p=1.0,
    )
    if isinstance(asked, Bound):
        found = compared_with_value(section, quantity, asked.value)
        bar = mixed(section, quantity.row)
        yield replace(test, bound=asked.value, found=found.interval, p=found.p, bar=bar)
        return
    unlearned = "" if learned(section) else UNLEARNED
    for other in _others(place, quantity, asked):
        try:
            found_against = _against(test, section, other, asked, sections)
            bar = unlearned or mixed(section, quantity.row, other.quantity.row) or found_against.bar
            yield replace(found_against, bar=bar)
        except Missing as missing:
            yield Lack(place, missing.why, missing.what)


@dataclass(frozen=True)
class _Other:
    """The other side of a comparison: its ``name``, its section's ``place`` and the ``quantity``
    there.
    """

    name: str
    place: Place
    quantity: Quantity


def _against(
    test: ClaimTest, section: Section, other: _Other, asked: Contrast, sections: Sequence[Section]
) -> ClaimTest:
    """The ``test`` of the other side. Raises :class:`Missing` where it cannot be made."""
    own, theirs = test.quantity, other.quantity
    margin = -test.claimed * asked.slack
    found = contrasted(
        (section, own), (_section(other.place, sections, other.name), theirs), margin
    )
    unfair = test.claimed < 0 and own.row != theirs.row and at_floor(section, theirs, asked.slack)
    bar = "is at the floor" if unfair else ""
    return replace(test, other=other.name, bound=margin, found=found.interval, p=found.p, bar=bar)


def _others(place: Place, own: Quantity, asked: Contrast) -> Iterator[_Other]:
    """Everything that a quantity is compared with."""
    than = asked.than
    for field, labels in (("row", than.rows), ("attack", than.attacks), ("group", than.groups)):
        for label in labels or ():
            yield _Other(label, place, own.model_copy(update={field: label}))
    if than.section is not None:
        given = than.section.model_dump(exclude_none=True)
        attack = {field: given.pop(field) for field in ("attack",) if field in given}
        yield _Other(
            than.section.name, place.model_copy(update=given), own.model_copy(update=attack)
        )


def _section(place: Place, sections: Sequence[Section], name: str) -> Section:
    wanted = (place.suite, place.setting, place.coalition, place.view)
    found = next((s for s in sections if (s.suite, s.setting, s.coalition, s.view) == wanted), None)
    if found is None:
        raise Missing("no such section on this board", name)
    return found
