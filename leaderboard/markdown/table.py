"""A table as Markdown: numbers by their column's digits, intervals, the best in bold, outcomes."""

from __future__ import annotations

from tabulate import tabulate

from fedbench.core.contract.board import Column, Content, Table, Value, Words
from fedbench.leaderboard.markdown.escape import inline

NOT_APPLICABLE = "n/a"


def table_paragraphs(table: Table) -> list[str]:
    """Title with caption, the table, and each footnote."""
    title = inline(Words(table.title, "strong")) + inline(table.caption) if table.title else ""
    return [*([title] if title else []), grid(table), *map(inline, table.footnotes)]


def grid(table: Table) -> str:
    """The rows under their headers, without title and footnotes."""
    headers = [_header(column) for column in table.columns]
    rows = [[content(c, column) for c, column in zip(row, table.columns, strict=True)] for row in table.rows]
    align = [column.align for column in table.columns]
    return str(tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align if rows else None))


def _header(column: Column) -> str:
    return inline(column.name) + (f" ({inline(Words(column.unit))})" if column.unit else "")


def content(value: Content, column: Column) -> str:
    """One place of a table."""
    if value is None:
        return NOT_APPLICABLE
    return _value(value, column) if isinstance(value, Value) else inline(value)


def _value(value: Value, column: Column) -> str:
    outcomes = [f"{inline(o.outcome)} ({o.n}/{o.of})" for o in value.outcomes]
    if value.mean is None:
        scored = sum(o.n for o in value.outcomes) < max((o.of for o in value.outcomes), default=1)
        return ", ".join([*([NOT_APPLICABLE] if scored else []), *outcomes])
    shown = number(value.mean * column.scale, column.digits, column.signed)
    if value.ends is not None:
        low, high = (number(end * column.scale, column.digits, column.signed) for end in value.ends)
        shown += f" \\[{low}, {high}\\]"
    elif value.half_width is not None and value.half_width == value.half_width:
        shown += f" ± {value.half_width * column.scale:.{column.digits}f}"
    shown = f"**{shown}**" if value.best else shown
    shown += f" (n={value.n})" if value.n is not None else ""
    return ", ".join([shown + inline(value.suffix), *outcomes])


def number(value: float, digits: int, signed: bool = False) -> str:
    """Fixed-point text; never a negative zero."""
    return f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"
