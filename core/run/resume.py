"""Cells that still have to be computed, and why."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Job, identity_of_cell
from fedbench.core.store.integrity import canonical
from fedbench.core.store.reading import LoadedRecord, read_bare, record_paths, run_by_run
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.store.stems import names_in
from fedbench.core.words import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """End of a cell."""

    stem: str
    outcome: str
    reason: str
    by_adversary: bool
    complaints: tuple[str, ...]
    cpu: str | None
    """the type of CPU that made it, None for a GPU"""

    @classmethod
    def of(cls, loaded: LoadedRecord) -> CellState:
        """Return the state of a cell with a record."""
        record = loaded.record
        made_on = record.provenance
        return cls(
            stem=loaded.stem,
            outcome=record.outcome,
            reason=record.reason,
            by_adversary=record.by_adversary,
            complaints=tuple(record.complaints),
            cpu=made_on.cpu_type if made_on.device == "cpu" else None,
        )

    @property
    def is_result(self) -> bool:
        """Whether the cell needs no second try: it has scores, was skipped, or diverged because of
        an adversary.
        """
        return self.outcome in ("ok", "skipped") or self.by_adversary


def recorded(jobs: Sequence[Job], store: Results) -> list[CellState]:
    """Return the states of those cells of the jobs that have a record. Raises ``UserError`` with
    every record that cannot be used: it is never silently replaced.
    """
    wanted = {cell.key for job in jobs for cell in job.cells}
    states = []
    problems: list[str] = []
    for stem in dict.fromkeys(job.stem for job in jobs):
        try:
            states += [CellState.of(r) for r in store.cells(stem) if r.record.key in wanted]
        except UserError as error:
            problems += error.messages
    if problems:
        raise UserError(*problems)
    return states


def other_cpus(jobs: Sequence[Job], states: Sequence[CellState]) -> list[str]:
    """Return the types of CPU, other than this machine's, that made some of the records: their last
    digits may differ.
    """
    made_on = {state.cpu for state in states if state.cpu is not None}
    return sorted(made_on - {job.provenance.cpu_type for job in jobs})


def pending(
    jobs: list[Job],
    states: Sequence[CellState],
    rerun: str,
) -> list[Job]:
    """Return the jobs cut down to the cells that ``rerun`` asks for: missing (those without a
    state), failed (and missing), always or never. ``states`` are those of records with the cells'
    keys (:func:`recorded`).
    """
    done = {state.stem for state in states if rerun != "failed" or state.is_result}
    if rerun == "never":
        return []
    if rerun == "always":
        done = set()
    cut = [replace(job, cells=tuple(c for c in job.cells if c.stem not in done)) for job in jobs]
    return [job for job in cut if job.cells]


def require_arrays(jobs: Sequence[Job], store: Results) -> None:
    """Raise ``UserError`` with every record that keeps cells beside those of the jobs, and with
    arrays that cannot be used: their run would be trained in vain.
    """
    problems: list[str] = []
    for job in jobs:
        keys = {cell.key for cell in job.cells}
        try:
            for loaded in run_by_run(store.cells(job.stem)):
                if loaded.record.key not in keys:
                    loaded.all_arrays()
        except UserError as error:
            problems += error.messages
    if problems:
        raise UserError(*problems)


# --- why a cell is computed again -----------------------------------------------------------------


_MOST_LINES = 12
_MOST_SHOWN = 60  # characters of a value
_UNNAMED = ("run", "setting", "provenance")  # parts of an identity that no suite names
_FOLLOWING = ("digests.split", "targets")  # follow from other fields: told where nothing else is


def why_stale(
    jobs: Sequence[Job],
    recorded_stems: Collection[str],
    store: Results,
) -> list[str]:
    """Return lines for people on cells without a record, of which the folder holds an earlier
    record of the same setting, coalition, defense, attack and seed; [] where there are none.
    """
    lists = list(_stale(jobs, recorded_stems, store))
    if not lists:
        return []
    stale = len(lists)
    counts = Counter(chain.from_iterable(lists))
    lines = [f"{_cells(n)}: {text}" for text, n in counts.most_common(_MOST_LINES)]
    if len(counts) > _MOST_LINES:
        lines.append(f"and {len(counts) - _MOST_LINES} other differences")
    verb = "is" if stale == 1 else "are"
    return [
        f"{_cells(stale)} {verb} computed anew, though the folder holds an earlier record of the "
        "same names:",
        *lines,
    ]


def _stale(
    jobs: Sequence[Job], recorded_stems: Collection[str], store: Results
) -> Iterator[list[str]]:
    """Return the differences of each such cell from its earlier record."""
    earlier: dict[str, list[Path]] = {}
    for path in sorted(record_paths(store.records), key=lambda path: path.stat().st_mtime_ns):
        earlier.setdefault(names_in(path.stem), []).append(path)
    for job in jobs:
        missing = [cell for cell in job.cells if cell.stem not in recorded_stems]
        records = _latest(earlier.get(names_in(job.stem), [])) if missing else {}
        for cell in missing:
            if cell.attack.label in records:
                old = records[cell.attack.label].identity.model_dump()
                yield differences(old, identity_of_cell(job, cell))


def _cells(n: int) -> str:
    return "1 cell" if n == 1 else f"{n} cells"


def _latest(paths: Iterable[Path]) -> dict[str, Record]:
    """Return the latest usable record of each attack. ``paths``: the latest last."""
    records: dict[str, Record] = {}
    for path in paths:
        # one that cannot be used is named where it is read for its results
        with contextlib.suppress(UserError):
            records |= {r.record.attack.label: r.record for r in read_bare(path)}
    return records


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the differences between two identities of cells, in words."""
    changes = list(values_that_differ(old, new))
    if decisive := [change for change in changes if change[0] not in _FOLLOWING]:
        changes = decisive
    return [_told(*change) for change in changes]


def _told(path: str, old: str, new: str) -> str:
    if path == "digests.engine":
        return "the engine's code changed"
    party, _, field = path.rpartition(".")
    if field == "digest":
        return f"the code of {party} changed"
    if party == "digests":
        return f"the digest of the {field} changed"
    return f"{path} {old} -> {new}"


def values_that_differ(
    old: dict[str, Any], new: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Return (dotted name as a suite has it, old value, new value) of every difference; of
    components with other names, the names.
    """
    for name in sorted(old.keys() | new.keys()):
        a = old.get(name)
        b = new.get(name)
        if isinstance(a, dict) and isinstance(b, dict) and a.get("name") == b.get("name"):
            path = "" if name in _UNNAMED else f"{prefix}{name}."
            yield from values_that_differ(a, b, path)
        elif a != b:
            yield f"{prefix}{name}", _shown(a), _shown(b)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name", value)
    return one_line(value if isinstance(value, str) else canonical(value), _MOST_SHOWN)
