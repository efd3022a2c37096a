"""Ask an analysis what it finds in a run."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np

from fedbench.core.contract.analysis import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.process.channel import Channel, Message, at_work
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Job
from fedbench.core.run.process import settle
from fedbench.core.run.scene import Scene
from fedbench.core.run.train import Trained
from fedbench.core.run.trained_run import Run
from fedbench.core.signals.measure import rows_of
from fedbench.core.store.record import RecordedFindings

MOST_NUMBERS = 2**22  # in all arrays of one analysis together
MOST_FOUND = 10_000  # names
LONGEST_NAME = 100  # characters


def analyse(
    job: Job, use: ComponentUse, run: Run, judgement: Judgement | None, out: Channel
) -> None:
    """What one analysis finds, sent through ``out`` as "found", with None where it has nothing to
    say.
    """
    with at_work(f"analysis {use}"):
        analysis = use.make()[0]
        settle(job, f"analysis/{use.label}")  # its constructor ran
        findings = analysis.analyse(finished(job, run, analysis), own_judgement(judgement))
    if findings is None:
        out.send("found")
    else:
        found, vectors = checked(findings)
        out.send("found", found.model_dump(mode="json"), vectors)


def received(
    use: ComponentUse, message: Message
) -> tuple[dict[str, RecordedFindings], dict[str, np.ndarray]]:
    """(what it found, its vectors under ``<analysis>:<name>``); empty where that is nothing."""
    if message.value is None:
        return {}, {}
    found = RecordedFindings.model_validate(message.value)
    return {use.label: found}, {
        f"{use.label}:{name}": message.arrays[name] for name in found.arrays
    }


def own_judgement(judgement: Judgement | None) -> Judgement | None:
    """Copies: what an analysis writes to reaches neither the stored scores nor the next
    analysis.
    """
    if judgement is None:
        return None
    targets = (
        replace(
            t,
            scores=t.scores.copy(),
            kind=t.kind.copy(),
            owner=t.owner.copy(),
            model_of=t.model_of.copy(),
            y=t.y.copy(),
        )
        for t in judgement.targets
    )
    return replace(judgement, targets=tuple(targets))


def checked(findings: Findings) -> tuple[RecordedFindings, dict[str, np.ndarray]]:
    """As they stand in a record; raises ``TypeError`` or ``ValueError`` for what is no findings."""
    if not isinstance(findings, Findings):
        raise TypeError(
            f"it returned {type(findings).__name__}, expected fedbench.core.Findings or None"
        )
    size = sum(np.size(values) for values in findings.arrays.values())
    if (
        len(findings.numbers) > MOST_FOUND
        or len(findings.arrays) > MOST_FOUND
        or size > MOST_NUMBERS
    ):
        raise ValueError(
            f"it found more than {MOST_FOUND} numbers or arrays, or {MOST_NUMBERS} numbers in "
            "arrays"
        )
    vectors = {}
    for name, values in findings.arrays.items():
        vector = np.array(values, dtype=np.float64)
        if vector.ndim != 1 or ":" in _named(name):
            raise ValueError(
                f"the array '{name}' has shape {list(vector.shape)}, expected a vector, and a name "
                "without ':'"
            )
        vectors[name] = vector
    units = {name: str(findings.units.get(name, ""))[:LONGEST_NAME] for name in findings.arrays}
    return RecordedFindings(
        numbers={_named(name): _number(name, n) for name, n in findings.numbers.items()},
        arrays=units,
    ), vectors


def _named(name: object) -> str:
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise ValueError(
            f"{name!r:.60} is no name: expected printable text of at most {LONGEST_NAME} characters"
        )
    return name


def _number(name: str, number: object) -> Number:
    """With Python's own numbers: numpy's are taken too; raises ``ValueError`` for one that no
    record can hold.
    """
    if not isinstance(number, Number):
        raise TypeError(f"'{name}' is {type(number).__name__}, expected fedbench.core.Number")
    value, error = (None if v is None else float(v) for v in (number.value, number.error))
    if not all(v is None or math.isfinite(v) for v in (value, error)):
        raise ValueError(f"'{name}' is not finite; a number that does not apply is None")
    return Number(value, error, str(number.unit)[:LONGEST_NAME])


def finished(job: Job, run: Run, analysis: Analysis) -> FinishedRun:
    """The run as an analysis sees it: copies, so that what it writes to is its own, and the rows of
    its views alone, so that what it finds does not depend on what else was measured.
    """
    scene, trained = run.scene, run.trained
    views, several = {analysis.view, *analysis.also}, len(job.coalitions)
    seen = (
        rows_of(views, job.clients, job.averaged, run.n_models, several) if analysis.needs else []
    )
    return FinishedRun(
        clients=job.clients,
        members=job.members,
        facts=deepcopy(trained.facts),
        rounds=trained.rounds.copy(),
        malicious=tuple(range(job.clients - job.malicious, job.clients)) if job.attacker else (),
        rows=tuple(seen),
        signals=_needed(trained, analysis.needs, seen),
        pool=_trained_by(scene, trained),
        pool_y=scene.y_of(scene.pool),
        pool_canary=scene.canary_of(scene.pool),
        outsider_of=scene.split.tested_by()[scene.pool],
        assignment=trained.assignment.copy(),
        test_y=scene.data.test_y.copy(),
        predicted=trained.predicted.copy(),
        test_group=scene.test_group.copy(),
        group_names=scene.groups.names if scene.groups else (),
        group_of=scene.groups.of_client.copy() if scene.groups else None,
        thresholds=None if scene.thresholds is None else scene.thresholds.copy(),
        **{name: counts.copy() for name, counts in vars(trained.usage).items()},
        sizes=np.array([len(shard) for shard in scene.shards]),
        rng=lambda purpose: numpy_rng(job.seed, purpose),
    )


def _trained_by(scene: Scene, trained: Trained) -> np.ndarray:
    """[N] the client that trained on each sample of the pool; -1 for no client, -2 if its owner
    held it out.
    """
    pool = scene.pool
    return np.where(np.isin(pool, trained.held_out), -2, scene.split.trained_by()[pool])


def _needed(trained: Trained, needs: frozenset[str], rows: list[int]) -> dict[str, np.ndarray]:
    if broken := sorted(trained.failed[name] for name in needs if name in trained.failed):
        raise UserError(*broken)
    if missing := sorted(needs - trained.signals.keys()):
        raise ValueError(
            f"it needs the signals {', '.join(missing)}, which this run did not measure"
        )
    where = [trained.rows.index(r) for r in rows]
    # an axis along which a signal does not vary has length 1
    cut = {name: trained.signals[name] for name in needs}
    return {
        name: (a[:, where] if a.shape[1] == len(trained.rows) else a.copy())
        for name, a in cut.items()
    }
