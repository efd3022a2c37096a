"""The table that a reader looks at first: what an adversary gets, and what each defense costs."""

from __future__ import annotations

from collections.abc import Callable

from fedbench.core.contract.board import Column, Content, Quote, Table, Text, Value, Words, value
from fedbench.leaderboard.statistics.facts import claims, remarks
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import RowCosts, Section
from fedbench.leaderboard.tables.common import DEFENSE, RANK, joined, ranked, with_attack
from fedbench.leaderboard.tables.facts import claimed
from fedbench.leaderboard.tables.tf01 import tf01_notes

MAX_REMARKS, LONGEST_REMARK = 4, 600  # footnotes of a row, characters of one
_COLUMNS = (
    RANK, DEFENSE, Column(name=Words("worst case AUC"), direction="lower"),
    Column(name=Words("largest of all"), direction="lower"),
    Column(name=Words("mean AUC"), direction="lower"), Column(name=Words("worst TF01"), unit="%", direction="lower", digits=2),
    Column(name=Words("delta-accuracy"), unit="pp", direction="higher", digits=2, scale=100, signed=True),
    Column(name=Words("accuracy"), unit="%", direction="higher", digits=1, scale=100),
    Column(name=Words("members' share"), unit="pp", direction="higher", digits=2, scale=100, signed=True),
    Column(name=Words("runtime"), direction="lower", digits=2),
)  # fmt: skip
_CLAIMED = Column(name=Words("claims"), align="left")
_TRUST = Column(name=Words("trust"), align="left")


def ranking_table(section: Section, trust: Callable[[Row], Words] | None = None) -> Table:
    """A row a defense, by the worst case; ranks are ranges. ``trust``: how far a row can be trusted, where that differs."""
    caption = Words(
        ": what an adversary gets who picks attack and sign on the other seeds, against outside non-members. A range of ranks "
        "holds all places that the tests leave open"
    )
    rows = tuple(_row(section, row, front) for row, front in ranked(section))
    columns: tuple[Column, ...] = _COLUMNS
    if any(claims(row) for row in section.rows):
        columns = (*columns, _CLAIMED)
        rows = tuple((*cells, claimed(row)) for cells, (row, _) in zip(rows, ranked(section), strict=True))
    if trust is not None:
        columns = (*columns, _TRUST)
        rows = tuple((*cells, trust(row)) for cells, (row, _) in zip(rows, ranked(section), strict=True))
    footnotes = (*_power(section), *tf01_notes(section), *_remarks(section))
    return Table(title="Ranking", caption=caption, columns=columns, rows=rows, footnotes=footnotes)


def _row(section: Section, row: Row, front: tuple[Content, Content]) -> tuple[Content, ...]:
    contest = section.comparison
    worst, rate = contest.worst(row.label), contest.worst_tf01(row.label)
    first = contest.ranks.get(row.label) == (1, 1) and len(contest.ranked) > 1
    return (
        *front,
        None if worst is None else Value(
            mean=worst.found.mean, half_width=worst.found.half_width, best=first, suffix=(Words(" "), worst.attack)
        ),
        with_attack(worst.largest if worst else None), value(contest.mean(row.label)),
        None if rate is None else value(rate.found, (Words(" "), rate.attack)), *_costs(row, section.compared[row.label]),
    )  # fmt: skip


def _costs(row: Row, compared: RowCosts) -> tuple[Content, ...]:
    """Delta-accuracy, accuracy, what the members contribute, and runtime."""
    delta: Content = Words("0") if row.undefended else value(compared.delta_accuracy)
    runtime: Content = Words("1") if row.undefended else value(compared.runtime, Words("x")) if compared.runtime else None
    return delta, value(row.accuracy), value(compared.contribution), runtime


def _remarks(section: Section) -> list[Text]:
    """A footnote a remark, led by the rows that it is made of; of a row that has many, how many more there are."""
    rows: dict[str, list[str]] = {}
    more: list[Text] = []
    for row in section.rows:
        said = remarks(row)
        for text in said[:MAX_REMARKS]:
            rows.setdefault(text, []).append(row.label)
        if len(said) > MAX_REMARKS:
            rest = Words(f": {len(said) - MAX_REMARKS} more of these, which ")
            more.append((row.label, rest, Words("fedbench show", "code"), Words(" prints")))
    return [*((*joined(labels), Words(": "), Quote(text, LONGEST_REMARK)) for text, labels in rows.items()), *more]


def _power(section: Section) -> tuple[Text, ...]:
    found = section.smallest_difference
    if found is None:
        return ()
    return (Words(
        f"Delta-accuracy: with {len(section.seeds)} seeds, differences below {100 * found:.1f} pp are shown with a chance of "
        "less than 80 %. Members' share: accuracy minus that with members that upload nothing."
    ),)  # fmt: skip
