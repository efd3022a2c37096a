"""A run's training, its attacks and its analyses, each in a process of its own; plain data come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedbench.core.apart.channel import Channel, Message, at_work
from fedbench.core.apart.child import Child, Patience
from fedbench.core.contract.analysis import Judgement
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.outcome import Failed, outcome_of
from fedbench.core.experiment import cache
from fedbench.core.experiment.analyse import analyse_apart, received
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.judge import Answers, ask
from fedbench.core.experiment.process import keep_log_short, log_failure, log_path, prepare_process, settle
from fedbench.core.experiment.run import Packed, Run, cached, made_of, shadows_of, train_apart, wants_shadow_models
from fedbench.core.experiment.shadow_models import ShadowLogits, save_shadow_models
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.registry.ask import SECONDS
from fedbench.core.store.record import Found

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
        cache.save(job, packed)
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
