"""Export, import and merge results folders. Records of other groups are kept apart, in
``imported/BUNDLE/records``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from fedbench.core.store.results import Results, write_marker
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.store.stems import stem_in_merged, stem_of_run, word
from fedbench.core.store.stored_suites import StoredSuite, keep_suite, read_suite
from fedbench.core.words import bounded, one_line
from fedbench.leaderboard.submissions.bundle import MAX_BUNDLE_BYTES, pack, unpack
from fedbench.leaderboard.submissions.comparing import differing, reproductions
from fedbench.leaderboard.submissions.recompute import disagreeing, other_draws, require_recomputed

_MOST_FIELDS = 6
_MOST_SHOWN = 20  # unequal records


# -- export ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """Number of ``records``, size in bytes and ``sha256`` of the bundle."""

    records: int
    size: int
    sha256: str


def export(
    root: Path,
    out: Path,
    only: Mapping[str, set[str]] | None = None,
    observations: Callable[[str], None] | None = None,
) -> Exported:
    """Write the records of the folder's last plan, or of ``only`` some of it (kind -> names), and
    its suites to a bundle.

    ``observations``: take the kept ones along, and tell this how large they are before anything is
    written. The same folder gives the same bytes. Raises ``UserError`` for records that cannot be
    used, and for a file that exists.
    """
    if out.exists():
        raise UserError(f"{out}: exists; nothing was overwritten - name another file with -o")
    source = _Source.of_folder(root, root)
    records = [
        r
        for r in source.records
        if all(_names(r.record, kind) & names for kind, names in (only or {}).items())
    ]
    if not records:
        raise UserError(f"{root}: --only leaves no record; `fedbench show {root}` lists them")
    if apart := disagreeing(records):
        raise UserError(
            *bounded(f"{root}: {pair}; run them again with --rerun always" for pair in apart)
        )
    kept = _observations(records, observations) if observations else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with folder_aside(out.parent) as aside:
        folder, made = aside / "folder", aside / "bundle.zip"
        _write_folder(folder, {"": records}, [source])
        try:
            pack(folder, made, kept)
        except UserError as error:
            raise UserError(*(f"{root}: {message}" for message in error.messages)) from error
        size, sha256 = made.stat().st_size, _sha256(made)
        os.replace(made, out)
    return Exported(len(records), size, sha256)


def _observations(records: Sequence[LoadedRecord], tell: Callable[[str], None]) -> dict[str, Path]:
    """Name in the bundle -> file. Raises ``UserError`` for more than a bundle may hold."""
    files = dict.fromkeys(map(observations_of, records))
    kept = {f"cache/{path.name}": path for path in files if path.is_file()}
    size = sum(path.stat().st_size for path in kept.values())
    tell(f"observations of {len(kept)} of {len(files)} runs: {size / 2**20:.1f} MiB")
    if size > MAX_BUNDLE_BYTES:
        raise UserError(
            f"a bundle holds at most {MAX_BUNDLE_BYTES >> 20} MiB: split it with --only"
        )
    return kept


def _names(record: Record, kind: str) -> set[str]:
    if kind in ("defense", "attack"):
        use = getattr(record, kind)
        return {use.label, use.name}
    return {str(getattr(record, kind))}


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# -- import and merge ------------------------------------------------------------------------------


@dataclass
class Merged:
    """Number of ``records``, of those with standard errors by ``other_draws``, and ``notes`` for
    the user.
    """

    records: int = 0
    other_draws: int = 0
    notes: list[str] = field(default_factory=list)


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
    """A results folder at ``root``, or the ``bundle`` unpacked there. ``path``: as the user named
    it.
    """

    path: Path
    root: Path
    records: list[LoadedRecord]
    marker: dict[str, Any]
    plans: list[StoredSuite]
    bundle: str = ""

    @classmethod
    def of(cls, path: Path, aside: Path) -> _Source:
        if path.is_dir():
            return cls.of_folder(path, path.absolute())
        try:
            unpack(path, aside)
            source = replace(
                cls.of_folder(path, aside), bundle=word(path.stem).lstrip(".") or "bundle"
            )
            require_recomputed(source.records)
            require_observations(aside, source.records)
            _require_published(source.marker)
        # the remedies, to delete a record and to run the suite again, do not apply to a bundle
        except UserError as error:
            said = [
                message.replace(f"{aside}{os.sep}", "").partition("; delete ")[0]
                for message in error.messages
            ]
            raise UserError(
                *(f"{path}: refused, nothing was kept: {one_line(text)}" for text in said)
            ) from error
        return source

    @classmethod
    def of_folder(cls, path: Path, root: Path) -> _Source:
        store = Results.open(root)
        marker = store.marker()
        plans = [read_suite(root, plan) for plan in marker["plans"]]
        return cls(path, root, store.planned(load_records(root))[0], marker, plans)

    def bundle_of(self, loaded: LoadedRecord) -> str:
        """The bundle that a record came in; empty for one that was measured in the folder."""
        return self.bundle or loaded.bundle

    def file(self, loaded: LoadedRecord) -> str:
        """A record, as the user finds it."""
        return f"{self.path}/records/{loaded.path.name}"


def _require_published(marker: Mapping[str, Any]) -> None:
    try:
        for entry in marker.get("published") or ():
            PublishedNumbers.model_validate(entry)
    except (ValidationError, TypeError) as error:
        raise UserError("its published numbers are not those of a suite") from error


def _merged(sources: Sequence[_Source], root: Path) -> Merged:
    kept, notes = _kept(sources)
    folders: dict[str, list[LoadedRecord]] = {}
    names: dict[tuple[Path, str], str] = {}
    for source, loaded in kept:
        if bundle := source.bundle_of(loaded):
            name = names.setdefault((source.path, bundle), _free(bundle, names.values()))
        folders.setdefault(f"{IMPORTED}/{name}" if bundle else "", []).append(loaded)
        if source.bundle and (path := observations_of(loaded)).is_file():
            os.renames(path, root / IMPORTED / name / "cache" / path.name)
    keys = {loaded.record.key for _, loaded in kept}
    again = (r for source in sources for r in reproductions(source.root).values())
    folders[REPRODUCED] = list({r.record.key: r for r in again if r.record.key in keys}.values())
    _write_folder(root, folders, sources)
    return Merged(
        len(kept), sum(other_draws(r) for s in sources if s.bundle for r in s.records), notes
    )


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    return next(
        n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 2))) if n not in taken
    )


def _kept(sources: Sequence[_Source]) -> tuple[list[tuple[_Source, LoadedRecord]], list[str]]:
    """(the first record of every key in every suite, a note for every two sources with records in
    common).
    """
    kept: dict[tuple[str, str], tuple[_Source, LoadedRecord]] = {}
    twice: dict[tuple[Path, Path], int] = {}
    unequal: list[str] = []
    for source in sources:
        for loaded in source.records:
            first, other = kept.setdefault(
                (loaded.record.suite, loaded.record.key), (source, loaded)
            )
            if other is loaded:
                continue
            if fields := list(differing(other, loaded)):
                more = (
                    f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
                )
                what = ", ".join(fields[:_MOST_FIELDS])
                files = f"{first.file(other)} and {source.file(loaded)}"
                unequal.append(
                    f"{files}: one key, but they differ in {what}{more}; leave one of them out, or "
                    "run the cell again"
                )
            else:
                twice[first.path, source.path] = twice.get((first.path, source.path), 0) + 1
    if unequal:
        raise UserError(*bounded(unequal, "and {} other pairs", _MOST_SHOWN))
    return list(kept.values()), [
        f"{n} records are in {a} and in {b}, with equal scores; those of {a} were kept"
        for (a, b), n in twice.items()
    ]


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
            write_run(
                path.parent, stem, [CellResult(r.record, r.all_arrays()) for r in run_by_run(run)]
            )
            cells += [replace(r, path=path).stem for r in run if name != REPRODUCED]
    for source in sources:
        for plan in source.plans:
            keep_suite(root, plan)
    marker = _marker([source.marker for source in sources], cells)
    write_marker(root, marker)
    if folders.get(REPRODUCED):
        write_marker(root / REPRODUCED, {"suite": marker["suite"]})


def _runs(records: Iterable[LoadedRecord]) -> dict[str, list[LoadedRecord]]:
    """The cells of every run by the name of its files; of a run in several suites, the second has
    the suite in its name.
    """
    found: dict[str, list[LoadedRecord]] = {}
    for loaded in records:
        own = stem_of_run(loaded.record)
        taken = own in found and found[own][0].record.suite != loaded.record.suite
        found.setdefault(stem_in_merged(loaded.record) if taken else own, []).append(loaded)
    return found


def _marker(markers: Sequence[Mapping[str, Any]], cells: list[str]) -> dict[str, Any]:
    """One marker of all: the union of suites, titles, published numbers, analyses and plans, in the
    order of the sources.
    """

    def union(get: Callable[[Mapping[str, Any]], Sequence[Any]]) -> list[Any]:
        return list({canonical(item): item for marker in markers for item in get(marker)}.values())

    analyses = (
        None if any(m.get("analyses") is None for m in markers) else union(lambda m: m["analyses"])
    )
    return {
        "suite": " + ".join(union(lambda m: m["suite"].split(" + "))),
        "title": " + ".join(union(lambda m: [str(m["title"])] if m.get("title") else [])),
        "cells": cells,
        "published": union(lambda m: m.get("published") or ()),
        "analyses": analyses,
        "plans": union(lambda m: m["plans"]),
    }
