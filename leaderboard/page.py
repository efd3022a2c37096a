"""A board on one page: caveats, the answer to which defense to use, and one table a section."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fedbench.core.contract.board import Block, Bullets, Heading, Note, Table, Words
from fedbench.leaderboard.document import Source, board_id, uncounted
from fedbench.leaderboard.figures import image_of, tradeoff_figure
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.rows import outcome_of
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables import ranking
from fedbench.leaderboard.tables.answer import caveats
from fedbench.leaderboard.tables.attacks import auc_table
from fedbench.leaderboard.tables.common import sentence, without_empty_tables
from fedbench.leaderboard.tables.provenance import mixed_note, provenance_lines, unscored_blocks

MOST_LINES = 160
TABLE_ROWS = (16, 10, 6, 4)
"""rows of a table; the first number with which the page is short enough is taken"""
MOST_UNSCORED = 5
MORE = (
    "Every table and figure: `fedbench leaderboard RESULTS --full`; to look at: `fedbench "
    "leaderboard RESULTS --html DIR`; docs/method.md has the definitions."
)


def one_page(source: Source, plots: bool = True) -> list[Block]:
    """Return the blocks of a page of at most ``MOST_LINES`` lines of Markdown.

    Long tables show their first rows, and a board of many sections its first sections. ``plots``:
    with the trade-off of the first section.
    """
    number = len(source.sections)
    sizes = [(number, rows) for rows in TABLE_ROWS]
    sizes += [(sections, TABLE_ROWS[-1]) for sections in range(number - 1, 0, -1)]
    for sections, rows in sizes:
        blocks = _page(source, source.sections[:sections], rows, plots)
        if render(blocks).count("\n") <= MOST_LINES:
            break
    return blocks


def _page(source: Source, first: list[Section], most_rows: int, plots: bool) -> list[Block]:
    sections, records = source.sections, source.newest[0]
    blocks: list[Block] = [Heading(1, source.title), *caveats(sections)]
    blocks += [ranking.READING] if sections else []
    for section in first:
        blocks += ranking.front_blocks(section, source.trust, most_rows)
    blocks += [*mixed_note(records), *uncounted(source)]
    if left_out := len(sections) - len(first):
        text = f"{left_out} more settings and coalitions are in the full board."
        blocks.append(Note(Words(text)))
    if first:
        blocks.append(auc_table(first[0], ranking.first_rows(first[0], most_rows)))
    places = len(sections) <= ranking.MOST_SECTIONS
    blocks += ranking.across_settings(sections, most_rows, places)
    blocks += _unscored(sections)
    blocks = without_empty_tables(blocks)
    figure = tradeoff_figure(first[0]) if plots and first else None
    if figure is not None:
        blocks.append(image_of(figure, first[0]))
    outcomes = Counter(map(outcome_of, records))
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    board = sentence(f"board `{board_id(records)}`, made from {len(records)} records ({counts})")
    provenance = Bullets((board, *provenance_lines(records)))
    return [*blocks, Heading(2, Words("Provenance")), provenance, Note(sentence(MORE))]


def _unscored(sections: list[Section]) -> list[Block]:
    """Return the first cells without a score, and how many more there are."""
    blocks: list[Block] = []
    for block in unscored_blocks(sections):
        if isinstance(block, Table) and len(block.rows) > MOST_UNSCORED:
            more = f"{len(block.rows) - MOST_UNSCORED} more rows are in the full board."
            block = replace(block, rows=block.rows[:MOST_UNSCORED], footnotes=(Words(more),))
        blocks.append(block)
    return blocks
