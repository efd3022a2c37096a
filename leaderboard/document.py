"""A results folder as blocks: headings, notes, tables and images in their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import fedbench.core
from fedbench.core.contract.board import Block, Bullets, Heading, Image, Note, Text, Words
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.results import MARKER, Results
from fedbench.core.store.stored_suites import ID
from fedbench.leaderboard.analyses import Drawer, drawers, drawn, drawn_on_board
from fedbench.leaderboard.figures import image_of, roc_figure, tradeoff_figure
from fedbench.leaderboard.statistics.sections import Section, build_sections, newest
from fedbench.leaderboard.submissions.trust import Marks
from fedbench.leaderboard.tables import ranking
from fedbench.leaderboard.tables.answer import caveats
from fedbench.leaderboard.tables.attacks import (
    attack_tables,
    decision_tables,
    fact_table,
    group_table,
    remarks,
)
from fedbench.leaderboard.tables.common import (
    counts_note,
    fold,
    folded,
    sentence,
    without_empty_tables,
)
from fedbench.leaderboard.tables.provenance import (
    mixed_note,
    packages,
    provenance_lines,
    setting_bullets,
    unscored_blocks,
)
from fedbench.leaderboard.tables.tradeoffs import adversary_table, paired_table

# hex digits of an id: two of a million boards have the same with a chance below one in 500
_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Source:
    """Records and the notes of their folder."""

    records: Sequence[LoadedRecord]
    title: str
    superseded: int = 0
    """number of records left out"""
    published: Sequence[dict[str, Any]] = ()
    """the suite's entries of published numbers"""
    analyses: Sequence[Any] | None = None
    """analyses that the suite names; None: the built-in ones"""
    marks: Marks | None = None
    """how far the records can be trusted"""
    plan: str | None = None
    """id of the stored suite"""

    @cached_property
    def newest(self) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
        """(the records that count, earlier ones of the same cells)."""
        return newest(self.records)

    @cached_property
    def sections(self) -> list[Section]:
        """Sections in the board's order."""
        refuted = self.marks.refuted if self.marks is not None else None
        return build_sections(self.newest[0], refuted)

    @property
    def trust(self) -> ranking.Trust:
        """The trust mark of a row, where some record is imported or not repeatable."""
        marks = self.marks
        if marks is None or all(marks.level(r) == "measured here" for r in self.newest[0]):
            return None
        return marks.of_row


def source_of(results: Path) -> Source:
    """Return the records of the folder's last plan.

    Raises:
        UserError: for records that cannot be used.
    """
    records, superseded = Results(results).planned(load_records(results))
    marker = Results(results).marker() if (results / MARKER).is_file() else {}
    suites = ", ".join(sorted({r.record.suite for r in records}))
    return Source(
        records=records,
        title=str(marker.get("title") or f"Leaderboard: {suites}"),
        superseded=superseded,
        published=marker.get("published") or (),
        analyses=marker.get("analyses"),
        marks=Marks(results),
        plan=next(iter(marker.get("plans", [])[-1:]), None),
    )


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
        section.comparison.scores.forget()
    cited = sentence(f"Board id: `{board_id(records)}`, made from {len(records)} records.")
    blocks: list[Block] = [Heading(1, source.title), Note(cited), *caveats(sections)]
    blocks += [ranking.READING] if sections else []
    blocks += [*fronts, *mixed_note(records), *uncounted(source)]
    blocks += [*folded(ranking.across_settings(sections)), *details]
    for analysis in analyses:
        blocks += folded(drawn_on_board(analysis, sections, source.published))
    blocks += folded(unscored_blocks(sections))
    lines = (*_origin(source, records), packages(records), *provenance_lines(records))
    blocks += folded([Heading(2, Words("Provenance")), Bullets(lines)])
    return without_empty_tables(blocks)


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


def _origin(source: Source, records: Sequence[LoadedRecord]) -> list[Text]:
    """Say which records came from elsewhere, and what runs the suite again."""
    lines: list[Text] = []
    if source.marks is not None:
        lines += source.marks.lines(records)
    if source.plan is not None:
        again: Text = source.plan
        if ID.fullmatch(source.plan):
            again = Words(f"fedbench run RESULTS/suites/{source.plan}.yaml", "code")
        lines.append(sentence("suite as it was resolved, to run again: {}", again))
    return lines


def _introduced(section: Section, sections: Sequence[Section]) -> list[Block]:
    """Return the heading of a setting and its description, from the records of all its sections."""
    setting = section.suite, section.setting
    records: list[LoadedRecord] = []
    tuning: set[int] = set()
    for s in sections:
        if (s.suite, s.setting) == setting:
            records += s.records
            tuning |= set(s.tuning.seeds) if s.tuning is not None else set()
    name = section.setting
    if len({s.suite for s in sections}) > 1:
        name = f"{section.suite}: {section.setting}"
    lead = "What the setting is: data, model, partition, federation, audit, seeds, threat model"
    described = fold(lead, [setting_bullets(records, sorted(tuning))])
    return [Heading(2, sentence("Setting {}", name)), *described]


def _section(
    section: Section, analyses: Sequence[Drawer], plots: bool, trust: ranking.Trust
) -> list[Block]:
    """Return a section's tables, then its images."""
    images: list[Block] = []
    for figure in (tradeoff_figure(section), roc_figure(section)) if plots else ():
        images += [] if figure is None else [image_of(figure, section)]
    drawings: dict[str, list[Block]] = {"attacks": [], "costs": []}
    for analysis in analyses:
        for block in drawn(analysis, section, plots):
            (images if isinstance(block, Image) else drawings[analysis.place]).append(block)
    ranks: list[Block] = [counts_note(section), ranking.ranking_table(section, trust)]
    ranks += [*ranking.canary_table(section), *remarks(section)]
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
