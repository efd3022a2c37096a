"""The worker process: one run, its cells, their record.

It runs no plugin code itself: the training, each attack and each analysis are forked from here.
Metrics are computed and records are written where none of that code has run.
"""

from __future__ import annotations

import datetime
import resource
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.contract.analysis import Judgement
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.federation.guard import PhaseError
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.process.ask import SECONDS, is_own
from fedbench.core.process.channel import Channel, Message, TimeLimits, at_work, raised_by
from fedbench.core.process.child import Child
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.analyse import analyse, received
from fedbench.core.run.job import Cell, Job, cell_identity, identity, job_of, record_fields
from fedbench.core.run.process import (
    become_worker,
    end_strays,
    keep_log_short,
    log_failure,
    prepare_fork,
    settle,
)
from fedbench.core.run.scoring import Answers, ask
from fedbench.core.run.shadow_models import ShadowLogits, save_shadow_models
from fedbench.core.run.train import Run
from fedbench.core.run.trained_run import (
    Packed,
    cached,
    made_of,
    save_training,
    shadows_of,
    train_run,
    wants_shadow_models,
)
from fedbench.core.run.verdict import verdict
from fedbench.core.store.record import Found, Identity, Measured, Outcome, Record
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, digest_of_arrays
from fedbench.core.words import describe_error, message_of, one_line

Report = Callable[[str, Any], None]
"""called with the name of a callback of ``local.Watcher`` and its value, or with "alive", "stopped"
or "done"
"""

# what a fork may tell the command, with the type of the value
_REPORTED = {"advanced": int, "traceback": str}
_ALIVE_EVERY_S = 5.0
_LONGEST_REASON = 1000  # characters
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


def worker_main(text: str, channel: Channel) -> None:
    """Compute a job (``job_json``) and report through the channel."""
    job = None
    try:
        job = job_of(text)
        become_worker(job, channel)
        run_job(job, channel.send)
        channel.send("done")
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the command has ended, and the guard of this session is about to end it
    except OSError as error:  # a full disk, no more processes: a fault of the machine
        channel.send("stopped", f"{error.filename or 'the run'}: {error.strerror or error}")
    except Exception as error:  # no plugin code runs here
        traceback.print_exc()
        log = f"; see logs/{job.log_path.name}" if job else ""
        channel.send("stopped", f"a defect of fedbench: {outcome_of(error)[1]}{log}")


def run_job(job: Job, report: Report) -> None:
    """Train (or take the cached training), judge every cell, write the record. Before another
    package's code runs, what is judged is written: it may end this process.
    """
    clock, kept, run_identity = Clock(), SharedDraws(), identity(job)
    analyses = [use.distribution for use in job.analyses]
    results = list[CellResult]()
    try:
        run, active = trained(job, report)
    except Failed as failure:
        no_run = failure
        results = [
            CellResult(record_for(job, cell, run_identity, no_run, clock.measured()))
            for cell in job.cells
        ]
    else:
        for cell in job.cells:
            if not is_own([cell.attack.distribution, *analyses]):
                _write(job, results, report)
                results = []
            report("judging", cell.key)
            results.append(_judged(job, cell, run_identity, run, active, clock, report, kept))
            end_strays()
    end_strays()
    _write(job, results, report)
    keep_log_short()


def _write(job: Job, results: list[CellResult], report: Report) -> None:
    """Add cells to the run's record and report them: a cell counts as done once it is on disk."""
    if not results:
        return
    Results(Path(job.results)).write(job.stem, results)
    for record in (result.record for result in results):
        report("cell", [record.key, record.outcome, record.reason, record.by_adversary])


def record_for(
    job: Job,
    cell: Cell,
    run: dict[str, Any],
    failure: Failed | None,
    measured: Measured,
    **more: Any,
) -> Record:
    """With everything the job already knows. ``run``: its identity."""
    outcome, reason = (failure.outcome, failure.reason) if failure else ("ok", "")
    return Record(
        outcome=outcome,
        reason=reason,
        measured=measured,
        identity=Identity.model_validate({"run": run, **cell_identity(job, cell)}),
        by_adversary=bool(failure and failure.by_adversary),
        **{**record_fields(job, cell), **more, "notes": [*cell.notes, *more.get("notes", ())]},
    )


def _judged(
    job: Job,
    cell: Cell,
    run_identity: dict[str, Any],
    run: Run,
    active: Callable[[], Answers] | None,
    clock: Clock,
    report: Report,
    kept: SharedDraws,
) -> CellResult:
    """The cell's record and, where it has scores, its arrays."""
    done, scored, failure = run.trained, None, None
    try:
        scored = verdict(run, cell, active() if active else asked(job, cell, run, report), kept)
    except Failed as error:
        failure = error
    except Exception as error:  # scores that the harness cannot use
        failure = Failed(*outcome_of(error))
    found, vectors, complaints = analysed(job, run, scored.judgement if scored else None, report)
    common = done.recorded | {"complaints": [*done.complaints, *complaints]}
    if scored is None:
        # vectors are kept with scores alone
        found = {label: Found(numbers=f.numbers) for label, f in found.items()}
        measured = clock.measured(done.measured)
        return CellResult(
            record_for(
                job,
                cell,
                run_identity,
                failure,
                measured,
                analyses=found,
                notes=done.notes,
                **common,
            )
        )
    arrays = {**scored.arrays, **vectors, **done.arrays}
    return CellResult(
        record_for(
            job,
            cell,
            run_identity,
            None,
            clock.measured(done.measured, scored.cpu_s),
            analyses=found,
            digests={**job.digests, "scores": digest_of_arrays(arrays)},
            **common,
            **scored.recorded,
        ),
        arrays,
    )


class Clock:
    """Wall and CPU time of the run so far."""

    def __init__(self) -> None:
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._start = time.perf_counter()

    def measured(
        self, training: dict[str, float] | None = None, attack_cpu: float = 0.0
    ) -> Measured:
        """Of this process and those forked from it until now."""
        training = {
            name: round(s, 3)
            for name, s in (training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}).items()
        }
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Measured(
            started=self.started,
            wall_s=round(time.perf_counter() - self._start, 3),
            cpu_s=round(sum(u.ru_utime + u.ru_stime for u in used), 3),
            attack_cpu_s=round(attack_cpu, 3),
            peak_memory_mb=round(max(u.ru_maxrss for u in used) / 1024, 1),
            **training,
        )


# --- forks for plugin code ------------------------------------------------------------------------


class _Fork(Child):
    """Plugin code of a run in a process of its own, under the suite's limits."""

    def __init__(self, job: Job, work: Callable[[Channel], None], report: Report) -> None:
        self._job, self._report, self._alive = job, report, 0.0
        self._log_size = _size(job)
        limits = TimeLimits(cpu_s=job.limits.run_seconds, idle_s=job.limits.idle_seconds)
        super().__init__(partial(_guarded, job, work), limits, self._tick)
        self._all = iter(self)

    def until(self, kind: str) -> Message:
        """The next message of this kind; rounds and tracebacks before it are reported, and what
        else plugin code may have sent is dropped. Raises :class:`Failed` if the process ends
        before.
        """
        for message in self._all:
            if message.kind == "failed":
                raise _failed(message.value)
            if message.kind == kind:
                return message
            if _REPORTED.get(message.kind) is type(message.value):
                self._report(message.kind, message.value)
        raise self._failure()

    def _tick(self) -> None:
        keep_log_short()
        if time.monotonic() - self._alive > _ALIVE_EVERY_S:
            self._alive = time.monotonic()
            self._report("alive", None)

    def _failure(self) -> Failed:
        party = self.party or f"training with the defense {self._job.defense}"
        if self.timed_out and self.limits != self.own_limits:  # those of an import or a constructor
            return Failed(
                "timeout", f"stopped: {party}: {self.ending}; {SECONDS} sets how long it may take"
            )
        if self.timed_out:
            limit = "run_seconds" if "CPU" in self.ending else "idle_seconds"
            return Failed("timeout", f"stopped: {self.ending} (limits.{limit})")
        ending = self.ending or "it ended the process with status 0"
        log = f"; see logs/{self._job.log_path.name}" if _size(self._job) > self._log_size else ""
        return Failed("failed", f"{party}: {ending}{log}")


def _failed(value: Any) -> Failed:
    """Of the message "failed"; its sender ran plugin code."""
    try:
        outcome, reason, by_adversary = value
        known: Outcome = outcome if outcome in ("skipped", "diverged") else "failed"
        return Failed(known, one_line(reason, _LONGEST_REASON), by_adversary is True)
    except (TypeError, ValueError, AttributeError) as error:
        return Failed("failed", f"what it sent cannot be read ({type(error).__name__}: {error})")


def _guarded(job: Job, work: Callable[[Channel], None], out: Channel) -> None:
    """``work``; an exception becomes the message "failed"."""
    prepare_fork(job)
    try:
        work(out)
    except BaseException as error:  # plugin code may raise anything: it costs this process alone
        log_failure(error)
        out.send("failed", [*outcome_of(error), isinstance(error, DivergedByAdversary)])


def _size(job: Job) -> int:
    return job.log_path.stat().st_size if job.log_path.exists() else 0


def trained(job: Job, report: Report) -> tuple[Run, Callable[[], Answers] | None]:
    """The trained run and, where an active attack took part in it, the way to that attack's
    answers.

    Raises :class:`Failed`.
    """
    packed, shadows = cached(job)
    if packed is not None and (shadows is not None or not wants_shadow_models(job)):
        return _made(job, packed, shadows), None
    known = packed is not None
    fork = _Fork(job, lambda out: train_run(job, out, known, shadows is not None), report)
    message = fork.until("trained")
    packed = packed or (message.value, dict(message.arrays))
    made = shadows_of(message)
    if not known and not job.attacker:
        save_training(job, packed)
    if made is not None:
        save_shadow_models(job, made)
    run = _made(job, packed, made or shadows)
    if job.attacker is None:
        fork.end()
        return run, None
    fork.more_cpu(job.limits.run_seconds)
    return run, lambda: _answers(fork, run)


def _made(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    try:
        return made_of(job, packed, shadows)
    # what a process that ran plugin code sent
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise Failed(*outcome_of(error)) from error


def asked(job: Job, cell: Cell, run: Run, report: Report) -> Answers:
    """A passive attack's answers. Raises :class:`Failed`."""

    def work(out: Channel) -> None:
        with at_work(f"attack {cell.attack}"):
            attack = cell.attack.make()[0]
            settle(job, cell.key)  # its constructor ran
            answers = ask(run, attack)
        out.send("answers", *answers.packed())

    return _answers(_Fork(job, work, report), run)


def _answers(fork: _Fork, run: Run) -> Answers:
    try:
        return Answers.unpacked(fork.until("answers"), len(run.scene.audits))
    finally:
        fork.end()


def analysed(
    job: Job, run: Run, judgement: Judgement | None, report: Report
) -> tuple[dict[str, Found], dict[str, np.ndarray], list[str]]:
    """(the findings of each analysis, their vectors, complaints about analyses that failed)."""
    found: dict[str, Found] = {}
    arrays: dict[str, np.ndarray] = {}
    complaints: list[str] = []

    def work(use: ComponentUse, out: Channel) -> None:
        analyse(run, use, judgement, out)

    for use in job.analyses:
        fork = _Fork(job, partial(work, use), report)
        try:
            one, vectors = received(use, fork.until("found"))
            found, arrays = found | one, arrays | vectors
        except Exception as error:  # Failed, or findings that cannot be read
            reason = error.reason if isinstance(error, Failed) else outcome_of(error)[1]
            complaints.append(f"the analysis '{use.label}' failed: {reason}")
        finally:
            fork.end()
    return found, arrays, complaints


# --- failures -------------------------------------------------------------------------------------


class Failed(Exception):
    """Why there is no score: outcome, one-line reason, and whether an adversary inside the
    federation caused it on purpose.
    """

    def __init__(self, outcome: Outcome, reason: str, by_adversary: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.by_adversary = outcome, reason, by_adversary


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason that a failure is recorded with; of plugin code with its
    name and place.
    """
    text = one_line(message_of(error), _LONGEST_REASON)
    if isinstance(error, SkipCell):
        return "skipped", text
    if isinstance(error, Diverged):
        return "diverged", text
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return "failed", f"out of memory: {text or 'an allocation failed'} (see limits.memory_gb)"
    if isinstance(error, UserError | PhaseError):
        return "failed", text
    party = raised_by(error)
    return "failed", (f"{party}: " if party else "") + describe_error(error)
