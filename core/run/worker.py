"""What a worker process does: one run, its cells, their records.

It runs no component's code itself: the training, each attack and each analysis are forked from here (``forked``). Metrics are
computed and records written where none of that code has run.
"""

from __future__ import annotations

import datetime
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.contract.analysis import Judgement
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.federation.guard import PhaseError
from fedbench.core.metrics.kept import Kept
from fedbench.core.process.ask import SECONDS
from fedbench.core.process.channel import Channel, Message, at_work, raised_by
from fedbench.core.process.child import Child, Patience
from fedbench.core.run.analyse import analyse_apart, received
from fedbench.core.run.job import Cell, Job
from fedbench.core.run.judge import Answers, ask
from fedbench.core.run.process import end_strays, keep_log_short, log_failure, log_path, prepare_process, settle, stand_alone
from fedbench.core.run.shadow_models import ShadowLogits, save_shadow_models
from fedbench.core.run.trained_run import (
    Packed,
    Run,
    cached,
    made_of,
    save_training,
    shadows_of,
    train_apart,
    wants_shadow_models,
)
from fedbench.core.run.verdict import verdict
from fedbench.core.store.record import Found, Identity, Measured, Outcome, Record, RoundRow, overall_auc
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, digest_of_arrays
from fedbench.core.words.explain import message_of, one_line, told


def record_for(job: Job, cell: Cell, outcome: Outcome, reason: str, measured: Measured, **more: Any) -> Record:
    """A record with everything the job already knows."""
    return Record(
        key=cell.key, run_key=job.run_key, outcome=outcome, reason=reason, suite=job.suite, setting=job.setting.name,
        coalition=job.coalition, members=list(job.members), seed=job.seed, defense=job.defense, attack=cell.attack,
        view=cell.look.view, described=job.described(), provenance=job.provenance, measured=measured,
        identity=Identity.model_validate(cell.identity),
        **{"digests": job.digests, **more, "notes": [*cell.notes, *more.get("notes", ())]},
    )  # fmt: skip


def run_job(job: Job, report: Report) -> None:
    """Train (or take the cached training), judge every cell, write the record."""
    results, clock, kept = Results(Path(job.results)), Clock.start(), Kept()
    run, made = None, list[CellResult]()
    try:
        run, active = trained(job, report)
    except Failed as why:
        failure = why
    for cell in job.cells:
        if run is None:
            made.append(CellResult(record_for(
                job, cell, failure.outcome, failure.reason, clock.measured(), by_adversary=failure.by_adversary
            )))  # fmt: skip
        else:
            report("judging", cell.key)
            made.append(_judged(job, cell, run, active, clock, report, kept))
        end_strays()
    results.write(job.stem, made)
    for record in (cell.record for cell in made):  # a cell counts as done once it is on disk
        report("cell", (record.key, record.outcome, record.reason, record.by_adversary, overall_auc(record.pooled)))
    keep_log_short()


def _judged(
    job: Job, cell: Cell, run: Run, active: Callable[[], Answers] | None, clock: Clock, report: Report, kept: Kept
) -> CellResult:
    """The cell's record and, where it has scores, its arrays."""
    done, said = run.trained, None
    outcome: Outcome = "ok"
    reason = ""
    try:
        said = verdict(job, cell, run.scene, done, active() if active else asked(job, cell, run, report), kept)
    except Failed as why:
        outcome, reason = why.outcome, why.reason
    except Exception as error:  # what the harness cannot make sense of
        outcome, reason = outcome_of(error)
    found, vectors, complaints = analysed(job, run, said.judgement if said else None, report)
    common: dict[str, Any] = {
        "utility": done.utility, "history": [RoundRow(**row) for row in done.history], "facts": done.facts,
        "complaints": [*done.complaints, *complaints],
    }  # fmt: skip
    if said is None:
        found = {label: Found(numbers=f.numbers) for label, f in found.items()}  # vectors are kept with scores alone
        return CellResult(record_for(
            job, cell, outcome, reason, clock.measured(done.measured), analyses=found, notes=done.notes, **common
        ))  # fmt: skip
    arrays = {**said.arrays, **vectors, **done.arrays}
    return CellResult(record_for(
        job, cell, outcome, reason, clock.measured(done.measured, said.cpu_s), targets=said.targets, pooled=said.pooled,
        notes=said.notes, analyses=found, digests={**job.digests, "scores": digest_of_arrays(arrays)}, **common,
    ), arrays)  # fmt: skip


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
    except BrokenPipeError:
        pass  # the parent is gone, and the guard of this group is about to end it
    except OSError as error:  # a folder that is full, no more processes, ...: the parent says so, if it can
        report("stopped", f"{error.filename or 'the run'}: {error.strerror or error}")
    except Exception as error:  # nobody else's code runs here
        traceback.print_exc()
        report("stopped", f"a defect of fedbench: {outcome_of(error)[1]}; see logs/{log_path(job).name}")
    finally:
        connection.close()


# -- A run's training, its attacks and its analyses, each in a process of its own; plain data come back --


Report = Callable[[str, object], None]


def _nobody(kind: str, what: object) -> None:
    """Whom a report reaches where nobody asked for it."""


class _Apart(Child):
    """With the size that the run's log had when it began."""

    log_had = 0


def _apart(job: Job, work: Callable[[Channel], None]) -> _Apart:
    """``work`` in a process of its own, under the suite's limits; what it raises comes as the message "failed"."""

    def guarded(out: Channel) -> None:
        prepare_process(job)
        try:
            work(out)
        except BaseException as error:  # other people's code may raise anything: it costs this process alone
            log_failure(error)
            out.send("failed", [*outcome_of(error), isinstance(error, DivergedByAdversary)])

    limits = job.limits
    had = _size(log_path(job))
    child = _Apart(guarded, Patience(cpu_s=limits.run_seconds, idle_s=limits.idle_seconds), keep_log_short)
    child.log_had = had
    return child


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _until(child: _Apart, messages: Iterator[Message], kind: str, job: Job, report: Report) -> Iterator[Message]:
    """The messages up to the one of this kind; tracebacks go to ``report``. Raises :class:`Failed` where it does not come."""
    for message in messages:
        if message.kind == "traceback":
            report("traceback", message.value)
            continue
        if message.kind == "failed":
            raise Failed(*message.value)
        yield message
        if message.kind == kind:
            return
    raise _ended(child, job)


def _ended(child: _Apart, job: Job) -> Failed:
    who = child.who or f"training with the defense {job.defense}"
    if child.timed_out and child.limits != child.patience:  # not the suite's limits: those of an import or a constructor
        return Failed("timeout", f"stopped: {who}: {child.ending}; {SECONDS} sets how long it may take")
    if child.timed_out:
        limit = "run_seconds" if "CPU" in child.ending else "idle_seconds"
        return Failed("timeout", f"stopped: {child.ending} (limits.{limit})")
    log, ending = log_path(job), child.ending or "it ended the process with status 0"
    return Failed("failed", f"{who}: {ending}" + (f"; see logs/{log.name}" if _size(log) > child.log_had else ""))


def trained(job: Job, report: Report) -> tuple[Run, Callable[[], Answers] | None]:
    """The finished run and, where an active attack took part in it, the way to that very attack's answers.

    Raises :class:`Failed`.
    """
    kept, shadows = cached(job)
    if kept is not None and (shadows is not None or not wants_shadow_models(job)):
        return _made(job, kept, shadows), None
    child = _apart(job, lambda out: train_apart(job, out, kept is not None, shadows is not None))
    messages = iter(child)
    for message in _until(child, messages, "trained", job, report):
        if message.kind == "round":
            report("round", message.value)
        elif message.kind == "trained":
            made, packed = shadows_of(message), (message.value, dict(message.arrays))
    _keep(job, packed if kept is None else None, made)
    run = _made(job, packed if kept is None else kept, made or shadows)
    if job.attacker is not None:
        child.more_cpu(job.limits.run_seconds)
        return run, lambda: _answers(child, messages, job, run, report)
    for _ in messages:
        raise AssertionError("a training ends with what it has trained")
    return run, None


def _made(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    try:
        return made_of(job, packed, shadows)
    except (UserError, KeyError) as error:
        raise Failed(*outcome_of(error)) from error


def _keep(job: Job, packed: Packed | None, shadows: ShadowLogits | None) -> None:
    """In the caches: without room for them, a run is trained again for a new attack."""
    if packed is not None and not job.attacker:
        save_training(job, packed)
    if shadows is not None:
        save_shadow_models(job, shadows)


def asked(job: Job, cell: Cell, run: Run, report: Report = _nobody) -> Answers:
    """A passive attack's answers. Raises :class:`Failed`."""

    def work(out: Channel) -> None:
        with at_work(f"attack {cell.attack}"):
            attack = cell.attack.make()[0]
            settle(job, cell.key)  # its constructor ran
            answers = ask(job, attack, run.scene, run.trained, run.shadows)
        out.send("answers", *answers.packed())

    child = _apart(job, work)
    return _answers(child, iter(child), job, run, report)


def _answers(child: _Apart, messages: Iterator[Message], job: Job, run: Run, report: Report) -> Answers:
    try:
        *_, last = _until(child, messages, "answers", job, report)
        return Answers.unpacked(last, len(run.scene.audits))
    finally:
        child.end()


def analysed(
    job: Job, run: Run, judgement: Judgement | None, report: Report = _nobody
) -> tuple[dict[str, Found], dict[str, np.ndarray], list[str]]:
    """(what each of the suite's analyses found, their vectors, complaints about those that failed)."""
    found: dict[str, Found] = {}
    arrays: dict[str, np.ndarray] = {}
    complaints: list[str] = []
    for use in job.analyses:
        child = _apart(job, lambda out, use=use: analyse_apart(job, use, run, judgement, out))  # type: ignore[misc]
        try:
            *_, last = _until(child, iter(child), "found", job, report)
            one, vectors = received(use, last)
            found, arrays = found | one, arrays | vectors
        except Failed as why:
            complaints.append(f"the analysis '{use.label}' failed: {why.reason}")
        finally:
            child.end()
    return found, arrays, complaints


# -- How a piece of other people's code ended, where it gave no answer --


_LONGEST = 1000  # characters: a message of somebody's with who raised it and where
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


class Failed(Exception):
    """Why there is no score: an outcome, the reason in a line, and whether it is what an adversary inside wanted."""

    def __init__(self, outcome: Outcome, reason: str, by_adversary: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.by_adversary = outcome, reason, by_adversary


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason a failure is recorded with; what somebody's code raised names him and the place."""
    said = one_line(message_of(error), _LONGEST)
    if isinstance(error, SkipCell):
        return "skipped", said
    if isinstance(error, Diverged):
        return "diverged", said
    if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
        return "failed", f"out of memory: {said or 'an allocation failed'} (see limits.memory_gb)"
    if isinstance(error, UserError | PhaseError):
        return "failed", said
    who = raised_by(error)
    return "failed", (f"{who}: " if who else "") + told(error)


# -- Wall and CPU time of a run, as its records tell them --


@dataclass
class Clock:
    """Wall and CPU time of the run so far."""

    started: str
    wall: float

    @classmethod
    def start(cls) -> Clock:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(now, time.perf_counter())

    def measured(self, training: dict[str, float] | None = None, attack_cpu: float = 0.0) -> Measured:
        """With what the processes forked from this one have used until now."""
        training = training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}
        wall = training.get("train_wall_s")
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Measured(
            started=self.started, wall_s=round(time.perf_counter() - self.wall, 3),
            cpu_s=round(sum(u.ru_utime + u.ru_stime for u in used), 3), train_cpu_s=round(training["train_cpu_s"], 3),
            train_wall_s=None if wall is None else round(wall, 3),
            signals_cpu_s=round(training["signals_cpu_s"], 3), attack_cpu_s=round(attack_cpu, 3),
            peak_memory_mb=round(max(u.ru_maxrss for u in used) / 1024, 1),
        )  # fmt: skip
