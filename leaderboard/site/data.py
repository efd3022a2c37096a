"""A board as the JSON document of ``SCHEMA.md``: its sections and ranked rows, and the cells and
runs behind them as columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.core import UserError
from fedbench.core.contract.board import Block, Fold, Heading, Note, Table, Value, opened
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics import Group, Score
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.columns import COLUMNS, RankingColumn, columns_for
from fedbench.leaderboard.document import (
    Source,
    board_id,
    document,
    provisional_mark,
    uncounted,
)
from fedbench.leaderboard.markdown import places
from fedbench.leaderboard.site import schema
from fedbench.leaderboard.site.values import (
    DECADES,
    histogram,
    interval,
    lines,
    number,
    only_of,
    packed_numbers,
    packed_rates,
    plain,
    text,
)
from fedbench.leaderboard.statistics.grouping import of_tuning
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.roc import fpr_grid, roc_band
from fedbench.leaderboard.statistics.rows import DefenseRow, adversary_of, outcome_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.answer import answer, caveats, sentences
from fedbench.leaderboard.tables.differential_privacy import claimed
from fedbench.leaderboard.tables.provenance import mixed_note, origin
from fedbench.leaderboard.tables.ranking import Trust, references
from fedbench.leaderboard.tables.tradeoffs import on_front

FPR = np.geomspace(10.0**-DECADES, 1, 8 * DECADES + 1)  # 0.1 % among them
_KEY = 12  # hex digits of a key or a digest
_MOST_FACTS, _MOST_PARAMS, _MOST_VALUES, _MOST_REMARKS = 40, 60, 4, 4
_NO_SCORE = Score({}, 0, 0)


def board_of(source: Source, name: str, command: str) -> schema.Board:
    """Return the document of a board; the same records give the same one.

    Args:
        command: what runs its suite again.

    Raises UserError if two records of one target have different candidates, or sections another
    utility.
    """
    current, superseded = source.newest
    folds = _folds(source)
    settings = list(dict.fromkeys((s.suite, s.setting) for s in source.sections))
    cells = Cells({setting: i for i, setting in enumerate(settings)})
    sections: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    columns = _columns(source.sections)
    for i, section in enumerate(source.sections):
        sections.append(_section(section, len(rows), cells))
        rows += _rows(section, i, len(rows), cells, source.trust)
        section.comparison.scores.forget()
    content = {
        "fedbench_board": schema.VERSION,
        "id": board_id(current),
        "name": name,
        "title": text(source.title, 300),
        "records": len(current),
        "left_out": source.superseded + len(superseded),
        "tuning": sum(map(of_tuning, current)),
        "notes": _notes(source),
        "command": command,
        "columns": [column.described for column in columns],
        "fpr": [float(f"{rate:.4g}") for rate in FPR],
        "settings": [{"suite": text(suite), "name": text(setting)} for suite, setting in settings],
        "runs": cells.runs,
        "cells": cells.cells,
        "sections": sections,
        "rows": rows,
        "folds": folds,
    }
    for table, values in cells.shared.items():
        content[table] = list(map(json.loads, values))
    return schema.validated(content, name)


def _notes(source: Source) -> list[str]:
    notes = lines([*provisional_mark(source), *caveats(source.sections)])
    notes += lines([*mixed_note(source.newest[0]), *uncounted(source)])
    missing = sum(row.outcomes["missing"] for s in source.sections for row in s.rows)
    if missing:
        notes.append(
            f"{missing} cells have no record yet: no rank counts a row without scores, nor an "
            "attack that a row lacks."
        )
    return notes


# -- the tables of the full board ------------------------------------------------------------------


def _folds(source: Source) -> list[dict[str, Any]]:
    """Return the folds of the full board, without figures, each with the headings above it."""
    place: list[str] = []
    folds: list[dict[str, Any]] = []
    for block in document(source, plots=False):
        if isinstance(block, Heading) and block.level > 1:
            place = [*place[: block.level - 2], plain(block.text)]
        elif isinstance(block, Fold):
            blocks = list(map(_block, opened(block.blocks)))
            folds.append({"place": place, "summary": plain(block.summary), "blocks": blocks})
    return folds


def _block(block: Block) -> str | list[str] | dict[str, Any]:
    """Return a paragraph, a list, or a table with the positions of its best numbers."""
    if isinstance(block, Heading | Note):
        return plain(block.text)
    if not isinstance(block, Table):
        return lines([block])
    headers, *rows = places(block, plain)
    best = []
    for i, row in enumerate(block.rows):
        for j, content in enumerate(row):
            if isinstance(content, Value) and content.best:
                best.append([i, j])
    return {
        "title": block.title,
        "caption": plain(block.caption),
        "columns": headers,
        "rows": rows,
        "best": best,
        "footnotes": list(map(plain, block.footnotes)),
    }


# -- sections and rows -----------------------------------------------------------------------------


def _section(section: BoardSection, first: int, cells: Cells) -> dict[str, Any]:
    """Return one section, with rows that are numbered from ``first``."""
    return {
        "setting": cells.settings[section.suite, section.setting],
        "coalition": text(section.coalition),
        "view": text(section.view),
        "seeds": list(section.seeds),
        "attacks": [cells.use(_use_of(section, attack)) for attack in section.attacks],
        "fpr_from": _first_rate(section),
        "sentence": " ".join(map(plain, sentences(section))),
        "rows": list(range(first, first + len(section.rows))),
    }


def _use_of(section: BoardSection, attack: str) -> ComponentUse:
    records = (r for row in section.rows for r in row.entries[attack].records.values())
    return next(records).record.attack


def _first_rate(section: BoardSection) -> int:
    """Return where curves begin: no lower than one outside non-member of the largest audit set."""
    return int(np.searchsorted(FPR, float(fpr_grid(section)[0]) * (1 - 1e-9)))


def _rows(
    section: BoardSection, position: int, first_row: int, cells: Cells, trust: Trust
) -> list[dict[str, Any]]:
    """Return the rows of the section at that position, in the board's order, numbered from
    ``first_row``.
    """
    front = on_front(section)
    best = answer(section)
    place = {row.label: first_row + i for i, row in enumerate(section.rows)}
    better: dict[str, list[int]] = {label: [] for label in place}
    for lower, higher in sorted(section.comparison.pairwise.better):
        better[lower].append(place[higher])
    rows = []
    for row in section.rows:
        described = _described(row, cells) | {"claims": text(plain(claimed(section, row)))}
        fields = {
            "section": position,
            "front": front.get(row.label),
            "within": row.label in best.within,
            "winner": best.outcome == "found" and best.defense is section.summaries[row.label],
            "trust": trust(row).text if trust else "",
            "better": better[row.label],
            "entries": [_entry(section, row, attack, cells) for attack in section.attacks],
        }
        rows.append(described | fields | _numbers(section, row))
    return rows


def _described(row: DefenseRow, cells: Cells) -> dict[str, Any]:
    use = row.records[0].record.defense
    outcomes = []
    for outcome, n in sorted(row.outcomes.items()):
        if n:
            outcomes.append([cells.position("outcomes", outcome), n])
    return {
        "label": text(row.label),
        "floor": row.floor,
        "undefended": row.undefended,
        "complete": row.complete,
        "remarks": [text(remark, 400) for remark in row.remarks[:_MOST_REMARKS]],
        "defense": cells.use(use),
        "packages": packages(use),
        "outcomes": outcomes,
    }


def _columns(sections: Sequence[BoardSection]) -> list[RankingColumn]:
    """Return the columns, with the name, unit and direction of the sections' utility."""
    utilities = {s.utility.name: s.utility for s in sections if s.utility is not None}
    if len(utilities) > 1:
        raise UserError(
            f"its settings measure {', '.join(utilities)}, and a page shows one: move the settings "
            "of each into a suite of their own; the Markdown board has all"
        )
    return columns_for(next(iter(utilities.values()), None))


def _numbers(section: BoardSection, row: DefenseRow) -> dict[str, Any]:
    summary = section.summaries[row.label]
    place = {attack: i for i, attack in enumerate(section.attacks)}
    numbers = {column.key: interval(column.number(summary)) for column in COLUMNS}
    numbers |= {key: [number] * 3 for key, number in references(section, row).items()}
    return {
        "rank": section.comparison.pairwise.ranks.get(row.label),
        "worst_attack": place.get(summary.attack, -1),
        "tf01_attack": place.get(summary.tf01_attack, -1),
        "numbers": numbers,
    }


def _entry(section: BoardSection, row: DefenseRow, attack: str, cells: Cells) -> dict[str, Any]:
    leak = section.comparison.leaks.of(row.label, attack)
    records = row.entries[attack].records
    band = roc_band(section, row.label, attack, FPR[_first_rate(section) :])
    curve = ""
    if band is not None:
        curve = packed_rates(np.concatenate([band.mean, band.low, band.high]))
    return {
        "auc": interval(bounded(leak.auc)),
        "tf01": interval(leak.tf01),
        "turned": leak.turned,
        "roc": curve,
        "cells": [cells.cell(records.get(seed)) for seed in section.seeds],
    }


# -- cells and runs --------------------------------------------------------------------------------


SHARED = (
    "uses",
    "machines",
    "onlys",
    "reasons",
    "outcomes",
    "rounds",
    "targets",
    "samples",
    "facts",
)


class Cells:
    """Everything that is collected while sections are written; a record that several sections show
    is one cell.
    """

    def __init__(self, settings: Mapping[tuple[str, str], int]) -> None:
        self.settings = settings
        self.shared: dict[str, dict[str, int]] = {name: {} for name in SHARED}
        """values that many places share: each once as JSON with its position"""
        self.position("reasons", "")
        self.position("outcomes", "ok")
        self.runs: dict[str, list[Any]] = {name: [] for name in schema.Runs.model_fields}
        self.cells: dict[str, list[Any]] = {name: [] for name in schema.Cells.model_fields}
        self._run_positions: dict[str, int] = {}
        self._cell_positions: dict[int, int] = {}

    def position(self, table: str, value: Any) -> int:
        """Return the position of a value in a shared table."""
        positions = self.shared[table]
        return positions.setdefault(json.dumps(value), len(positions))

    def list_position(self, table: str, values: list[int]) -> int:
        """Return the position of a list in a shared table; -1 of an empty one."""
        return self.position(table, values) if values else -1

    def use(self, use: ComponentUse) -> int:
        """Return the position of a component with its parameters; of several defenses in one,
        parameters are led by the defense's name.
        """
        params = []
        for part in use.chain:
            lead = f"{part.name}: " if len(use.chain) > 1 else ""
            for name, value in part.params.items():
                params.append([text(lead + name, 80), text(value, 120)])
        fields = {
            "label": text(use.label),
            "name": text(use.full_name),
            "package": text(", ".join(packages(use))),
            "digest": text(use.digest[:_KEY]),
            "params": params[:_MOST_PARAMS],
            "only": only_of({"attack": use.label}),
        }
        return self.position("uses", fields)

    def cell(self, loaded: LoadedRecord | None) -> int:
        """Return the position of a record's cell, which is added on first access; -1 of none."""
        if loaded is None:
            return -1
        if id(loaded) not in self._cell_positions:
            self._cell_positions[id(loaded)] = len(self.cells["key"])
            for name, value in self._fields(loaded).items():
                self.cells[name].append(value)
        return self._cell_positions[id(loaded)]

    def _fields(self, loaded: LoadedRecord) -> dict[str, Any]:
        r = loaded.record
        return {
            "key": text(r.key[:_KEY]),
            "run": self._run(loaded),
            "attack": self.use(r.attack),
            "outcome": self.position("outcomes", outcome_of(loaded)),
            "reason": self.position("reasons", text(r.reason, 400)),
            "cpu_s": number(r.measured.attack_cpu_s, 2),
            **self._scores(loaded),
        }

    def _scores(self, loaded: LoadedRecord) -> dict[str, Any]:
        """Return the fields of the scores against outside non-members, else of the mix."""
        r = loaded.record
        targets = [t.target for t in r.targets]
        group: Group = "mix"
        if all("ofl" in t.groups for t in r.targets):
            group = "ofl"
        scores = [t.groups.get(group, _NO_SCORE) for t in r.targets]
        members = sum(s.n_members for s in scores)
        nonmembers = sum(s.n_nonmembers for s in scores)
        rates = [number(s.value("tf01"), 2) for s in scores]
        if not any(rate is not None for rate in rates):
            rates = []
        candidates: dict[int, Candidates] = {}
        if r.outcome == "ok":
            candidates = loaded.candidates_of(targets)
        ends, counts = histogram(candidates.values(), group)
        return {
            "sample": self.position("samples", [group, members, nonmembers]),
            "targets": self.list_position("targets", targets),
            "auc": packed_numbers([s.value("auc") for s in scores], 100_000, width=3),
            "error": packed_numbers([s.error("auc") for s in scores], 10_000, width=2),
            "tf01": rates,
            "range": ends,
            "scores": counts,
        }

    def _run(self, loaded: LoadedRecord) -> int:
        """Return the position of a run, described by its first cell with a model: the others have
        the same.
        """
        r = loaded.record
        position = self._run_positions.setdefault(r.run_key, len(self.runs["key"]))
        if position == len(self.runs["key"]):
            for column in self.runs.values():
                column.append(None)
        elif self.runs["accuracy"][position] is not None or r.utility is None:
            return position
        for name, value in self._run_fields(loaded).items():
            self.runs[name][position] = value
        return position

    def _run_fields(self, loaded: LoadedRecord) -> dict[str, Any]:
        r = loaded.record
        m = r.measured
        facts = [[text(n, 80), _fact(value)] for n, value in r.facts.items() if n != REMARKS]
        machine = [[name, text(value)] for name, value in origin(loaded)]
        part = {"setting": r.setting, "coalition": r.coalition, "defense": r.defense.label}
        times = m.train_cpu_s, m.train_wall_s, m.wall_s, m.signals_cpu_s, m.peak_memory_mb
        return {
            "key": text(r.run_key[:_KEY]),
            "setting": self.settings[r.suite, r.setting],
            "coalition": text(r.coalition),
            "members": r.members,
            "defense": self.use(r.defense),
            "adversary": text(adversary_of(loaded) or ""),
            "seed": r.seed,
            "only": self.position("onlys", only_of(part)),
            "machine": self.position("machines", machine),
            "started": text(m.started, 40),
            "times": [number(seconds, 2) for seconds in times],
            "accuracy": r.utility and number(r.accuracy),
            "rounds": self.list_position("rounds", [row.round for row in r.history]),
            "history": [
                [number(row.accuracy) for row in r.history],
                [number(row.train_loss) for row in r.history],
            ],
            "facts": [self.position("facts", fact) for fact in facts[:_MOST_FACTS]],
        }


def packages(use: ComponentUse) -> list[str]:
    """Return every package, with its version, that has a part of it."""
    return list(dict.fromkeys(map(text, use.distributions)))


def _fact(value: FactValue) -> str:
    if isinstance(value, list):
        few = ", ".join(map(_fact, value[:_MOST_VALUES]))
        more = f", … ({len(value)} values)" if len(value) > _MOST_VALUES else ""
        return text(few + more)
    return f"{value:.4g}" if isinstance(value, float) else text(value)
