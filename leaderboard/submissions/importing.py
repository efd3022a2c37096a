"""A bundle of somebody else's becomes a results folder, whole or not at all: looked at, unpacked aside, counted again, moved.

Nothing in it is run, imported or unpickled. What a record says of itself is checked as everywhere; here every number that the
scores decide is made again, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX
from fedbench.core.store.json_file import parse_bytes
from fedbench.core.store.marker import MARKER, read_marker, write_marker
from fedbench.core.store.plans import read_plan
from fedbench.core.store.reading import LoadedRecord, read_all, record_paths
from fedbench.core.store.stems import stem_in_merged, stem_of_run
from fedbench.core.store.trust import claimed, write_trust
from fedbench.core.words import one_line
from fedbench.leaderboard.statistics.recount import require_recounted
from fedbench.leaderboard.submissions.agreement import disagreeing, repeated, unnamed_content
from fedbench.leaderboard.submissions.archive import Archive, Refused
from fedbench.leaderboard.submissions.manifest import Manifest, manifest_of, require_shown, texts_of
from fedbench.leaderboard.submissions.names import MANIFEST
from fedbench.leaderboard.submissions.recompute import draws_differ, recompute

Progress = Callable[[int, int], None]
_MOST_SHOWN = 20  # records with wrong numbers
_REMEDY = re.compile(r"delete (it|its record \([^)]*\)) and run its suite again to compute the cell anew")


@dataclass(frozen=True)
class Imported:
    """``records``: how many; ``bundle``: file name and sha256; ``other_draws``: records whose standard errors were drawn with
    another numpy, and were not compared."""

    records: int
    bundle: str
    other_draws: int


def import_bundle(bundle: Path, folder: Path, progress: Progress = lambda done, of: None) -> Imported:
    """Check a bundle and unpack it as the results folder ``folder``, which must not exist, or be empty.

    Raises ``UserError`` that says what is wrong; then ``folder`` is as it was.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not empty; nothing was unpacked - name another folder with -o")
    folder = folder.resolve()  # a link to an empty folder cannot be replaced, the folder can
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Archive(bundle) as archive:
        manifest = _manifest(archive)
        aside = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}import-", dir=folder.parent))
        try:
            _unpack(archive, manifest, aside)
            name = f"{one_line(bundle.name, 100)} (sha256 {_sha256(bundle)})"
            try:
                found = _accepted(aside, manifest, name, progress)
            except UserError as error:
                raise UserError(*(_told(bundle, aside, message) for message in error.messages)) from error
            os.chmod(aside, 0o755)
            os.replace(aside, folder)  # an empty folder gives way
        except OSError as error:  # of a full disk, which names no file, or one that is gone in a moment
            raise OSError(error.errno, f"{error.strerror}; nothing was kept", str(folder)) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return found


def _manifest(archive: Archive) -> Manifest:
    """Its entries are the manifest and the files that it lists, with their sizes."""
    if MANIFEST not in archive.sizes:
        raise Refused(f"it has no {MANIFEST}, so it is no bundle of fedbench")
    try:
        manifest = manifest_of(parse_bytes(archive.read(MANIFEST), MANIFEST, "ask its author for another"))
    except UserError as error:
        raise Refused(error.messages[0]) from error
    listed = {file.path: file.size for file in manifest.files}
    if len(listed) < len(manifest.files):
        raise Refused("its manifest lists a file twice")
    there = {name: size for name, size in archive.sizes.items() if name != MANIFEST}
    if more := sorted(there.keys() - listed.keys()):
        raise Refused(f"it holds {more[0]!r}, which its manifest does not list")
    if gone := sorted(listed.keys() - there.keys()):
        raise Refused(f"it does not hold {gone[0]!r}, which its manifest lists")
    if wrong := sorted(name for name in listed if listed[name] != there[name]):
        raise Refused(f"{wrong[0]!r} has {there[wrong[0]]:,} bytes, its manifest says {listed[wrong[0]]:,}")
    return manifest


def _unpack(archive: Archive, manifest: Manifest, aside: Path) -> None:
    for folder in ("records", "suites"):
        (aside / folder).mkdir()
    for file in manifest.files:
        with (aside / file.path).open("xb") as out:
            if archive.copy(file.path, out) != file.sha256:
                raise Refused(f"the digest of {file.path!r} is not the one that its manifest says")


def _accepted(aside: Path, manifest: Manifest, bundle: str, progress: Progress) -> Imported:
    """The folder, with marker and notes. Raises ``UserError`` or :class:`Refused` for whatever a board
    could not stand for."""
    records = read_all(record_paths(aside / "records"))
    _require_whole(aside, manifest, records)
    keys: dict[tuple[str, str], str] = {}
    for loaded in records:
        _require_own(loaded, manifest)
        run = loaded.record.suite, loaded.record.run_key
        if (other := keys.setdefault(run, loaded.path.name)) != loaded.path.name:
            raise Refused(f"records/{loaded.path.name} and records/{other} have one key")
    _require_numbers(records, progress)
    require_recounted(records)
    if apart := disagreeing(records):
        more = f" and {len(apart) - 1} other pairs" if len(apart) > 1 else ""
        raise Refused(f"{apart[0]}{more}: a record or its scores were changed")
    for plan in manifest.plans:
        asked = read_plan(aside, plan)
        for name, text in texts_of([asked.file, asked.suite, *asked.overrides, *asked.only]):
            require_shown(f"the plan {plan}{name}", text)
    write_marker(aside, {
        "suite": manifest.suite, "title": manifest.title, "cells": manifest.cells, "published": manifest.published,
        "analyses": manifest.analyses, "plans": manifest.plans, "imported": bundle,
    })  # fmt: skip
    write_trust(aside, claimed(records, bundle))
    return Imported(len(records), bundle, sum(r.record.outcome == "ok" and draws_differ(r) for r in records))


def _require_whole(aside: Path, manifest: Manifest, records: Iterable[LoadedRecord]) -> None:
    """Every record has its scores, nothing lies beside them that belongs to none, and a plan is there with all its files."""
    wanted = {r.path.name for r in records} | {r.arrays.name for r in records if r.record.outcome == "ok"}
    if not wanted:
        raise Refused("it holds no records")
    if more := sorted({p.name for p in (aside / "records").iterdir()} - wanted):
        raise Refused(f"the scores 'records/{more[0]}' belong to no record with scores")
    kept = {f"{plan}{suffix}" for plan in manifest.plans for suffix in (".given.yaml", ".json", ".yaml")}
    if kept != {p.name for p in (aside / "suites").iterdir()}:
        raise Refused("its suites are not those of the plans that its manifest lists")


def _require_own(loaded: LoadedRecord, manifest: Manifest) -> None:
    """A record of this suite, under its own name, with names that can be shown."""
    record = loaded.record
    if loaded.path.stem not in (stem_of_run(record), stem_in_merged(record)):
        raise Refused(f"records/{loaded.path.name} holds the record of another run, {stem_of_run(record)}")
    if record.suite not in manifest.suite.split(" + "):
        raise Refused(f"records/{loaded.path.name} is of suite '{one_line(record.suite, 80)}', not '{manifest.suite}'")
    names = {"setting": record.setting, "coalition": record.coalition, "view": record.view, "analyses": list(record.analyses)}
    uses = [part for use in (record.defense, record.attack) for part in use.chain]
    names |= {"components": [text for use in uses for text in (use.name, use.label, use.target, use.distribution)]}
    for name, text in texts_of(names):
        require_shown(f"records/{loaded.path.name}: {name}", text)


def _require_numbers(records: list[LoadedRecord], progress: Progress) -> None:
    judged = [r for r in records if r.record.outcome == "ok"]
    wrong: list[str] = []
    for arrays, cells in groupby(judged, lambda r: r.arrays):
        if (what := unnamed_content(list(cells))) is not None:
            raise Refused(f"the scores 'records/{arrays.name}' hold {what}")
    for done, loaded in enumerate(judged, 1):
        try:
            found = [*recompute(loaded), *repeated(loaded)]
        except (ValueError, FloatingPointError) as error:  # scores that no metric can be computed of
            found = [f"its scores cannot be judged ({one_line(str(error), 120)})"]
        if found:
            more = f" and {len(found) - 1} other numbers" if len(found) > 1 else ""
            wrong.append(f"{loaded.stem}: {found[0]}{more}: the record or its scores were changed")
        progress(done, len(judged))
    if wrong:
        rest = [f"and {len(wrong) - _MOST_SHOWN} other records"] if len(wrong) > _MOST_SHOWN else []
        raise UserError(*wrong[:_MOST_SHOWN], *rest)


def _told(bundle: Path, aside: Path, message: str) -> str:
    """A message about a file aside, as one about the bundle, which nobody but its author can mend."""
    said = _REMEDY.sub("ask its author for another", message.replace(f"{aside}{os.sep}", ""))
    return f"{bundle}: refused, nothing was kept: {said}"


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def is_import_of(folder: Path, bundle: Path) -> bool:
    """Whether the folder was made of this very file."""
    if not (folder / MARKER).is_file():
        return False
    return str(read_marker(folder).get("imported", "")).endswith(f"(sha256 {_sha256(bundle)})")
