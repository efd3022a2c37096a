"""A board on one page: caveats, the answer to which defense to use, and one table a section."""

from __future__ import annotations

from collections import Counter

from fedbench.core.contract.board import Block, Bullets, Heading, Note, Table, Text, Words
from fedbench.leaderboard.document import Source, board_id, uncounted
from fedbench.leaderboard.figures import image_of, tradeoff_figure
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.rows import outcome_of
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables import ranking
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
    sections = source.sections
    for most_rows in TABLE_ROWS:
        blocks = _page(source, sections, most_rows, plots)
        if _lines(blocks) <= MOST_LINES:
            return blocks
    shown = len(sections) - 1
    while _lines(blocks) > MOST_LINES and shown > 0:
        blocks = _page(source, sections[:shown], TABLE_ROWS[-1], plots)
        shown -= 1
    return blocks


def _lines(blocks: list[Block]) -> int:
    return render(blocks).count("\n")


def _page(source: Source, shown: list[Section], most_rows: int, plots: bool) -> list[Block]:
    sections, records = source.sections, source.newest[0]
    blocks: list[Block] = [Heading(1, source.title), *ranking.caveats(sections)]
    blocks += [ranking.READING] if sections else []
    for section in shown:
        blocks += ranking.front_blocks(section, source.trust, most_rows)
    blocks += [*mixed_note(records), *uncounted(source)]
    left_out = len(sections) - len(shown)
    if left_out:
        blocks.append(
            Note(Words(f"{left_out} more settings and coalitions are in the full board."))
        )
    if shown:
        blocks.append(auc_table(shown[0], ranking.first_rows(shown[0], most_rows)))
    blocks += ranking.across_settings(sections, most_rows)[:2]
    blocks += _unscored(sections)
    blocks = without_empty_tables(blocks)
    if plots and shown:
        figure = tradeoff_figure(shown[0])
        blocks += [] if figure is None else [image_of(figure, shown[0])]
    return [*blocks, Heading(2, Words("Provenance")), _provenance(source), Note(sentence(MORE))]


def _unscored(sections: list[Section]) -> list[Block]:
    """Return the first cells without a score, and how many more there are."""
    blocks = unscored_blocks(sections)
    if not blocks:
        return []
    heading, table = blocks
    assert isinstance(table, Table)
    more = len(table.rows) - MOST_UNSCORED
    footnotes = (Words(f"{more} more rows are in the full board."),) if more > 0 else ()
    short = Table(
        title="",
        caption=Words(""),
        columns=table.columns,
        rows=table.rows[:MOST_UNSCORED],
        footnotes=footnotes,
    )
    return [heading, short]


def _provenance(source: Source) -> Bullets:
    records = source.newest[0]
    outcomes = Counter(map(outcome_of, records))
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    board = sentence(f"board `{board_id(records)}`, made from {len(records)} records ({counts})")
    lines: list[Text] = [board, *provenance_lines(records)]
    return Bullets(tuple(lines))
