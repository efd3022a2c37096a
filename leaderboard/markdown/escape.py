"""Text as inert Markdown."""

from __future__ import annotations

import re

from fedbench.core.contract.board import Text, Words
from fedbench.core.words.explain import one_line

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")
_SPECIAL_IN_WORDS = re.compile(r"([\\`*\[\]|])")
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


def _words(words: Words) -> str:
    return words.text if words.style == "code" else _SPECIAL_IN_WORDS.sub(r"\\\1", _without_html(words.text))


def _without_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
