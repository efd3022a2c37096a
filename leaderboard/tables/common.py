"""Texts, columns, cells and folds that the tables of a section share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, product
from typing import Any

from fedbench.core.contract.board import (
    Block,
    Column,
    Content,
    Fold,
    Heading,
    Note,
    Part,
    Shortfall,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.core.metrics import Group, Interval
from fedbench.core.metrics.roc import TF01_FPR
from fedbench.core.words import DOCS
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.rows import AttackEntry, DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.tf01 import ALIGNED_SEEDS
from fedbench.leaderboard.statistics.verdict import LeakStatistics

TITLE = "At a glance"
"""title of the first tables, which have the same columns on every board"""
_NOTHING = Words("no record has what it needs")
_PIECES = re.compile(r"(\{\}|`[^`]+`|\*\*[^*]+\*\*)")

Declared = tuple[Column, Callable[[DefenseRow], Content]]
"""a column of a table and the cell of a row in it"""


# -- texts -----------------------------------------------------------------------------------------


def sentence(template: str, *quoted: Text) -> tuple[Part, ...]:
    """Return the program's own words, with ``quoted`` texts in the places of ``{}``; `code` and
    **strong** as in Markdown.
    """
    quotes = iter(quoted)
    parts: list[Part] = []
    for piece in filter(None, _PIECES.split(template)):
        bare = piece.strip("*`")
        if piece == "{}":
            parts += joined([next(quotes)])
        elif bare == piece:
            parts.append(Words(piece))
        elif piece[0] == "`":
            parts.append(Words(bare, "code"))
        else:
            parts.append(Words(bare, "strong"))
    return tuple(parts)


def joined(texts: Iterable[Text], between: str = ", ") -> tuple[Part, ...]:
    """Join texts to one line."""
    parts: list[Part] = []
    for text in texts:
        if parts:
            parts.append(Words(between))
        parts += _parts(text)
    return tuple(parts)


def _parts(text: Text) -> tuple[Part, ...]:
    return text if isinstance(text, tuple) else (text,)


def named(labels: Sequence[str], most: int) -> tuple[Part, ...]:
    """Join the first labels, and say how many more there are."""
    more = len(labels) - most
    if more <= 1:
        return joined(labels)
    return sentence(f"{{}} and {more} more", joined(labels[:most]))


def no_attack(section: BoardSection) -> str:
    """Return the subject of a sentence on all attacks that count: others may leak."""
    return "No attack that counts" if section.left_out else "No attack"


def plain_text(text: Text) -> str:
    """Return a text without styles."""
    return "".join(part if isinstance(part, str) else part.text for part in _parts(text))


# -- columns and tables ----------------------------------------------------------------------------


def words(name: str) -> Column:
    """Return a column of words."""
    return Column(name=Words(name), align="left")


def numbers(name: str, **how: Any) -> Column:
    """Return a column of numbers; ``how``: as of :class:`Column`."""
    return Column(name=Words(name), **how)


def table_of(
    title: str,
    caption: Text | str,
    columns: Iterable[Column],
    rows: Iterable[tuple[Content, ...]],
    **more: Any,
) -> Table:
    """Return a table; a string as the ``caption`` is the program's own words."""
    if isinstance(caption, str):
        caption = Words(caption)
    return Table(title=title, caption=caption, columns=tuple(columns), rows=tuple(rows), **more)


def row_table(
    title: str,
    caption: Text | str,
    rows: Iterable[DefenseRow],
    declared: Sequence[Declared],
    **more: Any,
) -> Table:
    """Return a table with a line a row of the section, by the declared columns."""
    lines = [tuple(cell(row) for _, cell in declared) for row in rows]
    return table_of(title, caption, [column for column, _ in declared], lines, **more)


def amount(interval: Interval | Value, how: Column) -> str:
    """``0.568 ± 0.023``, ``0.10 [0.00, 1.20]`` or, without a known width, the mean alone, as the
    column says.
    """
    if isinstance(interval, Interval):
        return amount(value(interval), how)
    written = partial(number, digits=how.digits, signed=how.signed)
    mean = written((interval.mean or 0.0) * how.scale)
    if interval.ends is not None:
        low, high = interval.ends
        return f"{mean} [{written(low * how.scale)}, {written(high * how.scale)}]"
    if interval.half_width is None or math.isnan(interval.half_width):
        return mean
    return f"{mean} ± {interval.half_width * how.scale:.{how.digits}f}"


def number(x: float, digits: int, signed: bool = False) -> str:
    """Return fixed-point text; a number that rounds to zero has no sign."""
    rounded = round(x, digits) + 0.0
    sign = "+" if signed and rounded else ""
    return f"{rounded:{sign}.{digits}f}"


def without_empty_tables(blocks: Iterable[Block]) -> list[Block]:
    """Replace each table without any number by a line with the reason."""
    blocks_with_numbers: list[Block] = []
    for block in blocks:
        if isinstance(block, Fold):
            block = Fold(block.summary, tuple(without_empty_tables(block.blocks)))
        elif isinstance(block, Table) and block.title and block.rows and _is_empty(block):
            title, why = Words(block.title, "strong"), block.empty or _NOTHING
            block = Note(sentence("{}: n/a throughout, since {}.", title, why))
        blocks_with_numbers.append(block)
    return blocks_with_numbers


def _is_empty(table: Table) -> bool:
    """Whether every place but the names at the left is empty."""
    numeric = [i for i, column in enumerate(table.columns) if column.align == "right"]
    if not numeric:
        return len(table.columns) == 1
    return all(_is_absent(row[i]) for i, row in product(numeric, table.rows))


def _is_absent(content: Content) -> bool:
    if isinstance(content, Value):
        return content.mean is None and not content.outcomes
    return content in (None, "", ())


# -- cells -----------------------------------------------------------------------------------------


def name_of(row: DefenseRow) -> Text:
    """Return the row's label, marked when it is the undefended one."""
    return (row.label, Words(" (undefended)")) if row.undefended else row.label


DEFENSE, ATTACK, RANK = words("defense"), words("attack"), words("#")
NAMED: Declared = (DEFENSE, name_of)


def rank_of(comparison: LeakStatistics, row: DefenseRow) -> Words:
    """Return ``2``, or ``2-4`` where the tests leave these ranks open."""
    if row.floor:
        return Words("floor")
    return Words(span(comparison.pairwise.ranks.get(row.label)))


def span(rank: tuple[int, int] | None) -> str:
    """Return ``2``, ``2-4``, or a dash without a rank."""
    return "-".join(map(str, dict.fromkeys(rank or "–")))  # noqa: RUF001


def is_first(comparison: LeakStatistics, row: DefenseRow) -> bool:
    """Whether the row is significantly the first of several."""
    pairwise = comparison.pairwise
    return pairwise.ranks.get(row.label) == (1, 1) and len(pairwise.ranked) > 1


def worst_of(comparison: LeakStatistics, row: DefenseRow) -> Content:
    """Return the worst case AUC with its attack, in bold where the row is the first."""
    worst = comparison.worst_cases.of(row.label).worst
    if worst is None:
        return None
    auc = value(bounded(worst.interval), sentence(" {}", worst.attack))
    return replace(auc, best=is_first(comparison, row))


def entry_value(
    section: BoardSection, entry: AttackEntry, interval: Interval | None, best: bool = False
) -> Value:
    """Return an entry's number with n where it is not the section's, and every outcome that is not
    ``ok``.
    """
    outcomes = []
    for outcome, n in sorted(entry.outcomes.items()):
        if outcome != "ok" and n:
            outcomes.append(Shortfall(outcome, n, len(section.targets)))
    if interval is None:
        return Value(mean=None, outcomes=tuple(outcomes))
    n_shown = None if interval.n == len(section.units) else interval.n
    return replace(value(interval), best=best, outcomes=tuple(outcomes), n=n_shown)


def spanned(values: Sequence[int]) -> str:
    """Return ``7`` or, where they differ, ``5 to 9``."""
    return " to ".join(dict.fromkeys(f"{n:,}" for n in (min(values), max(values))))


# -- candidates ------------------------------------------------------------------------------------


_GROUPS: dict[Group, str] = {
    "mix": "non-members",
    "ofl": "from outside the federation",
    "ifl": "from other clients",
}


def counts_note(section: BoardSection) -> Note:
    """Say the number of seeds x targets, and the candidates of a target."""
    text = (
        f"n = {len(section.units)} (seeds x targets) of a row and attack unless it says otherwise"
    )
    members = [s.n_members for s in section.scores("mix")]
    if members:
        text += f"; per target {spanned(members)} members"
    for group, name in _GROUPS.items():
        sizes = [s.n_nonmembers for s in section.scores(group)]
        if sizes:
            text += f", {spanned(sizes)} {name}"
    return Note(Words(f"{text}."))


# -- TF01 ------------------------------------------------------------------------------------------


def tf01_notes(section: BoardSection) -> tuple[Text, ...]:
    """Say how TF01 was computed, or that non-members are too few, and which rows lack it."""
    sizes = [_sizes(row) for row in section.rows]
    if not has_tf01(section, section.rows):
        most = max(map(sum, sizes), default=0)
        why = f"since {most:,} outside non-members of all targets and seeds are too few"
        if len(section.seeds) < ALIGNED_SEEDS and TF01_FPR * (most + 1) >= 1:
            why = (
                f"since with fewer than {ALIGNED_SEEDS} seeds every target needs 999 outside "
                "non-members, 1,999 together"
            )
        return (Words(f"TF01: n/a, {why} ({DOCS}/method.md)."),)
    method = "each with a threshold of its own"
    if section.comparison.leaks.aligned:
        each = spanned(list(chain.from_iterable(sizes)))
        method = (
            f"aligned and with one threshold, since {each} non-members each are too few for one of "
            f"their own ({DOCS}/method.md)"
        )
    notes: list[Text] = [Words(f"TF01: targets and seeds pooled, {method}.")]
    without = [row.label for row in section.rows if not has_tf01(section, [row])]
    if without:
        notes.append(sentence("TF01 n/a: too few scores of {}.", joined(without)))
    return tuple(notes)


def has_tf01(section: BoardSection, rows: Sequence[DefenseRow]) -> bool:
    """Whether any of these rows has it against any attack."""
    leaks = section.comparison.leaks
    pairs = product(rows, section.attacks)
    return any(leaks.of(row.label, attack).has_tf01 for row, attack in pairs)


def _sizes(row: DefenseRow) -> list[int]:
    """Return the outside non-members of each target and seed, under the attack that has most."""
    sizes = []
    for entry in row.entries.values():
        sizes.append([score.n_nonmembers for score in entry.units("ofl").values()])
    return max(sizes, key=sum, default=[])


# -- folds -----------------------------------------------------------------------------------------


def fold(lead: str, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks in one fold; nothing of no blocks."""
    return [Fold(Words(lead), tuple(blocks))] if blocks else []


def folded(blocks: Sequence[Block]) -> list[Block]:
    """Leave headings where they are, and fold away what is below each under its text."""
    folds: list[Block] = []
    lead: Text = ()
    for is_heading, group in groupby(blocks, key=lambda block: isinstance(block, Heading)):
        below = list(group)
        last = below[-1]
        if isinstance(last, Heading):
            lead = last.text
        folds += below if is_heading else [Fold(lead, tuple(below))]
    return folds
