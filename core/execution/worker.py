"""What a worker process does: one run, its cells, their records. A failing attack costs its cell, no more."""

from __future__ import annotations

import datetime
import hashlib
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.process import prepare_process, settle, stand_alone
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.record import Found, Identity, Measured, Outcome, Record, RoundRow
from fedbench.core.store.results import Results
from fedbench.core.words.explain import message_of, named, one_line, origin

Report = Callable[[str, Any], None]
STRANGERS = (Exception, SystemExit)  # what other people's code may raise
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


@dataclass
class Clock:
    """Wall and CPU time of the run so far."""

    started: str
    wall: float
    cpu: float

    @classmethod
    def start(cls) -> Clock:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(now, time.perf_counter(), time.process_time())

    def outside(self) -> Measured:
        """As seen by the parent of a process that is gone: its own time, not its work."""
        wall = round(time.perf_counter() - self.wall, 3)
        return Measured(
            started=self.started, wall_s=wall, cpu_s=0, train_cpu_s=0, signals_cpu_s=0, attack_cpu_s=0, peak_memory_mb=0
        )

    def measured(self, training: dict[str, float] | None = None, attack_cpu: float = 0.0) -> Measured:
        training = training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}
        wall = training.get("train_wall_s")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Measured(
            started=self.started, wall_s=round(time.perf_counter() - self.wall, 3),
            cpu_s=round(time.process_time() - self.cpu, 3), train_cpu_s=round(training["train_cpu_s"], 3),
            train_wall_s=None if wall is None else round(wall, 3),
            signals_cpu_s=round(training["signals_cpu_s"], 3), attack_cpu_s=round(attack_cpu, 3),
            peak_memory_mb=round(peak, 1),
        )  # fmt: skip


def record_for(job: Job, cell: Cell, outcome: Outcome, reason: str, measured: Measured, **more: Any) -> Record:
    """A record with everything the job already knows."""
    return Record(
        key=cell.key, run_key=job.run_key, outcome=outcome, reason=reason, suite=job.suite, setting=job.setting.name,
        coalition=job.coalition, members=list(job.members), seed=job.seed, defense=job.defense, attack=cell.attack,
        view=cell.view, described=job.described(), provenance=job.provenance, measured=measured,
        identity=Identity.model_validate(cell.identity),
        **{"digests": job.digests, **more},
    )  # fmt: skip


def run_job(job: Job, report: Report) -> None:
    """Train (or take the cached training), judge every cell, write every record."""
    results, clock = Results(Path(job.results)), Clock.start()
    prepare_process(job)
    attacks, failed = _make_attacks(job)
    for cell, reason in failed:
        _finish(results, job, cell, record_for(job, cell, "failed", reason, clock.measured()), None, report)
    if not attacks:
        return
    settle(job, job.run_key)  # the attacks' constructors ran
    try:
        run = _train(job, [a for _, a in attacks], report)
    except STRANGERS as error:
        outcome, reason = outcome_of(error)
        for cell, _ in attacks:
            _finish(results, job, cell, record_for(job, cell, outcome, reason, clock.measured()), None, report)
        return
    for cell, attack in attacks:
        report("judging", cell.key)
        settle(job, cell.key)
        record, scores = _judge(job, cell, attack, run, clock, report)
        _finish(results, job, cell, record, scores, report)


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason a failure is recorded with; unexpected ones name file and line."""
    said = one_line(message_of(error))
    if isinstance(error, SkipCell):
        return "skipped", said
    if isinstance(error, Diverged):
        return "diverged", said
    if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
        return "failed", f"out of memory: {said or 'an allocation failed'} (see limits.memory_gb)"
    if isinstance(error, UserError):
        return "failed", said
    frame = origin(error.__cause__ or error)
    where = f" [{Path(frame.filename).name}:{frame.lineno}]" if frame else ""
    return "failed", (said if error.__cause__ and said else named(error)) + where


def _make_attacks(job: Job) -> tuple[list[tuple[Cell, Any]], list[tuple[Cell, str]]]:
    made, failed = [], []
    for cell in job.cells:
        try:
            made.append((cell, cell.attack.make()[0]))
        except STRANGERS as error:
            failed.append((cell, outcome_of(error)[1]))
    return made, failed


def _train(job: Job, attacks: list[Any], report: Report) -> Any:
    """The finished training, it and the shadow models from their caches where they can be."""
    from fedbench.core.experiment.run import run

    return run(job, attacks, lambda t: report("round", t))


def _judge(job: Job, cell: Cell, attack: Any, run: Any, clock: Clock, report: Report) -> tuple[Record, bytes | None]:
    from fedbench.core.experiment.analyse import analyse
    from fedbench.core.experiment.judge import judge

    trained = run.trained
    common = {"utility": trained.utility, "history": [RoundRow(**row) for row in trained.history], "facts": trained.facts}
    try:
        verdict = judge(job, cell, attack, run.scene, trained, run.shadows)
    except STRANGERS as error:
        outcome, reason = outcome_of(error)
        report("analysing", cell.key)
        found, _, complaints = analyse(job, run.parts, run.scene, trained, None)
        found = {label: Found(numbers=f.numbers) for label, f in found.items()}  # no file to keep vectors in
        common |= {"analyses": found, "complaints": [*trained.complaints, *complaints]}
        return record_for(job, cell, outcome, reason, clock.measured(trained.measured), **common), None
    report("analysing", cell.key)
    found, vectors, complaints = analyse(job, run.parts, run.scene, trained, verdict.judgement)
    scores = npz_bytes({**verdict.arrays, **vectors, **trained.arrays})
    record = record_for(
        job, cell, "ok", "", clock.measured(trained.measured, verdict.cpu_s), targets=verdict.targets,
        pooled=verdict.pooled, notes=verdict.notes, analyses=found, complaints=[*trained.complaints, *complaints],
        digests={**job.digests, "scores": hashlib.sha256(scores).hexdigest()}, **common,
    )  # fmt: skip
    return record, scores


def _finish(results: Results, job: Job, cell: Cell, record: Record, scores: bytes | None, report: Report) -> None:
    results.write(cell.stem, record, scores)
    report("cell", (cell.key, record.outcome, record.reason))


def child_main(job: Job, connection: Any) -> None:
    """Entry of the worker process: its own process group, gone when the parent is gone; its output goes to its log."""
    stand_alone(job)

    def report(kind: str, what: Any) -> None:
        connection.send((kind, what))

    try:
        run_job(job, report)
        report("done", None)
    except KeyboardInterrupt:
        pass
    except OSError as error:  # the results folder is full or gone: nothing can be recorded there
        report("unwritable", (error.errno, error.strerror, error.filename or job.results))
    finally:
        connection.close()
