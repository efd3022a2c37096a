"""Run a part of somebody's claims again, with the packages that are installed here, and say what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fedbench.core import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.plans import SUITES
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.core.store.results import Results
from fedbench.core.store.trust import Level, Noted, note, read_trust
from fedbench.leaderboard.submissions.compare import compare
from fedbench.leaderboard.submissions.installed import missing, pip_command, why_stale
from fedbench.leaderboard.submissions.sampling import sampled

Planner = Callable[[Path, Path], Any]
"""(suite, results folder) -> the plan of `fedbench run`"""


@dataclass
class Again:
    """What is to be run: ``jobs``, cut to the cells of the sample; ``records`` of the sample; ``stale``: stem -> why its cell
    cannot be run here as it was."""

    records: list[LoadedRecord]
    jobs: list[Any] = field(default_factory=list)
    stale: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One cell of the sample: ``stem``, ``verdict`` (of ``compare``, or ``stale``) and ``how``."""

    stem: str
    verdict: str
    how: str


@dataclass(frozen=True)
class Draw:
    """Which part: ``share`` of the runs of every row, drawn with ``seed``."""

    share: float
    seed: int


def rerun_folder(folder: Path) -> Path:
    """Where the cells of the sample are computed again; what is there is not computed twice."""
    return folder / "rerun" / "results"


def drawn(folder: Path, share: float | None, seed: int | None, fresh: Callable[[], int]) -> Draw:
    """What the user asks for and, for the rest, what was drawn before in this folder, or a tenth of the runs and a fresh seed.
    Remembered, so that the same command goes on. Raises ``OSError``, and ``UserError`` for a memory that is none."""
    path = folder / "rerun" / "draw.json"
    before = _Drawn() if not path.is_file() else _before(path)
    known = seed if seed is not None else before.seed
    draw = Draw(share=share if share is not None else before.share, seed=fresh() if known is None else known)
    write_atomically(path, json.dumps({"share": draw.share, "seed": draw.seed}).encode())
    return draw


class _Drawn(BaseModel):
    """``draw.json``."""

    share: float = Field(0.1, gt=0, le=1)
    seed: int | None = Field(None, ge=0)


def _before(path: Path) -> _Drawn:
    try:
        return _Drawn.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: not the draw of a sample as fedbench writes it; delete it, and a fresh one is drawn") from error


def prepare(folder: Path, draw: Draw, planner: Planner) -> Again:
    """The sample, and the jobs that compute it. Raises ``UserError`` where a package is missing, with what installs it, and for a
    folder that claims no result, or without the suite that they were made by."""
    store = Results.open(folder)
    records, _ = store.planned(load_records(folder))
    again = Again(sampled(records, draw.share, draw.seed))
    if not again.records:
        raise UserError(f"{folder}: no record claims a result, so there is nothing to run again")
    _require_installed(folder, records)  # of all: the suite names the others, too
    plans = store.marker()["plans"][::-1]
    if not plans:
        raise UserError(f"{folder}: it holds records without their suite; ask its author to run it with this fedbench")
    wanted = {r.record.key: r for r in again.records}
    names: dict[str, Any] = {}
    for plan in plans:
        made = planner(folder / SUITES / f"{plan}.yaml", rerun_folder(folder))
        for job in made.jobs:
            mine = tuple(cell for cell in job.cells if wanted.pop(cell.key, None) is not None)
            again.jobs += [replace(job, cells=mine)] if mine else []
            names |= {_names(cell.stem): (job, cell) for cell in job.cells}
        if not wanted:
            break
    for loaded in wanted.values():
        again.stale[loaded.stem] = _why(loaded, names.get(_names(loaded.stem)))
    return again


def results(folder: Path, again: Again) -> list[Result]:
    """What came of the sample, in its order; remembered as marks of trust. Raises ``OSError``."""
    store, found = Results(rerun_folder(folder)), []
    runs = dict.fromkeys(job.stem for job in again.jobs)
    made = {r.record.key: r for stem in runs for r in store.cells(stem)}
    trust, notes = read_trust(folder), {}
    for loaded in again.records:
        stem = loaded.stem
        if stem in again.stale:
            found.append(Result(stem, "stale", again.stale[stem]))
            continue
        computed = made.get(loaded.record.key)
        if computed is None:
            found.append(Result(stem, "not reproduced", "it gave no record here; the same command tries again"))
            continue
        said = compare(loaded, computed)
        level: Level = "not reproduced" if said.verdict == "not reproduced" else "reproduced"
        how = f"{said.verdict} with fedbench {metadata.version('fedbench')} on {computed.record.provenance.cpu_type}: {said.how}"
        digest = loaded.record.digest
        notes[stem] = Noted(level=level, digest=digest, bundle=trust.of(loaded).bundle, how=how)
        found.append(Result(stem, said.verdict, said.how))
    if notes:
        note(folder, notes)
    return found


def runs_of(again: Again) -> Sequence[tuple[str, int, int]]:
    """(title, rounds, cells) of every run that is to be computed."""
    return [(job.title, job.setting.federation.rounds, len(job.cells)) for job in again.jobs]


def _require_installed(folder: Path, records: Iterable[LoadedRecord]) -> None:
    packages: dict[str, str] = {}
    for loaded in records:
        packages |= missing(loaded.record)
    if packages:
        raise UserError(
            f"{folder}: made with packages that are not installed here: {', '.join(map(' '.join, sorted(packages.items())))}; "
            f"look at them, for their code will run, then: {pip_command(packages)}"
        )


def _why(loaded: LoadedRecord, planned: Any) -> str:
    """Why a cell is not among those that its suite asks for here."""
    from fedbench.core.run.job import identity_of_cell
    from fedbench.core.run.resume import differences

    if reasons := why_stale(loaded.record):
        return "; ".join(reasons)
    if planned is not None:
        return "; ".join(differences(loaded.record.identity.model_dump(), identity_of_cell(*planned)))
    return "the suite that came with it does not ask for this cell"


def _names(stem: str) -> str:
    return stem.rpartition("--")[0]
