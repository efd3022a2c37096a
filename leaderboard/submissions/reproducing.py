"""Run a sample of the claimed records again, with the packages that are installed here, and
compare.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fedbench.core import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.reading import REPRODUCED, LoadedRecord, load_records
from fedbench.core.store.results import DRAW, Results
from fedbench.core.store.stems import names_in
from fedbench.core.store.stored_suites import SUITES
from fedbench.leaderboard.comparison.cells import Key, key_of, run_of
from fedbench.leaderboard.submissions.comparing import judged
from fedbench.leaderboard.submissions.trust import missing, pip_command, why_stale

Planner = Callable[[Path, Path], Any]
"""(suite, results folder) -> the plan of `fedbench run`"""
CLAIMS = ("ok", "diverged", "skipped")  # outcomes: a cell that failed claims nothing


# -- the sample ------------------------------------------------------------------------------------


class Draw(BaseModel):
    """Which part is run: ``share`` of the runs of every row, drawn with ``seed``."""

    share: float = Field(0.1, gt=0, le=1)
    seed: int = Field(default_factory=lambda: secrets.randbelow(2**32), ge=0)


def drawn(folder: Path, share: float | None, seed: int | None) -> Draw:
    """Return the draw that the user asks for; by default the one that the folder remembers or a
    fresh one. It is remembered.

    Raises ``UserError`` for a damaged file, and ``OSError``.
    """
    path = folder / DRAW
    try:
        draw = Draw.model_validate_json(path.read_bytes()) if path.is_file() else Draw()
    except ValidationError as error:
        raise UserError(
            f"{path}: not the draw of a sample as fedbench writes it; delete it, and a fresh one "
            "is drawn"
        ) from error
    wanted = {"share": share, "seed": seed}
    draw = draw.model_copy(update={n: v for n, v in wanted.items() if v is not None})
    write_atomically(path, draw.model_dump_json().encode())
    return draw


def sampled(records: Sequence[LoadedRecord], draw: Draw) -> list[LoadedRecord]:
    """Return the records of a share of the runs of every row, rounded up: whole runs, in the order
    of the records. A cell that is said to have diverged, or that its attack is said to have
    skipped, is a claim like a score.
    """
    rows: dict[tuple[str, Key], set[str]] = {}
    claims = [r for r in records if r.record.outcome in CLAIMS]
    for loaded in claims:
        row = loaded.record.suite, run_of(key_of(loaded))
        rows.setdefault(row, set()).add(loaded.record.run_key)
    chosen: set[str] = set()
    for runs in rows.values():
        n = max(1, math.ceil(draw.share * len(runs) - 1e-9))
        chosen.update(
            sorted(runs, key=lambda run: sha256(f"{draw.seed}:{run}".encode()).digest())[:n]
        )
    return [r for r in claims if r.record.run_key in chosen]


# -- the plan --------------------------------------------------------------------------------------


@dataclass
class Sample:
    """Cells that are computed again."""

    records: list[LoadedRecord] = field(default_factory=list)
    jobs: list[Any] = field(default_factory=list)
    """compute their cells"""
    stale: dict[str, str] = field(default_factory=dict)
    """stem -> why its cell cannot be run as it was"""


def prepare(folder: Path, draw: Draw, planner: Planner) -> Sample:
    """Return the sample of the claimed records of a results folder, and its jobs.

    Raises ``UserError`` for missing packages, with what installs them, and where no record is
    claimed or no suite is stored.
    """
    store = Results.open(folder)
    records = [r for r in store.planned(load_records(folder))[0] if r.bundle]
    sample = Sample(sampled(records, draw))
    if not sample.records:
        raise UserError(
            f"{folder}: no imported record claims a result, so there is nothing to run again"
        )
    _require_installed(folder, records)  # of all: the suite names the others, too
    plans = store.marker()["plans"][::-1]
    if not plans:
        raise UserError(
            f"{folder}: it holds records without their suite; ask its author to run it with this "
            "fedbench"
        )
    wanted = {r.record.key: r for r in sample.records}
    planned: dict[str, Any] = {}
    for plan in plans:
        for job in planner(folder / SUITES / f"{plan}.yaml", folder / REPRODUCED).jobs:
            planned |= {names_in(cell.stem): (job, cell) for cell in job.cells}
            cells = tuple(cell for cell in job.cells if wanted.pop(cell.key, None) is not None)
            if cells:
                sample.jobs.append(replace(job, cells=cells))
        if not wanted:
            break
    for loaded in wanted.values():
        sample.stale[loaded.stem] = _why(loaded, planned.get(names_in(loaded.stem)))
    return sample


def _require_installed(folder: Path, records: Sequence[LoadedRecord]) -> None:
    packages: dict[str, str] = {}
    for loaded in records:
        packages |= missing(loaded.record)
    if packages:
        raise UserError(
            f"{folder}: made with packages that are not installed here: "
            f"{', '.join(map(' '.join, sorted(packages.items())))}; "
            f"look at them, for their code will run, then: {pip_command(packages)}"
        )


def _why(loaded: LoadedRecord, planned: Any) -> str:
    """Return why a cell is not among those that its suite asks for here."""
    from fedbench.core.run.job import identity_of_cell
    from fedbench.core.run.resume import differences

    reasons: Sequence[str] = why_stale(loaded.record)
    if not reasons and planned is not None:
        identity = loaded.record.identity.model_dump()
        reasons = differences(identity, identity_of_cell(*planned))
    return "; ".join(reasons) or "the suite that came with it does not ask for this cell"


# -- the comparison --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How one cell of the sample compares."""

    stem: str
    verdict: str
    """of :func:`judged`, or ``stale``"""
    how: str


def results(folder: Path, sample: Sample) -> list[Result]:
    """Return the verdicts of the sample, in its order."""
    store = Results(folder / REPRODUCED)
    again: dict[str, LoadedRecord] = {}
    for stem in dict.fromkeys(job.stem for job in sample.jobs):
        again |= {r.record.key: r for r in store.cells(stem)}
    return [_result(r, again.get(r.record.key), sample.stale) for r in sample.records]


def _result(loaded: LoadedRecord, again: LoadedRecord | None, stale: dict[str, str]) -> Result:
    stem = loaded.stem
    if stem in stale:
        return Result(stem, "stale", stale[stem])
    if again is None:
        how = "it gave no record here; the same command tries again"
        return Result(stem, "not reproduced", how)
    compared = judged(loaded, again)
    return Result(stem, compared.verdict, compared.how)
