"""The worker process: one run, its cells, their record.

It runs no plugin code itself: the training, fedbench's own attacks together, each attack of another
package and each analysis are forked from here. Metrics are computed and records are written where
none of that code has run.
"""

from __future__ import annotations

import datetime
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedbench.core.contract.analysis import Judgement
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.federation.guard import PhaseError
from fedbench.core.metrics.intervals import SharedDraws
from fedbench.core.numerics.gpu import DeviceFault, fault_of
from fedbench.core.process.ask import SECONDS, is_own
from fedbench.core.process.channel import Channel, Message, TimeLimits, at_work, raised_by
from fedbench.core.process.child import Child
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.analyse import analyse, received
from fedbench.core.run.job import Cell, Job, cell_identity, identity, job_of
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
from fedbench.core.store.record import Costs, Outcome, RecordedFindings, record_of
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, digest_of_arrays
from fedbench.core.words import describe_error, message_of, one_line

Report = Callable[[str, Any], None]
"""called with the name of a callback of ``executor.Watcher`` and its value, or with "alive",
"stopped" or "done"
"""

# reports of a fork to the command, with the type of the value
_REPORTED = {"measured": list, "advanced": int, "traceback": str, "gpu memory": list}
_ALIVE_EVERY_S = 5.0
_LONGEST_REASON = 1000  # characters
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


class Failed(Exception):
    """Why there is no score: outcome, one-line reason, and whether an adversary inside the
    federation caused it on purpose.
    """

    def __init__(self, outcome: Outcome, reason: str, by_adversary: bool = False) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.by_adversary = by_adversary


AttackResult: TypeAlias = Answers | Failed | DeviceFault
"""answers of an attack, or why it gave none"""


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
    except DeviceFault as fault:
        channel.send("stopped", str(fault))
    except OSError as error:  # a full disk, no more processes: a fault of the machine
        channel.send("stopped", f"{error.filename or 'the run'}: {error.strerror or error}")
    except Exception as error:  # no plugin code runs here
        traceback.print_exc()
        log = f"; see logs/{job.log_path.name}" if job else ""
        channel.send("stopped", f"a defect of fedbench: {outcome_of(error)[1]}{log}")


def run_job(job: Job, report: Report) -> None:
    """Train (or take the cached training), judge every cell, write the record.

    Before another package's code runs, finished cells are written: it may end this process.
    """
    recorder = Recorder(job, report)
    try:
        run, active = trained(job, report)
    except Failed as failure:
        for cell in job.cells:
            recorder.add(cell, failure)
    else:
        if active is None:  # else the attack waits in the process that trained with it
            end_strays()
        try:
            _judge_all(recorder, run, active)
        except DeviceFault:
            recorder.write()
            raise
    end_strays()
    recorder.write()
    keep_log_short()


def _judge_all(recorder: Recorder, run: Run, active: Callable[[], AttackResult] | None) -> None:
    """Record the results of all cells in order; ``active`` returns the answers of an active
    attack.
    """
    cells = run.job.cells
    own = [cell for cell in cells if is_own([cell.attack.distribution])]
    analyses = [use.distribution for use in run.job.analyses]
    results: dict[str, AttackResult] = {}
    for cell in cells:
        foreign = not is_own([cell.attack.distribution, *analyses])
        if foreign:
            recorder.write()
        if active is not None:
            recorder.report("judging", cell.key)
            results[cell.key] = active()
        elif cell.key not in results:
            together = own if cell in own else [cell]
            results |= answers_of(together, run, recorder.report)
        _judge(recorder, cell, run, results[cell.key])
        if foreign:
            end_strays()


def _judge(recorder: Recorder, cell: Cell, run: Run, answers: AttackResult) -> None:
    """Record the scores of one cell, or why it has none, and the findings of the analyses."""
    training = run.trained
    scored = None
    failure = None
    try:
        if not isinstance(answers, Answers):
            raise answers
        scored = verdict(run, cell, answers, recorder.draws)
    except DeviceFault:
        raise
    except Exception as error:
        failure = failure_of(error)
    judgement = scored.judgement if scored else None
    findings, vectors, complaints = analysed(run, judgement, recorder.report)
    if scored is None:  # vectors are kept with scores alone
        attack_cpu = 0.0
        arrays = {}
        findings = {name: RecordedFindings(numbers=f.numbers) for name, f in findings.items()}
        fields: dict[str, Any] = {"notes": training.notes}
    else:
        attack_cpu = scored.cpu_s
        arrays = {**scored.arrays, **vectors, **training.arrays}
        fields = {
            "notes": scored.notes,
            "targets": scored.targets,
            "pooled": scored.pooled,
            "digests": {"scores": digest_of_arrays(arrays)},
        }
    recorder.add(
        cell,
        failure,
        arrays,
        **fields,
        utility=training.utility,
        history=training.history,
        facts=training.facts,
        analyses=findings,
        complaints=[*training.complaints, *complaints],
        measured=recorder.clock.costs(training.measured, attack_cpu),
    )


# --- records --------------------------------------------------------------------------------------


class Recorder:
    """The records of a run's cells, which are written and reported together."""

    def __init__(self, job: Job, report: Report) -> None:
        self.job = job
        self.report = report
        self.clock = Clock()
        self.draws = SharedDraws()
        self._identity = identity(job)
        self._of_run = {
            "suite": job.suite,
            "setting": job.setting.name,
            "defense": {"label": job.defense.label},
            "described": job.described(),
            "provenance": job.provenance.model_dump(),
        }
        self._results: list[CellResult] = []

    def add(
        self,
        cell: Cell,
        failure: Failed | None = None,
        arrays: dict[str, np.ndarray] | None = None,
        **fields: Any,
    ) -> None:
        """Add the record of a cell with these fields and all that the job knows."""
        fields["outcome"] = "ok"
        if failure is not None:
            fields |= {
                "outcome": failure.outcome,
                "reason": failure.reason,
                "by_adversary": failure.by_adversary,
            }
        fields["notes"] = [*cell.notes, *fields.get("notes", ())]
        fields.setdefault("measured", self.clock.costs())
        record = record_of(
            {"run": self._identity, **cell_identity(self.job, cell)},
            self.job.coalition,
            **self._of_run,
            **fields,
            attack={"label": cell.attack.label},
            view=cell.request.view,
            against=sorted(cell.request.against),
        )
        self._results.append(CellResult(record, arrays or {}))

    def write(self) -> None:
        """Write the cells to the run's record and report them: a cell counts as done once it is on
        disk.
        """
        if self._results:
            Results(Path(self.job.results)).write(self.job.stem, self._results)
        for r in (result.record for result in self._results):
            self.report("cell", [r.key, r.outcome, r.reason, r.by_adversary])
        self._results = []


class Clock:
    """Wall and CPU time of the run so far."""

    def __init__(self) -> None:
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._start = time.perf_counter()

    def costs(self, training: dict[str, float] | None = None, attack_cpu: float = 0.0) -> Costs:
        """Return the costs of this process and those forked from it until now."""
        usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        seconds = {
            **(training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}),
            "wall_s": time.perf_counter() - self._start,
            "cpu_s": sum(u.ru_utime + u.ru_stime for u in usages),
            "attack_cpu_s": attack_cpu,
        }
        return Costs(
            started=self.started,
            peak_memory_mb=round(max(u.ru_maxrss for u in usages) / 1024, 1),
            **{name: round(s, 3) for name, s in seconds.items()},
        )


# --- forks for plugin code ------------------------------------------------------------------------


class _Fork(Child):
    """Plugin code of a run in a process of its own, under the suite's limits."""

    def __init__(self, job: Job, work: Callable[[Channel], None], report: Report) -> None:
        self._job = job
        self._report = report
        self._alive = 0.0
        self._log_size = _log_size(job)
        super().__init__(partial(_guarded, job, work), _limits(job), self._tick)
        self._all = iter(self)

    def until(self, kind: str) -> Message:
        """Return the next message of this kind; rounds and tracebacks before it are reported, other
        messages of plugin code are dropped. Raises :class:`Failed` if the process ends before.
        """
        for message in self._all:
            if message.kind == "failed":
                raise _failed(message.value)
            if message.kind == "lost":
                self.end()
                raise DeviceFault(one_line(str(message.value), _LONGEST_REASON))
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
        if _log_size(self._job) > self._log_size:
            ending += f"; see logs/{self._job.log_path.name}"
        return Failed("failed", f"{party}: {ending}")


def _failed(value: Any) -> Failed:
    """Return the failure in the message "failed", which plugin code may have sent."""
    try:
        outcome, reason, by_adversary = value
        if outcome not in ("skipped", "diverged"):
            outcome = "failed"
        return Failed(outcome, one_line(reason, _LONGEST_REASON), by_adversary is True)
    except (TypeError, ValueError, AttributeError) as error:
        return Failed("failed", f"what it sent cannot be read ({type(error).__name__}: {error})")


def _guarded(job: Job, work: Callable[[Channel], None], out: Channel) -> None:
    """Do ``work``; an exception becomes the message "failed"."""
    prepare_fork(job)
    try:
        work(out)
    except BaseException as error:  # plugin code may raise anything: it costs this process alone
        log_failure(error)
        if fault := fault_of(error):
            out.send("lost", fault)
            return
        out.send("failed", [*outcome_of(error), isinstance(error, DivergedByAdversary)])


def _limits(job: Job) -> TimeLimits:
    return TimeLimits(cpu_s=job.limits.run_seconds, idle_s=job.limits.idle_seconds)


def _log_size(job: Job) -> int:
    return job.log_path.stat().st_size if job.log_path.exists() else 0


def trained(job: Job, report: Report) -> tuple[Run, Callable[[], AttackResult] | None]:
    """Return the trained run and, where an active attack took part in it, a function that returns
    that attack's answers. Raises :class:`Failed`.
    """
    packed, shadows = cached(job)
    if packed is not None and (shadows is not None or not wants_shadow_models(job)):
        return _run_of(job, packed, shadows), None
    done = {"trained": packed is not None, "shadows": shadows is not None}
    fork = _Fork(job, lambda out: train_run(job, out, **done), report)
    message = fork.until("trained")
    if packed is None:
        packed = message.value, dict(message.arrays)
        if not job.attacker:
            save_training(job, packed)
    if trained_shadows := shadows_of(message):
        shadows = trained_shadows
        save_shadow_models(job, shadows)
    run = _run_of(job, packed, shadows)
    if job.attacker is None:
        fork.end()
        return run, None
    fork.more_cpu(job.limits.run_seconds)
    return run, lambda: _last_answers(fork, run)


def _run_of(job: Job, packed: Packed, shadows: ShadowLogits | None) -> Run:
    try:
        return made_of(job, packed, shadows)
    # of data that came from a process with plugin code
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise failure_of(error) from error


def answers_of(cells: Sequence[Cell], run: Run, report: Report) -> dict[str, AttackResult]:
    """Return the answers of passive attacks, or why there are none, by the cell's key.

    One fork asks them in turn. The first failure ends it, and another one begins with the next
    attack; nothing follows a fault of the device.
    """
    results: dict[str, AttackResult] = {}
    while len(results) < len(cells):
        rest = cells[len(results) :]
        fork = _Fork(run.job, partial(_ask_in_turn, run, rest), report)
        for cell in rest:
            report("judging", cell.key)
            results[cell.key] = answers = _next_answers(fork, run)
            if not isinstance(answers, Answers):
                break
        fork.end()
        if isinstance(answers, DeviceFault):
            break
    return results


def _ask_in_turn(run: Run, cells: Sequence[Cell], out: Channel) -> None:
    """Send the answers of passive attacks, each under the limits of a fork."""
    for cell in cells:
        with at_work(f"attack {cell.attack}", _limits(run.job)):
            settle(run.job, "start")
            attack = cell.attack.make()[0]
            settle(run.job, cell.key)  # its constructor ran
            answers = ask(run, attack)
        out.send("answers", *answers.packed())


def _last_answers(fork: _Fork, run: Run) -> AttackResult:
    answers = _next_answers(fork, run)
    fork.end()
    return answers


def _next_answers(fork: _Fork, run: Run) -> AttackResult:
    try:
        return Answers.unpacked(fork.until("answers"), len(run.scene.audits))
    except DeviceFault as fault:
        return fault
    except Exception as error:
        return failure_of(error)


def analysed(
    run: Run, judgement: Judgement | None, report: Report
) -> tuple[dict[str, RecordedFindings], dict[str, np.ndarray], list[str]]:
    """Return (the findings of each analysis, their vectors, complaints about those that failed)."""
    findings: dict[str, RecordedFindings] = {}
    arrays: dict[str, np.ndarray] = {}
    complaints = []

    def work(use: ComponentUse, out: Channel) -> None:
        analyse(run, use, judgement, out)

    for use in run.job.analyses:
        fork = _Fork(run.job, partial(work, use), report)
        try:
            finding, vectors = received(use, fork.until("found"))
            findings |= finding
            arrays |= vectors
        except DeviceFault:
            raise
        except Exception as error:  # Failed, or findings that cannot be read
            complaints.append(f"the analysis '{use.label}' failed: {failure_of(error).reason}")
        finally:
            fork.end()
    return findings, arrays, complaints


def failure_of(error: Exception) -> Failed:
    """Return a failure itself, or the failure that another exception is recorded as."""
    return error if isinstance(error, Failed) else Failed(*outcome_of(error))


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and the one-line reason that a failure is recorded with; a failure of
    plugin code has its name and place.
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
