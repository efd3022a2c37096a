"""The board as Markdown: the same blocks give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.board import Block, Bullets, Fold, Heading, Image, Note, Table
from fedbench.leaderboard.markdown.escape import html, inline
from fedbench.leaderboard.markdown.table import table_paragraphs


def render(blocks: Sequence[Block]) -> str:
    """Paragraphs of Markdown; an image is a link to the first of its files."""
    return "\n\n".join(paragraph for block in blocks for paragraph in paragraphs(block)) + "\n"


def paragraphs(block: Block) -> list[str]:
    """Of one block; ``TypeError`` for one that a document must have replaced: a figure not drawn, numbers without a table."""
    if isinstance(block, Table):
        return table_paragraphs(block)
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
    raise TypeError(f"{type(block).__name__} cannot be written as Markdown")
