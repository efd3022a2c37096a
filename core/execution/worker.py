"""What a worker process does: one run, its cells, their records.

It runs no component's code itself: the training, each attack and each analysis are forked from here (``forked``). Metrics are
computed and records written where none of that code has run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbench.core.execution.clock import Clock
from fedbench.core.execution.forked import Report, analysed, asked, trained
from fedbench.core.execution.outcome import Failed, outcome_of
from fedbench.core.experiment.job import Cell, Job
from fedbench.core.experiment.judge import Answers
from fedbench.core.experiment.process import end_strays, keep_log_short, log_path, stand_alone
from fedbench.core.experiment.run import Run
from fedbench.core.experiment.verdict import verdict
from fedbench.core.metrics.kept import Kept
from fedbench.core.store.record import Found, Identity, Measured, Outcome, Record, RoundRow, overall_auc
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult, digest_of_arrays


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
