"""Blocks of a board as Markdown. Text that comes from a record is escaped here; the same blocks
give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

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
from fedbench.leaderboard.tables.common import amount

NOT_APPLICABLE = "n/a"
Write = Callable[[Text], str]
_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")
_SPECIAL_IN_WORDS = re.compile(r"([\\`*\[\]|])")
_SPECIAL_IN_HTML = re.compile(r"""[&<>"'\\`*_\[\]|~#!{}$^=@]""")
_TAG = {"strong": "strong", "code": "code"}
_MARK = {"plain": "", "strong": "**", "code": "`"}


def render(blocks: Sequence[Block]) -> str:
    """Paragraphs of Markdown; an image is a link to the first of its files."""
    return "\n\n".join(paragraph for block in blocks for paragraph in paragraphs(block)) + "\n"


def paragraphs(block: Block) -> list[str]:
    """Of one block. Raises TypeError for one that a document must have replaced: a figure not
    drawn, numbers without a table.
    """
    if isinstance(block, Table):
        title = inline(Words(block.title, "strong")) + inline(block.caption) if block.title else ""
        return [*([title] if title else []), grid(block), *map(inline, block.footnotes)]
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {inline(block.text)}"]
    if isinstance(block, Note):
        return [inline(block.text)]
    if isinstance(block, Bullets):
        return ["\n".join(f"- {inline(item)}" for item in block.items)]
    if isinstance(block, Image):
        return [f"![{inline(block.alt)}]({next(iter(block.files))})"]
    if isinstance(block, Fold):  # an empty line ends the HTML, so what follows is Markdown again
        inside = [paragraph for one in block.blocks for paragraph in paragraphs(one)]
        return [f"<details>\n<summary>{html(block.summary)}</summary>", *inside, "</details>"]
    raise TypeError(f"it drew a {type(block).__name__}, not a block of a board")


# -- tables ----------------------------------------------------------------------------------------


def grid(table: Table) -> str:
    """The rows under their headers, without title and footnotes."""
    headers, *rows = places(table, inline)
    align = [column.align for column in table.columns]
    return str(
        tabulate(
            rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align if rows else None
        )
    )


def places(table: Table, say: Write) -> list[list[str]]:
    """The headers and the rows as ``say`` writes the texts in them."""
    headers = [say(c.name) + (f" ({say(Words(c.unit))})" if c.unit else "") for c in table.columns]
    return [
        headers,
        *(
            [_place(c, column, say) for c, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ),
    ]


def _place(value: Content, column: Column, say: Write) -> str:
    if value is None:
        return NOT_APPLICABLE
    return _value(value, column, say) if isinstance(value, Value) else say(value)


def _value(value: Value, column: Column, say: Write) -> str:
    """By the digits of its column, the best in bold, with its interval and the outcomes of seeds
    without a score.
    """
    outcomes = [f"{say(o.outcome)} ({o.n}/{o.of})" for o in value.outcomes]
    if value.mean is None:
        scored = sum(o.n for o in value.outcomes) < max((o.of for o in value.outcomes), default=1)
        return ", ".join([*([NOT_APPLICABLE] if scored else []), *outcomes])
    shown = say(Words(amount(value, column), "strong" if value.best else "plain"))
    shown += f" (n={value.n})" if value.n is not None else ""
    return ", ".join([shown + say(value.suffix), *outcomes])


# -- text ------------------------------------------------------------------------------------------


def inline(text: Text) -> str:
    """Markdown of a text: quotes escaped, the program's own words as they are, each in its
    style.
    """
    if isinstance(text, tuple):
        return "".join(map(inline, text))
    if isinstance(text, str):
        return escape(text)
    return (
        _MARK[text.style]
        + (_words(text) if isinstance(text, Words) else escape(text.text, text.limit))
        + _MARK[text.style]
    )


def escape(value: str, limit: int = 200) -> str:
    """``value`` as inert Markdown on one line, cut at ``limit``: no HTML, table bars, links,
    emphasis, line breaks.
    """
    return _SPECIAL.sub(r"\\\1", _without_html(one_line(value, limit)))


def html(text: Text) -> str:
    """The same text inside a line of HTML, where Markdown holds in some readers and not in others:
    its characters are entities, which are text in both.
    """
    if isinstance(text, tuple):
        return "".join(map(html, text))
    part = Quote(text) if isinstance(text, str) else text
    shown = part.text if isinstance(part, Words) else one_line(part.text, part.limit)
    inert = _SPECIAL_IN_HTML.sub(lambda found: f"&#{ord(found[0])};", re.sub(r"\s+", " ", shown))
    return f"<{tag}>{inert}</{tag}>" if (tag := _TAG.get(part.style)) else inert


def _words(words: Words) -> str:
    return (
        words.text
        if words.style == "code"
        else _SPECIAL_IN_WORDS.sub(r"\\\1", _without_html(words.text))
    )


def _without_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
