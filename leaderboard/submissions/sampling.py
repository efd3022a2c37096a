"""Which runs are repeated: of every row at least one, the others by keyed chance, whole."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record

_CLAIMED = ("ok", "diverged", "skipped")


def sampled(records: Sequence[LoadedRecord], share: float, seed: int) -> list[LoadedRecord]:
    """The records of ``share`` of the runs of every row, rounded up: whole runs, in the order of the records. A cell that is
    said to have diverged, or that its attack is said to have skipped, is a claim like a score; one that failed is none.

    Whoever does not know ``seed`` cannot tell which runs will be drawn.
    """
    rows: dict[tuple[str, ...], set[str]] = {}
    judged = [r for r in records if r.record.outcome in _CLAIMED]
    for loaded in judged:
        rows.setdefault(_row(loaded.record), set()).add(loaded.record.run_key)
    chosen: set[str] = set()
    for runs in rows.values():
        ordered = sorted(runs, key=lambda run: _chance(seed, run))
        chosen.update(ordered[: max(1, math.ceil(share * len(ordered) - 1e-9))])
    return [r for r in judged if r.record.run_key in chosen]


def _row(record: Record) -> tuple[str, ...]:
    """Its row on a board, and the adversary that it was trained with."""
    adversary = str(record.described.get("adversary") or "")
    return record.suite, record.setting, record.coalition, record.defense.label, adversary


def _chance(seed: int, run: str) -> str:
    return hashlib.sha256(f"{seed}:{run}".encode()).hexdigest()
