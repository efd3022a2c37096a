"""What a setting is, what has no score and why, and where the numbers come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedbench.core.contract.attack import ANSWERS
from fedbench.core.contract.board import Block, Bullets, Heading, Note, Part, Quote, Text, Words
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import MISSING, outcome_of
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import joined, sentence, table_of, words

MOST_VALUES = 8
MOST_SETTING_VALUES = 4
MOST_NAMES = 60  # of one package's components of one kind
VIEWS = {
    "server": "sees every client's uploaded update in every audited round",
    "client": "sees the global models only",
    "coalition": "sees the coalition's aggregate in every audited round",
    "external": "sees the final global model only",
}
_PARTS = {
    "adversary": "active attacks",
    "insider": "adversary inside the federation",
    "groups": "groups of clients",
    "coalitions": "several coalitions at once",
    "thresholds": "range of the MIA accuracy that clients tolerate",
}


# -- the setting -----------------------------------------------------------------------------------


def setting_bullets(records: Sequence[LoadedRecord], tuning: Sequence[int] = ()) -> Bullets:
    """The setting as described, its audited rounds, its seeds, those of ``tuning``, and the threat
    model of each view.
    """
    values: dict[str, dict[Quote, None]] = {}  # dotted name -> insertion-ordered set of values
    for described in {repr(r.record.described): r.record.described for r in records}.values():
        for name, value in _flat(described):
            values.setdefault(name, {})[value] = None
    lines: list[Text] = [
        sentence("{}: {}", part, joined(leaves)) for part, leaves in _by_part(values).items()
    ]
    rounds = sorted({row.round for r in records for row in r.record.history})
    lines += [Words(f"audited rounds: {_series(rounds)}")] if rounds else []
    lines.append(Words(f"seeds: {_series(sorted({r.record.seed for r in records}))}"))
    chosen = "strengths are chosen on them, and only the tables that say so count them"
    lines += [Words(f"tuning seeds: {_series(sorted(tuning))}: {chosen}")] if tuning else []
    if "audit.references" in values:  # where it leaves clients out
        counts = (
            joined(values.get(name, ())) for name in ("audit.references", "federation.clients")
        )
        lines.append(
            sentence("attacks compare a target with {} of {} clients, drawn by key", *counts)
        )
    for view in sorted({r.record.view for r in records if r.record.outcome == "ok"}):
        lines.append(
            sentence(
                f"threat model, {{}} view: the adversary {VIEWS.get(view, 'is not described')}",
                view,
            )
        )
    labels = {r.record.defense.label for r in records if ANSWERS in r.record.notes}
    return Bullets(
        (*lines, *([sentence(f"{{}}: {ANSWERS}", joined(sorted(labels)))] if labels else []))
    )


def _flat(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Quote]]:
    """(dotted name, value as text) of every leaf; empty and absent ones are left out."""
    for name, value in described.items():
        if name == "coalitions" and isinstance(value, Mapping):
            yield from (
                (f"{prefix}{name}.{label}", Quote(str(groups), 300))
                for label, groups in value.items()
            )
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif (
            name == "groups"
            and isinstance(value, list)
            and all(isinstance(g, Mapping) for g in value)
        ):
            yield f"{prefix}{name}", Quote("; ".join(map(_group, value)), 300)
        elif value is not None and value != []:
            yield f"{prefix}{name}", Quote(str(value), 80)


def _group(group: Mapping[str, Any]) -> str:
    """``minority: fraction 0.15, rotation 0.0 to 25.0``."""
    parts = [
        f"{name} {' to '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in group.items()
        if name != "name" and value is not None
    ]
    return f"{group.get('name')}: {', '.join(parts)}" if parts else str(group.get("name"))


def _by_part(found: Mapping[str, Mapping[Quote, None]]) -> dict[Part, list[Text]]:
    """Leaves gathered under their first name; one that differs between records shows its values."""
    parts: dict[Part, list[Text]] = {}
    for name, values in found.items():
        part, _, leaf = name.partition(".")
        shown = joined(sorted(values, key=lambda v: v.text)[:MOST_SETTING_VALUES], " / ")
        shown += (Words(" / …"),) if len(values) > MOST_SETTING_VALUES else ()
        leaf = leaf.removeprefix("params.")
        heading = Words(_PARTS[part]) if part in _PARTS else Quote(part, 40)
        parts.setdefault(heading, []).append(
            shown if leaf in ("", "name") else sentence("{} {}", Quote(leaf, 60), shown)
        )
    return parts


def _series(values: Sequence[int]) -> str:
    """Evenly spaced numbers as ``10, 20, …, 300``, others in full up to twenty."""
    if len(values) > 4 and len({b - a for a, b in pairwise(values)}) == 1:
        return f"{values[0]}, {values[1]}, …, {values[-1]}"
    return ", ".join(map(str, values[:20])) + (
        f", … ({len(values)} in all)" if len(values) > 20 else ""
    )


# -- cells without a score -------------------------------------------------------------------------

_UNSCORED = ("setting", "coalition", "defense", "attack", "seeds", "outcome", "reason")


def unscored_blocks(sections: Sequence[Section]) -> list[Block]:
    """A table of every failed, timed-out, diverged, skipped or missing cell with its reason; []
    when there is none.
    """
    found: dict[tuple[str, ...], set[int]] = {}
    for section in [*sections, *(s.tuning for s in sections if s.tuning is not None)]:
        for row in section.rows:
            for attack, entry in row.entries.items():
                for seed in (seed for seed in section.seeds if entry.ok(seed) is None):
                    loaded = entry.records.get(seed)
                    coalition = next(
                        (r.record.coalition for r in [loaded, *row.records] if r), section.coalition
                    )
                    reason = loaded.record.reason if loaded else ""
                    cell = (
                        section.setting,
                        coalition,
                        row.label,
                        attack,
                        outcome_of(loaded),
                        reason,
                    )
                    found.setdefault(cell, set()).add(seed)
    if not found:
        return []
    rows = []
    for (*names, outcome, reason), seeds in sorted(found.items()):
        why: Text = reason if reason.strip() else Words("no reason given")
        why = Words("no record; run the suite again to compute it") if outcome == MISSING else why
        rows.append((*names, Words(", ".join(map(str, sorted(seeds)))), Words(outcome), why))
    return [
        Heading(2, Words("Cells without a score")),
        table_of("", "", map(words, _UNSCORED), rows),
    ]


# -- versions, machine and data --------------------------------------------------------------------


def _commit(loaded: LoadedRecord) -> str:
    p = loaded.record.provenance
    if p.git_commit is None:
        return "not under git"
    return p.git_commit[:12] + (" with uncommitted changes" if p.git_dirty else "")


_PROVENANCE = {
    "fedbench": "fedbench",
    "Python": "python",
    "torch": "torch",
    "numpy": "numpy",
    "git commit": "",
    "platform": "platform",
    "CPU type": "cpu_type",
    "device": "device",
    "dtype": "dtype",
    "threads a run": "threads",
    "deterministic": "deterministic",
}


_SHORT = (
    ("fedbench", "git commit", "Python", "torch", "numpy"),
    ("platform", "CPU type", "device", "dtype", "threads a run"),
    ("data", "split"),
)  # the lines of a board of one page
MOST_SHORT = 2  # values of one name there


def origin(loaded: LoadedRecord) -> list[tuple[str, str]]:
    """(name, value) of versions, machine and data of one record."""
    r = loaded.record
    found = {
        name: str(getattr(r.provenance, field)) if field else _commit(loaded)
        for name, field in _PROVENANCE.items()
    }
    found["deterministic"] = "yes" if r.provenance.deterministic else "no"
    return [
        *found.items(),
        *((part, r.digests.get(part, "unknown")[:16]) for part in ("data", "split")),
    ]


def mixed_note(records: Sequence[LoadedRecord]) -> list[Block]:
    """Warns of records from several types of CPU: one command gives the same bits on one type
    only.
    """
    types = {r.record.provenance.cpu_type for r in records if r.record.provenance.device == "cpu"}
    if len(types) < 2:
        return []
    return [
        Note(
            sentence(
                "Records of several types of CPU, so that last digits may differ: one command "
                "gives the same bits on one type only ({}).",
                _listed(types, MOST_VALUES, "; "),
            )
        )
    ]


def provenance_blocks(records: Sequence[LoadedRecord], more: Sequence[Text] = ()) -> list[Block]:
    """Versions, code, machine and data behind the board; where records differ, every value is
    listed. ``more``: further lines.
    """
    lines: list[Text] = [*more, *_packages(records)]
    values: dict[str, set[str]] = {}
    for name, value in (item for r in records for item in origin(r)):
        values.setdefault(name, set()).add(value)
    lines += [
        sentence(f"{name}: {{}}", _listed(found, MOST_VALUES)) for name, found in values.items()
    ]
    count = ", ".join(
        f"{n} {what}" for what, n in sorted(Counter(map(outcome_of, records)).items())
    )
    latest = max(r.record.measured.started for r in records)
    lines += [Words(f"records: {count}"), sentence("last run started: {}", latest)]
    return [Heading(2, Words("Provenance")), Bullets(tuple(lines))]


def provenance_lines(records: Sequence[LoadedRecord]) -> list[Text]:
    """Versions, machine, data and time in four lines; where records differ, the first values."""
    values: dict[str, set[str]] = {}
    for name, text in (item for record in records for item in origin(record)):
        values.setdefault(name, set()).add(text)
    latest = max(r.record.measured.started for r in records)
    lines: list[Text] = []
    for names in _SHORT:
        parts = [sentence(f"{name} {{}}", _listed(values[name], MOST_SHORT)) for name in names]
        lines.append(joined(parts, "; "))
    return [*lines, sentence("last run started: {}", latest)]


def _packages(records: Sequence[LoadedRecord]) -> Iterator[Text]:
    """Of every package, with its version, the components it provides."""
    found: dict[str, dict[str, set[str]]] = {}
    for loaded in records:
        for kind, use in _components(loaded.record):
            for part in use.chain:
                found.setdefault(part.distribution, {}).setdefault(kind, set()).add(part.name)
    for package, kinds in sorted(found.items()):
        order = ("data sets", "models", "defenses", "attacks", "signals", "analyses")
        parts = (
            sentence(f"{kind} {{}}", _listed(kinds[kind], MOST_NAMES))
            for kind in order
            if kind in kinds
        )
        yield sentence("components of {}: {}", Quote(package, 120), joined(parts, "; "))


def _components(record: Record) -> Iterator[tuple[str, ComponentUse]]:
    yield from (("defenses", record.defense), ("attacks", record.attack))
    also = record.components
    yield from (("data sets", also.dataset), ("models", also.model))
    yield from (("signals", use) for use in also.signals.values())
    yield from (("analyses", use) for use in also.analyses.values())


def _listed(values: set[str], most: int, between: str = ", ") -> tuple[Part, ...]:
    ordered = sorted(values)
    rest = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return sentence(f"{{}}{rest}", joined([Quote(v, 120) for v in ordered[:most]], between))
