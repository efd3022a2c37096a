"""A results folder as one file that others can check: records, scores, suites and a manifest, and nothing else."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX
from fedbench.core.store.plans import plan_files, read_plan
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, write_run
from fedbench.core.words import bounded
from fedbench.leaderboard.statistics.recount import require_recounted
from fedbench.leaderboard.submissions.agreement import disagreeing
from fedbench.leaderboard.submissions.archive import MAX_BUNDLE_BYTES, MAX_ENTRIES, most_of, write_archive
from fedbench.leaderboard.submissions.manifest import BUNDLE_VERSION, File, Manifest
from fedbench.leaderboard.submissions.names import MANIFEST, is_name


@dataclass(frozen=True)
class Exported:
    """What was written: how many ``records``, how many bytes, and the file's ``sha256``."""

    records: int
    size: int
    sha256: str


def export(root: Path, out: Path, only: Mapping[str, set[str]] | None = None) -> Exported:
    """Write the records of the folder's last plan, or of ``only`` some of it, with their scores and suites, to ``out``.

    The same folder gives the same bytes. Raises ``UserError`` for records that cannot be used, for those without protection,
    for a file that is there, and for what is larger than a bundle may be; then nothing is written.
    """
    if out.exists():
        raise UserError(f"{out}: exists; nothing was overwritten - name another file with -o")
    store = Results.open(root)
    records = _chosen(store, only or {})
    require_recounted(records)
    if apart := disagreeing(records):
        raise UserError(*bounded(f"{root}: {pair}; run them again with --rerun always" for pair in apart))
    marker = store.marker()
    for plan in marker["plans"]:
        read_plan(root, plan)
    cells = [r.stem for r in records] if only else marker["cells"]
    packages = read_plan(root, marker["plans"][-1]).packages if marker["plans"] else {}
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        paths = _paths(root, _written_anew(records, Path(aside)), marker["plans"])
        files = [_described(path, name) for name, path in paths.items()]
        manifest = Manifest(
            bundle=BUNDLE_VERSION, schema_version=SCHEMA_VERSION, fedbench=metadata.version("fedbench"), suite=marker["suite"],
            title=str(marker.get("title") or ""), cells=cells, published=marker.get("published") or [],
            analyses=marker.get("analyses"), plans=marker["plans"], packages=packages, files=files,
        )  # fmt: skip
        return _written(out, manifest, paths, len(records))


def _written_anew(records: Sequence[LoadedRecord], folder: Path) -> list[Path]:
    """The files of the runs with these of their cells."""
    runs: dict[str, list[CellResult]] = {}
    for r in records:
        runs.setdefault(r.path.stem, []).append(CellResult(r.record, r.all_arrays()))
    for stem, cells in runs.items():
        write_run(folder, stem, cells, folder)
    return sorted(folder.iterdir())


def _chosen(store: Results, only: Mapping[str, set[str]]) -> list[LoadedRecord]:
    records, _ = store.planned(load_records(store.root))
    chosen = [r for r in records if all(_named(r.record, kind) & names for kind, names in only.items())]
    if not chosen:
        raise UserError(f"{store.root}: --only leaves no record; `fedbench show {store.root}` lists them")
    return chosen


def _named(record: Record, kind: str) -> set[str]:
    if kind in ("defense", "attack"):
        use = getattr(record, kind)
        return {use.label, use.name}
    return {str(getattr(record, kind))}


def _paths(root: Path, records: Sequence[Path], plans: Sequence[str]) -> dict[str, Path]:
    """Name in the bundle -> file, in the order in which they are written."""
    paths = {f"records/{path.name}": path for path in records}
    paths |= {path.relative_to(root).as_posix(): path for plan in plans for path in plan_files(root, plan)}
    if len(paths) >= MAX_ENTRIES:
        raise UserError(f"{root}: {len(paths):,} files, a bundle holds fewer than {MAX_ENTRIES:,}: split it with --only")
    return dict(sorted(paths.items()))


def _described(path: Path, name: str) -> File:
    if not is_name(name):
        raise UserError(f"{path}: has no name of a record; it was renamed, or put there by hand - name it as it was")
    content = path.read_bytes()
    if len(content) > most_of(name):
        raise UserError(f"{path}: {len(content):,} bytes, in a bundle it may have {most_of(name):,}; leave it out with --only")
    return File(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _written(out: Path, manifest: Manifest, paths: Mapping[str, Path], records: int) -> Exported:
    """Whole or not at all, and never over a file that is there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=out.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            write_archive(f, _contents(manifest, paths))
            f.flush()
            os.fsync(f.fileno())
        size = Path(name).stat().st_size
        if size > MAX_BUNDLE_BYTES:
            raise UserError(f"{out}: would be {size >> 20} MiB, at most {MAX_BUNDLE_BYTES >> 20}: split it with --only")
        with open(name, "rb") as f:
            sha256 = hashlib.file_digest(f, "sha256").hexdigest()
        os.chmod(name, 0o644)
        try:
            os.link(name, out)
        except FileExistsError:
            raise UserError(f"{out}: exists; nothing was overwritten - name another file with -o") from None
    finally:
        Path(name).unlink(missing_ok=True)
    return Exported(records, size, sha256)


def _contents(manifest: Manifest, paths: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    yield MANIFEST, manifest.bytes()
    for file in manifest.files:
        content = paths[file.path].read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UserError(f"{paths[file.path]}: changed while it was exported; end the run that writes there first")
        yield file.path, content
