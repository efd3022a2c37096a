"""The papers' numbers with ours, and the papers' claims with the board's verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from scipy import stats

from fedbench.core import Analysis, UserError
from fedbench.core.contract.board import (
    Block,
    Bullets,
    Content,
    Heading,
    Note,
    Part,
    Quote,
    Table,
    Text,
    Value,
    Words,
)
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import (
    ATTACK,
    DEFENSE,
    amount,
    joined,
    numbers,
    sentence,
    table_of,
    words,
)
from fedbench.leaderboard.tables.ranking import PLAIN
from fedbench.plugins.papers.claim_files import Paper, Quantity, shipped_papers
from fedbench.plugins.papers.published import QUANTITIES, Match, Pair, match
from fedbench.plugins.papers.verdicts import ClaimTest, Judged, Lack, Verdict, judged


class PublishedNumbers(Analysis):
    """The numbers that a suite's ``published`` entries name, beside the board's."""

    by_default = False
    every_board = True

    def draw_board(
        self, sections: Sequence[Any], published: Sequence[Mapping[str, Any]]
    ) -> list[Block]:
        return published_blocks(published, sections) if published else []


class PaperClaims(Analysis):
    """Claims of the papers, tested on the board."""

    by_default = False
    every_board = True

    def draw_board(
        self, sections: Sequence[Any], published: Sequence[Mapping[str, Any]]
    ) -> list[Block]:
        return claims_blocks(sections)


# -- published numbers -----------------------------------------------------------------------------


NAMES = {
    "auc": "AUC",
    "tf01": "TF01 (%)",
    "tf01_by_class": "TF01 by client and class (%)",
    "hypervolume": "hypervolume",
    "attack_accuracy": "best_round attack accuracy",
    "mia_accuracy": "MIA accuracy in the last round",
    "auc_max": "max auR",
    "advantage_max": "max Adv",
    "test_acc": "test accuracy",
    "delta_acc": "accuracy minus the undefended one's",
    "runtime": "runtime over plain training",
}
_AVERAGED = ("auc", "tf01")
_DIGITS = {"tf01": 2, "tf01_by_class": 2, "hypervolume": 4, "runtime": 2}
_MORE = {
    "attack_accuracy": ("ours in the last round", "ours, null of best_round"),
    "auc_max": ("null of ours", "above the null"),
    "advantage_max": ("null of ours", "above the null"),
}


def published_blocks(
    entries: Sequence[Mapping[str, Any]], sections: Sequence[Section]
) -> list[Block]:
    """All published numbers that a suite names, and which settings of it were not run; an entry
    that fits no paper is a line.
    """
    matches: list[Match] = []
    wrong: list[Text] = []
    run = {s.setting for s in sections}
    for entry in entries:
        try:
            matches += match(entry, sections)
        except UserError as error:
            wrong.append(Quote(str(error), 400))
    shown = [block for m in matches if m.setting in run for block in match_blocks(m)]
    absent = [f"{m.source} {m.table}, {m.setting}" for m in matches if m.setting not in run]
    wrong += [sentence("not run: {}", place) for place in dict.fromkeys(absent)]
    return [
        Heading(2, Words("Published numbers")),
        *shown,
        *([Bullets(tuple(wrong))] if wrong else []),
    ]


def match_blocks(found: Match) -> list[Block]:
    """What differs, a summary of the reproduction, and per quantity a table of ours, the paper's
    and the difference.
    """
    place = sentence(
        "{}, {}, {}", f"{found.source} {found.table}", found.setting, f"coalition {found.coalition}"
    )
    blocks: list[Block] = [Heading(3, place)]
    if found.unlike:
        blocks.append(
            Note(
                sentence(
                    "Not the paper's setting: {}: the order of defenses and attacks there does not "
                    "predict the order here, so no rank "
                    "correlation is given.",
                    Quote("; ".join(found.unlike), 400),
                )
            )
        )
    if found.of("runtime"):
        blocks.append(Note(Words(f"{PLAIN} The paper's is over undefended training.")))
    if found.differs:
        blocks.append(Note(sentence("What differs: {}", Quote(found.differs, 1_000))))
    quantities = [q for q in QUANTITIES if found.of(q)]
    blocks.append(
        Bullets(
            tuple(Words(_agreement(q, found.of(q), ranks=not found.unlike)) for q in quantities)
        )
    )
    for quantity in (q for q in quantities if any(p.ours for p in found.of(q))):
        blocks.append(_quantity_table(quantity, found.of(quantity)))
        blocks += _average_table(quantity, found) if quantity in _AVERAGED else []
    return blocks


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of the ``done`` of ``asked`` published cells that were run; None with fewer than three
    numbers of ours. Where several strengths of a defense correspond to one published cell, each
    counts as a number, and the cell once.
    """

    asked: int
    done: int
    rank_correlation: float | None = None
    """Spearman's, NaN where all are equal"""
    mean_difference: float | None = None
    """absolute, in the quantity's unit"""


def agreement(pairs: Sequence[Pair]) -> Agreement:
    """Of the pairs of one quantity."""
    done = [(p.ours.value, p.paper) for p in pairs if p.ours is not None]
    asked, run = (
        len({(p.theirs, p.attack, p.group) for p in some})
        for some in (pairs, [p for p in pairs if p.ours])
    )
    if len(done) < 3:
        return Agreement(asked=asked, done=run)
    ours, paper = np.array(done, dtype=float).T
    rank, apart = float(stats.spearmanr(ours, paper).statistic), float(np.abs(ours - paper).mean())
    return Agreement(asked=asked, done=run, rank_correlation=rank, mean_difference=apart)


def _agreement(quantity: str, pairs: Sequence[Pair], ranks: bool) -> str:
    """Number of cells not run; over the others the mean absolute difference and, with ``ranks``,
    the rank correlation.
    """
    found = agreement(pairs)
    said = (
        f"{NAMES[quantity].removesuffix(' (%)')}: {found.done} of {found.asked} published cells run"
    )
    if found.rank_correlation is None or found.mean_difference is None:
        return said
    rank = (
        "n/a"
        if found.rank_correlation != found.rank_correlation
        else f"{found.rank_correlation:.2f}"
    )
    unit = " percentage points" if quantity in ("tf01", "tf01_by_class") else ""
    shown = f"rank correlation {rank}, " if ranks else ""
    return f"{said}; {shown}mean absolute difference {found.mean_difference:.3f}{unit}"


def _average_table(quantity: str, found: Match) -> list[Table]:
    """Averages over attacks of each defense with several, over those that were run or, where none
    was, all of them; the paper's from its cells, since the printed ones are not always the means of
    their rows.
    """
    digits = _DIGITS.get(quantity, 3)
    columns = (
        DEFENSE,
        words("average over"),
        numbers(f"ours {NAMES[quantity]}", digits=digits),
        numbers("paper, from its cells", digits=digits),
        numbers("difference", digits=digits, signed=True),
        numbers("paper, as printed", digits=2),
    )
    by_row: dict[tuple[str, str], list[Pair]] = {}
    for pair in found.of(quantity):
        by_row.setdefault((pair.theirs, pair.defense), []).append(pair)
    rows: list[tuple[Content, ...]] = []
    for (theirs, defense), pairs in by_row.items():
        done = [(p.ours.value, p.paper) for p in pairs if p.ours is not None]
        ours = float(np.mean([value for value, _ in done])) if done else None
        paper = float(np.mean([p for _, p in done] or [p.paper for p in pairs]))
        over = Words(f"{len(done) or len(pairs)} of {len(pairs)} attacks")
        apart = "" if ours is None else Value(mean=ours - paper)
        printed = Value(mean=found.printed.get((theirs, quantity)))
        if len(pairs) > 1:
            mean = Words("not run") if ours is None else Value(mean=ours)
            rows.append((defense, over, mean, Value(mean=paper), apart, printed))
    return [table_of("", "", columns, rows)] if rows else []


def _quantity_table(quantity: str, pairs: Sequence[Pair]) -> Table:
    names = (f"ours {NAMES[quantity]}", "paper", "difference", *_MORE.get(quantity, ()))
    columns = (
        numbers(name, digits=_DIGITS.get(quantity, 3), signed=name == "difference")
        for name in names
    )
    rows = ((p.defense, _attack(p), *_numbers(p, len(names) - 3)) for p in pairs)
    return table_of("", "", (DEFENSE, ATTACK, *columns), rows)


def _attack(pair: Pair) -> Text:
    if pair.quantity == "tf01_by_class":
        return sentence("{}, {}", pair.attack, pair.group.replace(":", ", "))
    return sentence("{}, group {}", pair.attack, pair.group) if pair.group else pair.attack


def _numbers(p: Pair, further: int) -> tuple[Content, ...]:
    """Ours, the paper's (a mean over clients with their range), the difference, and what follows
    for some quantities.
    """
    clients = (
        () if p.paper_range is None else Words(f" ({p.paper_range[0]:g} to {p.paper_range[1]:g})")
    )
    paper = Value(mean=p.paper, half_width=p.paper_std, suffix=clients)
    if p.ours is None:
        return Words("not run"), paper, "", *("",) * further
    null = p.ours.null
    more = (
        (p.ours.last, null)
        if p.quantity == "attack_accuracy"
        else (null, None if null is None else p.ours.value - null)
    )
    ours = Value(mean=p.ours.value, half_width=p.ours.half_width)
    return ours, paper, Value(mean=p.difference), *(Value(mean=v) for v in more[:further])


# ---------------------------------------------------------------- claims


TITLE = "Claims of the papers"
_HOW = (
    "What the papers claim, tested on the rows above with the papers' non-members; all comparisons "
    "of a claim, on all of its "
    "boards, are tested together at 95 % (Holm). Supported: each is significant as claimed; "
    "contradicted: one is significant "
    "the other way; cannot decide: a rival cannot lose, the undefended model has not learned, or "
    "the power to show the paper's "
    "own difference is below 80 % or not known. Found: how many comparisons of a section are "
    "significant, and the one that "
    "decides most against the claim. "
    f"{PLAIN} docs/method.md has the definitions."
)
_LONGEST = 400
_PERCENT = ("tf01", "mean-tf01", "accuracy")
_UNITS = {"delta-accuracy": " pp", "runtime": "x"} | dict.fromkeys(_PERCENT, " %")


def claims_blocks(
    sections: Sequence[Section], papers: Mapping[str, Paper] | None = None
) -> list[Block]:
    """A table a paper; nothing where no claim names the board's suite. ``papers``: by default those
    that come with fedbench.
    """
    tables: list[Block] = []
    for paper in (shipped_papers() if papers is None else papers).values():
        if claims := judged(paper, sections):
            suites = sorted({s.suite for s in sections} & set(paper.differs))
            columns = map(words, ("id", "claim", "place", "verdict", "found"))
            rows = (
                (
                    j.claim.id,
                    Quote(j.claim.text, _LONGEST),
                    j.claim.place,
                    Words(_verdict(j)),
                    _found(j),
                )
                for j in claims
            )
            notes = [
                sentence("Differs from the paper: {}", Quote(paper.differs[suite], _LONGEST))
                for suite in suites
            ]
            others = [
                sentence(f"{{}} {j.claim.nonmembers}", j.claim.id)
                for j in claims
                if j.claim.nonmembers
            ]
            notes.append(
                sentence("Non-members: {}", joined([Words(paper.nonmembers), *others], "; "))
            )
            tables.append(
                table_of(f"Claims of {paper.paper}", "", columns, rows, footnotes=tuple(notes))
            )
    return [Heading(2, Words(TITLE)), Note(Words(_HOW)), *tables] if tables else []


def _verdict(j: Judged) -> str:
    """With the tables that speak against the claim, where the paper contradicts itself."""
    return f"{j.verdict} ({j.own.tables})" if j.own.fails else j.verdict


def _found(j: Judged) -> Text:
    """Section by section, each in what it differs from the others; or what the paper's own table
    has.
    """
    if j.own.fails:
        return sentence("the paper's {}", Quote(next(iter(j.own.against.values())), _LONGEST))
    places = list(dict.fromkeys([*(c.place for c in j.comparisons), *(k.place for k in j.lacks)]))
    several = len({p.view for p in places}) > 1
    said: list[Text] = []
    if j.own.against:
        holding = j.own.printed - len(j.own.against)
        said.append(Words(f"{holding} of {j.own.printed} tables of the paper hold it"))
    for place in places:
        name = joined([place.setting, place.coalition, *([place.view] if several else [])])
        own, lacks = (
            [c for c in j.comparisons if c.place == place],
            [k for k in j.lacks if k.place == place],
        )
        parts = joined(
            [*([_compared(own)] if own else []), *([_lacking(lacks)] if lacks else [])], "; "
        )
        said.append(sentence("{}: {}", name, parts))
    return joined(said, ". ")


def _compared(found: Sequence[ClaimTest]) -> tuple[Part, ...]:
    order = get_args(Verdict)
    worst = max(found, key=lambda c: (-order.index(c.verdict), c.against))
    said = joined([_said(worst), *([_why(worst)] if worst.verdict == "cannot decide here" else [])])
    if len(found) == 1:
        return said
    counted = Counter(c.verdict for c in found)
    counts = (
        f"{counted['supported']} of {len(found)} as claimed, {counted['contradicted']} "
        "the other way"
    )
    open_ = f", {n} cannot decide" if (n := counted["cannot decide here"]) else ""
    return sentence(f"{counts}{open_}; most against it: {{}}", said)


def _why(c: ClaimTest) -> tuple[Part, ...]:
    """Why the comparison cannot be decided."""
    if c.bar:
        return sentence(f"which cannot decide: {{}} {c.bar}", c.other or "")
    if c.distance is None:
        return sentence("which cannot decide: nothing says how large a difference it must show")
    unit = " pp" if c.quantity.measure in _PERCENT else _UNITS.get(c.quantity.measure, "")
    return sentence(
        f"which cannot decide: the power to show {c.distance:.2g}{unit} is {100 * c.power:.0f} %"
    )


def _said(c: ClaimTest) -> tuple[Part, ...]:
    """``cofedmid 0.600 ± 0.020, minus hamp +0.012 ± 0.008``; where a value is claimed, which."""
    q, side = c.quantity, "below" if c.claimed < 0 else "above"
    name = joined([part for part in (q.row, q.attack, q.group, q.name) if part is not None], " / ")
    name = name if q.minus is None else sentence("{} minus {}", name, q.minus)
    digits = 2 if q.measure in _UNITS else 3 if abs(c.value.mean) < 2 else 1
    shown = sentence(f"{{}} {_number(c.value, q, digits)}", name)
    if c.other is None:
        return sentence(f"{{}} ({side} {c.bound:g} claimed)", shown)
    allowed = f" ({side} {c.bound:+g} claimed)" if c.bound else ""
    apart, beside = _number(c.found, q, digits, difference=True), ""
    if c.outside:
        beside = f"; beside outside non-members {_number(c.outside, q, digits, difference=True)}"
    return sentence(f"{{}}, minus {{}} {apart}{allowed}{beside}", shown, c.other)


def _number(found: Interval, q: Quantity, digits: int, difference: bool = False) -> str:
    unit = " pp" if difference and q.measure in _PERCENT else _UNITS.get(q.measure, "")
    return (
        amount(
            found, numbers("", digits=digits, signed=difference or q.measure == "delta-accuracy")
        )
        + unit
    )


def _lacking(lacks: Sequence[Lack]) -> tuple[Part, ...]:
    """Every reason once, with all names that it applies to."""
    by_why: dict[str, dict[str, None]] = {}
    for lack in lacks:
        by_why.setdefault(lack.why, {})[lack.what] = None
    named = [(why, [w for w in what if w]) for why, what in by_why.items()]
    return joined(
        [sentence(f"{why} {{}}", joined(what)) if what else Words(why) for why, what in named], "; "
    )
