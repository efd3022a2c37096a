"""What a setting is and who attacks it, in the words of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard import text

VIEWS = {
    "server": "sees every client's uploaded update in every audited round",
    "client": "sees the global models only",
    "coalition": "sees the coalition's aggregate in every audited round",
    "external": "sees the final global model only",
}
MAX_VALUES = 4
_PARTS = {
    "adversary": "active attacks", "insider": "adversary inside the federation", "groups": "groups of clients",
    "thresholds": "range of the MIA accuracy that clients tolerate",
}  # fmt: skip


def describe(records: Sequence[LoadedRecord]) -> str:
    """Bullets: the facts of the setting, its audited rounds, its seeds, and the threat model of each view."""
    facts: dict[str, dict[str, None]] = {}  # insertion-ordered sets
    for loaded in records:
        for name, value in _flat(loaded.record.facts):
            facts.setdefault(name, {})[value] = None
    lines = [f"- {part}: {', '.join(values)}" for part, values in _by_part(facts).items()]
    rounds = sorted({row.round for r in records for row in r.record.history})
    if rounds:
        lines.append(f"- audited rounds: {_series(rounds)}")
    lines.append(f"- seeds: {_series(sorted({r.record.seed for r in records}))}")
    views = sorted({r.record.view for r in records if r.record.outcome == "ok"})
    lines += [f"- threat model, {text.escape(v)} view: the adversary {VIEWS.get(v, 'is not described')}" for v in views]
    return "\n".join(lines)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value as text) of every leaf; empty and absent ones are left out."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif name == "groups" and isinstance(value, list) and all(isinstance(g, Mapping) for g in value):
            yield f"{prefix}{name}", text.escape("; ".join(map(_group, value)), limit=300)
        elif value is not None and value != []:
            yield f"{prefix}{name}", text.escape(value, limit=80)


def _group(group: Mapping[str, Any]) -> str:
    """``minority: fraction 0.15, rotation 0.0 to 25.0``."""
    said = [
        f"{name} {' to '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in group.items()
        if name != "name" and value is not None
    ]
    return f"{group.get('name')}: {', '.join(said)}" if said else str(group.get("name"))


def _by_part(facts: dict[str, dict[str, None]]) -> dict[str, list[str]]:
    """Leaves gathered under their first name; a fact that differs between records shows its values."""
    parts: dict[str, list[str]] = {}
    for name, values in facts.items():
        part, _, leaf = name.partition(".")
        shown = " / ".join(sorted(values)[:MAX_VALUES]) + (" / …" if len(values) > MAX_VALUES else "")
        leaf = leaf.removeprefix("params.")
        plain = leaf in ("", "name")
        heading = _PARTS.get(part) or text.escape(part, 40)
        parts.setdefault(heading, []).append(shown if plain else f"{text.escape(leaf, 60)} {shown}")
    return parts


def _series(values: Sequence[int]) -> str:
    """Evenly spaced numbers as ``10, 20, …, 300``, others in full up to twenty."""
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 4 and len(steps) == 1:
        return f"{values[0]}, {values[1]}, …, {values[-1]}"
    return ", ".join(map(str, values[:20])) + (f", … ({len(values)} in all)" if len(values) > 20 else "")
