"""Blocks of a board as Markdown. Text that comes from a record is escaped here; the same blocks
give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

from tabulate import tabulate

from fedbench.core.contract.board import (
    Block,
    Bullets,
    Column,
    Content,
    Fold,
    Heading,
    Image,
    Note,
    Quote,
    Table,
    Text,
    Value,
    Words,
)
from fedbench.core.words import one_line
from fedbench.leaderboard.tables.common import amount, joined

NOT_APPLICABLE = "n/a"
Write = Callable[[Text], str]
_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")
_ADDRESS = re.compile(r"(:(?=//)|(?<=www)\.)", re.IGNORECASE)
_SPECIAL_IN_WORDS = re.compile(r"([\\`*\[\]|])")
_SPECIAL_IN_HTML = re.compile(r"""[&<>"'\\`*_\[\]|~#!{}$^=@]""")
_MARK = {"plain": "", "strong": "**", "code": "`"}


def render(blocks: Sequence[Block]) -> str:
    """Return paragraphs of Markdown; an image is a link to the first of its files."""
    return "\n\n".join(chain.from_iterable(map(paragraphs, blocks))) + "\n"


def paragraphs(block: Block) -> list[str]:
    """Return the paragraphs of one block.

    Raises:
        TypeError: for one that a document must have replaced: a figure not drawn, numbers without
            a table.
    """
    if isinstance(block, Table):
        texts = [grid(block), *map(inline, block.footnotes)]
        if block.title:
            texts.insert(0, inline(Words(block.title, "strong")) + inline(block.caption))
        return texts
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {inline(block.text)}"]
    if isinstance(block, Note):
        return [inline(block.text)]
    if isinstance(block, Bullets):
        return ["\n".join(f"- {inline(item)}" for item in block.items)]
    if isinstance(block, Image):
        return [f"![{inline(block.alt)}]({next(iter(block.files))})"]
    if isinstance(block, Fold):  # an empty line ends the HTML, so what follows is Markdown again
        inside = list(chain.from_iterable(map(paragraphs, block.blocks)))
        return [f"<details>\n<summary>{html(block.summary)}</summary>", *inside, "</details>"]
    raise TypeError(f"it drew a {type(block).__name__}, not a block of a board")


# -- tables ----------------------------------------------------------------------------------------


def grid(table: Table) -> str:
    """Return the rows under their headers, without title and footnotes."""
    headers, *rows = places(table, inline)
    align = [column.align for column in table.columns if rows]
    form = {"tablefmt": "pipe", "disable_numparse": True, "colalign": align or None}
    return str(tabulate(rows, headers, **form))


def places(table: Table, say: Write) -> list[list[str]]:
    """Return the headers and the rows as ``say`` writes the texts in them."""
    lines = []
    for row in ([_header(column) for column in table.columns], *table.rows):
        cells = zip(row, table.columns, strict=True)
        lines.append([_place(content, column, say) for content, column in cells])
    return lines


def _header(column: Column) -> Text:
    if not column.unit:
        return column.name
    return joined([column.name, Words(f" ({column.unit})")], "")


def _place(content: Content, column: Column, say: Write) -> str:
    if content is None:
        return NOT_APPLICABLE
    if isinstance(content, Value):
        return _value(content, column, say)
    return say(content)


def _value(value: Value, column: Column, say: Write) -> str:
    """Write a number by the digits of its column, the best in bold, with its interval and the
    outcomes of seeds without a score.
    """
    texts = [f"{say(o.outcome)} ({o.n}/{o.of})" for o in value.outcomes]
    if value.mean is not None:
        number = say(Words(amount(value, column), "strong" if value.best else "plain"))
        if value.n is not None:
            number += f" (n={value.n})"
        texts.insert(0, number + say(value.suffix))
    elif sum(o.n for o in value.outcomes) < max((o.of for o in value.outcomes), default=1):
        texts.insert(0, NOT_APPLICABLE)
    return ", ".join(texts)


# -- text ------------------------------------------------------------------------------------------


def inline(text: Text) -> str:
    """Return Markdown of a text: quotes escaped, the program's own words as they are, each in its
    style.
    """
    if isinstance(text, tuple):
        return "".join(map(inline, text))
    if isinstance(text, str):
        return escape(text)
    mark = _MARK[text.style]
    if isinstance(text, Quote):
        return mark + escape(text.text, text.limit) + mark
    if text.style == "code":
        return mark + text.text + mark
    return mark + _SPECIAL_IN_WORDS.sub(r"\\\1", _without_html(text.text)) + mark


def escape(value: str, limit: int = 200) -> str:
    """Return ``value`` as inert Markdown on one line, cut at ``limit``: no HTML, table bars, links,
    emphasis, line breaks. Web addresses stay text where a reader makes links of bare ones.
    """
    text = _SPECIAL.sub(r"\\\1", _without_html(one_line(value, limit)))
    return _ADDRESS.sub(r"\\\1", text)


def html(text: Text) -> str:
    """Return a text inside a line of HTML, where Markdown holds in some readers and not in others:
    its characters are entities, which are text in both; without styles.
    """
    if isinstance(text, tuple):
        return "".join(map(html, text))
    if isinstance(text, Words):
        line = text.text
    else:
        if isinstance(text, str):
            text = Quote(text)
        line = one_line(text.text, text.limit)
    line = re.sub(r"\s+", " ", line)
    return _SPECIAL_IN_HTML.sub(lambda match: f"&#{ord(match[0])};", line)


def _without_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
