"""A results folder as blocks: headings, notes, tables and images in their order, on one page or in
full.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import fedbench.core
from fedbench.core.contract.board import (
    Block,
    Bullets,
    Figure,
    Heading,
    Image,
    Note,
    Table,
    Text,
    Words,
)
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.results import MARKER, Provisional, Results
from fedbench.core.store.stored_suites import ID
from fedbench.core.words import DOCS
from fedbench.leaderboard.analyses import Drawer, drawers, drawn, drawn_on_board
from fedbench.leaderboard.figures import (
    image_of,
    roc_figure,
    tradeoff_figure,
    vulnerability_figure,
)
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.grouping import build_sections, newest
from fedbench.leaderboard.statistics.rows import outcome_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.submissions.trust import Marks
from fedbench.leaderboard.tables import ranking
from fedbench.leaderboard.tables.answer import caveats
from fedbench.leaderboard.tables.attacks import (
    attack_tables,
    auc_table,
    decision_tables,
    fact_table,
    group_table,
    remarks,
)
from fedbench.leaderboard.tables.auditors import auditors_table
from fedbench.leaderboard.tables.common import (
    counts_note,
    fold,
    folded,
    joined,
    sentence,
    without_empty_tables,
)
from fedbench.leaderboard.tables.provenance import (
    mixed_note,
    origin_notes,
    packages,
    provenance_lines,
    setting_bullets,
    unscored_blocks,
)
from fedbench.leaderboard.tables.tradeoffs import adversary_table, paired_table

MOST_LINES = 160
TABLE_ROWS = (16, 10, 6, 4)
"""rows of a table; the first number with which the page is short enough is taken"""
MOST_UNSCORED = 5
MORE = (
    "Every table and figure: `fedbench leaderboard RESULTS --full`; to look at: `fedbench "
    f"leaderboard RESULTS --html DIR`; {DOCS}/method.md has the definitions."
)
# hex digits of an id: two of a million boards have the same with a chance below one in 500
_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Source:
    """Records and the notes of their folder."""

    records: Sequence[LoadedRecord]
    title: str
    marks: Marks
    """how far the records can be trusted"""
    superseded: int = 0
    """number of records left out"""
    published: Sequence[dict[str, Any]] = ()
    """the suite's entries of published numbers"""
    analyses: Sequence[Any] | None = None
    """analyses that the suite names; None: the built-in ones"""
    plan: str | None = None
    """id of the stored suite"""
    provisional: Provisional | None = None
    """the finished seeds, the only ones of ``records``, where the plan has others"""

    @cached_property
    def newest(self) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
        """(the records that count, earlier ones of the same cells)."""
        return newest(self.records)

    @cached_property
    def sections(self) -> list[BoardSection]:
        """Sections in the board's order."""
        return build_sections(self.newest[0], self.marks.refuted)

    @property
    def trust(self) -> ranking.Trust:
        """The trust mark of a row, where some record is imported or not repeatable."""
        if all(self.marks.level(r) == "measured here" for r in self.newest[0]):
            return None
        return self.marks.of_row


def source_of(results: Path) -> Source:
    """Return the records of the folder's last plan, those of finished seeds where others are not.

    Raises:
        UserError: for records that cannot be used.
    """
    store = Results(results)
    provisional = store.provisional()
    seeds = provisional.seeds if provisional else ()
    records, superseded = store.planned(load_records(results, seeds=seeds))
    marker = store.marker() if (results / MARKER).is_file() else {}
    suites = ", ".join(sorted({r.record.suite for r in records}))
    return Source(
        records=records,
        title=str(marker.get("title") or f"Leaderboard: {suites}"),
        superseded=superseded,
        published=marker.get("published") or (),
        analyses=marker.get("analyses"),
        marks=Marks(results),
        plan=next(iter(marker.get("plans", [])[-1:]), None),
        provisional=provisional,
    )


def provisional_mark(source: Source) -> list[Block]:
    """Return the note at the top of a board that lacks seeds of its plan."""
    if source.provisional is None:
        return []
    mark = str(source.provisional).capitalize()
    return [Note(sentence(f"**{mark}.** `fedbench run` computes the others."))]


def uncounted(source: Source) -> list[Block]:
    """Return notes on records that no table counts."""
    notes: list[Block] = []
    if not source.sections:
        why = "All records are of tuning seeds, which no table counts: run the suite's other seeds."
        notes.append(Note(Words(why)))
    if left_out := source.superseded + len(source.newest[1]):
        why = f"{left_out} records of earlier code, parameters or plans are not shown."
        notes.append(Note(Words(why)))
    return notes


@cache
def rules_digest() -> str:
    """Return hex sha256 over the files that turn records into a board's numbers; line ends do not
    count.
    """
    leaderboard, core = Path(__file__).parent, Path(fedbench.core.__path__[0])
    h = hashlib.sha256()
    for folder in (core / "metrics", leaderboard / "statistics", leaderboard / "tables"):
        for path in sorted(folder.glob("*.py")):
            content = path.read_bytes().replace(b"\r\n", b"\n")
            h.update(f"{folder.name}/{path.name}:{len(content)};".encode() + content)
    return h.hexdigest()


def board_id(records: Iterable[LoadedRecord]) -> str:
    """Return ``fb-`` and hex digits, which differ exactly when a record, the number of them, or a
    rule does.
    """
    digests = sorted(r.record.digest for r in records)
    return f"fb-{key_of({'rules': rules_digest(), 'records': digests})[:_LENGTH]}"


# -- one page --------------------------------------------------------------------------------------


def one_page(source: Source, plots: bool) -> list[Block]:
    """Return the blocks of a page of at most ``MOST_LINES`` lines of Markdown.

    Long tables show their first rows, and a board of many sections its first sections. ``plots``:
    with the trade-off of the first section.
    """
    _measure(source)
    number = len(source.sections)
    sizes = [(number, rows) for rows in TABLE_ROWS]
    sizes += [(sections, TABLE_ROWS[-1]) for sections in range(number - 1, 0, -1)]
    for sections, rows in sizes:
        blocks = _page(source, source.sections[:sections], rows, plots)
        if render(blocks).count("\n") <= MOST_LINES:
            break
    return blocks


def _measure(source: Source) -> None:
    """Compute all that a page prints of each section while the scores of that one are in memory."""
    for section in source.sections:
        caveats([section])
        ranking.front_blocks(section, source.trust)
        if section.base is not None:
            section.comparison.pairwise.against(section.base.label)
        if section is source.sections[0]:
            auc_table(section, ranking.first_rows(section, TABLE_ROWS[0]))
        section.comparison.scores.forget()


def _page(source: Source, first: list[BoardSection], most_rows: int, plots: bool) -> list[Block]:
    sections, records = source.sections, source.newest[0]
    blocks: list[Block] = [Heading(1, source.title), *provisional_mark(source)]
    blocks += _reading(sections)
    for section in first:
        blocks += ranking.front_blocks(section, source.trust, most_rows)
    blocks += [*mixed_note(records), *uncounted(source)]
    if left_out := len(sections) - len(first):
        text = f"{left_out} more settings and coalitions are in the full board."
        blocks.append(Note(Words(text)))
    if first:
        blocks.append(auc_table(first[0], ranking.first_rows(first[0], most_rows)))
        blocks += auditors_table(first[0])
    places = len(sections) <= ranking.MOST_SECTIONS
    blocks += ranking.across_settings(sections, most_rows, places)
    blocks += _unscored(sections)
    blocks = without_empty_tables(blocks)
    if plots and first:
        blocks += _images(first[0], tradeoff_figure, vulnerability_figure)
    heading = Heading(2, Words("Provenance"))
    return [*blocks, heading, _short_provenance(records), Note(sentence(MORE))]


def _reading(sections: Sequence[BoardSection]) -> list[Block]:
    """Say what changes the reading of all tables, and how they are read where there are any."""
    blocks = [*caveats(sections), *origin_notes(sections)]
    return [*blocks, ranking.READING] if sections else blocks


def _short_provenance(records: Sequence[LoadedRecord]) -> Bullets:
    outcomes = Counter(map(outcome_of, records))
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    board = sentence(f"board `{board_id(records)}`, made from {len(records)} records ({counts})")
    return Bullets((joined([board, packages(records)], "; "), *provenance_lines(records)))


def _unscored(sections: list[BoardSection]) -> list[Block]:
    """Return the first cells without a score, and how many more there are."""
    blocks: list[Block] = []
    for block in unscored_blocks(sections):
        if isinstance(block, Table) and len(block.rows) > MOST_UNSCORED:
            more = f"{len(block.rows) - MOST_UNSCORED} more rows are in the full board."
            block = replace(block, rows=block.rows[:MOST_UNSCORED], footnotes=(Words(more),))
        blocks.append(block)
    return blocks


# -- every table and figure ------------------------------------------------------------------------


def document(source: Source, plots: bool = True) -> list[Block]:
    """Return every table and figure, all but the first tables in ``Fold`` blocks; the same records
    give the same blocks. ``plots``: with images.
    """
    sections, records = source.sections, source.newest[0]
    analyses = drawers(source.analyses, sections)
    fronts: list[Block] = []
    details: list[Block] = []
    settings: list[tuple[str, str]] = []
    for section in sections:
        setting = section.suite, section.setting
        if setting not in settings:
            details += _introduced(section, sections)
            settings.append(setting)
        details += _section(section, analyses, plots, source.trust)
        fronts += ranking.front_blocks(section, source.trust)
        section.comparison.scores.forget(but="all")  # by which claims are judged
    cited = sentence(f"Board id: `{board_id(records)}`, made from {len(records)} records.")
    blocks: list[Block] = [Heading(1, source.title), *provisional_mark(source), Note(cited)]
    blocks += _reading(sections)
    blocks += [*fronts, *mixed_note(records), *uncounted(source)]
    blocks += [*folded(ranking.across_settings(sections)), *details]
    for analysis in analyses:
        blocks += folded(drawn_on_board(analysis, sections, source.published, plots))
    blocks += folded(unscored_blocks(sections))
    blocks += folded([Heading(2, Words("Provenance")), _provenance(source, records)])
    return without_empty_tables(blocks)


def _provenance(source: Source, records: Sequence[LoadedRecord]) -> Bullets:
    """Say which records came from elsewhere, what runs the suite again, and what made them."""
    lines = source.marks.lines(records)
    if source.plan is not None:
        again: Text = source.plan
        if ID.fullmatch(source.plan):
            again = Words(f"fedbench run RESULTS/suites/{source.plan}.yaml", "code")
        lines.append(sentence("suite as it was resolved, to run again: {}", again))
    return Bullets((*lines, packages(records), *provenance_lines(records)))


def _introduced(section: BoardSection, sections: Sequence[BoardSection]) -> list[Block]:
    """Return the heading of a setting and its description, from the records of all its sections."""
    setting = section.suite, section.setting
    records: list[LoadedRecord] = []
    tuning: set[int] = set()
    for s in sections:
        if (s.suite, s.setting) == setting:
            records += s.records
            if s.tuning is not None:
                tuning |= set(s.tuning.seeds)
    name = section.setting
    if len({s.suite for s in sections}) > 1:
        name = f"{section.suite}: {section.setting}"
    lead = "What the setting is: data, model, partition, federation, audit, seeds, threat model"
    described = fold(lead, [setting_bullets(records, sorted(tuning))])
    return [Heading(2, sentence("Setting {}", name)), *described]


def _images(section: BoardSection, *makers: Callable[[BoardSection], Figure | None]) -> list[Block]:
    figures = filter(None, [make(section) for make in makers])
    return [image_of(figure, section) for figure in figures]


def _section(
    section: BoardSection, analyses: Sequence[Drawer], plots: bool, trust: ranking.Trust
) -> list[Block]:
    """Return a section's tables, then its images."""
    images: list[Block] = []
    if plots:
        images += _images(section, tradeoff_figure, roc_figure, vulnerability_figure)
    drawings: dict[str, list[Block]] = {"attacks": [], "costs": []}
    for analysis in analyses:
        for block in drawn(analysis, section, plots):
            (images if isinstance(block, Image) else drawings[analysis.place]).append(block)
    ranks: list[Block] = [counts_note(section), ranking.ranking_table(section, trust)]
    ranks += [*auditors_table(section), *ranking.canary_table(section), *remarks(section)]
    by_attack: list[Block] = [*attack_tables(section), *fact_table(section)]
    by_attack += [*decision_tables(section), *drawings["attacks"]]
    beside: list[Block] = [*adversary_table(section), group_table(section)]
    beside += [*paired_table(section), *drawings["costs"]]
    return [
        Heading(3, sentence("Coalition {}, {} view", section.coalition, section.view)),
        *fold("Ranks with all columns", ranks),
        *fold("Attack by attack", by_attack),
        *fold("Beside undefended", beside),
        *fold(f"Figures ({len(images)})", images),
    ]
