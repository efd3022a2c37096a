"""A finished run in front of an analysis, records of it in front of a report."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedbench.core.contract.analysis import Analysis, FinishedRun, Judgement
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.report import Report
from fedbench.core.execution.clock import Clock
from fedbench.core.execution.worker import record_for
from fedbench.core.experiment.analyse import checked, finished, own_judgement
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.judge import Answers, ask
from fedbench.core.experiment.run import Run
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.train import Trained, train
from fedbench.core.experiment.verdict import verdict
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import Found, RoundRow
from fedbench.core.store.results import Results
from fedbench.testing.jobs import given_use
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.trials.data import PlainLoss
from fedbench.testing.trials.world import World, job_of, setting_of, world


def said_of(made: Analysis) -> tuple[World, FinishedRun, Judgement]:
    """A run that the analysis applies to, what it gets to see of it, and an attack's judgement. Raises :class:`Skipped`."""
    for groups in (False, True):
        seen = world(groups=groups, needs=made.needs)
        if made.applies(seen.job.described()):
            run = Run(scene=seen.scene, trained=seen.trained, shadows=seen.shadows, n_models=1)
            answers = ask(seen.job, PlainLoss(), seen.scene, seen.trained)
            judged = verdict(seen.job, seen.job.cells[0], seen.scene, seen.trained, answers)
            return seen, finished(seen.job, run, made), judged.judgement
    raise Skipped("it applies to none of the settings that are tried: one plain, one with groups of clients and thresholds")


def analyse(made: Analysis) -> dict[str, Any]:
    """Its findings, of a judged run and of one that no attack judged."""
    if type(made).analyse is Analysis.analyse:
        raise Skipped("it computes nothing of a run: it only draws")
    _, run, judgement = said_of(made)
    said: dict[str, Any] = {}
    for what, judged in (("with an attack's scores", judgement), ("without scores", None)):
        findings = made.analyse(run, own_judgement(judged))
        if findings is None:
            said[f"what it finds {what}"] = None
            continue
        found, vectors = checked(findings)
        said[f"what it finds {what}"] = found.model_dump(mode="json")
        said[f"the arrays that it finds {what}"] = vectors
    return said


def recorded(
    job: Job, scene: Scene, trained: Trained, answers: Answers, folder: Path, analyses: dict[str, Found] | None = None
) -> None:
    """The job's one cell as a record in a results folder. Raises ``UserError`` where it does not read back."""
    cell, clock = job.cells[0], Clock.start()
    said = verdict(job, cell, scene, trained, answers)
    scores = npz_bytes({**said.arrays, **trained.arrays})
    results = Results.create(folder, job.suite)
    record = record_for(
        job, cell, "ok", "", clock.measured(trained.measured, said.cpu_s), targets=said.targets, pooled=said.pooled,
        notes=said.notes, analyses=analyses or {}, digests={**job.digests, "scores": hashlib.sha256(scores).hexdigest()},
        utility=trained.utility, history=[RoundRow(**row) for row in trained.history], facts=trained.facts,
        complaints=trained.complaints,
    )  # fmt: skip
    results.write(cell.stem, record, scores)
    results.set_manifest([*results.marker()["cells"], cell.stem], "Tiny")
    load_records(folder)


@cache
def _results() -> dict[str, bytes]:
    """The files of a results folder: records of two defenses, one of which uploads nothing, and two seeds."""
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as name:
        folder = Path(name) / "results"
        for seed in (0, 1):
            for defense in (Defense, Silent):
                job, parts, scene = job_of(setting_of(), defense=given_use(defense, {}, defense.__name__.lower()), seed=seed)
                job = replace(job, results=str(folder), cells=(replace(job.cells[0], stem=f"{job.cells[0].stem}-{seed}"),))
                trained = train(job, parts, scene, [job.cells[0].look], lambda t: None)
                recorded(job, scene, trained, ask(job, PlainLoss(), scene, trained), folder)
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def results_folder() -> Iterator[Path]:
    """A copy of those records, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedbench-check-") as name:
        folder = Path(name) / "results"
        for path, content in _results().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        yield folder


class Silent(Defense):
    """Uploads nothing."""

    def protect(self, update: Any, ctx: Any) -> Any:
        return update * 0


def write(made: Report) -> dict[str, Any]:
    """Every file that it writes, and its summary."""
    with results_folder() as folder:
        before = {path for path in folder.rglob("*") if path.is_file()}
        told = made.write(folder, plots=False)
        if not isinstance(told, Path) or not told.exists():
            raise Failed(f"write returned {told!r:.100}; expected the path of a file that it wrote")
        said = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p not in before}
        return said | {"the summary": made.summary(folder)}
