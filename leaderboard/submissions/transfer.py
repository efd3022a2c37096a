"""Export, import and merge results folders. Records of other groups are kept apart, in
``imported/BUNDLE/records``.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.core.spec.suite import PublishedNumbers
from fedbench.core.store.files import folder_aside
from fedbench.core.store.integrity import canonical
from fedbench.core.store.observations import observations_of, require_observations
from fedbench.core.store.reading import IMPORTED, REPRODUCED, LoadedRecord, load_records, run_by_run
from fedbench.core.store.record import Record
from fedbench.core.store.results import Provisional, Results, write_marker
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.store.stems import stem_in_merged, stem_of_run, unused, word
from fedbench.core.store.stored_suites import StoredSuite, keep_suite, read_suite
from fedbench.core.words import bounded, one_line
from fedbench.leaderboard.comparison.fields import differing
from fedbench.leaderboard.submissions.bundle import MAX_BUNDLE_BYTES, pack, unpack
from fedbench.leaderboard.submissions.comparing import reproductions
from fedbench.leaderboard.submissions.recompute import disagreeing, other_draws, require_recomputed

_MOST_FIELDS = 6
_MOST_SHOWN = 20  # unequal records


# -- export ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """A bundle that was written."""

    records: int
    size: int
    """bytes"""
    sha256: str


def export(
    root: Path,
    out: Path,
    only: Mapping[str, set[str]],
    observations: Callable[[str], None] | None,
) -> Exported:
    """Write records of the folder's last plan and its suites to a bundle. The same folder gives the
    same bytes.

    Args:
        only: kind -> names of the records to take; all of a kind that is not there.
        observations: take the kept ones along, and tell this how large they are before anything is
            written.

    Raises:
        UserError: records that cannot be used, or a file that exists.
    """
    if out.exists():
        raise UserError(f"{out}: exists; nothing was overwritten - name another file with -o")
    source = _Source.of_folder(root, root)
    records = source.records
    for kind, names in only.items():
        records = [r for r in records if _names(r.record, kind) & names]
    if not records:
        raise UserError(f"{root}: --only leaves no record; `fedbench show {root}` lists them")
    if mistakes := disagreeing(records):
        raise UserError(
            *bounded(f"{root}: {pair}; run them again with --rerun always" for pair in mistakes)
        )
    more = _observations(records, observations) if observations else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with folder_aside(out.parent) as aside:
        folder, bundle = aside / "folder", aside / "bundle.zip"
        _write_folder(folder, {"": records}, [source])
        try:
            pack(folder, bundle, more)
        except UserError as error:
            raise UserError(*(f"{root}: {message}" for message in error.messages)) from error
        with bundle.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(bundle, out)
    return Exported(len(records), out.stat().st_size, sha256)


def _observations(records: Sequence[LoadedRecord], tell: Callable[[str], None]) -> dict[str, Path]:
    """Return name in the bundle -> file. Raises ``UserError`` for more than a bundle may hold."""
    paths = dict.fromkeys(map(observations_of, records))
    files = {f"cache/{path.name}": path for path in paths if path.is_file()}
    size = sum(path.stat().st_size for path in files.values())
    tell(f"observations of {len(files)} of {len(paths)} runs: {size / 2**20:.1f} MiB")
    if size > MAX_BUNDLE_BYTES:
        raise UserError(
            f"a bundle holds at most {MAX_BUNDLE_BYTES >> 20} MiB: split it with --only"
        )
    return files


def _names(record: Record, kind: str) -> set[str]:
    if kind in ("defense", "attack"):
        use = getattr(record, kind)
        return {use.label, use.name}
    return {str(getattr(record, kind))}


# -- import and merge ------------------------------------------------------------------------------


@dataclass
class Merged:
    """A results folder that was written."""

    records: int
    other_draws: int
    """records with standard errors drawn by another numpy"""
    notes: list[str]
    """for the user"""


def merge(sources: Sequence[Path], folder: Path) -> Merged:
    """Put the records of results folders and bundles into a new results folder. Of equal records
    the first is kept.

    The metrics of a bundle are recomputed from its scores; its records go to
    ``imported/BUNDLE/records``. Raises ``UserError`` for a source that cannot be used, unequal
    records of one key, and a folder that is not empty; then nothing is written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder}: exists and is not empty; nothing was written - name another folder with -o"
        )
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with folder_aside(folder.parent) as aside:
            opened = [_Source.of(path, aside / f"source{i}") for i, path in enumerate(sources)]
            merged = _merged(opened, aside / "merged")
            os.replace(aside / "merged", folder)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; nothing was kept", str(folder)) from error
    return merged


@dataclass(frozen=True)
class _Source:
    """A results folder, or an unpacked bundle."""

    path: Path
    """as the user named it"""
    root: Path
    """where its files are"""
    records: list[LoadedRecord]
    marker: dict[str, Any]
    plans: list[StoredSuite]
    bundle: str = ""
    """its name; empty of a folder"""

    @classmethod
    def of(cls, path: Path, aside: Path) -> _Source:
        if path.is_dir():
            return cls.of_folder(path, path.absolute())
        try:
            unpack(path, aside)
            source = cls.of_folder(path, aside)
            require_recomputed(source.records)
            require_observations(aside, source.records)
            _require_published(source.marker)
        except UserError as error:
            # the remedies, to delete a record and to run the suite again, do not apply to a bundle
            reasons = [
                one_line(message.replace(f"{aside}{os.sep}", "").partition("; delete ")[0])
                for message in error.messages
            ]
            raise UserError(
                *(f"{path}: refused, nothing was kept: {r}" for r in reasons)
            ) from error
        return replace(source, bundle=word(path.stem).lstrip(".") or "bundle")

    @classmethod
    def of_folder(cls, path: Path, root: Path) -> _Source:
        store = Results.open(root)
        marker = store.marker()
        plans = [read_suite(root, plan) for plan in marker["plans"]]
        return cls(path, root, store.planned(load_records(root))[0], marker, plans)

    def file(self, loaded: LoadedRecord) -> str:
        """Return a record, as the user finds it."""
        return f"{self.path}/records/{loaded.path.name}"


def _require_published(marker: Mapping[str, Any]) -> None:
    try:
        for entry in marker.get("published") or ():
            PublishedNumbers.model_validate(entry)
    except (ValidationError, TypeError) as error:
        raise UserError("its published numbers are not those of a suite") from error


def _merged(sources: Sequence[_Source], root: Path) -> Merged:
    records, notes = _united(sources)
    folders: dict[str, list[LoadedRecord]] = {}
    names: dict[tuple[Path, str], str] = {}
    for source, loaded in records:
        bundle = source.bundle or loaded.bundle
        name = ""
        if bundle:
            free = unused(bundle, names.values(), "-")
            name = f"{IMPORTED}/{names.setdefault((source.path, bundle), free)}"
        folders.setdefault(name, []).append(loaded)
        observations = observations_of(loaded)
        if source.bundle and observations.is_file():
            os.renames(observations, root / name / "cache" / observations.name)
    again: dict[str, LoadedRecord] = {}
    for source in sources:
        again |= reproductions(source.root)
    keys = {loaded.record.key for _, loaded in records}
    folders[REPRODUCED] = [r for key, r in again.items() if key in keys]
    _write_folder(root, folders, sources)
    imported = (r for source in sources if source.bundle for r in source.records)
    return Merged(len(records), sum(map(other_draws, imported)), notes)


def _united(sources: Sequence[_Source]) -> tuple[list[tuple[_Source, LoadedRecord]], list[str]]:
    """Return (the first record of every key in every suite, a note for every two sources with
    records in common). Raises ``UserError`` for unequal records of one key.
    """
    records: dict[tuple[str, str], tuple[_Source, LoadedRecord]] = {}
    twice: Counter[tuple[Path, Path]] = Counter()
    unequal: list[str] = []
    for source in sources:
        for loaded in source.records:
            place = loaded.record.suite, loaded.record.key
            first, earlier = records.setdefault(place, (source, loaded))
            fields = [] if earlier is loaded else list(differing(earlier, loaded))
            if fields:
                names = ", ".join(bounded(fields, "and {} more", _MOST_FIELDS))
                unequal.append(
                    f"{first.file(earlier)} and {source.file(loaded)}: one key, but they differ in "
                    f"{names}; leave one of them out, or run the cell again"
                )
            elif earlier is not loaded:
                twice[first.path, source.path] += 1
    if unequal:
        raise UserError(*bounded(unequal, "and {} other pairs", _MOST_SHOWN))
    notes = [
        f"{n} records are in {a} and in {b}, with equal scores; those of {a} were kept"
        for (a, b), n in twice.items()
    ]
    return list(records.values()), notes


# -- writing ---------------------------------------------------------------------------------------


def _write_folder(
    root: Path, folders: Mapping[str, Sequence[LoadedRecord]], sources: Sequence[_Source]
) -> None:
    """Write a results folder: records by the folder in ``root`` that they go to, the suites of the
    sources, and the marker.
    """
    cells = []
    for name, records in folders.items():
        for stem, run in _runs(records).items():
            path = root / name / "records" / f"{stem}.json"
            results = [CellResult(r.record, r.all_arrays()) for r in run_by_run(run)]
            write_run(path.parent, stem, results)
            if name != REPRODUCED:
                cells += [replace(r, path=path).stem for r in run]
    for source in sources:
        for plan in source.plans:
            keep_suite(root, plan)
    marker = _marker([source.marker for source in sources], cells)
    write_marker(root, marker)
    if folders.get(REPRODUCED):
        write_marker(root / REPRODUCED, {"suite": marker["suite"]})


def _runs(records: Iterable[LoadedRecord]) -> dict[str, list[LoadedRecord]]:
    """Return the cells of every run by the name of its files; of a run in several suites, the
    second has the suite in its name.
    """
    runs: dict[str, list[LoadedRecord]] = {}
    for loaded in records:
        stem = stem_of_run(loaded.record)
        if stem in runs and runs[stem][0].record.suite != loaded.record.suite:
            stem = stem_in_merged(loaded.record)
        runs.setdefault(stem, []).append(loaded)
    return runs


def _marker(markers: Sequence[Mapping[str, Any]], cells: list[str]) -> dict[str, Any]:
    """Return one marker of all: the union of suites, titles, published numbers, analyses and plans,
    in the order of the sources.
    """
    suites = [suite for marker in markers for suite in marker["suite"].split(" + ")]
    analyses = None
    if all(marker.get("analyses") is not None for marker in markers):
        analyses = _union(markers, "analyses")
    facts: dict[str, Any] = {
        "suite": " + ".join(dict.fromkeys(suites)),
        "title": " + ".join(dict.fromkeys(str(m["title"]) for m in markers if m.get("title"))),
        "cells": cells,
        "published": _union(markers, "published"),
        "analyses": analyses,
        "plans": _union(markers, "plans"),
    }
    if provisional := _provisional(markers):
        facts["provisional"] = provisional.model_dump()
    return facts


def _provisional(markers: Sequence[Mapping[str, Any]]) -> Provisional | None:
    """Return the seeds that some source has finished, where they are not those of the plan."""
    states = [marker.get("provisional") for marker in markers]
    if None in states:
        return None
    parts = [Provisional.model_validate(state) for state in states]
    seeds = {seed for part in parts for seed in part.seeds}
    n_planned = max(part.of for part in parts)
    if len(seeds) >= n_planned:
        return None
    return Provisional(seeds=sorted(seeds), of=n_planned)


def _union(markers: Sequence[Mapping[str, Any]], field: str) -> list[Any]:
    values: dict[str, Any] = {}
    for marker in markers:
        values |= {canonical(value): value for value in marker.get(field) or ()}
    return list(values.values())
