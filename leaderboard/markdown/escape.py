"""Text as inert Markdown."""

from __future__ import annotations

import re

from fedbench.core.contract.board import Quote, Text, Words
from fedbench.core.words.explain import one_line

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")
_SPECIAL_IN_WORDS = re.compile(r"([\\`*\[\]|])")
_SPECIAL_IN_HTML = re.compile(r"""[&<>"'\\`*_\[\]|~#!{}$^=@]""")
_TAG = {"strong": "strong", "code": "code"}
_MARK = {"plain": "", "strong": "**", "code": "`"}


def inline(text: Text) -> str:
    """Markdown of a text: quotes escaped, the program's own words as they are, each in its style."""
    if isinstance(text, tuple):
        return "".join(map(inline, text))
    if isinstance(text, str):
        return escape(text)
    return _MARK[text.style] + (_words(text) if isinstance(text, Words) else escape(text.text, text.limit)) + _MARK[text.style]


def escape(value: str, limit: int = 200) -> str:
    """``value`` as inert Markdown on one line, cut at ``limit``: no HTML, table bars, links, emphasis, line breaks."""
    text = one_line(value, limit)
    return _SPECIAL.sub(r"\\\1", _without_html(text))


def html(text: Text) -> str:
    """The same text inside a line of HTML, where Markdown holds in some readers and not in others: its characters stand as
    entities, which are text in both."""
    if isinstance(text, tuple):
        return "".join(map(html, text))
    part = Quote(text) if isinstance(text, str) else text
    shown = part.text if isinstance(part, Words) else one_line(part.text, part.limit)
    inert = _SPECIAL_IN_HTML.sub(lambda found: f"&#{ord(found[0])};", re.sub(r"\s+", " ", shown))
    return f"<{tag}>{inert}</{tag}>" if (tag := _TAG.get(part.style)) else inert


def _words(words: Words) -> str:
    return words.text if words.style == "code" else _SPECIAL_IN_WORDS.sub(r"\\\1", _without_html(words.text))


def _without_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
