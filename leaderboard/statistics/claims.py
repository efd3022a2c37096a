"""Verdicts of a board on the papers' claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.claims.papers import Bound, Claim, Contrast, Paper, Place, Predicate, Quantity, Undominated
from fedbench.leaderboard.statistics.claim_quantities import (
    Found,
    Missing,
    compared_with_value,
    contrasted,
    measured,
    other_rows,
    own_row,
    undominated,
)
from fedbench.leaderboard.statistics.intervals import holm
from fedbench.leaderboard.statistics.sections import Section

Verdict = Literal["supported", "contradicted", "not decided by these intervals", "not tested at this scale"]


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """One number against a value or another number. ``value``: the number itself; ``found``: the number or its
    difference from ``other``, which is tested against ``bound``; ``claimed``: -1 below, +1 above; ``p``:
    two-sided."""

    place: Place
    quantity: Quantity
    value: Interval
    other: str | None
    bound: float
    found: Interval
    claimed: int
    p: float

    @property
    def significant_sign(self) -> int:
        """The sign that is significant at 95 %; 0 where none is."""
        return int(np.sign(self.found.mean - self.bound)) if self.p <= 1 - LEVEL else 0

    @property
    def against(self) -> float:
        """One-sided p-value of the claimed sign: the larger, the more this comparison speaks against the claim."""
        return self.p / 2 if (self.found.mean - self.bound) * self.claimed > 0 else 1 - self.p / 2


@dataclass(frozen=True)
class Lack:
    """What the board does not have: ``why``, in our words, of ``what``, a name from the claim's file."""

    place: Place
    why: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its verdict; ``comparisons``, their p-values adjusted for all of the claim (Holm), and ``lacks``
    in the order of the claim's sections."""

    claim: Claim
    comparisons: tuple[ClaimTest, ...]
    lacks: tuple[Lack, ...]

    @property
    def verdict(self) -> Verdict:
        """One comparison significant the other way contradicts; all significant as claimed, and nothing lacking,
        support."""
        signs = [c.significant_sign * c.claimed for c in self.comparisons]
        if -1 in signs:
            return "contradicted"
        if 0 in signs:
            return "not decided by these intervals"
        return "not tested at this scale" if self.lacks or not signs else "supported"


def judged(paper: Paper, sections: Sequence[Section]) -> list[Judged]:
    """The paper's claims that name the suite of a section; several suites on one board are judged together."""
    suites = {s.suite for s in sections}
    named = [(claim, [p for p in paper.places(claim) if p.suite in suites]) for claim in paper.claims]
    return [_judge(claim, places, sections) for claim, places in named if places]


def _judge(claim: Claim, places: Sequence[Place], sections: Sequence[Section]) -> Judged:
    found = [one for place in places for predicate in claim.holds for one in _tests(place, predicate, sections)]
    tests, lacks = [x for x in found if isinstance(x, ClaimTest)], [x for x in found if isinstance(x, Lack)]
    adjusted = holm({i: test.p for i, test in enumerate(tests)})
    comparisons = tuple(replace(test, p=adjusted[i]) for i, test in enumerate(tests))
    return Judged(claim=claim, comparisons=comparisons, lacks=tuple(dict.fromkeys(lacks)))


def _tests(place: Place, predicate: Predicate, sections: Sequence[Section]) -> Iterator[ClaimTest | Lack]:
    asked, direction = predicate.asked, predicate.direction
    try:
        section = _section(place, sections, "")
        fields = {name: getattr(asked, name) for name in Quantity.model_fields}
        quantity = Quantity.model_validate(fields | {"row": own_row(section, asked)})
        value = measured(section, quantity)
        others = [] if isinstance(asked, Bound) else list(_others(place, section, quantity, asked))
    except Missing as missing:
        yield Lack(place, missing.why, missing.what)
        return
    test = ClaimTest(place=place, quantity=quantity, value=value, other=None, bound=0.0, found=value, claimed=direction, p=1.0)
    if isinstance(asked, Bound):
        found = compared_with_value(section, quantity, asked.value)
        yield replace(test, bound=asked.value, found=found.interval, p=found.p)
        return
    for other in others:
        try:
            yield _against(test, section, other, asked, sections)
        except Missing as missing:
            yield Lack(place, missing.why, missing.what)


@dataclass(frozen=True)
class _Other:
    """The other side of a comparison: its ``name``, its section's ``place`` and the ``quantity`` there."""

    name: str
    place: Place
    quantity: Quantity


def _against(
    test: ClaimTest, section: Section, other: _Other | Missing, asked: Contrast, sections: Sequence[Section]
) -> ClaimTest:
    """The ``test`` of the other side. Raises :class:`Missing` where it cannot be made."""
    if isinstance(other, Missing):
        raise other
    own, theirs = test.quantity, other.quantity
    if not isinstance(asked, Undominated):
        margin = -test.claimed * asked.slack
        found: Found = contrasted((section, own), (_section(other.place, sections, other.name), theirs), margin)
        return replace(test, other=other.name, bound=margin, found=found.interval, p=found.p)
    accuracies = [Quantity(measure="accuracy", row=q.row) for q in (own, theirs)]
    leak = contrasted((section, own), (section, theirs))
    by_accuracy, found = undominated(leak, contrasted((section, accuracies[0]), (section, accuracies[1])))
    if by_accuracy:
        test = replace(test, quantity=accuracies[0], value=measured(section, accuracies[0]), claimed=1)
    return replace(test, other=other.name, found=found.interval, p=found.p)


def _others(place: Place, section: Section, own: Quantity, asked: Contrast) -> Iterator[_Other | Missing]:
    """Everything that a quantity is compared with, or what is missing of it."""
    than = asked.than
    for row in other_rows(section, asked, than):
        yield row if isinstance(row, Missing) else _Other(row, place, own.model_copy(update={"row": row}))
    for field, labels in (("attack", than.attacks), ("group", than.groups)):
        for label in labels or ():
            yield _Other(label, place, own.model_copy(update={field: label}))
    if than.section is not None:
        given = than.section.model_dump(exclude_none=True)
        name = ", ".join(f"{field} {value}" for field, value in given.items())
        attack = {field: given.pop(field) for field in ("attack",) if field in given}
        yield _Other(name, place.model_copy(update=given), own.model_copy(update=attack))


def _section(place: Place, sections: Sequence[Section], name: str) -> Section:
    wanted = (place.suite, place.setting, place.coalition, place.view)
    found = next((s for s in sections if (s.suite, s.setting, s.coalition, s.view) == wanted), None)
    if found is None:
        raise Missing("no such section on this board", name)
    return found
