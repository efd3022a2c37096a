"""Several results folders and bundles as one folder: the union of their records, if no two say unequal things of one cell."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core import UserError
from fedbench.core.store.canonical import canonical
from fedbench.core.store.files import TEMPORARY_PREFIX
from fedbench.core.store.marker import write_marker
from fedbench.core.store.plans import plan_files
from fedbench.core.store.reading import LoadedRecord, load_records, read_all, read_bare, record_paths
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.store.stems import stem_in_merged, stem_of_run
from fedbench.core.store.trust import Trust, read_trust, write_trust
from fedbench.core.words import one_line
from fedbench.leaderboard.statistics.recount import require_recounted
from fedbench.leaderboard.submissions.importing import Progress, import_bundle

# Two runs of one cell differ in these.
MAY_DIFFER = ("measured", "provenance")
_MOST_FIELDS = 6
_MOST_SHOWN = 20  # unequal records


@dataclass
class Merged:
    """What a merge came to: ``records`` there are, ``notes`` for the user."""

    records: int = 0
    notes: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], folder: Path, progress: Progress = lambda done, of: None) -> Merged:
    """The records of all sources in one new results folder, with their suites and marks of trust. Of equal records the first is
    kept; a bundle is checked as ``import`` does, and its records are claimed.

    Raises ``UserError`` for a source that cannot be used, for unequal records under one key, and for a folder that is not empty;
    then nothing is written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not empty; nothing was written - name another folder with -o")
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}merge-", dir=folder.parent))
    try:
        parts = [_Part.of(path, aside / f"part{i}", progress) for i, path in enumerate(sources)]
        found = _united(parts, aside / "merged")
        os.replace(aside / "merged", folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return found


@dataclass(frozen=True)
class _Part:
    """One source: ``name``, as the user called it; ``root``: its results folder, unpacked where it is a bundle."""

    name: Path
    root: Path
    records: list[LoadedRecord]
    marker: dict[str, Any]
    trust: Trust

    @classmethod
    def of(cls, path: Path, aside: Path, progress: Progress) -> _Part:
        root = path.absolute()
        if path.is_file():
            import_bundle(root, aside, progress)
            root = aside
        store = Results.open(root)
        records, _ = store.planned(load_records(root))
        require_recounted(records)
        return cls(path, root, records, store.marker(), read_trust(root))

    def file(self, loaded: LoadedRecord) -> str:
        """A record, as the user finds it."""
        return f"{self.name}/records/{loaded.path.name}"


def _united(parts: Sequence[_Part], root: Path) -> Merged:
    kept, twice = _kept(parts)
    found = Merged(records=len(kept))
    for (a, b), n in twice.items():
        found.notes.append(f"{n} records are in {a} and in {b}, with equal scores; those of {a} were kept")
    (root / "records").mkdir(parents=True)
    (root / "suites").mkdir()
    for stem, cells in _runs(loaded for _, loaded in kept).items():
        write_run(root / "records", stem, [CellResult(r.record, r.all_arrays()) for r in cells], root / "cache")
    written = {(r.record.suite, r.record.key): r.stem for r in read_all(record_paths(root / "records"), read_bare)}
    notes = {written[r.record.suite, r.record.key]: part.trust.of(r) for part, r in kept}
    for part in parts:
        for plan in part.marker["plans"]:
            for path in plan_files(part.root, plan):
                shutil.copyfile(path, root / "suites" / path.name)
    found.notes += _of_one_suite(parts)
    write_marker(root, _marker(parts, list(notes)))
    write_trust(root, notes)
    return found


def _runs(records: Iterable[LoadedRecord]) -> dict[str, list[LoadedRecord]]:
    """The cells of every run by the name of its files; of a run in several suites, the second has the suite in its name."""
    found: dict[str, list[LoadedRecord]] = {}
    for loaded in records:
        own = stem_of_run(loaded.record)
        taken = own in found and found[own][0].record.suite != loaded.record.suite
        found.setdefault(stem_in_merged(loaded.record) if taken else own, []).append(loaded)
    return found


def _kept(parts: Sequence[_Part]) -> tuple[list[tuple[_Part, LoadedRecord]], dict[tuple[Path, Path], int]]:
    """(the first record of every key in every suite, how many records two sources have in common)."""
    kept: dict[tuple[str, str], tuple[_Part, LoadedRecord]] = {}
    twice: dict[tuple[Path, Path], int] = {}
    unequal: list[str] = []
    for part in parts:
        for loaded in part.records:
            first, other = kept.setdefault((loaded.record.suite, loaded.record.key), (part, loaded))
            if other is loaded:
                continue
            if fields := list(differing(other, loaded)):
                more = f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
                what = ", ".join(fields[:_MOST_FIELDS])
                files = f"{first.file(other)} and {part.file(loaded)}"
                unequal.append(f"{files}: one key, but they differ in {what}{more}; leave one of them out, or run the cell again")
            else:
                twice[first.name, part.name] = twice.get((first.name, part.name), 0) + 1
    if unequal:
        rest = [f"and {len(unequal) - _MOST_SHOWN} other pairs"] if len(unequal) > _MOST_SHOWN else []
        raise UserError(*unequal[:_MOST_SHOWN], *rest)
    return list(kept.values()), twice


def differing(one: LoadedRecord, other: LoadedRecord, besides: Sequence[str] = ()) -> Iterator[str]:
    """The fields in which two records of one cell differ, with their values, except those of machine and time and ``besides``."""
    left_out = {*MAY_DIFFER, *besides}
    a, b = (loaded.record.model_dump(mode="json", exclude=left_out) for loaded in (one, other))
    for path, x, y in _unequal(a, b):
        yield f"{path} ({_shown(x)} and {_shown(y)})"


def _unequal(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            yield from _unequal(a.get(name), b.get(name), f"{at}.{name}" if at else str(name))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _unequal(x, y, f"{at}[{i}]")
    elif a != b:
        yield one_line(at, 80), a, b


def _shown(value: Any) -> str:
    return one_line(canonical(value), 40)


def _of_one_suite(parts: Sequence[_Part]) -> Iterator[str]:
    """A note where parts of one suite were asked for different cells."""
    by_suite: dict[str, list[_Part]] = {}
    for part in parts:
        by_suite.setdefault(part.marker["suite"], []).append(part)
    for suite, same in by_suite.items():
        if len({frozenset(part.marker["cells"]) for part in same}) > 1:
            names = ", ".join(f"{part.name} ({len(part.marker['cells'])})" for part in same)
            yield f"suite '{suite}': the sources ask for different cells ({names}); the board shows all of them"


def _marker(parts: Sequence[_Part], cells: list[str]) -> dict[str, Any]:
    """One marker of all: the union of cells, published numbers, analyses and plans, each in the order of the sources."""
    markers = [part.marker for part in parts]

    def union(get: Callable[[dict[str, Any]], Sequence[Any]]) -> list[Any]:
        return list({canonical(item): item for marker in markers for item in get(marker)}.values())

    suites = list(dict.fromkeys(suite for marker in markers for suite in marker["suite"].split(" + ")))
    titles = union(lambda m: [m["title"]] if m.get("title") else [])
    analyses = None if any(m.get("analyses") is None for m in markers) else union(lambda m: m["analyses"])
    return {
        "suite": " + ".join(suites), "title": " + ".join(titles), "cells": cells,
        "published": union(lambda m: m.get("published") or ()), "analyses": analyses, "plans": union(lambda m: m["plans"]),
        "merged": [str(part.name) for part in parts],
    }  # fmt: skip
