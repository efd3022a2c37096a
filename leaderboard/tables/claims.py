"""The papers' claims with what the board says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbench.core.contract.board import Block, Column, Heading, Note, Part, Quote, Table, Text, Words
from fedbench.core.metrics import Interval
from fedbench.leaderboard.claims.papers import Paper, Place, Quantity, shipped_papers
from fedbench.leaderboard.statistics.claims import ClaimTest, Judged, Lack, judged
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import joined

TITLE = "Claims of the papers"
_COLUMNS = tuple(Column(name=Words(name), align="left") for name in ("id", "claim", "place", "verdict", "found"))
_HOW = (
    "What the papers say, asked of the rows above; all comparisons of a claim are judged together at 95 % (Holm). Supported: "
    "each is told as claimed; contradicted: one is told the other way. Found: how many comparisons of a section are told, and "
    "the one that speaks most against the claim. docs/method.md says more."
)
_LONGEST = 400
_DIGITS = {"tf01": 2, "worst-tf01": 2, "mean-tf01": 2, "accuracy": 2, "delta-accuracy": 2, "runtime": 2}
_PERCENT = ("tf01", "worst-tf01", "mean-tf01", "accuracy")


def claims_blocks(sections: Sequence[Section], papers: Mapping[str, Paper] | None = None) -> list[Block]:
    """A table a paper; nothing where no claim names the board's suite. ``papers``: by default those that come with
    fedbench."""
    known = shipped_papers() if papers is None else papers
    found = [(paper, claims) for paper in known.values() if (claims := judged(paper, sections))]
    tables = [_table(paper, claims, sections) for paper, claims in found]
    return [Heading(2, Words(TITLE)), Note(Words(_HOW)), *tables] if tables else []


def _table(paper: Paper, claims: Sequence[Judged], sections: Sequence[Section]) -> Table:
    suites = sorted({s.suite for s in sections} & set(paper.differs))
    return Table(
        title=f"Claims of {paper.paper}", columns=_COLUMNS,
        rows=tuple(
            (j.claim.id, Quote(j.claim.text, _LONGEST), j.claim.place, Words(j.verdict), _found(j)) for j in claims
        ),
        footnotes=tuple((Words("Differs from the paper: "), Quote(paper.differs[suite], _LONGEST)) for suite in suites),
    )  # fmt: skip


def _found(j: Judged) -> Text:
    """Section by section, each in what it differs from the others."""
    places = list(dict.fromkeys([*(c.place for c in j.comparisons), *(k.place for k in j.lacks)]))
    said: list[Text] = []
    for place in places:
        own, lacks = [c for c in j.comparisons if c.place == place], [k for k in j.lacks if k.place == place]
        parts = joined([*([_compared(own)] if own else []), *([_lacking(lacks)] if lacks else [])], "; ")
        said.append((*_named(place, places), *parts))
    return joined(said, ". ")


def _named(place: Place, places: Sequence[Place]) -> tuple[Part, ...]:
    several = len({p.view for p in places}) > 1
    return (place.setting, Words(", "), place.coalition, *((Words(", "), place.view) if several else ()), Words(": "))


def _compared(found: Sequence[ClaimTest]) -> tuple[Part, ...]:
    worst = max(found, key=lambda c: c.against)
    if len(found) == 1:
        return _said(worst)
    as_claimed, against = (sum(c.told == sign * c.claimed for c in found) for sign in (1, -1))
    counted = f"{as_claimed} of {len(found)} as claimed, {against} the other way; most against it: "
    return (Words(counted), *_said(worst))


def _said(c: ClaimTest) -> tuple[Part, ...]:
    """``cofedmid 0.600 ± 0.020, minus hamp +0.012 ± 0.008``; where a value is claimed, which."""
    digits = _DIGITS.get(c.quantity.measure, 3 if abs(c.value.mean) < 2 else 1)
    shown: tuple[Part, ...] = (*_whose(c.quantity), Words(f" {_number(c.value, c.quantity, digits)}"))
    side = "below" if c.claimed < 0 else "above"
    if c.other is None:
        return (*shown, Words(f" ({side} {c.bound:g} claimed)"))
    allowed = Words(f" ({side} {c.bound:+g} claimed)") if c.bound else Words("")
    return (*shown, Words(", minus "), c.other, Words(f" {_number(c.found, c.quantity, digits, difference=True)}"), allowed)


def _whose(q: Quantity) -> tuple[Part, ...]:
    found = joined([name for name in (q.row, q.attack, q.group, q.name) if name is not None], " / ")
    return found if q.minus is None else (*found, Words(" minus "), q.minus)


def _number(found: Interval, q: Quantity, digits: int, difference: bool = False) -> str:
    sign = "+" if difference or q.measure == "delta-accuracy" else ""
    mean, low, high = (f"{round(x, digits) + 0.0:{sign}.{digits}f}" for x in (found.mean, found.low, found.high))
    if found.ends is not None:
        spread = f" [{low}, {high}]"
    else:
        spread = f" ± {found.half_width:.{digits}f}" if found.half_width == found.half_width else ""
    return f"{mean}{spread}{_unit(q.measure, difference)}"


def _unit(measure: str, difference: bool) -> str:
    if measure in _PERCENT:
        return " pp" if difference else " %"
    return {"delta-accuracy": " pp", "runtime": "x"}.get(measure, "")


def _lacking(lacks: Sequence[Lack]) -> tuple[Part, ...]:
    """Every reason once, with all that it is said of."""
    by_why: dict[str, dict[str, None]] = {}
    for lack in lacks:
        by_why.setdefault(lack.why, {})[lack.what] = None
    named = [(why, [w for w in what if w]) for why, what in by_why.items()]
    return joined([(Words(why), *([Words(" ")] if what else []), *joined(list(what))) for why, what in named], "; ")
