"""A board as one compact JSON document, from its records or from a file that holds one already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedbench.core import UserError
from fedbench.leaderboard.citation import board_id
from fedbench.leaderboard.document import Source, setting_of
from fedbench.leaderboard.site.cells import Cells
from fedbench.leaderboard.site.encode import number, text
from fedbench.leaderboard.site.rows import FPR, rows_of, section_of
from fedbench.leaderboard.site.schema import Board, validated
from fedbench.leaderboard.site.texts import lines
from fedbench.leaderboard.statistics.published import Match, Ours, Pair, match
from fedbench.leaderboard.statistics.sections import Section, of_tuning
from fedbench.leaderboard.tables.provenance import mixed_note, provenance_blocks
from fedbench.leaderboard.tables.published import NAMES

VERSION = 1


def board_of(source: Source, name: str, command: str) -> Board:
    """The document of ``SCHEMA.md``; the same records give the same one. ``command``: what runs its suite again.

    Raises ``UserError`` when records that must share their candidates do not.
    """
    current, old = source.newest
    settings = _first_of_each(source.sections)
    cells = Cells(settings={(s.suite, s.setting): i for i, s in enumerate(settings)})
    sections, rows = _sections(source, cells)
    blocks = provenance_blocks(current, source.marks.lines(current) if source.marks is not None else ())
    return validated({
        "fedbench_board": VERSION, "id": board_id(current), "name": name, "title": text(source.title, 300),
        "records": len(current), "left_out": source.superseded + len(old), "tuning": sum(map(of_tuning, current)),
        "notes": _notes(source), "provenance": lines(blocks), "command": command, "fpr": [float(f"{rate:.4g}") for rate in FPR],
        "settings": [_setting(s, source.sections) for s in settings], "uses": cells.uses.values,
        "machines": cells.machines.values, "onlys": cells.onlys.values, "reasons": cells.reasons.values,
        "outcomes": cells.outcomes.values, "rounds": cells.rounds.values, "targets": cells.targets.values,
        "samples": cells.samples.values, "facts": cells.facts.values, "runs": cells.runs, "cells": cells.cells,
        "sections": sections, "rows": rows, "published": _published(source),
    }, name)  # fmt: skip


def as_json(board: Board) -> str:
    """In one line, only ASCII, always the same."""
    return json.dumps(board.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)


def _sections(source: Source, cells: Cells) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    sections: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for i, section in enumerate(source.sections):
        sections.append(section_of(section, cells.settings[section.suite, section.setting], len(rows), cells))
        rows += rows_of(section, i, cells, source.trust)
    return sections, rows


def _first_of_each(sections: Sequence[Section]) -> list[Section]:
    """A section of every setting."""
    return list({(s.suite, s.setting): s for s in reversed(sections)}.values())[::-1]


def _setting(section: Section, sections: Sequence[Section]) -> dict[str, Any]:
    said = lines([setting_of(section, sections)])
    described = [list(line.partition(": "))[::2] for line in said]
    return {"suite": text(section.suite), "name": text(section.setting), "described": described}


def _notes(source: Source) -> list[str]:
    found = lines(mixed_note(source.newest[0]))
    if not source.sections:
        found.append("All records are of tuning seeds, which no table counts: run the suite's other seeds, too.")
    missing = sum(row.outcomes["missing"] for s in source.sections for row in s.rows)
    if missing:
        found.append(f"{missing} cells have no record yet: a row that lacks some has no rank.")
    return found


def _published(source: Source) -> list[dict[str, Any]]:
    """Every entry of the suite that fits a paper; the others are said on the Markdown board."""
    matches: list[Match] = []
    for entry in source.published:
        try:
            matches += match(entry, source.sections)
        except UserError:
            continue
    run = {s.setting for s in source.sections}
    return [{
        "source": text(m.source), "table": text(m.table), "setting": text(m.setting), "coalition": text(m.coalition),
        "run": m.setting in run, "differs": text(m.differs, 1_000), "unlike": [text(clause, 400) for clause in m.unlike],
        "pairs": [_pair(p) for p in m.pairs] if m.setting in run else [],
    } for m in matches]  # fmt: skip


def _pair(p: Pair) -> dict[str, Any]:
    return {
        "quantity": NAMES[p.quantity], "defense": text(p.defense), "attack": text(p.attack), "group": text(p.group),
        "paper": number(p.paper), "spread": number(p.paper_std), "ours": _ours(p.ours), "difference": number(p.difference),
    }  # fmt: skip


def _ours(found: Ours | None) -> list[float | int | None] | None:
    if found is None:
        return None
    half = float("nan") if found.half_width is None else found.half_width
    return [number(found.value), number(found.value - half), number(found.value + half)]
