"""What a worker process does: one run, its cells, their records. A failing attack costs its cell, no more."""

from __future__ import annotations

import datetime
import hashlib
import os
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.execution.job import Cell, Job
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.record import Measured, Outcome, Provenance, Record, RoundRow, Utility
from fedbench.core.store.results import Results

Report = Callable[[str, Any], None]


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

    def measured(self, training: dict[str, float] | None = None, attack_cpu: float = 0.0) -> Measured:
        training = training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Measured(
            started=self.started, wall_s=round(time.perf_counter() - self.wall, 3),
            cpu_s=round(time.process_time() - self.cpu, 3), train_cpu_s=round(training["train_cpu_s"], 3),
            signals_cpu_s=round(training["signals_cpu_s"], 3), attack_cpu_s=round(attack_cpu, 3),
            peak_memory_mb=round(peak, 1),
        )  # fmt: skip


def record_for(job: Job, cell: Cell, outcome: Outcome, reason: str, measured: Measured, **more: Any) -> Record:
    """A record with everything the job already knows."""
    view = more.pop("view", "server")
    return Record(
        key=cell.key, run_key=job.run_key, outcome=outcome, reason=reason, suite=job.suite, setting=job.setting,
        coalition=job.coalition, members=list(job.members), seed=job.seed, defense=job.defense.recorded(),
        attack=cell.attack.recorded(), view=view, facts=job.facts(), provenance=Provenance(**job.provenance),
        measured=measured, **{"digests": job.digests, **more},
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
    try:
        scene, trained = _train(job, [a for _, a in attacks], report)
    except Exception as error:
        outcome, reason = explain(error)
        for cell, attack in attacks:
            record = record_for(job, cell, outcome, reason, clock.measured(), view=attack.view)
            _finish(results, job, cell, record, None, report)
        return
    for cell, attack in attacks:
        record, scores = _judge(job, cell, attack, scene, trained, clock)
        _finish(results, job, cell, record, scores, report)


def prepare_process(job: Job) -> None:
    """One thread, deterministic kernels, float32 as declared, and no more memory than allowed."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if job.memory_gb:
        limit = int(job.memory_gb * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def explain(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason a failure is recorded with; unexpected ones name file and line."""
    if isinstance(error, SkipCell):
        return "skipped", str(error)
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return "failed", f"out of memory: {error}"
    if isinstance(error, UserError):
        return "failed", str(error)
    cause: BaseException = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    where = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno}]" if frames else ""
    text = str(error) if error.__cause__ else f"{type(error).__name__}: {error}"
    return "failed", f"{text}{where}"


def _make_attacks(job: Job) -> tuple[list[tuple[Cell, Any]], list[tuple[Cell, str]]]:
    made, failed = [], []
    for cell in job.cells:
        try:
            made.append((cell, cell.attack.make()))
        except Exception as error:
            failed.append((cell, explain(error)[1]))
    return made, failed


def _train(job: Job, attacks: list[Any], report: Report) -> tuple[Any, Any]:
    from fedbench.core.execution import train
    from fedbench.core.signals.measure import COALITION, GLOBAL

    scene = train.set_scene(job)
    views = {a.view for a in attacks}
    extra = ({GLOBAL} if views & {"client", "external"} else set()) | (
        {COALITION} if "coalition" in views and job.members else set()
    )
    known = train.GRADIENT_SIGNALS | job.signals.keys()
    wanted = train.needed_signals(attacks) & known  # an attack that needs more is skipped when it asks
    trained = None if job.adversary else train.load(job, wanted, extra)
    if trained is None:
        trained = train.train(job, scene, attacks, lambda t: report("round", t))
        if not job.adversary:
            train.save(job, trained)
    return scene, trained


def _judge(job: Job, cell: Cell, attack: Any, scene: Any, trained: Any, clock: Clock) -> tuple[Record, bytes | None]:
    from fedbench.core.execution.judge import judge

    utility = Utility(accuracy=float(trained.test_correct.mean()), n_test=len(trained.test_correct))
    common = {"view": attack.view, "utility": utility, "history": [RoundRow(**row) for row in trained.history]}
    try:
        verdict = judge(job, cell, attack, scene, trained)
    except Exception as error:
        outcome, reason = explain(error)
        return record_for(job, cell, outcome, reason, clock.measured(trained.measured), **common), None
    scores = npz_bytes({**verdict.arrays, "test_correct": trained.test_correct})
    record = record_for(
        job, cell, "ok", "", clock.measured(trained.measured, verdict.cpu_s), targets=verdict.targets,
        pooled=verdict.pooled, notes=verdict.notes,
        digests={**job.digests, "scores": hashlib.sha256(scores).hexdigest()}, **common,
    )  # fmt: skip
    return record, scores


def _finish(results: Results, job: Job, cell: Cell, record: Record, scores: bytes | None, report: Report) -> None:
    results.write(cell.stem, record, scores)
    report("cell", (cell.key, record.outcome, record.reason))


def child_main(job: Job, connection: Any) -> None:
    """Entry of the worker process: its own process group, gone when the parent is gone."""
    os.setpgid(0, 0)
    _die_with_parent()

    def report(kind: str, what: Any) -> None:
        connection.send((kind, what))

    try:
        run_job(job, report)
        report("done", None)
    except KeyboardInterrupt:
        pass
    finally:
        connection.close()


def _die_with_parent() -> None:
    import multiprocessing
    import threading
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
