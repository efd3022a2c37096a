"""Ask an analysis for its findings in a run."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import numpy as np

from fedbench.core.contract.analysis import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.process.channel import Channel, Message, at_work
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.process import settle
from fedbench.core.run.train import Run
from fedbench.core.signals.measure import rows_of
from fedbench.core.store.record import RecordedFindings

MOST_NUMBERS = 2**22  # in all arrays of one analysis together
MOST_FOUND = 10_000  # names
LONGEST_NAME = 100  # characters


def analyse(
    run: Run,
    use: ComponentUse,
    judgement: Judgement | None,
    out: Channel,
) -> None:
    """Send the findings of one analysis through ``out`` as "found"; None where it has none."""
    with at_work(f"analysis {use}"):
        analysis = use.make()[0]
        settle(run.job, f"analysis/{use.label}")  # its constructor ran
        findings = analysis.analyse(finished(run, analysis), deepcopy(judgement))
    if findings is None:
        out.send("found")
    else:
        record, vectors = checked(findings)
        out.send("found", record.model_dump(mode="json"), vectors)


def received(
    use: ComponentUse, message: Message
) -> tuple[dict[str, RecordedFindings], dict[str, np.ndarray]]:
    """Return (the findings under the analysis's label, their vectors under ``<analysis>:<name>``);
    empty where it has none.
    """
    if message.value is None:
        return {}, {}
    findings = RecordedFindings.model_validate(message.value)
    vectors = {f"{use.label}:{name}": message.arrays[name] for name in findings.arrays}
    return {use.label: findings}, vectors


# --- findings -------------------------------------------------------------------------------------


def checked(findings: Findings) -> tuple[RecordedFindings, dict[str, np.ndarray]]:
    """Return findings as a record holds them, and their vectors. Raises ``TypeError`` or
    ``ValueError`` for invalid ones.
    """
    if not isinstance(findings, Findings):
        raise TypeError(
            f"it returned {type(findings).__name__}, expected fedbench.core.Findings or None"
        )
    size = sum(np.size(values) for values in findings.arrays.values())
    most = max(len(findings.numbers), len(findings.arrays))
    if most > MOST_FOUND or size > MOST_NUMBERS:
        raise ValueError(
            f"it found more than {MOST_FOUND} numbers or arrays, or {MOST_NUMBERS} numbers in "
            "arrays"
        )
    numbers = {_name(name): _number(name, n) for name, n in findings.numbers.items()}
    vectors = {name: _vector(name, values) for name, values in findings.arrays.items()}
    units = {name: str(findings.units.get(name, ""))[:LONGEST_NAME] for name in vectors}
    return RecordedFindings(numbers=numbers, arrays=units), vectors


def _vector(name: str, values: Any) -> np.ndarray:
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or ":" in _name(name):
        raise ValueError(
            f"the array '{name}' has shape {list(vector.shape)}, expected a vector, and a name "
            "without ':'"
        )
    return vector


def _name(name: object) -> str:
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise ValueError(
            f"{name!r:.60} is no name: expected printable text of at most {LONGEST_NAME} characters"
        )
    return name


def _number(name: str, number: object) -> Number:
    """Return a number with Python's own floats. Raises ``ValueError`` for one that no record can
    hold.
    """
    if not isinstance(number, Number):
        raise TypeError(f"'{name}' is {type(number).__name__}, expected fedbench.core.Number")
    value, error = (None if v is None else float(v) for v in (number.value, number.error))
    if not all(v is None or math.isfinite(v) for v in (value, error)):
        raise ValueError(f"'{name}' is not finite; a number that does not apply is None")
    return Number(value, error, str(number.unit)[:LONGEST_NAME])


# --- what an analysis sees ------------------------------------------------------------------------


def finished(run: Run, analysis: Analysis) -> FinishedRun:
    """Return the run as an analysis sees it: copies, and the rows of its views alone, so that its
    findings do not depend on what else was measured.
    """
    job = run.job
    scene = run.scene
    trained = run.trained
    pool = scene.pool
    groups = scene.groups
    rows = _rows(run, analysis)
    malicious: tuple[int, ...] = ()
    if job.attacker:
        malicious = tuple(range(job.clients - job.malicious, job.clients))
    return FinishedRun(
        clients=job.clients,
        members=job.members,
        facts=deepcopy(trained.facts),
        rounds=trained.rounds.copy(),
        malicious=malicious,
        rows=tuple(rows),
        signals=_signals(
            run, analysis.needs - (analysis.may_lack & run.trained.unserved.keys()), rows
        ),
        pool=_owners(run),
        pool_y=scene.y_of(pool),
        pool_canary=scene.canary_of(pool),
        outsider_of=scene.split.tested_by()[pool],
        assignment=trained.assignment.copy(),
        test_y=scene.data.test_y.copy(),
        predicted=trained.predicted.copy(),
        test_group=scene.test_group.copy(),
        group_names=groups.names if groups else (),
        group_of=groups.of_client.copy() if groups else None,
        thresholds=deepcopy(scene.thresholds),
        **deepcopy(vars(trained.usage)),
        sizes=np.array([len(shard) for shard in scene.shards]),
        rng=lambda purpose: numpy_rng(job.seed, purpose),
    )


def _rows(run: Run, analysis: Analysis) -> list[int]:
    """Return the ids of the rows that an analysis sees."""
    if not analysis.needs:
        return []
    job = run.job
    views = {analysis.view, *analysis.also}
    coalitions = len(job.coalitions)
    return rows_of(views, job.clients, job.averaged, run.trained.n_models, coalitions)


def _owners(run: Run) -> np.ndarray:
    """Return [N] the client that trained on each sample of the pool; -1 for no client, -2 if its
    owner held it out.
    """
    pool = run.scene.pool
    owners = run.scene.split.trained_by()[pool]
    owners[np.isin(pool, run.trained.held_out)] = -2
    return owners


def _signals(
    run: Run,
    needs: frozenset[str],
    rows: list[int],
) -> dict[str, np.ndarray]:
    trained = run.trained
    reasons = trained.failed | trained.unserved
    if broken := sorted(reasons[name] for name in needs if name in reasons):
        raise UserError(*broken)
    if missing := sorted(needs - trained.signals.keys()):
        raise ValueError(
            f"it needs the signals {', '.join(missing)}, which this run did not measure"
        )
    positions = [trained.rows.index(row) for row in rows]
    signals = {name: trained.signals[name] for name in needs}
    for name, a in signals.items():
        # an axis along which a signal does not vary has length 1
        signals[name] = a[:, positions] if a.shape[1] == len(trained.rows) else a.copy()
    return signals
