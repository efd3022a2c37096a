"""A board as the JSON document of ``SCHEMA.md``: its sections and ranked rows, and the cells and
runs behind them as columns.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.core import MEMBER, OFL
from fedbench.core.cli.options import parse_only
from fedbench.core.contract.board import (
    Block,
    Bullets,
    Fold,
    Heading,
    Note,
    Table,
    Text,
    Value,
    opened,
)
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics import Group, Interval
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.core.words import one_line, printable
from fedbench.leaderboard.columns import COLUMNS
from fedbench.leaderboard.document import Source, board_id, document, uncounted
from fedbench.leaderboard.markdown import places
from fedbench.leaderboard.site import schema
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.roc import fpr_grid, roc_band
from fedbench.leaderboard.statistics.rows import Row, adversary_of, outcome_of
from fedbench.leaderboard.statistics.sections import Section, of_tuning
from fedbench.leaderboard.tables.answer import answer, caveats, sentences
from fedbench.leaderboard.tables.provenance import mixed_note, origin
from fedbench.leaderboard.tables.ranking import Trust, claimed, references
from fedbench.leaderboard.tables.tradeoffs import trade_off

BINS = 20
BEYOND = 0.005  # share of the scores at either end that the outer bins take in
DECADES = 4  # of the rates that a curve holds: 1e-4 to 1
FPR = np.geomspace(10.0**-DECADES, 1, 8 * DECADES + 1)  # 0.1 % among them
LONGEST, PARAGRAPH = 200, 2_000  # characters of a name or a value, of a sentence
_KEY = 12  # hex digits of a key or a digest
_MOST_FACTS, _MOST_PARAMS, _MOST_VALUES, _MOST_REMARKS = 40, 60, 4, 4
_DIGITS = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"))


def board_of(source: Source, name: str, command: str) -> schema.Board:
    """The document; the same records give the same one. ``command``: what runs its suite again.

    Raises UserError if two records of one target have different candidates.
    """
    (current, old), folds = source.newest, _folds(source)
    settings = list({(s.suite, s.setting): s for s in reversed(source.sections)}.values())[::-1]
    cells = Cells({(s.suite, s.setting): i for i, s in enumerate(settings)})
    sections: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for i, section in enumerate(source.sections):
        sections.append(_section(section, len(rows), cells))
        rows += _rows(section, i, len(rows), cells, source.trust)
        section.comparison.scores.forget()
    shared = {name: list(map(json.loads, known)) for name, known in cells.shared.items()}
    return schema.validated(
        {
            "fedbench_board": schema.VERSION,
            "id": board_id(current),
            "name": name,
            "title": text(source.title, 300),
            "records": len(current),
            "left_out": source.superseded + len(old),
            "tuning": sum(map(of_tuning, current)),
            "notes": _notes(source),
            "command": command,
            "columns": [column.described for column in COLUMNS],
            "fpr": [float(f"{rate:.4g}") for rate in FPR],
            "settings": [{"suite": text(s.suite), "name": text(s.setting)} for s in settings],
            **shared,
            "runs": cells.runs,
            "cells": cells.cells,
            "sections": sections,
            "rows": rows,
            "folds": folds,
        },
        name,
    )


def _notes(source: Source) -> list[str]:
    notes = lines([*caveats(source.sections), *mixed_note(source.newest[0]), *uncounted(source)])
    missing = sum(row.outcomes["missing"] for s in source.sections for row in s.rows)
    if missing:
        notes.append(
            f"{missing} cells have no record yet: no rank counts a row without scores, nor an "
            "attack that a row lacks."
        )
    return notes


# -- the tables of the Markdown board --------------------------------------------------------------


def _folds(source: Source) -> list[dict[str, Any]]:
    """The folds of the Markdown board, without figures, each with the headings above it."""
    place: list[str] = []
    found: list[dict[str, Any]] = []
    for block in document(source, plots=False):
        if isinstance(block, Heading):
            place = [*place[: block.level - 2], plain(block.text)] if block.level > 1 else []
        elif isinstance(block, Fold):
            found.append(
                {
                    "place": place,
                    "summary": plain(block.summary),
                    "blocks": list(map(_block, opened(block.blocks))),
                }
            )
    return found


def _block(block: Block) -> str | list[str] | dict[str, Any]:
    """A paragraph, a list, or a table with the positions of its best numbers."""
    if isinstance(block, Table):
        headers, *rows = places(block, plain)
        best = [
            [i, j]
            for i, row in enumerate(block.rows)
            for j, c in enumerate(row)
            if isinstance(c, Value) and c.best
        ]
        return {
            "title": block.title,
            "caption": plain(block.caption),
            "columns": headers,
            "rows": rows,
            "best": best,
            "footnotes": list(map(plain, block.footnotes)),
        }
    return plain(block.text) if isinstance(block, Heading | Note) else lines([block])


# -- sections and rows -----------------------------------------------------------------------------


def _section(section: Section, first: int, cells: Cells) -> dict[str, Any]:
    """One section, with rows that are numbered from ``first``."""
    attacks = [
        next(r for row in section.rows for r in row.entries[a].records.values())
        for a in section.attacks
    ]
    return {
        "setting": cells.settings[section.suite, section.setting],
        "coalition": text(section.coalition),
        "view": text(section.view),
        "seeds": list(section.seeds),
        "attacks": [cells.use(loaded.record.attack) for loaded in attacks],
        "fpr_from": _from(section),
        "sentence": " ".join(map(plain, sentences(section))),
        "rows": list(range(first, first + len(section.rows))),
    }


def _from(section: Section) -> int:
    """Where the curves begin: no lower than one outside non-member of the largest audit set."""
    return int(np.searchsorted(FPR, float(fpr_grid(section)[0]) * (1 - 1e-9)))


def _rows(
    section: Section, at: int, first_row: int, cells: Cells, trust: Trust
) -> list[dict[str, Any]]:
    """The rows of the section at position ``at``, in the board's order, numbered from
    ``first_row``.
    """
    front, start, found = trade_off(section), _from(section), answer(section)
    place = {row.label: first_row + i for i, row in enumerate(section.rows)}
    first = found.defense if found.outcome == "found" else None
    return [
        {
            "section": at,
            "label": text(row.label),
            "floor": row.floor,
            "undefended": row.undefended,
            "complete": row.complete,
            "remarks": [text(said, 400) for said in row.remarks[:_MOST_REMARKS]],
            "claims": text(plain(claimed(row))),
            "trust": trust(row).text if trust else "",
            "front": front.on_front.get(row.label) if front else None,
            "within": row.label in found.within,
            "winner": first is not None and row.label == first.label,
            "defense": cells.use(use := row.records[0].record.defense),
            "packages": packages(use),
            "outcomes": [
                [cells.at("outcomes", what), n] for what, n in sorted(row.outcomes.items()) if n
            ],
            "better": [
                place[higher]
                for lower, higher in sorted(section.comparison.pairwise.better)
                if lower == row.label
            ],
            **_numbers(section, row),
            "entries": [_entry(section, row, attack, start, cells) for attack in section.attacks],
        }
        for row in section.rows
    ]


def _numbers(section: Section, row: Row) -> dict[str, Any]:
    summary, place = (
        section.summaries[row.label],
        {attack: i for i, attack in enumerate(section.attacks)},
    )
    rank = section.comparison.pairwise.ranks.get(row.label)
    return {
        "rank": None if rank is None else list(rank),
        "worst_attack": place.get(summary.attack, -1),
        "tf01_attack": place.get(summary.tf01_attack, -1),
        "numbers": {column.key: interval(column.number(summary)) for column in COLUMNS}
        | {key: [number] * 3 for key, number in references(section, row).items()},
    }


def _entry(section: Section, row: Row, attack: str, start: int, cells: Cells) -> dict[str, Any]:
    comparison, records = section.comparison, row.entries[attack].records
    band = roc_band(section, row.label, attack, FPR[start:])
    return {
        "auc": interval(bounded(comparison.cells.of(row.label, attack).auc)),
        "tf01": interval(comparison.cells.of(row.label, attack).tf01),
        "turned": comparison.cells.of(row.label, attack).turned,
        "roc": ""
        if band is None
        else packed_rates(np.concatenate([band.mean, band.low, band.high])),
        "cells": [cells.cell(records[seed]) if seed in records else -1 for seed in section.seeds],
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

    ``shared``: the values that many places share, each once as JSON with its position, in the order
    in which they came.
    """

    def __init__(self, settings: Mapping[tuple[str, str], int]) -> None:
        self.settings = settings
        self.shared: dict[str, dict[str, int]] = {name: {} for name in SHARED}
        self.at("reasons", "")
        self.at("outcomes", "ok")
        self.runs: dict[str, list[Any]] = {name: [] for name in schema.Runs.model_fields}
        self.cells: dict[str, list[Any]] = {name: [] for name in schema.Cells.model_fields}
        self._run_at: dict[str, int] = {}
        self._cell_at: dict[int, int] = {}

    def at(self, table: str, value: Any) -> int:
        """Position of a value in a shared table."""
        known = self.shared[table]
        return known.setdefault(json.dumps(value), len(known))

    def use(self, use: ComponentUse) -> int:
        """Position of a component with its parameters; of several defenses in one, parameters are
        led by the defense's name.
        """
        several = len(use.chain) > 1
        params = [
            [text(f"{part.name}: {name}" if several else name, 80), text(value, 120)]
            for part in use.chain
            for name, value in part.params.items()
        ]
        return self.at(
            "uses",
            {
                "label": text(use.label),
                "name": text(use.full_name),
                "package": text(", ".join(packages(use))),
                "digest": text(use.digest[:_KEY]),
                "params": params[:_MOST_PARAMS],
                "only": only_of({"attack": use.label}),
            },
        )

    def cell(self, loaded: LoadedRecord) -> int:
        """Position of a record's cell; added on first access."""
        if id(loaded) not in self._cell_at:
            self._cell_at[id(loaded)] = len(self.cells["key"])
            for name, value in self._cell(loaded).items():
                self.cells[name].append(value)
        return self._cell_at[id(loaded)]

    def _cell(self, loaded: LoadedRecord) -> dict[str, Any]:
        r = loaded.record
        group: Group = "ofl" if all("ofl" in t.groups for t in r.targets) else "mix"
        scores = [t.groups.get(group) for t in r.targets]
        known = [s for s in scores if s is not None]
        rates = [number(s.value("tf01"), 2) if s else None for s in scores]
        judged = (
            list(loaded.candidates_of([t.target for t in r.targets]).values())
            if r.outcome == "ok"
            else []
        )
        low_high, counts = histogram(judged, group)
        return {
            "key": text(r.key[:_KEY]),
            "run": self._run(loaded),
            "attack": self.use(r.attack),
            "outcome": self.at("outcomes", outcome_of(loaded)),
            "reason": self.at("reasons", text(r.reason, 400)),
            "sample": self.at(
                "samples",
                [group, sum(s.n_members for s in known), sum(s.n_nonmembers for s in known)],
            ),
            "targets": self.at("targets", [t.target for t in r.targets]) if r.targets else -1,
            "auc": packed_numbers(
                [s.value("auc") if s else None for s in scores], 100_000, width=3
            ),
            "error": packed_numbers(
                [s.error("auc") if s else None for s in scores], 10_000, width=2
            ),
            "tf01": [] if all(rate is None for rate in rates) else rates,
            "range": low_high,
            "scores": counts,
            "cpu_s": number(r.measured.attack_cpu_s, 2),
        }

    def _run(self, loaded: LoadedRecord) -> int:
        """Described by its first cell with a model: the others have the same."""
        r = loaded.record
        at = self._run_at.setdefault(r.run_key, len(self.runs["key"]))
        if at == len(self.runs["key"]):
            for column in self.runs.values():
                column.append(None)
        elif self.runs["accuracy"][at] is not None or r.utility is None:
            return at
        for name, value in self._described(loaded).items():
            self.runs[name][at] = value
        return at

    def _described(self, loaded: LoadedRecord) -> dict[str, Any]:
        r, m = loaded.record, loaded.record.measured
        facts = [
            [text(name, 80), _fact(value)] for name, value in r.facts.items() if name != REMARKS
        ][:_MOST_FACTS]
        return {
            "key": text(r.run_key[:_KEY]),
            "setting": self.settings[r.suite, r.setting],
            "coalition": text(r.coalition),
            "members": r.members,
            "defense": self.use(r.defense),
            "adversary": text(adversary_of(loaded) or ""),
            "seed": r.seed,
            "only": self.at(
                "onlys",
                only_of(
                    {"setting": r.setting, "coalition": r.coalition, "defense": r.defense.label}
                ),
            ),
            "machine": self.at("machines", [[name, text(value)] for name, value in origin(loaded)]),
            "started": text(m.started, 40),
            "times": [
                number(x, 2)
                for x in (
                    m.train_cpu_s,
                    m.train_wall_s,
                    m.wall_s,
                    m.signals_cpu_s,
                    m.peak_memory_mb,
                )
            ],
            "accuracy": None if r.utility is None else number(r.accuracy),
            "rounds": self.at("rounds", [row.round for row in r.history]) if r.history else -1,
            "history": [
                [number(row.accuracy) for row in r.history],
                [number(row.train_loss) for row in r.history],
            ],
            "facts": [self.at("facts", fact) for fact in facts],
        }


def packages(use: ComponentUse) -> list[str]:
    """Every package, with its version, that has a part of it."""
    return list(dict.fromkeys(text(part.distribution) for part in use.chain))


def _fact(value: FactValue) -> str:
    if isinstance(value, list):
        few = ", ".join(map(_fact, value[:_MOST_VALUES]))
        return text(few if len(value) <= _MOST_VALUES else f"{few}, … ({len(value)} values)")
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def histogram(
    judged: Iterable[Candidates], group: Group
) -> tuple[list[float | int | None] | None, str]:
    """([low, high], packed counts of members, then of non-members) of all targets together, those
    of ``group``; (None, "") of nothing. Inner bins are of one width; the outer ones take in what
    lies beyond.
    """
    members, others = [], []
    for c in judged:
        member = c.kind == MEMBER
        members.append(c.scores[member if group == "ofl" else member & c.in_mix])
        others.append(
            c.scores[(c.kind == OFL) if group == "ofl" else (c.kind >= 0) & ~member & c.in_mix]
        )
    every = np.concatenate([*members, *others]) if members else np.empty(0)
    if not every.size:
        return None, ""
    low, high = np.quantile(every, [BEYOND, 1 - BEYOND])
    counts = [_counts(np.concatenate(part), low, high) for part in (members, others)]
    return [number(float(f"{low:.4g}")), number(float(f"{high:.4g}"))], packed(
        np.concatenate(counts)
    )


def _counts(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    at = np.floor(BINS * ((scores - low) / (high - low))) if high > low else np.zeros(len(scores))
    return np.asarray(np.bincount(np.clip(at, 0, BINS - 1).astype(np.int64), minlength=BINS))


def only_of(wanted: Mapping[str, str]) -> str:
    """``setting=digits,coalition=pair``, quoted for a shell; "" where the command line would read
    something else.
    """
    said = ",".join(f"{kind}={name}" for kind, name in wanted.items())
    return (
        safe(shlex.quote(said))
        if parse_only((said,)) == {kind: {name} for kind, name in wanted.items()}
        else ""
    )


def safe(quoted: str) -> str:
    """The same; "" where it holds what a terminal acts on or hides."""
    return (
        quoted
        if printable(quoted) == quoted and "\n" not in quoted and len(quoted) <= 2_000
        else ""
    )


# -- texts and numbers, rounded and bounded --------------------------------------------------------


def text(given: object, limit: int = LONGEST) -> str:
    """Text of any origin on one line of printable characters."""
    return one_line(str(given), limit)


def plain(given: Text) -> str:
    """A board's text on one line, with the blanks between its parts: the pages escape it."""

    def part(one: Any) -> str:
        raw, limit = (
            (one, LONGEST) if isinstance(one, str) else (one.text, getattr(one, "limit", PARAGRAPH))
        )
        return (
            " " * raw[:1].isspace() + text(raw, limit) + " " * (len(raw) > 1 and raw[-1:].isspace())
        )

    return "".join(map(part, given if isinstance(given, tuple) else (given,)))


def lines(blocks: Iterable[Block]) -> list[str]:
    """Every paragraph and every item of a list."""
    texts = (
        [b.text] if isinstance(b, Note) else b.items if isinstance(b, Bullets) else ()
        for b in blocks
    )
    return [plain(one) for own in texts for one in own]


def number(value: float | None, digits: int = 4) -> float | int | None:
    """Rounded behind the point, or to so many significant digits where it is small; None for what
    is not finite.
    """
    if value is None or not math.isfinite(value):
        return None
    rounded = round(float(value), digits)
    if rounded == 0 and value != 0:
        rounded = float(f"{value:.{digits - 1}e}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def interval(found: Interval | None) -> list[float | int | None] | None:
    """[mean, low, high]; the ends are None where the width is not known, or leaves out the variance
    of training.
    """
    if found is None:
        return None
    return [
        number(found.mean),
        *(number(end) if found.between else None for end in (found.low, found.high)),
    ]


def packed(values: np.ndarray, width: int = 2) -> str:
    """[n] whole numbers in ``width`` characters each; larger ones as the largest."""
    steps = (
        np.clip(values, 0, 64**width - 1).astype(np.int64)[:, None] >> 6 * np.arange(width)[::-1]
    )
    return "".join(_DIGITS[steps & 63].ravel())


def packed_numbers(values: Sequence[float | None], scale: int, width: int) -> str:
    """Each as ``scale`` times the number, rounded, in ``width`` characters; the largest they hold
    where there is none.
    """
    none = 64**width - 1
    return packed(
        np.array(
            [
                none if v is None or not math.isfinite(v) else min(round(v * scale), none - 1)
                for v in values
            ]
        ),
        width,
    )


def packed_rates(rates: np.ndarray) -> str:
    """[n] rates on a logarithmic scale from 1e-4 to 1; 0 is what is below half of its first
    step.
    """
    largest = 64**2 - 1
    with np.errstate(divide="ignore"):
        steps = np.round((np.log10(rates) / DECADES + 1) * largest)
    return packed(np.where(rates > 0, np.clip(steps, 1, largest), 0))
