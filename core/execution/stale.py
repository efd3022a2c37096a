"""Why a cell that was computed once is computed again: what its key was made of then, and what it is made of now."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.job import Job
from fedbench.core.store.canonical import canonical
from fedbench.core.store.reading import read_bare, record_paths
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.words.explain import one_line

_MOST_LINES = 12
_MOST_SHOWN = 60  # characters of a value
_PLURAL = {"signals": "signal", "analyses": "analysis"}
_COMPONENTS = ("dataset", "model", "defense", "attacker")
_LAST = ("split", "targets")  # follow from other fields: named where nothing else says why


def why_stale(jobs: Sequence[Job], found: Collection[str], store: Results) -> list[str]:
    """Lines for people on cells of the jobs of which the folder holds an earlier record of the same setting, coalition, defense,
    attack and seed; [] where there are none. ``found``: the names of the cells that have a record."""
    earlier = _newest(store.records)
    counts = Counter[str]()
    stale = 0
    for job in jobs:
        missing = [cell for cell in job.cells if cell.stem not in found]
        if missing and (paths := earlier.get(_names(job.stem))):
            known = _records(paths)
            for cell in (cell for cell in missing if cell.attack.label in known):
                stale += 1
                counts.update(differences(known[cell.attack.label].identity.model_dump(), cell.identity))
    if not stale:
        return []
    lines = [f"{n} {'cell' if n == 1 else 'cells'}: {what}" for what, n in counts.most_common(_MOST_LINES)]
    more = [f"and {len(counts) - _MOST_LINES} other differences"] if len(counts) > _MOST_LINES else []
    return [f"{_cells(stale)} computed anew, though the folder holds an earlier record of the same names:", *lines, *more]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two identities of cells (``run``, ``attack``, ``signals``, ``analyses``), in words."""
    found = [*_of_runs(old["run"], new["run"]), *_of_component("attack", old["attack"], new["attack"])]
    for kind, one in _PLURAL.items():
        for name in sorted(old[kind].keys() | new[kind].keys()):
            found += _of_component(f"{one} '{name}'", old[kind].get(name), new[kind].get(name), named=True)
    return list(dict.fromkeys(found))


def values_that_differ(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(dotted name, old value, new value) of everything that differs between two identities of runs."""
    return list(_values(old, new))


def _cells(n: int) -> str:
    return "1 cell is" if n == 1 else f"{n} cells are"


def _names(stem: str) -> str:
    """A run's name without its key."""
    return stem.rpartition("--")[0]


def _newest(records: Path) -> dict[str, list[Path]]:
    """The files of the runs of the same names, the one that was written first, first."""
    found: dict[str, list[Path]] = {}
    for path in sorted(record_paths(records), key=lambda path: path.stat().st_mtime_ns):
        found.setdefault(_names(path.stem), []).append(path)
    return found


def _records(paths: Iterable[Path]) -> dict[str, Record]:
    """The latest usable record of each attack."""
    found: dict[str, Record] = {}
    for path in paths:
        with contextlib.suppress(UserError):  # one that cannot be used is named where it is read for its results
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
    found += [f"{path} {a} -> {b}" for path, a, b in _values(_without(old, leave), _without(new, leave))]
    yield from found
    if not found:  # they follow from the others
        if old["targets"] != new["targets"]:
            yield f"targets {_shown(old['targets'])} -> {_shown(new['targets'])}"
        elif old["digests"] != new["digests"]:
            yield "who holds which samples, or who is asked about"


def _of_digest(part: str, new: dict[str, Any]) -> str:
    return {"engine": "the engine's code changed", "data": f"the data of '{new['dataset']['name']}' changed"}.get(
        part, f"the digest of {part} changed"
    )


def _of_component(kind: str, old: dict[str, Any] | None, new: dict[str, Any] | None, named: bool = False) -> Iterator[str]:
    """What differs between two uses of a component; ``named``: whether ``kind`` says which one it is."""
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
    yield from (f"{what}: {path} {a} -> {b}" for path, a, b in _values(old["params"], new["params"]))
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


def _values(old: dict[str, Any], new: dict[str, Any], at: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted name as a suite has it, old value, new value) of everything that differs."""
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _values(a, b, "" if at == "" and name in ("setting", "provenance") else f"{at}{name}.")
        elif a != b:
            yield f"{at}{name}", _shown(a), _shown(b)


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else canonical(value), _MOST_SHOWN)


def _without(run: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in set(names)}
