"""A results folder as a document: headings, notes, tables and images in their order, which any
report can write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import fedbench.core
from fedbench.core.contract.board import Block, Fold, Heading, Image, Note, Text, Words, opened
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.results import MARKER, Results
from fedbench.core.store.stored_suites import ID
from fedbench.leaderboard.analyses import Drawer, drawers, drawn
from fedbench.leaderboard.figures import image_of, roc_figure, tradeoff_figure
from fedbench.leaderboard.statistics.sections import Section, build_sections, newest
from fedbench.leaderboard.submissions.trust import Marks
from fedbench.leaderboard.tables import ranking
from fedbench.leaderboard.tables.attacks import (
    attack_tables,
    decision_tables,
    fact_table,
    group_table,
    maximum_table,
    remarks,
    round_table,
)
from fedbench.leaderboard.tables.common import (
    counts_note,
    fold,
    folded,
    sentence,
    without_empty_tables,
)
from fedbench.leaderboard.tables.papers import claims_blocks, published_blocks
from fedbench.leaderboard.tables.provenance import (
    mixed_note,
    provenance_blocks,
    setting_bullets,
    unscored_blocks,
)
from fedbench.leaderboard.tables.tradeoffs import adversary_table, paired_table, pareto_table

READING = Note(
    sentence(
        "How to read it: an attack's AUC is the chance that it ranks a member above a non-member; "
        "0.5 is guessing. TF01 is the\n"
        "share of members it finds, in percent, while 0.1 % of the non-members are called members. "
        "The adversary has a data set\n"
        "of its own: the sign of a score, and the attack of the worst case, are chosen on the "
        "other seeds' federations and\n"
        "judged on the one at hand, so without a leak both are 0.5. Non-members are from outside "
        "the federation. Only attacks\n"
        "that beat chance on the undefended run count. `±` and brackets are 95 % intervals: the "
        "widest of resampling the\n"
        "candidates, Student's t over seeds x targets and over seeds; none is too narrow for the "
        "largest of all attacks.\n"
        "Lower is better; **bold** is lower than every other defense with significance. A range "
        "lists the ranks that the tests\n"
        "leave open (paired, Holm); ranges that overlap are no tie. A row with scores missing or "
        "refuted has no rank. Floors are\n"
        "rows for comparison, not defenses. Accuracy is that of the test samples, the mean over "
        "the last three audited rounds;\n"
        "delta-accuracy is paired with the undefended run of the same seed, in percentage points, "
        "with the variance of training;\n"
        "runtime is training CPU time over that of the row with 1 (n/a across machines and on busy "
        "ones). docs/method.md has the\n"
        "definitions."
    )
)

# hex digits of an id: two of a million boards have the same with a chance below one in 500
_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Source:
    """Records and the notes of their folder. ``superseded``: number of records left out;
    ``published``: the suite's entries of published numbers; ``analyses``: those the suite names,
    None: the built-in ones; ``marks``: how far the records can be trusted; ``plan``: the id of the
    stored suite.
    """

    records: Sequence[LoadedRecord]
    title: str
    superseded: int = 0
    published: Sequence[dict[str, Any]] = ()
    analyses: Sequence[Any] | None = None
    marks: Marks | None = None
    plan: str | None = None

    @cached_property
    def newest(self) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
        """(the records that count, earlier ones of the same cells)."""
        return newest(self.records)

    @cached_property
    def sections(self) -> list[Section]:
        """In the board's order."""
        return build_sections(
            self.newest[0], self.marks.refuted if self.marks is not None else None
        )

    @property
    def trust(self) -> ranking.Trust:
        """The trust mark of a row, where some record is imported or not repeatable."""
        marked = self.marks is not None and any(
            self.marks.level(r) != "measured here" for r in self.newest[0]
        )
        return self.marks.of_row if self.marks is not None and marked else None


def source_of(results: Path) -> Source:
    """The records of the folder's last plan. Raises UserError for records that cannot be used."""
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


def document(source: Source, plots: bool = True, folds: bool = False) -> list[Block]:
    """The whole board; the same records give the same blocks. ``plots``: with images. ``folds``:
    all but the first screen is in ``Fold`` blocks, for a report that can draw them; else the same
    blocks are not folded.

    Raises UserError if two records of one target have different candidates.
    """
    (current, old), sections = source.newest, source.sections
    blocks: list[Block] = [Heading(1, source.title), _cited(current)]
    analyses = drawers(source.analyses, sections)
    if not sections:
        blocks.append(
            Note(
                Words(
                    "All records are of tuning seeds, which no table counts: run the suite's other "
                    "seeds, too."
                )
            )
        )
    fronts: list[Block] = []
    own: list[Block] = []
    for i, section in enumerate(sections):
        if i == 0 or _setting(sections[i - 1]) != _setting(section):
            own += _introduced(section, sections)
        own += _section(section, analyses, plots, source.trust)
        fronts += ranking.front_blocks(section, source.trust)
        for comparison in (section.comparison, *section.comparison.by_kind):
            comparison.forget_scores()
    blocks += [
        *ranking.caveats(sections),
        *([ranking.READING] if sections else []),
        *fronts,
        *mixed_note(current),
    ]
    if left_out := source.superseded + len(old):
        blocks.append(
            Note(Words(f"{left_out} records of earlier code, parameters or plans are not shown."))
        )
    blocks.append(Fold(Words("How to read this board in full"), (READING,)))
    blocks += [*folded(ranking.across_settings(sections), "Every defense in every setting"), *own]
    if source.published:
        blocks += folded(published_blocks(source.published, sections))
    blocks += [*folded(claims_blocks(sections)), *folded(unscored_blocks(sections))]
    end = "Packages, versions, commits, machine and data behind the board"
    blocks += folded(provenance_blocks(current, _origin(source, current)), end)
    blocks = without_empty_tables(blocks)
    return blocks if folds else opened(blocks)


@cache
def rules_digest() -> str:
    """Hex sha256 over the files that turn records into the numbers of a board, the papers' claims
    among them; line ends do not count.
    """
    here, core = Path(__file__).parent, Path(fedbench.core.__path__[0])
    h = hashlib.sha256()
    for folder in (core / "metrics", here / "claims", here / "statistics", here / "tables"):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.yaml")]):
            content = path.read_bytes().replace(b"\r\n", b"\n")
            h.update(f"{folder.name}/{path.name}:{len(content)};".encode() + content)
    return h.hexdigest()


def board_id(records: Iterable[LoadedRecord]) -> str:
    """``fb-`` and hex digits: another one exactly when a record, the number of them, or a rule is
    another.
    """
    return f"fb-{key_of({'rules': rules_digest(), 'records': sorted(r.record.digest for r in records)})[:_LENGTH]}"


def _cited(records: Sequence[LoadedRecord]) -> Note:
    """The identifier of exactly these records under exactly these rules, and the command that makes
    the board again.
    """
    made = f"`{board_id(records)}`, made from {len(records)} records"
    return Note(sentence(f"Board id: {made} by `fedbench leaderboard RESULTS`."))


def _origin(source: Source, records: Sequence[LoadedRecord]) -> list[Text]:
    lines = source.marks.lines(records) if source.marks is not None else []
    if source.plan is not None:
        again = (
            Words(f"fedbench run RESULTS/suites/{source.plan}.yaml", "code")
            if ID.fullmatch(source.plan)
            else source.plan
        )
        lines.append(sentence("suite as it was resolved, to run again: {}", again))
    return lines


def _setting(section: Section) -> tuple[str, str]:
    return section.suite, section.setting


def setting_of(section: Section, sections: Sequence[Section]) -> Block:
    """The description of a section's setting, from the records of all its sections."""
    same = [s for s in sections if _setting(s) == _setting(section)]
    tuning = {seed for s in same if s.tuning is not None for seed in s.tuning.seeds}
    return setting_bullets([r for s in same for r in s.records], sorted(tuning))


def _introduced(section: Section, sections: Sequence[Section]) -> list[Block]:
    several = len({s.suite for s in sections}) > 1
    name = f"{section.suite}: {section.setting}" if several else section.setting
    summary = Words(
        "What the setting is: data, model, partition, federation, audit, seeds, threat model"
    )
    return [
        Heading(2, sentence("Setting {}", name)),
        Fold(summary, (setting_of(section, sections),)),
    ]


def _section(
    section: Section, analyses: Sequence[Drawer], plots: bool, trust: ranking.Trust
) -> list[Block]:
    """Tables first, images last."""
    made = {
        place: [b for a in analyses if a.place == place for b in drawn(a, section, plots)]
        for place in ("attacks", "costs")
    }
    tables, images = (
        {
            place: [b for b in blocks if isinstance(b, Image) == seen]
            for place, blocks in made.items()
        }
        for seen in (False, True)
    )
    own = [tradeoff_figure(section), roc_figure(section)] if plots else []
    shown = [image_of(figure, section) for figure in own if figure is not None]
    figures = [*shown, *images["costs"], *images["attacks"]]
    return [
        Heading(3, sentence("Coalition {}, {} view", section.coalition, section.view)),
        *fold(
            "Ranks with all columns",
            [
                counts_note(section),
                ranking.ranking_table(section, trust),
                *ranking.canary_table(section),
                *remarks(section),
            ],
        ),
        *fold(
            "Attack by attack",
            [
                *attack_tables(section),
                *fact_table(section, [end for a in analyses for end in a.tells]),
                *decision_tables(section),
                *tables["attacks"],
            ],
        ),
        *fold(
            "Beside undefended",
            [
                *adversary_table(section),
                group_table(section),
                *paired_table(section),
                *pareto_table(section),
                *tables["costs"],
                *round_table(section),
                *maximum_table(section),
            ],
        ),
        *fold(f"Figures ({len(figures)})", figures),
    ]
