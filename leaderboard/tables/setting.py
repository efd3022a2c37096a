"""What a setting is and who attacks it, in the words of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedbench.core.contract.board import Bullets, Part, Quote, Text, Words
from fedbench.core.contract.threat import ANSWERS
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.tables.common import joined, one_of_each

VIEWS = {
    "server": "sees every client's uploaded update in every audited round",
    "client": "sees the global models only",
    "coalition": "sees the coalition's aggregate in every audited round",
    "external": "sees the final global model only",
}
MAX_VALUES = 4
_PARTS = {
    "adversary": "active attacks", "insider": "adversary inside the federation", "groups": "groups of clients",
    "coalitions": "several coalitions at once",
    "thresholds": "range of the MIA accuracy that clients tolerate",
}  # fmt: skip
Values = dict[str, dict[Quote, None]]
"""dotted name -> insertion-ordered set of values"""


def setting_bullets(records: Sequence[LoadedRecord], tuning: Sequence[int] = ()) -> Bullets:
    """The setting as described, its audited rounds, its seeds, those of ``tuning``, and the threat model of each view."""
    found: Values = {}
    settings = one_of_each(r.record.described for r in records)
    for described in settings:
        for name, value in _flat(described):
            found.setdefault(name, {})[value] = None
    lines: list[Text] = [(part, Words(": "), *joined(values)) for part, values in _by_part(found).items()]
    rounds = sorted({row.round for history in one_of_each(r.record.history for r in records) for row in history})
    lines += [Words(f"audited rounds: {_series(rounds)}")] if rounds else []
    lines += [Words(text) for text in dict.fromkeys(map(_samples, settings)) if text]
    lines.append(Words(f"seeds: {_series(sorted({r.record.seed for r in records}))}"))
    chosen = "strengths are chosen on them, and only the tables that say so count them"
    lines += [Words(f"tuning seeds: {_series(sorted(tuning))}: {chosen}")] if tuning else []
    views = sorted({r.record.view for r in records if r.record.outcome == "ok"})
    return Bullets((*lines, *map(_threat, views), *_answering(records)))


def _threat(view: str) -> Text:
    return Words("threat model, "), view, Words(f" view: the adversary {VIEWS.get(view, 'is not described')}")


def _samples(described: Mapping[str, Any]) -> str:
    """How each client's samples are cut and who the outside non-members are; nothing where clients train on all they hold."""
    federation = described.get("federation")
    given = federation if isinstance(federation, Mapping) else {}
    validation, test = (_share(given.get(name)) for name in ("validation", "test"))
    if not validation and not test:
        return ""
    watched = "the test part again" if given.get("validation_on") == "nonmembers" else f"{validation:.0%}" if validation else ""
    parts = [f"{1 - validation - test:.0%} to train on", f"test {test:.0%}" if test else ""]
    parts += [f"validation {watched}" if watched else ""]
    outside = "the target's own test part, which nobody trains on" if test else "samples of the hold-out"
    return f"each client's samples: {', '.join(p for p in parts if p)}; outside non-members: {outside}"


def _share(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.0


def _answering(records: Sequence[LoadedRecord]) -> list[Text]:
    """Which defenses change what somebody who asks the global model sees, and what that does not protect."""
    labels = dict.fromkeys(r.record.defense.label for r in records if ANSWERS in r.record.notes)
    return [(*joined(sorted(labels)), Words(f": {ANSWERS}"))] if labels else []


def _flat(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Quote]]:
    """(dotted name, value as text) of every leaf; empty and absent ones are left out."""
    for name, value in described.items():
        if name == "coalitions" and isinstance(value, Mapping):
            yield from ((f"{prefix}{name}.{label}", Quote(str(groups), 300)) for label, groups in value.items())
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif name == "groups" and isinstance(value, list) and all(isinstance(g, Mapping) for g in value):
            yield f"{prefix}{name}", Quote("; ".join(map(_group, value)), 300)
        elif value is not None and value != []:
            yield f"{prefix}{name}", Quote(str(value), 80)


def _group(group: Mapping[str, Any]) -> str:
    """``minority: fraction 0.15, rotation 0.0 to 25.0``."""
    said = [
        f"{name} {' to '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in group.items()
        if name != "name" and value is not None
    ]
    return f"{group.get('name')}: {', '.join(said)}" if said else str(group.get("name"))


def _by_part(found: Values) -> dict[Part, list[Text]]:
    """Leaves gathered under their first name; one that differs between records shows its values."""
    parts: dict[Part, list[Text]] = {}
    for name, values in found.items():
        part, _, leaf = name.partition(".")
        shown = joined(sorted(values, key=lambda v: v.text)[:MAX_VALUES], " / ")
        shown += (Words(" / …"),) if len(values) > MAX_VALUES else ()
        leaf = leaf.removeprefix("params.")
        heading = Words(_PARTS[part]) if part in _PARTS else Quote(part, 40)
        parts.setdefault(heading, []).append(shown if leaf in ("", "name") else (Quote(leaf, 60), Words(" "), *shown))
    return parts


def _series(values: Sequence[int]) -> str:
    """Evenly spaced numbers as ``10, 20, …, 300``, others in full up to twenty."""
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 4 and len(steps) == 1:
        return f"{values[0]}, {values[1]}, …, {values[-1]}"
    return ", ".join(map(str, values[:20])) + (f", … ({len(values)} in all)" if len(values) > 20 else "")
