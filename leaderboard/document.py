"""A results folder as a document: headings, notes, tables and images in their order, which any report can write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedbench.core.contract.board import Block, Figure, Fold, Heading, Note, Text, Words, opened
from fedbench.core.store.marker import MARKER
from fedbench.core.store.plans import ID
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.results import Results
from fedbench.leaderboard.analyses import Drawer, drawers, drawn, images_last
from fedbench.leaderboard.citation import CITATION, board_id
from fedbench.leaderboard.figures.decisions import decision_figure
from fedbench.leaderboard.figures.files import image_of
from fedbench.leaderboard.figures.roc import roc_figure
from fedbench.leaderboard.figures.tradeoff import tradeoff_figure
from fedbench.leaderboard.statistics.recount import require_recounted
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section, build_sections, newest
from fedbench.leaderboard.submissions.marks import Marks
from fedbench.leaderboard.tables.across import across_settings
from fedbench.leaderboard.tables.attacks import attack_tables, group_table, remarks
from fedbench.leaderboard.tables.canaries import canary_table
from fedbench.leaderboard.tables.claims import claims_blocks
from fedbench.leaderboard.tables.costs import adversary_table, paired_table, pareto_table
from fedbench.leaderboard.tables.counts import counts_note
from fedbench.leaderboard.tables.decisions import decision_tables
from fedbench.leaderboard.tables.facts import fact_table
from fedbench.leaderboard.tables.folds import fold, folded, in_words
from fedbench.leaderboard.tables.front import READING as FRONT_READING
from fedbench.leaderboard.tables.front import front_blocks
from fedbench.leaderboard.tables.maximum import maximum_table
from fedbench.leaderboard.tables.provenance import mixed_note, provenance_blocks, unscored_blocks
from fedbench.leaderboard.tables.published import beside_papers
from fedbench.leaderboard.tables.ranking import ranking_table
from fedbench.leaderboard.tables.reading import READING
from fedbench.leaderboard.tables.rounds import round_table
from fedbench.leaderboard.tables.setting import setting_bullets


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a document is made of. ``superseded``: how many records were left out; ``published``: the suite's entries of
    published numbers; ``analyses``: those the suite names, None: the built-in ones; ``marks``: how far the records can be
    trusted; ``plan``: the id of the stored suite."""

    records: Sequence[LoadedRecord]
    title: str
    superseded: int = 0
    published: Sequence[dict[str, Any]] = ()
    analyses: Sequence[Any] | None = None
    marks: Marks | None = None
    plan: str | None = None

    @cached_property
    def newest(self) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
        """(the records that count, those of the same cells that came before)."""
        return newest(self.records)

    @cached_property
    def sections(self) -> list[Section]:
        """What the board is made of; worked out once."""
        return build_sections(self.newest[0])


def source_of(results: Path) -> Source:
    """The records of the folder's last plan. Raises ``UserError`` for records that cannot be used, and for those whose numbers
    are not the ones that their scores give."""
    records, superseded = Results(results).planned(load_records(results))
    require_recounted(records)
    marker = Results(results).marker() if (results / MARKER).is_file() else {}
    suites = ", ".join(sorted({r.record.suite for r in records}))
    return Source(
        records=records, title=str(marker.get("title") or f"Leaderboard: {suites}"), superseded=superseded,
        published=marker.get("published") or (), analyses=marker.get("analyses"),
        marks=Marks.of_folder(results), plan=next(iter(marker.get("plans", [])[-1:]), None),
    )  # fmt: skip


def document(source: Source, plots: bool = True, folds: bool = False) -> list[Block]:
    """The whole board; the same records give the same blocks. ``plots``: with images. ``folds``: what is behind the first screen
    stands in ``Fold`` blocks, for a report that can draw them; else the same blocks stand there as they are.

    Raises ``UserError`` when records that must share their candidates do not.
    """
    (current, old), sections = source.newest, source.sections
    blocks: list[Block] = [Heading(1, source.title), _cited(current)]
    analyses = drawers(source.analyses, sections)
    trust = source.marks.of_row if source.marks is not None and source.marks.needed(current) else None
    if not sections:
        blocks.append(Note(Words("All records are of tuning seeds, which no table counts: run the suite's other seeds, too.")))
    fronts: list[Block] = [FRONT_READING] if sections else []
    own: list[Block] = []  # one by one: what the other tables need of a section is known then, without its scores
    for i, section in enumerate(sections):
        if i == 0 or _setting(sections[i - 1]) != _setting(section):
            own += _introduced(section, sections)
        own += _section(section, analyses, plots, trust)
        fronts += front_blocks(section)
        for comparison in (section.comparison, *section.comparison.by_kind):
            comparison.forget_scores()
    blocks += [*fronts, *mixed_note(current)]
    if left_out := source.superseded + len(old):
        blocks.append(Note(Words(f"{left_out} records of earlier code, parameters or plans are not shown.")))
    blocks.append(Fold(Words("How to read this board in full"), (READING,)))
    blocks += [*folded(across_settings(sections), "Every defense in every setting"), *own]
    if source.published:
        blocks += folded(beside_papers(source.published, sections))
    blocks += [*folded(claims_blocks(sections)), *folded(unscored_blocks(sections))]
    end = "Packages, versions, commits, machine and data behind the board"
    blocks += folded(provenance_blocks(current, _origin(source, current)), end)
    blocks = in_words(blocks)
    return blocks if folds else opened(blocks)


def _cited(records: Sequence[LoadedRecord]) -> Note:
    """How to name exactly these records under exactly these rules, and how to make the board again."""
    made = Words(f" ({CITATION} says of what), made from {len(records)} records by ")
    again = Words("fedbench leaderboard RESULTS", "code")
    return Note((Words("Board id: "), Words(board_id(records), "code"), made, again, Words(".")))


def _origin(source: Source, records: Sequence[LoadedRecord]) -> list[Text]:
    lines = source.marks.lines(records) if source.marks is not None else []
    if source.plan is not None:
        again = Words(f"fedbench run RESULTS/suites/{source.plan}.yaml", "code") if ID.fullmatch(source.plan) else source.plan
        lines.append((Words("suite as it was resolved, to run again: "), again))
    return lines


def _setting(section: Section) -> tuple[str, str]:
    return section.suite, section.setting


def _introduced(section: Section, sections: Sequence[Section]) -> list[Block]:
    several = len({s.suite for s in sections}) > 1
    name = f"{section.suite}: {section.setting}" if several else section.setting
    same = [s for s in sections if _setting(s) == _setting(section)]
    tuning = {seed for s in same if s.tuning is not None for seed in s.tuning.seeds}
    bullets = setting_bullets([r for s in same for r in s.records], sorted(tuning))
    summary = Words("What the setting is: data, model, partition, federation, audit, seeds, threat model")
    return [Heading(2, (Words("Setting "), name)), Fold(summary, (bullets,))]


def _section(
    section: Section, analyses: Sequence[Drawer], plots: bool, trust: Callable[[Row], Words] | None
) -> list[Block]:
    """Tables first, images last."""
    found, seen = images_last([b for a in analyses if a.place == "attacks" for b in drawn(a, section, plots)])
    costs, trade_offs = images_last([b for a in analyses if a.place == "costs" for b in drawn(a, section, plots)])
    heading = (Words("Coalition "), section.coalition, Words(", "), section.view, Words(" view"))
    figures = [
        *_images([tradeoff_figure(section), roc_figure(section)], section, plots), *trade_offs,
        *_images([decision_figure(section)], section, plots), *seen,
    ]  # fmt: skip
    return [
        Heading(3, heading),
        *fold("Ranks with all columns", [
            counts_note(section), ranking_table(section, trust), *canary_table(section), *remarks(section),
        ]),
        *fold("Attack by attack", [
            *attack_tables(section), *fact_table(section, [end for a in analyses for end in a.tells]),
            *decision_tables(section), *found,
        ]),
        *fold("Beside undefended", [
            *adversary_table(section), group_table(section), *paired_table(section), *pareto_table(section), *costs,
            *round_table(section), *maximum_table(section),
        ]),
        *fold(f"Figures ({len(figures)})", figures),
    ]  # fmt: skip


def _images(figures: Sequence[Figure | None], section: Section, plots: bool) -> list[Block]:
    return [image_of(figure, section) for figure in figures if figure is not None and plots]
