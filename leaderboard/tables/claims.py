"""The papers' claims with what the board says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbench.core.contract.board import Block, Heading, Note, Part, Quote, Text, Words
from fedbench.core.metrics import Interval
from fedbench.leaderboard.claims.papers import Paper, Quantity, shipped_papers
from fedbench.leaderboard.statistics.claims import ClaimTest, Judged, Lack, judged
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import amount, joined, numbers, say, table_of, words

TITLE = "Claims of the papers"
_HOW = (
    "What the papers say, asked of the rows above; all comparisons of a claim are judged together at 95 % (Holm). Supported: "
    "each is told as claimed; contradicted: one is told the other way. Found: how many comparisons of a section are told, and "
    "the one that speaks most against the claim. docs/method.md says more."
)
_LONGEST = 400
_PERCENT = ("tf01", "worst-tf01", "mean-tf01", "accuracy")
_UNITS = {"delta-accuracy": " pp", "runtime": "x"} | dict.fromkeys(_PERCENT, " %")


def claims_blocks(sections: Sequence[Section], papers: Mapping[str, Paper] | None = None) -> list[Block]:
    """A table a paper; nothing where no claim names the board's suite. ``papers``: by default those that come with
    fedbench."""
    tables: list[Block] = []
    for paper in (shipped_papers() if papers is None else papers).values():
        if claims := judged(paper, sections):
            suites = sorted({s.suite for s in sections} & set(paper.differs))
            columns = map(words, ("id", "claim", "place", "verdict", "found"))
            rows = ((j.claim.id, Quote(j.claim.text, _LONGEST), j.claim.place, Words(j.verdict), _found(j)) for j in claims)
            notes = tuple(say("Differs from the paper: {}", Quote(paper.differs[suite], _LONGEST)) for suite in suites)
            tables.append(table_of(f"Claims of {paper.paper}", "", columns, rows, footnotes=notes))
    return [Heading(2, Words(TITLE)), Note(Words(_HOW)), *tables] if tables else []


def _found(j: Judged) -> Text:
    """Section by section, each in what it differs from the others."""
    places = list(dict.fromkeys([*(c.place for c in j.comparisons), *(k.place for k in j.lacks)]))
    several = len({p.view for p in places}) > 1
    said: list[Text] = []
    for place in places:
        name = joined([place.setting, place.coalition, *([place.view] if several else [])])
        own, lacks = [c for c in j.comparisons if c.place == place], [k for k in j.lacks if k.place == place]
        parts = joined([*([_compared(own)] if own else []), *([_lacking(lacks)] if lacks else [])], "; ")
        said.append(say("{}: {}", name, parts))
    return joined(said, ". ")


def _compared(found: Sequence[ClaimTest]) -> tuple[Part, ...]:
    worst = max(found, key=lambda c: c.against)
    if len(found) == 1:
        return _said(worst)
    as_claimed, against = (sum(c.told == sign * c.claimed for c in found) for sign in (1, -1))
    return say(f"{as_claimed} of {len(found)} as claimed, {against} the other way; most against it: {{}}", _said(worst))


def _said(c: ClaimTest) -> tuple[Part, ...]:
    """``cofedmid 0.600 ± 0.020, minus hamp +0.012 ± 0.008``; where a value is claimed, which."""
    q, side = c.quantity, "below" if c.claimed < 0 else "above"
    name = joined([part for part in (q.row, q.attack, q.group, q.name) if part is not None], " / ")
    name = name if q.minus is None else say("{} minus {}", name, q.minus)
    digits = 2 if q.measure in _UNITS else 3 if abs(c.value.mean) < 2 else 1
    shown = say(f"{{}} {_number(c.value, q, digits)}", name)
    if c.other is None:
        return say(f"{{}} ({side} {c.bound:g} claimed)", shown)
    allowed = f" ({side} {c.bound:+g} claimed)" if c.bound else ""
    return say(f"{{}}, minus {{}} {_number(c.found, q, digits, difference=True)}{allowed}", shown, c.other)


def _number(found: Interval, q: Quantity, digits: int, difference: bool = False) -> str:
    unit = " pp" if difference and q.measure in _PERCENT else _UNITS.get(q.measure, "")
    return amount(found, numbers("", digits=digits, signed=difference or q.measure == "delta-accuracy")) + unit


def _lacking(lacks: Sequence[Lack]) -> tuple[Part, ...]:
    """Every reason once, with all that it is said of."""
    by_why: dict[str, dict[str, None]] = {}
    for lack in lacks:
        by_why.setdefault(lack.why, {})[lack.what] = None
    named = [(why, [w for w in what if w]) for why, what in by_why.items()]
    return joined([say(f"{why} {{}}", joined(what)) if what else Words(why) for why, what in named], "; ")
