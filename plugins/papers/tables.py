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
from fedbench.core.words import DOCS
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.sections import BoardSection
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
from fedbench.plugins.papers.claim_files import Paper, Quantity, shipped_papers
from fedbench.plugins.papers.published import DECISIONS, QUANTITIES, Match, PublishedCell, match
from fedbench.plugins.papers.verdicts import ClaimTest, Judged, Lack, Verdict, judged

PLAIN = "Runtime is over plain training's, that of the row with 1."


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
    "attack_precision": "best_round precision",
    "attack_recall": "best_round recall",
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
    "attack_precision": ("ours in the last round",),
    "attack_recall": ("ours in the last round",),
    "auc_max": ("null of ours", "above the null"),
    "advantage_max": ("null of ours", "above the null"),
}


def published_blocks(
    entries: Sequence[Mapping[str, Any]], sections: Sequence[BoardSection]
) -> list[Block]:
    """Return all published numbers that a suite names, and which settings of it were not run; an
    entry that fits no paper is a line.
    """
    blocks: list[Block] = [Heading(2, Words("Published numbers"))]
    wrong: list[Text] = []
    absent: dict[str, None] = {}
    run = {s.setting for s in sections}
    for entry in entries:
        try:
            for m in match(entry, sections):
                if m.setting in run:
                    blocks += match_blocks(m)
                else:
                    absent[f"{m.source} {m.table}, {m.setting}"] = None
        except UserError as error:
            wrong.append(Quote(str(error), 400))
    wrong += [sentence("not run: {}", place) for place in absent]
    return [*blocks, Bullets(tuple(wrong))] if wrong else blocks


def match_blocks(found: Match) -> list[Block]:
    """Return what differs, a summary of the reproduction, and per quantity a table of ours, the
    paper's and the difference.
    """
    table, coalition = f"{found.source} {found.table}", f"coalition {found.coalition}"
    blocks: list[Block] = [Heading(3, sentence("{}, {}, {}", table, found.setting, coalition))]
    if found.unlike:
        why = (
            "Not the paper's setting: {}: the order of defenses and attacks there does not "
            "predict the order here, so no rank correlation is given."
        )
        blocks.append(Note(sentence(why, Quote("; ".join(found.unlike), 400))))
    if found.of("runtime"):
        blocks.append(Note(Words(f"{PLAIN} The paper's is over undefended training.")))
    if found.differs:
        blocks.append(Note(sentence("What differs: {}", Quote(found.differs, 1_000))))
    quantities = {q: cells for q in QUANTITIES if (cells := found.of(q))}
    ranks = not found.unlike
    lines = [Words(_agreement(q, cells, ranks)) for q, cells in quantities.items()]
    blocks.append(Bullets(tuple(lines)))
    for quantity, cells in quantities.items():
        if any(cell.ours for cell in cells):
            blocks.append(_quantity_table(quantity, cells))
            if quantity in _AVERAGED:
                blocks += _average_table(quantity, found)
    return blocks


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of the ``done`` of ``asked`` published cells that were run; None with fewer than
    three numbers of ours. Where several strengths of a defense correspond to one published cell,
    each counts as a number, and the cell once.
    """

    asked: int
    done: int
    rank_correlation: float | None = None
    """Spearman's, NaN where all are equal"""
    mean_difference: float | None = None
    """absolute, in the quantity's unit"""


def agreement(cells: Sequence[PublishedCell]) -> Agreement:
    """Return the agreement of the cells of one quantity."""
    numbers = [(c.ours.value, c.paper) for c in cells if c.ours is not None]
    asked = len({(c.theirs, c.attack, c.group) for c in cells})
    done = len({(c.theirs, c.attack, c.group) for c in cells if c.ours})
    if len(numbers) < 3:
        return Agreement(asked=asked, done=done)
    ours, paper = np.array(numbers, dtype=float).T
    rank = float(stats.spearmanr(ours, paper).statistic)
    difference = float(np.abs(ours - paper).mean())
    return Agreement(asked=asked, done=done, rank_correlation=rank, mean_difference=difference)


def _agreement(quantity: str, cells: Sequence[PublishedCell], ranks: bool) -> str:
    """Number of cells not run; over the others the mean absolute difference and, with ``ranks``,
    the rank correlation.
    """
    of_cells = agreement(cells)
    correlation, difference = of_cells.rank_correlation, of_cells.mean_difference
    name = NAMES[quantity].removesuffix(" (%)")
    text = f"{name}: {of_cells.done} of {of_cells.asked} published cells run"
    if correlation is None or difference is None:
        return text
    rank = f"{correlation:.2f}" if correlation == correlation else "n/a"
    text += f"; rank correlation {rank}, " if ranks else "; "
    text += f"mean absolute difference {difference:.3f}"
    return f"{text} percentage points" if quantity in ("tf01", "tf01_by_class") else text


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
    by_row: dict[tuple[str, str], list[PublishedCell]] = {}
    for cell in found.of(quantity):
        by_row.setdefault((cell.theirs, cell.defense), []).append(cell)
    rows: list[tuple[Content, ...]] = []
    for (theirs, defense), cells in by_row.items():
        run = [cell for cell in cells if cell.ours is not None]
        counted = run or cells
        paper = float(np.mean([cell.paper for cell in counted]))
        mean: Content = Words("not run")
        difference: Content = ""
        if run:
            ours = float(np.mean([cell.ours.value for cell in run if cell.ours]))
            mean, difference = Value(mean=ours), Value(mean=ours - paper)
        if len(cells) > 1:
            over = Words(f"{len(counted)} of {len(cells)} attacks")
            printed = Value(mean=found.printed.get((theirs, quantity)))
            rows.append((defense, over, mean, Value(mean=paper), difference, printed))
    return [table_of("", "", columns, rows)] if rows else []


def _quantity_table(quantity: str, cells: Sequence[PublishedCell]) -> Table:
    more = _MORE.get(quantity, ())
    columns = [DEFENSE, ATTACK]
    for name in (f"ours {NAMES[quantity]}", "paper", "difference", *more):
        digits = _DIGITS.get(quantity, 3)
        columns.append(numbers(name, digits=digits, signed=name == "difference"))
    rows = ((c.defense, _attack(c), *_numbers(c, len(more))) for c in cells)
    return table_of("", "", columns, rows)


def _attack(cell: PublishedCell) -> Text:
    if cell.quantity == "tf01_by_class":
        return sentence("{}, {}", cell.attack, cell.group.replace(":", ", "))
    return sentence("{}, group {}", cell.attack, cell.group) if cell.group else cell.attack


def _numbers(cell: PublishedCell, further: int) -> tuple[Content, ...]:
    """Ours, the paper's (a mean over clients with their range), the difference, and what follows
    for some quantities.
    """
    clients: Text = ()
    if cell.paper_range is not None:
        low, high = cell.paper_range
        clients = Words(f" ({low:g} to {high:g})")
    paper = Value(mean=cell.paper, half_width=cell.paper_std, suffix=clients)
    ours = cell.ours
    if ours is None:
        return Words("not run"), paper, "", *("",) * further
    more = ours.last, ours.null
    if cell.quantity not in DECISIONS:
        more = ours.null, None if ours.null is None else ours.value - ours.null
    rest = [Value(mean=number) for number in (cell.difference, *more[:further])]
    return Value(mean=ours.value, half_width=ours.half_width), paper, *rest


# ---------------------------------------------------------------- claims


TITLE = "Claims of the papers"
_HOW = (
    "What the papers claim, tested on the rows above with the papers' non-members; all comparisons "
    "of a claim, on all of its boards, are tested together at 95 % (Holm). Supported: each is "
    "significant as claimed; contradicted: one is significant the other way; smaller than claimed: "
    "one is significantly smaller than what is minor or, at the paper's scale, than its own "
    "difference; cannot decide: a rival cannot lose, the undefended model has not learned, or "
    "the power to show the paper's own difference is below 80 % or not known. Found: how many "
    "comparisons of a section are significant, and the one that decides most against the claim. "
    f"{PLAIN} {DOCS}/method.md has the definitions."
)
_LONGEST = 400
_PERCENT = ("tf01", "mean-tf01", "accuracy")
_UNITS = {"delta-accuracy": " pp", "runtime": "x"} | dict.fromkeys(_PERCENT, " %")


def claims_blocks(
    sections: Sequence[BoardSection], papers: Mapping[str, Paper] | None = None
) -> list[Block]:
    """Return a table a paper; nothing where no claim names the board's suite. ``papers``: by
    default those that come with fedbench.
    """
    tables: list[Block] = []
    for paper in (shipped_papers() if papers is None else papers).values():
        if claims := judged(paper, sections):
            tables.append(_claims_table(paper, claims, {s.suite for s in sections}))
    return [Heading(2, Words(TITLE)), Note(Words(_HOW)), *tables] if tables else []


def _claims_table(paper: Paper, claims: Sequence[Judged], suites: set[str]) -> Table:
    rows: list[tuple[Content, ...]] = []
    others: list[Text] = [Words(paper.nonmembers)]
    for j in claims:
        claim = j.claim
        text = Quote(claim.text, _LONGEST)
        # with the tables that speak against the claim, where the paper contradicts itself
        verdict = f"{j.verdict} ({j.own.tables})" if j.own.fails else j.verdict
        rows.append((claim.id, text, claim.place, Words(verdict), _evidence(j)))
        if claim.nonmembers:
            others.append(sentence(f"{{}} {claim.nonmembers}", claim.id))
    notes = [
        sentence("Differs from the paper: {}", Quote(paper.differs[suite], _LONGEST))
        for suite in sorted(suites & set(paper.differs))
    ]
    notes.append(sentence("Non-members: {}", joined(others, "; ")))
    columns = map(words, ("id", "claim", "place", "verdict", "found"))
    return table_of(f"Claims of {paper.paper}", "", columns, rows, footnotes=tuple(notes))


def _evidence(j: Judged) -> Text:
    """Section by section, each in what it differs from the others; or what the paper's own table
    has.
    """
    if j.own.fails:
        return sentence("the paper's {}", Quote(next(iter(j.own.against.values())), _LONGEST))
    texts: list[Text] = []
    if j.own.against:
        holding = j.own.printed - len(j.own.against)
        texts.append(Words(f"{holding} of {j.own.printed} tables of the paper hold it"))
    places = dict.fromkeys([c.place for c in j.comparisons] + [k.place for k in j.lacks])
    several = len({p.view for p in places}) > 1
    for place in places:
        name = joined([place.setting, place.coalition, *([place.view] if several else [])])
        tests = [c for c in j.comparisons if c.place == place]
        lacks = [k for k in j.lacks if k.place == place]
        parts = [_compared(tests)] if tests else []
        parts += [_lacking(lacks)] if lacks else []
        texts.append(sentence("{}: {}", name, joined(parts, "; ")))
    return joined(texts, ". ")


def _compared(tests: Sequence[ClaimTest]) -> tuple[Part, ...]:
    order = get_args(Verdict)
    worst = max(tests, key=lambda c: (-order.index(c.verdict), c.against))
    text = _described(worst)
    if worst.verdict == "cannot decide here":
        text = joined([text, _why(worst)])
    if worst.size is not None and worst.verdict == "smaller than claimed":
        text = joined([text, Words(f"smaller than {_difference(worst, worst.size)}")])
    if len(tests) == 1:
        return text
    verdicts = Counter(c.verdict for c in tests)
    counts = f"{verdicts['supported']} of {len(tests)} as claimed, "
    counts += f"{verdicts['contradicted']} the other way"
    if smaller := verdicts["smaller than claimed"]:
        counts += f", {smaller} smaller"
    if undecided := verdicts["cannot decide here"]:
        counts += f", {undecided} cannot decide"
    return sentence(f"{counts}; most against it: {{}}", text)


def _why(c: ClaimTest) -> tuple[Part, ...]:
    """Why the comparison cannot be decided."""
    if c.bar:
        return sentence(f"which cannot decide: {{}} {c.bar}", c.other or "")
    if c.along:
        chance = f"{100 * c.power:.0f} %"
        return sentence(f"which cannot decide: the power to show {c.distance:g} is {chance}")
    if c.distance is None:
        return sentence("which cannot decide: nothing says how large a difference it must show")
    distance, chance = _difference(c, c.distance), f"{100 * c.power:.0f} %"
    return sentence(f"which cannot decide: the power to show {distance} is {chance}")


def _difference(c: ClaimTest, size: float) -> str:
    return f"{size:.2g}{_unit(c.quantity, difference=True)}"


def _described(c: ClaimTest) -> tuple[Part, ...]:
    """``cofedmid 0.600 ± 0.020, minus hamp +0.012 ± 0.008``; where a value is claimed, which."""
    q, side = c.quantity, "below" if c.claimed < 0 else "above"
    name = joined([part for part in (q.row, q.attack, q.group, q.name) if part is not None], " / ")
    if q.minus is not None:
        name = sentence("{} minus {}", name, q.minus)
    if c.along:
        correlation = amount(bounded(c.found, -1) or c.found, numbers("", digits=2, signed=True))
        order = f"{{}}, rank correlation of {q.measure} with the order of {{}}: {correlation}"
        return sentence(order, name, c.along)
    digits = 3 if abs(c.value.mean) < 2 else 1
    if q.measure in _UNITS:
        digits = 2
    text = sentence(f"{{}} {_number(c.value, q, digits)}", name)
    if c.other is None:
        return sentence(f"{{}} ({side} {c.bound:g} claimed)", text)
    difference = _number(c.found, q, digits, difference=True)
    if c.bound:
        difference += f" ({side} {c.bound:+g} claimed)"
    if c.outside:
        outside = _number(c.outside, q, digits, difference=True)
        difference += f"; beside outside non-members {outside}"
    return sentence(f"{{}}, minus {{}} {difference}", text, c.other)


def _number(interval: Interval, q: Quantity, digits: int, difference: bool = False) -> str:
    signed = difference or q.measure == "delta-accuracy"
    return amount(interval, numbers("", digits=digits, signed=signed)) + _unit(q, difference)


def _unit(q: Quantity, difference: bool) -> str:
    return " pp" if difference and q.measure in _PERCENT else _UNITS.get(q.measure, "")


def _lacking(lacks: Sequence[Lack]) -> tuple[Part, ...]:
    """Every reason once, with all names that it applies to."""
    names: dict[str, dict[str, None]] = {}
    for lack in lacks:
        names.setdefault(lack.why, {})[lack.what] = None
    reasons: list[Text] = []
    for why, of_reason in names.items():
        missing = [name for name in of_reason if name]
        reasons.append(sentence(f"{why} {{}}", joined(missing)) if missing else Words(why))
    return joined(reasons, "; ")
