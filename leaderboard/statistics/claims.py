"""What a board says of the papers' claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.claims.schema import Bound, Claim, Contrast, Elsewhere, Paper, Place, Predicate, Quantity, Undominated
from fedbench.leaderboard.statistics.claims_chosen import own_row, rivals
from fedbench.leaderboard.statistics.claims_front import undominated
from fedbench.leaderboard.statistics.claims_measures import Found, contrasted, held_against, measured
from fedbench.leaderboard.statistics.claims_series import Missing
from fedbench.leaderboard.statistics.intervals import holm
from fedbench.leaderboard.statistics.sections import Section

Verdict = Literal["supported", "contradicted", "not decided by these intervals", "not tested at this scale"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One number held against a value or another number. ``value``: the number itself; ``found``: what is compared, the number or
    its difference from ``other``; ``bound``: against what; ``claimed``: -1 below, +1 above; ``told``: the sign that is told
    at 95 % for all comparisons of the claim together, 0 where none is."""

    place: Place
    quantity: Quantity
    value: Interval
    other: str | None
    bound: float
    found: Interval
    claimed: int
    told: int
    p: float

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
    """A claim with its verdict; ``comparisons`` and ``lacks`` in the order of the claim's sections."""

    claim: Claim
    verdict: Verdict
    comparisons: tuple[Comparison, ...]
    lacks: tuple[Lack, ...]


def judged(paper: Paper, sections: Sequence[Section]) -> list[Judged]:
    """The paper's claims that name the suite of a section; several suites on one board are judged together."""
    suites = {s.suite for s in sections}
    named = [(claim, [p for p in paper.places(claim) if p.suite in suites]) for claim in paper.claims]
    return [_judge(claim, places, sections) for claim, places in named if places]


def _judge(claim: Claim, places: Sequence[Place], sections: Sequence[Section]) -> Judged:
    made: list[_Made] = []
    lacks: list[Lack] = []
    for place in places:
        for predicate in claim.holds:
            for attempt in _attempts(place, predicate, sections):
                (lacks if isinstance(attempt, Lack) else made).append(attempt)  # type: ignore[arg-type]
    adjusted = holm({(str(i), ""): m.found.p for i, m in enumerate(made)})
    comparisons = tuple(m.told(adjusted[str(i), ""]) for i, m in enumerate(made))
    return Judged(
        claim=claim, verdict=verdict_of(comparisons, lacks), comparisons=comparisons, lacks=tuple(dict.fromkeys(lacks))
    )


def verdict_of(comparisons: Sequence[Comparison], lacks: Sequence[Lack]) -> Verdict:
    """One comparison told the other way contradicts; all told as claimed, and nothing lacking, support."""
    told = [c.told * c.claimed for c in comparisons]
    if -1 in told:
        return "contradicted"
    if 0 in told:
        return "not decided by these intervals"
    return "not tested at this scale" if lacks or not told else "supported"


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A comparison before the others of its claim are known."""

    place: Place
    quantity: Quantity
    value: Interval
    other: str | None
    bound: float
    found: Found
    claimed: int

    def told(self, p: float) -> Comparison:
        """``p``: adjusted for all comparisons of the claim."""
        sign = int(np.sign(self.found.interval.mean - self.bound))
        return Comparison(
            place=self.place, quantity=self.quantity, value=self.value, other=self.other, bound=self.bound,
            found=self.found.interval, claimed=self.claimed, told=sign if p <= 1 - LEVEL else 0, p=p,
        )  # fmt: skip


def _attempts(place: Place, predicate: Predicate, sections: Sequence[Section]) -> Iterator[_Made | Lack]:
    asked, direction = predicate.asked, predicate.direction
    try:
        section = _section(place, sections, "")
        row = own_row(section, asked)
        plain = Quantity.model_validate({name: getattr(asked, name) for name in Quantity.model_fields} | {"row": row})
        value = measured(section, plain)
        others = [] if isinstance(asked, Bound) else list(_others(place, section, plain, asked))
    except Missing as missing:
        yield Lack(place, missing.why, missing.what)
        return
    if isinstance(asked, Bound):
        found = held_against(section, plain, asked.value)
        yield _Made(
            place=place, quantity=plain, value=value, other=None, bound=asked.value, found=found, claimed=direction
        )
        return
    for other in others:
        try:
            yield _against(place, section, (plain, value), other, asked, direction, sections)
        except Missing as missing:
            yield Lack(place, missing.why, missing.what)


@dataclass(frozen=True)
class _Rival:
    """What a quantity is compared with: its ``name``, its section's ``place`` and the ``quantity`` there."""

    name: str
    place: Place
    quantity: Quantity


def _against(
    place: Place, section: Section, own: tuple[Quantity, Interval], other: _Rival | Missing, asked: Contrast, direction: int,
    sections: Sequence[Section],
) -> _Made:  # fmt: skip
    """One comparison of a quantity with its value; :class:`Missing` where it cannot be made."""
    if isinstance(other, Missing):
        raise other
    plain, value = own
    if isinstance(asked, Undominated):
        accuracies = [Quantity(measure="accuracy", row=q.row) for q in (plain, other.quantity)]
        leak = contrasted((section, plain), (section, other.quantity))
        by_accuracy, found = undominated(leak, contrasted((section, accuracies[0]), (section, accuracies[1])))
        if by_accuracy:
            plain, value, direction = accuracies[0], measured(section, accuracies[0]), 1
        margin = 0.0
    else:
        margin = -direction * asked.slack
        found = contrasted((section, plain), (_section(other.place, sections, other.name), other.quantity), margin)
    return _Made(place=place, quantity=plain, value=value, other=other.name, bound=margin, found=found, claimed=direction)


def _others(place: Place, section: Section, own: Quantity, asked: Contrast) -> Iterator[_Rival | Missing]:
    """Everything that a quantity is compared with, or what is missing of it."""
    than = asked.than
    for row in rivals(section, asked, than):
        yield row if isinstance(row, Missing) else _Rival(row, place, own.model_copy(update={"row": row}))
    for field, labels in (("attack", than.attacks), ("group", than.groups)):
        for label in labels or ():
            yield _Rival(label, place, own.model_copy(update={field: label}))
    if than.section is not None:
        where = place.model_copy(update=_given(than.section, ("setting", "coalition", "view")))
        yield _Rival(_name(than.section), where, own.model_copy(update=_given(than.section, ("attack",))))


def _given(elsewhere: Elsewhere, fields: Sequence[str]) -> Mapping[str, str]:
    return {name: value for name in fields if (value := getattr(elsewhere, name)) is not None}


def _name(elsewhere: Elsewhere) -> str:
    """``coalition pair``, ``view client``."""
    return ", ".join(f"{field} {value}" for field, value in _given(elsewhere, list(Elsewhere.model_fields)).items())


def _section(place: Place, sections: Sequence[Section], name: str) -> Section:
    wanted = (place.suite, place.setting, place.coalition, place.view)
    found = next((s for s in sections if (s.suite, s.setting, s.coalition, s.view) == wanted), None)
    if found is None:
        raise Missing("no such section on this board", name)
    return found
