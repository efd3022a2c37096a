"""Strings for a Markdown board. Whatever comes out of a record is somebody else's text and is escaped here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabulate import tabulate

from fedbench.core.metrics import Interval

NOT_APPLICABLE = "n/a"
_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")


def escape(value: object, limit: int = 200) -> str:
    """``value`` as inert Markdown on one line, cut at ``limit``: no HTML, table bars, links, emphasis, line breaks."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, its first ``left`` columns words, the others numbers; cells are escaped already."""
    align = ["left" if i < left else "right" for i in range(len(headers))]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align if rows else None)


def number(value: float | None, digits: int, signed: bool = False) -> str:
    """Fixed-point text, ``n/a`` for None; never a negative zero."""
    if value is None:
        return NOT_APPLICABLE
    return f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def interval(value: Interval | None, digits: int, signed: bool = False, scale: float = 1.0) -> str:
    """``mean ± half-width``; ``n/a`` for None, the mean alone where nothing is known about its error."""
    if value is None:
        return NOT_APPLICABLE
    mean = number(value.mean * scale, digits, signed)
    return mean if value.half_width != value.half_width else f"{mean} ± {value.half_width * scale:.{digits}f}"


def span(values: Sequence[int]) -> str:
    """``7`` or, where they differ, ``5 to 9``."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def slug(text: str) -> str:
    """Letters, digits and hyphens only, for file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
