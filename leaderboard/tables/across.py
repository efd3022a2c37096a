"""Every defense in every section of a board: the table that answers whether a defense wins in other worlds than its own."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.board import Block, Column, Content, Heading, Table, Text, Value, Words
from fedbench.leaderboard.statistics.across import Place, Traveller, travellers
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import DEFENSE, joined

MOST = 5  # sections in one table, with the sums beside them: eight columns
_SUMS = (Column(name=Words("can be first in")), Column(name=Words("less than undefended in")))
_CAPTION = (
    " (each place: worst case AUC as in the section's ranking, then the range of ranks among the rows of that section and "
    "delta-accuracy in pp. Can be first: the range reaches 1. Less than undefended: told from the undefended row on the same "
    "candidates, at 95 % for all rows of the section together; out of the sections where that can be asked)"
)


def across_settings(sections: Sequence[Section]) -> list[Block]:
    """A row a defense that stands in several settings; nothing where there is one setting only."""
    rows = travellers(sections)
    if not rows:
        return []
    names = _names(sections)
    heading = Heading(2, Words("Across settings"))
    if len(sections) <= MOST:
        return [heading, _table("Across settings", rows, names, range(len(sections)), sums=True)]
    parts = [range(i, min(i + MOST + 1, len(sections))) for i in range(0, len(sections), MOST + 1)]
    tables = [_table(f"Across settings, part {i}", rows, names, part) for i, part in enumerate(parts, 1)]
    return [heading, _table("Across settings", rows, names, range(0), sums=True), *tables]


def _table(title: str, rows: Sequence[Traveller], names: Sequence[Text], part: range, sums: bool = False) -> Table:
    shown = [t for t in rows if sums or any(t.places[i] is not None for i in part)]
    return Table(
        title=title, caption=Words(_CAPTION) if sums else (),
        columns=(DEFENSE, *(Column(name=names[i], direction="lower") for i in part), *(_SUMS if sums else ())),
        rows=tuple((_name(t), *(_cell(t, t.places[i]) for i in part), *(_sums(t) if sums else ())) for t in shown),
    )  # fmt: skip


def _name(t: Traveller) -> Text:
    return (t.label, Words(" (undefended)")) if t.undefended else t.label


def _cell(t: Traveller, place: Place | None) -> Content:
    if place is None:
        return Words("-")
    if place.worst is None:
        return None
    low, high = place.rank or (0, 0)
    said = [] if place.rank is None else [Words(f"#{low}" if low == high else f"#{low}-{high}")]
    if place.delta_accuracy is not None and not t.undefended:
        said.append(Words(f"{round(100 * place.delta_accuracy.mean, 1) + 0.0:+.1f} pp"))
    suffix = (Words(" ("), *joined(said), Words(")")) if said else ()
    return Value(mean=place.worst.mean, half_width=place.worst.half_width, ends=place.worst.ends, suffix=suffix)


def _sums(t: Traveller) -> tuple[Content, ...]:
    beats: Content = "" if t.undefended else Words(_of(t.beats))
    return Words(_of(t.ranked)), beats


def _of(found: tuple[int, int]) -> str:
    return f"{found[0]} of {found[1]}" if found[1] else "n/a"


def _names(sections: Sequence[Section]) -> list[Text]:
    """Of every section, in what it differs from others: the setting always, suite, coalition and view where there are several."""
    several = [len({getattr(s, part) for s in sections}) > 1 for part in ("suite", "coalition", "view")]
    return [
        joined([
            *([s.suite] if several[0] else []), s.setting, *([s.coalition] if several[1] else []),
            *([(s.view, Words(" view"))] if several[2] else []),
        ])
        for s in sections
    ]  # fmt: skip
