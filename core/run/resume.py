"""Which cells still have to be computed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Job, identity_of_cell
from fedbench.core.store.integrity import canonical
from fedbench.core.store.reading import LoadedRecord, read_bare, record_paths
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.store.stems import names_in
from fedbench.core.words import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """How the cell of this name ended. ``cpu``: the type of CPU that made it, None for a GPU."""

    stem: str
    outcome: str
    reason: str
    by_adversary: bool
    complaints: tuple[str, ...]
    cpu: str | None

    @classmethod
    def of(cls, loaded: LoadedRecord) -> CellState:
        """The state of a cell with a record."""
        r = loaded.record
        return cls(
            stem=loaded.stem,
            outcome=r.outcome,
            reason=r.reason,
            by_adversary=r.by_adversary,
            complaints=tuple(r.complaints),
            cpu=r.provenance.cpu_type if r.provenance.device == "cpu" else None,
        )

    @property
    def is_result(self) -> bool:
        """Whether the cell needs no second try: it has scores, was skipped, or diverged because of
        an adversary.
        """
        return self.outcome in ("ok", "skipped") or self.by_adversary


def recorded(jobs: Sequence[Job], store: Results) -> list[CellState]:
    """The states of those cells of the jobs that have a record. Raises ``UserError`` with every
    record that cannot be used: it is never silently replaced.
    """
    wanted = {cell.key for job in jobs for cell in job.cells}
    found, problems = list[CellState](), list[str]()
    for stem in dict.fromkeys(job.stem for job in jobs):
        try:
            found += [CellState.of(r) for r in store.cells(stem) if r.record.key in wanted]
        except UserError as error:
            problems += error.messages
    if problems:
        raise UserError(*problems)
    return found


def other_cpus(jobs: Sequence[Job], found: Sequence[CellState]) -> list[str]:
    """The types of CPU, other than that of this machine, that made some of the records: their last
    digits may differ.
    """
    return sorted(
        {state.cpu for state in found if state.cpu is not None}
        - {job.provenance.cpu_type for job in jobs}
    )


def pending(jobs: list[Job], found: Sequence[CellState], rerun: str) -> list[Job]:
    """The jobs cut down to the cells that ``rerun`` asks for: missing (of those ``found``), failed
    (and missing), always or never.
    """
    good = {state.stem: state.is_result for state in found}
    cut = (
        replace(job, cells=tuple(c for c in job.cells if _wanted(good.get(c.stem), rerun)))
        for job in jobs
    )
    return [job for job in cut if job.cells]


def _wanted(good: bool | None, rerun: str) -> bool:
    """``good``: None of a cell without a record."""
    if rerun == "never":
        return False
    return rerun == "always" or good is None or (rerun == "failed" and not good)


# --- why a cell is computed again -----------------------------------------------------------------


_MOST_LINES = 12
_MOST_SHOWN = 60  # characters of a value
_PLURAL = {"signals": "signal", "analyses": "analysis"}
_COMPONENTS = ("dataset", "model", "defense", "attacker")
_LAST = ("split", "targets")  # follow from other fields: named where nothing else says why


def why_stale(jobs: Sequence[Job], found: Collection[str], store: Results) -> list[str]:
    """Lines for people on cells of the jobs of which the folder holds an earlier record of the same
    setting, coalition, defense, attack and seed; [] where there are none. ``found``: the names of
    the cells that have a record.
    """
    earlier = _newest(store.records)
    counts = Counter[str]()
    stale = 0
    for job in jobs:
        missing = [cell for cell in job.cells if cell.stem not in found]
        if missing and (paths := earlier.get(names_in(job.stem))):
            known = _records(paths)
            for cell in (cell for cell in missing if cell.attack.label in known):
                stale += 1
                counts.update(
                    differences(
                        known[cell.attack.label].identity.model_dump(), identity_of_cell(job, cell)
                    )
                )
    if not stale:
        return []
    lines = [
        f"{n} {'cell' if n == 1 else 'cells'}: {what}"
        for what, n in counts.most_common(_MOST_LINES)
    ]
    more = (
        [f"and {len(counts) - _MOST_LINES} other differences"] if len(counts) > _MOST_LINES else []
    )
    return [
        f"{_cells(stale)} computed anew, though the folder holds an earlier record of the same "
        "names:",
        *lines,
        *more,
    ]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two identities of cells (``run``, ``attack``, ``signals``,
    ``analyses``), in words.
    """
    found = [
        *_of_runs(old["run"], new["run"]),
        *_of_component("attack", old["attack"], new["attack"]),
    ]
    for kind, one in _PLURAL.items():
        for name in sorted(old[kind].keys() | new[kind].keys()):
            found += _of_component(
                f"{one} '{name}'", old[kind].get(name), new[kind].get(name), named=True
            )
    return list(dict.fromkeys(found))


def _cells(n: int) -> str:
    return "1 cell is" if n == 1 else f"{n} cells are"


def _newest(records: Path) -> dict[str, list[Path]]:
    """The files of the runs of the same names, the one that was written first, first."""
    found: dict[str, list[Path]] = {}
    for path in sorted(record_paths(records), key=lambda path: path.stat().st_mtime_ns):
        found.setdefault(names_in(path.stem), []).append(path)
    return found


def _records(paths: Iterable[Path]) -> dict[str, Record]:
    """The latest usable record of each attack."""
    found: dict[str, Record] = {}
    for path in paths:
        # one that cannot be used is named where it is read for its results
        with contextlib.suppress(UserError):
            found |= {r.record.attack.label: r.record for r in read_bare(path)}
    return found


def _of_runs(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    found: list[str] = []
    for kind in _COMPONENTS:
        name = "adversary's attack" if kind == "attacker" else kind
        found += _of_component(name, old.get(kind), new.get(kind))
    for part in sorted(old["digests"].keys() | new["digests"].keys()):
        if old["digests"].get(part) != new["digests"].get(part) and part not in _LAST:
            found.append(_of_digest(part, new))
    leave = {*_COMPONENTS, "digests", *_LAST}
    found += [
        f"{path} {a} -> {b}"
        for path, a, b in values_that_differ(_without(old, leave), _without(new, leave))
    ]
    yield from found
    if not found:  # they follow from the others
        if old["targets"] != new["targets"]:
            yield f"targets {_shown(old['targets'])} -> {_shown(new['targets'])}"
        elif old["digests"] != new["digests"]:
            yield "who holds which samples, or who is asked about"


def _of_digest(part: str, new: dict[str, Any]) -> str:
    return {
        "engine": "the engine's code changed",
        "data": f"the data of '{new['dataset']['name']}' changed",
    }.get(part, f"the digest of {part} changed")


def _of_component(
    kind: str, old: dict[str, Any] | None, new: dict[str, Any] | None, named: bool = False
) -> Iterator[str]:
    """What differs between two uses of a component; ``named``: whether ``kind`` says which one it
    is.
    """
    if old is None or new is None or old["name"] != new["name"]:
        if old != new:
            yield f"{kind} {_name(old)} -> {_name(new)}"
        return
    what = kind if named else f"{kind} '{new['name']}'"
    versions = _arrow(old["distribution"], new["distribution"])
    if old["digest"] != new["digest"] or old["target"] != new["target"]:
        yield f"the code of {what} changed ({versions})"
    elif old["distribution"] != new["distribution"]:
        yield f"the package of {what}: {versions}"
    yield from (
        f"{what}: {path} {a} -> {b}"
        for path, a, b in values_that_differ(old["params"], new["params"])
    )
    needed = values_that_differ(old.get("requires", {}), new.get("requires", {}))
    yield from (f"{what}: its required package {package} {a} -> {b}" for package, a, b in needed)
    before, after = old.get("then", []), new.get("then", [])
    for i in range(max(len(before), len(after))):
        then, now = (chain[i] if i < len(chain) else None for chain in (before, after))
        yield from _of_component(f"after {what}, {kind.partition(' ')[0]}", then, now)


def _name(use: dict[str, Any] | None) -> str:
    return "none" if use is None else f"'{use['name']}'"


def _arrow(old: str, new: str) -> str:
    """``my-package 0.1 -> 0.2``, or the one version."""
    if old == new:
        return new
    same = old.rpartition(" ")[0] == new.rpartition(" ")[0]
    return f"{old} -> {new.rpartition(' ')[2] if same else new}"


def values_that_differ(
    old: dict[str, Any], new: dict[str, Any], at: str = ""
) -> Iterator[tuple[str, str, str]]:
    """(dotted name as a suite has it, old value, new value) of everything that differs."""
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from values_that_differ(
                a, b, "" if at == "" and name in ("setting", "provenance") else f"{at}{name}."
            )
        elif a != b:
            yield f"{at}{name}", _shown(a), _shown(b)


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else canonical(value), _MOST_SHOWN)


def _without(run: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in set(names)}
