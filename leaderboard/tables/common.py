"""What the tables of a section share: texts, columns, cells, notes on candidates and TF01,
folds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, groupby
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
from fedbench.core.population.audit import EVERYBODY, Target
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.rows import Entry, Row, group_names
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.tf01 import ALIGNED_OF_ONE, ALIGNED_TOGETHER
from fedbench.leaderboard.statistics.verdict import Comparison

MOST_IDS = 20  # targets in a sentence
MOST_NAMED = 8  # tables in a summary
TITLE = "At a glance"  # of the first tables, which have the same columns on every board
_NOTHING = Words("no record has what it needs")


# -- texts, columns and tables ---------------------------------------------------------------------


def sentence(template: str, *quoted: Text) -> tuple[Part, ...]:
    """The program's own words, with ``quoted`` texts in the places of ``{}``; `code` and **strong**
    as in Markdown.
    """
    given, parts = iter(quoted), list[Part]()
    for piece in filter(None, re.split(r"(\{\}|`[^`]+`|\*\*[^*]+\*\*)", template)):
        if piece == "{}":
            parts += joined([next(given)])
        else:
            bare = piece.strip("*`")
            parts.append(
                Words(piece)
                if bare == piece
                else Words(bare, "code" if piece[0] == "`" else "strong")
            )
    return tuple(parts)


def joined(texts: Iterable[Text], between: str = ", ") -> tuple[Part, ...]:
    """Texts in one line."""
    parts: list[Part] = []
    for text in texts:
        parts += [Words(between)] if parts else []
        parts += text if isinstance(text, tuple) else (text,)
    return tuple(parts)


def plain_text(text: Text) -> str:
    """Without styles."""
    parts: tuple[Part, ...] = text if isinstance(text, tuple) else (text,)
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def words(name: str) -> Column:
    """A column of words."""
    return Column(name=Words(name), align="left")


def numbers(name: str, **how: Any) -> Column:
    """A column of numbers; ``how``: as of :class:`Column`."""
    return Column(name=Words(name), **how)


def table_of(
    title: str,
    caption: Text | str,
    columns: Iterable[Column],
    rows: Iterable[tuple[Content, ...]],
    **more: Any,
) -> Table:
    """The program's own words as the ``caption``, where it is a string; ``more``: as of
    :class:`Table`.
    """
    said = Words(caption) if isinstance(caption, str) else caption
    return Table(title=title, caption=said, columns=tuple(columns), rows=tuple(rows), **more)


def amount(found: Interval | Value, how: Column) -> str:
    """``0.568 ± 0.023``, ``0.10 [0.00, 1.20]`` or, without a known width, the mean alone, as the
    column says.
    """
    found = value(found) if isinstance(found, Interval) else found
    mean = number((found.mean or 0.0) * how.scale, how.digits, how.signed)
    if found.ends is not None:
        low, high = (number(end * how.scale, how.digits, how.signed) for end in found.ends)
        return f"{mean} [{low}, {high}]"
    half = float("nan") if found.half_width is None else found.half_width * how.scale
    return mean if half != half else f"{mean} ± {half:.{how.digits}f}"


def number(x: float, digits: int, signed: bool = False) -> str:
    """Fixed-point text; never a negative zero."""
    return f"{round(x, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


DEFENSE, ATTACK, RANK = words("defense"), words("attack"), words("#")


# -- cells -----------------------------------------------------------------------------------------


def name_of(row: Row) -> Text:
    """The row's label, marked when it is the undefended one."""
    return (row.label, Words(" (undefended)")) if row.undefended else row.label


def rank_of(comparison: Comparison, row: Row) -> Words:
    """``2``, or ``2-4`` where the tests leave these ranks open."""
    if row.floor:
        return Words("floor")
    return Words(span(comparison.pairwise.ranks.get(row.label)))


def span(rank: tuple[int, int] | None) -> str:
    """``2``, ``2-4``, or a dash without a rank."""
    return "–" if rank is None else "-".join(map(str, dict.fromkeys(rank)))  # noqa: RUF001


def worst_of(comparison: Comparison, row: Row) -> Content:
    """The worst case AUC with its attack, in bold where the row is significantly the first of
    several.
    """
    worst = comparison.worst_cases.of(row.label).worst
    if worst is None:
        return None
    first = (
        comparison.pairwise.ranks.get(row.label) == (1, 1) and len(comparison.pairwise.ranked) > 1
    )
    return replace(value(bounded(worst.found), sentence(" {}", worst.attack)), best=first)


def entry_value(
    section: Section, entry: Entry, found: Interval | None, best: bool = False, suffix: Text = ()
) -> Value:
    """An entry's number with n where it is not the section's, and every outcome that is not
    ``ok``.
    """
    of = len(section.targets)
    outcomes = tuple(
        Shortfall(what, n, of) for what, n in sorted(entry.outcomes.items()) if what != "ok" and n
    )
    if found is None:
        return Value(mean=None, outcomes=outcomes)
    n = None if found.n == len(section.units) else found.n
    return replace(value(found, suffix), n=n, best=best, outcomes=outcomes)


def with_attack(worst: tuple[str, float] | None) -> Content:
    """A worst case: the number and the attack it belongs to."""
    return Value(mean=worst[1], suffix=sentence(" {}", worst[0])) if worst else None


def spanned(values: Sequence[int]) -> str:
    """``7`` or, where they differ, ``5 to 9``."""
    return " to ".join(dict.fromkeys(f"{n:,}" for n in (min(values), max(values))))


# -- candidates and targets ------------------------------------------------------------------------


def counts_note(section: Section) -> Note:
    """Seeds x targets, candidates of a target, targets."""
    seeds = "1 seed" if len(section.targets) == 1 else f"{len(section.targets)} seeds"
    members = [s.n_members for s in section.scores("mix")]
    groups: tuple[Group, ...] = ("mix", "ofl", "ifl")
    mix, ofl, ifl = ([s.n_nonmembers for s in section.scores(group)] for group in groups)
    counts = (
        f"; per target {spanned(members)} members and {spanned(mix)} non-members" if members else ""
    )
    counts += f", {spanned(ofl)} from outside the federation" if ofl else ""
    counts += f", {spanned(ifl)} from other clients" if ifl else ""
    line = (
        f"n = {len(section.units)} a cell ({seeds} x targets) unless it says "
        f"otherwise{counts}. Targets: {{}}."
    )
    return Note(sentence(line, joined(_targets(section), "; ")))


def _targets(section: Section) -> list[Text]:
    names, seeds_of = group_names(section.records), dict[tuple[int, ...], list[int]]()
    for seed, own in section.targets.items():
        seeds_of.setdefault(own, []).append(seed)
    if len(seeds_of) == 1:
        return [named_targets(targets, names) for targets in seeds_of]
    return [
        (*named_targets(targets, names), Words(f" (seed {_listed(seeds)})"))
        for targets, seeds in seeds_of.items()
    ]


def named_targets(targets: Sequence[int], names: Sequence[str]) -> tuple[Part, ...]:
    """Targets in words: clients, all honest clients, or groups by ``names``."""
    if tuple(targets) == (EVERYBODY.code,):
        return sentence("all honest clients together")
    clients = [t for t in targets if t >= 0]
    groups = sorted(t.index for t in map(Target.of, targets) if t.kind == "group")
    shown: list[Text] = [
        sentence("group {}", names[g] if g < len(names) else str(g)) for g in groups
    ]
    if clients or not shown:
        shown.append(Words(f"clients {_listed(clients)}"))
    return joined(shown)


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:MOST_IDS]))
    return shown if len(values) <= MOST_IDS else f"{shown}, … ({len(values)})"


# -- TF01 ------------------------------------------------------------------------------------------


def tf01_notes(section: Section) -> tuple[Text, ...]:
    """How TF01 was computed, or how many non-members it lacks, and which rows lack it."""
    if not has_tf01(section):
        return (_missing_tf01(section),)
    method = "each with a threshold of its own"
    if section.comparison.cells.aligned:
        each = spanned([n for row in section.rows for n in _sizes(row)])
        method = (
            f"aligned and with one threshold, since {each} non-members{_own_parts(section)} "
            "are too few for one of their own"
        )
        method += " (docs/method.md)"
    without = [row.label for row in section.rows if not has_tf01(section, [row])]
    rows = [sentence("TF01 n/a: too few scores of {}.", joined(without))] if without else []
    return (Words(f"TF01: targets and seeds pooled, {method}."), *rows)


def has_tf01(section: Section, rows: Sequence[Row] | None = None) -> bool:
    """Whether any cell of these rows, by default of all, has it."""
    return any(
        section.comparison.cells.of(r.label, a).tf01
        for r in (section.rows if rows is None else rows)
        for a in section.attacks
    )


def _missing_tf01(section: Section) -> Text:
    sizes = max((_sizes(row) for row in section.rows), key=sum, default=[])
    missing, short = (
        max(ALIGNED_TOGETHER - sum(sizes), 0),
        max(ALIGNED_OF_ONE - min(sizes, default=0), 0),
    )
    why = (
        f"the {len(section.units)} targets and seeds have {sum(sizes):,} outside "
        "non-members together"
    )
    why += f", {missing:,} too few for a false-positive rate of 0.1 %" if missing else ""
    why += (
        f", and {min(sizes, default=0)} of one are {short} too few to align its scores by"
        if short
        else ""
    )
    if not missing and not short:
        why += (
            f", too few for thresholds of their own, and {len(section.seeds)} seeds are too "
            "few for a common one"
        )
    return Words(f"TF01: n/a, since {why}.")


def _own_parts(section: Section) -> str:
    """The source of non-members, where each target has no more of them."""
    federation = section.described.get("federation")
    test = federation.get("test") if isinstance(federation, Mapping) else None
    return (
        " each, all of a target's own test part,"
        if isinstance(test, int | float) and test > 0
        else " each"
    )


def _sizes(row: Row) -> list[int]:
    """Outside non-members of each target and seed, under the attack that has most."""
    found = [
        [s.n_nonmembers for s in entry.units("ofl").values()] for entry in row.entries.values()
    ]
    return max(found, key=sum, default=[])


# -- folds -----------------------------------------------------------------------------------------


def fold(lead: str, blocks: Sequence[Block]) -> list[Fold]:
    """One fold, with the names of its tables in the summary; nothing of no blocks."""
    return [Fold(_summary(Words(lead), blocks), tuple(blocks))] if blocks else []


def folded(blocks: Sequence[Block], lead: str = "") -> list[Block]:
    """Headings stay where they are; what is below each goes into a fold under the ``lead`` or,
    without one, its heading.
    """
    found: list[Block] = []
    for is_heading, group in groupby(blocks, key=lambda block: isinstance(block, Heading)):
        below = list(group)
        last = found[-1] if found else None
        name = Words(lead) if lead or not isinstance(last, Heading) else last.text
        found += below if is_heading else [Fold(_summary(name, below), tuple(below))]
    return found


def _summary(lead: Text, blocks: Sequence[Block]) -> Text:
    """``lead: table, table``; of tables without titles the number of rows."""
    tables = [block for block in blocks if isinstance(block, Table)]
    names: list[Text] = list(
        dict.fromkeys(t.title for t in tables if t.title and lead != Words(t.title))
    )
    rest = len(names) - MOST_NAMED
    shown = joined(
        [*names[:MOST_NAMED], *([Words(f"{rest} more tables")] if rest > 0 else [])], "; "
    )
    rows = sum(len(table.rows) for table in tables)
    shown = shown or (sentence(f"{rows} {'row' if rows == 1 else 'rows'}") if rows else ())
    return joined([lead, shown], ": ") if shown else joined([lead])


def without_empty_tables(blocks: Iterable[Block]) -> list[Block]:
    """A table without any number is replaced by a line with the reason, and so are columns without
    any.
    """
    found: list[Block] = []
    for block in blocks:
        if isinstance(block, Fold):
            block = Fold(block.summary, tuple(without_empty_tables(block.blocks)))
        elif isinstance(block, Table) and block.rows and block.title:
            line = sentence(
                "{}: n/a throughout, since {}.",
                Words(block.title, "strong"),
                block.empty or _NOTHING,
            )
            block = Note(line) if _is_empty(block) else _without_empty_columns(block)
        found.append(block)
    return found


def _without_empty_columns(table: Table) -> Table:
    there = [
        c.align != "right" or not all(_is_absent(row[i]) for row in table.rows)
        for i, c in enumerate(table.columns)
    ]
    if all(there) or table.title == TITLE:
        return table
    why = table.empty or (() if table.footnotes else _NOTHING)
    names = joined(
        column.name for column, known in zip(table.columns, there, strict=True) if not known
    )
    note = sentence(
        "Not shown, n/a in every row: {}{}.", names, sentence(", since {}", why) if why else ()
    )
    rows = tuple(tuple(compress(row, there)) for row in table.rows)
    return replace(
        table,
        columns=tuple(compress(table.columns, there)),
        rows=rows,
        footnotes=(*table.footnotes, note),
    )


def _is_empty(table: Table) -> bool:
    """Whether every place but the names at the left is empty."""
    numbers = [i for i, column in enumerate(table.columns) if column.align == "right"]
    return len(table.columns) == 1 or (
        bool(numbers) and all(_is_absent(row[i]) for row in table.rows for i in numbers)
    )


def _is_absent(content: Content) -> bool:
    if isinstance(content, Value):
        return content.mean is None and not content.outcomes
    return content is None or content == "" or content == ()
