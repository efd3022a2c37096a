"""What a setting is, what has no score and why, and where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from fedbench.core.contract.attack import ANSWERS
from fedbench.core.contract.board import Block, Bullets, Heading, Note, Part, Quote, Text, Words
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import MISSING, DefenseRow, outcome_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import joined, sentence, table_of, words

MOST_VALUES = 4
"""of one part of a setting"""
VIEWS = {
    "server": "sees every client's uploaded update in every audited round",
    "client": "sees the global models only",
    "coalition": "sees the coalition's aggregate in every audited round",
    "external": "sees the final global model only",
}


# -- the setting -----------------------------------------------------------------------------------


def setting_bullets(records: Sequence[LoadedRecord], tuning: Sequence[int]) -> Bullets:
    """Return the setting as described, its audited rounds, its seeds, those of ``tuning``, and the
    threat model of each view.
    """
    lines = _described([r.record.described for r in records])
    rounds = {row.round for row in chain.from_iterable(r.record.history for r in records)}
    seeds = {r.record.seed for r in records}
    lines += [Words(f"audited rounds: {series(rounds)}"), Words(f"seeds: {series(seeds)}")]
    if tuning:
        why = "strengths are chosen on them, and only the tables that say so count them"
        lines.append(Words(f"tuning seeds: {series(tuning)}: {why}"))
    for view in sorted({r.record.view for r in records if r.record.outcome == "ok"}):
        sees = VIEWS.get(view, "is not described")
        lines.append(sentence(f"threat model, {{}} view: the adversary {sees}", view))
    labels = {r.record.defense.label for r in records if ANSWERS in r.record.notes}
    if labels:
        lines.append(sentence(f"{{}}: {ANSWERS}", joined(sorted(labels))))
    return Bullets(tuple(lines))


def _described(settings: Iterable[Mapping[str, Any]]) -> list[Text]:
    """Return a line a part; where the descriptions differ, with their values."""
    parts: dict[str, dict[str, None]] = {}
    for name, value in chain.from_iterable(setting.items() for setting in settings):
        if value not in (None, [], {}):
            text = json.dumps(value, ensure_ascii=False).replace('"', "")
            parts.setdefault(name, {})[text] = None
    lines: list[Text] = []
    for name, texts in parts.items():
        values = joined([Quote(text, 300) for text in sorted(texts)[:MOST_VALUES]], " / ")
        lines.append(sentence("{}: {}", Quote(name, 40), values))
    return lines


def series(values: Iterable[int]) -> str:
    """Return the numbers in ascending order."""
    return ", ".join(map(str, sorted(values)))


def origin_notes(sections: Sequence[BoardSection]) -> list[Block]:
    """Say which settings were trained elsewhere, what is odd about their recordings, and from which
    sites non-members are, where the data set tells.
    """
    notes: dict[tuple[str, str], list[Text]] = {}
    for section in sections:
        parts: list[Text] = []
        if section.is_recorded:
            parts.append(Words("trained elsewhere, judged by rounds that its owner recorded"))
            parts += _judged(section)
            parts += [Quote(text, 600) for text in _remarks(section)]
        if origin := section.described.get("nonmembers"):
            parts.append(sentence("non-members are {}", Quote(str(origin), 100)))
        if parts:
            notes[section.suite, section.setting] = parts
    return [
        Note(sentence("{}: {}.", Quote(setting, 80), joined(parts, "; ")))
        for (_, setting), parts in notes.items()
    ]


def _judged(section: BoardSection) -> list[Text]:
    """Say how many clients count, where not all do, and few of them by number."""
    clients = sorted(set(chain.from_iterable(section.targets.values())))
    total = section.described.get("federation", {}).get("clients", len(clients))
    if len(clients) == total:
        return []
    text = f"of {total:,} clients {len(clients):,} are judged and count in every number"
    if len(clients) <= MOST_VALUES:
        text += f", those with the ids {series(clients)}"
    return [Words(text)]


def _remarks(section: BoardSection) -> list[str]:
    remarks: dict[str, None] = {}
    for row in section.rows:
        remarks |= dict.fromkeys(row.remarks)
    return list(remarks)


# -- cells without a score -------------------------------------------------------------------------

_UNSCORED = ("setting", "coalition", "defense", "attack", "seeds", "outcome", "reason")


def unscored_blocks(sections: Sequence[BoardSection]) -> list[Block]:
    """Return a table of every failed, timed-out, diverged, skipped or missing cell with its reason;
    nothing when there is none.
    """
    seeds_of: dict[tuple[str, ...], set[int]] = {}
    tuning = [section.tuning for section in sections if section.tuning is not None]
    for section in [*sections, *tuning]:
        for row in section.rows:
            for cell, seed in _unscored(section, row):
                seeds_of.setdefault(cell, set()).add(seed)
    rows = []
    for (*names, outcome, reason), seeds in sorted(seeds_of.items()):
        why: Text = reason if reason.strip() else Words("no reason given")
        if outcome == MISSING:
            why = Words("no record; run the suite again to compute it")
        rows.append((*names, Words(series(seeds)), Words(outcome), why))
    if not rows:
        return []
    table = table_of("", "", map(words, _UNSCORED), rows)
    return [Heading(2, Words("Cells without a score")), table]


def _unscored(section: BoardSection, row: DefenseRow) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield (names, outcome and reason of a cell, its seed), of the cells of a row."""
    for attack, entry in row.entries.items():
        for seed in entry.targets:
            if entry.ok(seed) is None:
                loaded = entry.records.get(seed)
                coalition = (loaded or row.records[0]).record.coalition
                place = (section.setting, coalition, row.label, attack)
                reason = loaded.record.reason if loaded else ""
                yield (*place, outcome_of(loaded), reason), seed


# -- versions, machine and data --------------------------------------------------------------------


_PROVENANCE = {
    "fedbench": "fedbench",
    "Python": "python",
    "torch": "torch",
    "numpy": "numpy",
    "git commit": "git_commit",
    "platform": "platform",
    "CPU type": "cpu_type",
    "device": "device",
    "dtype": "dtype",
    "threads a run": "threads",
}
_LINES = (
    ("fedbench", "git commit", "Python", "torch", "numpy"),
    ("platform", "CPU type", "device", "dtype", "threads a run"),
    ("data", "split"),
)
MOST_SHORT = 2
"""values of one name in a line"""


def origin(loaded: LoadedRecord) -> list[tuple[str, str]]:
    """Return (name, value) of versions, machine and data of one record."""
    provenance, digests = loaded.record.provenance, loaded.record.digests
    origins = {name: str(getattr(provenance, field)) for name, field in _PROVENANCE.items()}
    origins["git commit"] = "not under git"
    if provenance.git_commit is not None:
        dirty = " with uncommitted changes" if provenance.git_dirty else ""
        origins["git commit"] = provenance.git_commit[:12] + dirty
    origins["deterministic"] = "yes" if provenance.deterministic else "no"
    for part in ("data", "split"):
        origins[part] = digests.get(part, "unknown")[:16]
    return list(origins.items())


def mixed_note(records: Sequence[LoadedRecord]) -> list[Block]:
    """Warn of records from several types of CPU: one command gives the same bits on one type
    only.
    """
    provenances = [r.record.provenance for r in records]
    types = {p.cpu_type for p in provenances if p.device == "cpu"}
    if len(types) < 2:
        return []
    text = (
        "Records of several types of CPU, so that last digits may differ: one command gives the "
        "same bits on one type only ({})."
    )
    return [Note(sentence(text, joined([Quote(name, 120) for name in sorted(types)], "; ")))]


def provenance_lines(records: Sequence[LoadedRecord]) -> list[Text]:
    """Return versions, machine, data and time in four lines; where records differ, the first
    values.
    """
    values: dict[str, set[str]] = {}
    for name, text in chain.from_iterable(map(origin, records)):
        values.setdefault(name, set()).add(text)
    latest = max(r.record.measured.started for r in records)
    lines: list[Text] = []
    for names in _LINES:
        parts = [sentence(f"{name} {{}}", _first(values[name])) for name in names]
        lines.append(joined(parts, "; "))
    return [*lines, sentence("last run started: {}", latest)]


def packages(records: Sequence[LoadedRecord]) -> Text:
    """Return the packages that provide the components of the records, with their versions."""
    names = {use.distribution for loaded in records for _, use in uses_of(loaded.record)}
    return sentence("packages: {}", joined([Quote(name, 120) for name in sorted(names)]))


def uses_of(record: Record) -> Iterator[tuple[str, ComponentUse]]:
    """Yield (kind, component) of everything that took part, those that follow a defense
    included.
    """
    also = record.components
    uses = [("dataset", also.dataset), ("model", also.model)]
    uses += [("defense", record.defense), ("attack", record.attack)]
    uses += [("signal", use) for use in also.signals.values()]
    uses += [("analysis", use) for use in also.analyses.values()]
    for kind, use in uses:
        for part in use.chain:
            yield kind, part


def _first(values: set[str]) -> tuple[Part, ...]:
    ordered = sorted(values)
    rest = f" and {len(ordered) - MOST_SHORT} more" if len(ordered) > MOST_SHORT else ""
    return sentence(f"{{}}{rest}", joined([Quote(v, 120) for v in ordered[:MOST_SHORT]]))
