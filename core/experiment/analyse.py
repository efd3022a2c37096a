"""Ask a run's analyses what they find; one that fails costs its own findings, no more."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np

from fedbench.core.contract.analysis import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.parts import Parts
from fedbench.core.experiment.process import settle
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.train import Trained, models_of
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.signals.measure import rows_of
from fedbench.core.store.record import Found
from fedbench.core.words.explain import explain

MOST_NUMBERS = 2**22  # in all arrays of one analysis together
MOST_FOUND = 10_000  # names
LONGEST_NAME = 100  # characters


def analyse(
    job: Job, parts: Parts, scene: Scene, trained: Trained, judgement: Judgement | None
) -> tuple[dict[str, Found], dict[str, np.ndarray], list[str]]:
    """(what each found, its vectors under ``<analysis>:<name>``, complaints about those that failed)."""
    found: dict[str, Found] = {}
    arrays: dict[str, np.ndarray] = {}
    complaints: list[str] = []
    for label, analysis in parts.analyses.items():
        settle(job, f"analysis/{label}")  # what one leaves in the process's global state reaches no other
        try:
            findings = analysis.analyse(finished(job, parts, scene, trained, analysis), _own(judgement))
            if findings is None:
                continue
            found[label], vectors = _checked(label, findings)
        except (Exception, SystemExit) as error:  # other people's code
            complaints.append(f"the analysis '{label}' failed: {explain(error)}")
        else:
            arrays |= vectors
    return found, arrays, complaints


def _own(judgement: Judgement | None) -> Judgement | None:
    """Copies: what an analysis writes to reaches neither the stored scores nor the next analysis."""
    if judgement is None:
        return None
    targets = (
        replace(t, scores=t.scores.copy(), kind=t.kind.copy(), owner=t.owner.copy(), model_of=t.model_of.copy())
        for t in judgement.targets
    )
    return replace(judgement, targets=tuple(targets))


def _checked(label: str, findings: Findings) -> tuple[Found, dict[str, np.ndarray]]:
    """As they stand in a record; raises ``TypeError`` or ``ValueError`` for what is no findings."""
    if not isinstance(findings, Findings):
        raise TypeError(f"it returned {type(findings).__name__}, expected fedbench.core.Findings or None")
    size = sum(np.size(values) for values in findings.arrays.values())
    if len(findings.numbers) > MOST_FOUND or len(findings.arrays) > MOST_FOUND or size > MOST_NUMBERS:
        raise ValueError(f"it found more than {MOST_FOUND} numbers or arrays, or {MOST_NUMBERS} numbers in arrays")
    vectors = {}
    for name, values in findings.arrays.items():
        vector = np.array(values, dtype=np.float64)
        if vector.ndim != 1 or ":" in _named(name):
            raise ValueError(f"the array '{name}' has shape {list(vector.shape)}, expected a vector, and a name without ':'")
        vectors[f"{label}:{name}"] = vector
    units = {name: str(findings.units.get(name, ""))[:LONGEST_NAME] for name in findings.arrays}
    return Found(numbers={_named(name): _number(name, n) for name, n in findings.numbers.items()}, arrays=units), vectors


def _named(name: object) -> str:
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise ValueError(f"{name!r:.60} is no name: expected printable text of at most {LONGEST_NAME} characters")
    return name


def _number(name: str, number: object) -> Number:
    """With Python's own numbers: numpy's are taken too; raises ``ValueError`` for one that no record can hold."""
    if not isinstance(number, Number):
        raise TypeError(f"'{name}' is {type(number).__name__}, expected fedbench.core.Number")
    value, error = (None if v is None else float(v) for v in (number.value, number.error))
    if not all(v is None or math.isfinite(v) for v in (value, error)):
        raise ValueError(f"'{name}' is not finite; a number that does not apply is None")
    return Number(value, error, str(number.unit)[:LONGEST_NAME])


def finished(job: Job, parts: Parts, scene: Scene, trained: Trained, analysis: Analysis) -> FinishedRun:
    """The run as an analysis sees it: copies, so that what it writes to is its own, and the rows of its view alone, so that
    what it finds does not depend on what else was measured."""
    owners = np.full(len(scene.names), -1)
    for k, shard in enumerate(scene.shards):
        owners[shard] = k
    seen = rows_of({analysis.view}, job.clients, job.members, models_of(parts.defense, job.clients)) if analysis.needs else []
    return FinishedRun(
        clients=job.clients, members=job.members, facts=deepcopy(trained.facts), rounds=trained.rounds.copy(),
        malicious=tuple(range(job.clients - job.malicious, job.clients)) if job.attacker else (),
        rows=tuple(seen), signals=_needed(trained, analysis.needs, seen), pool=owners[scene.pool],
        assignment=trained.assignment.copy(), test_y=scene.data.test_y.copy(), predicted=trained.predicted.copy(),
        test_group=scene.test_group, group_names=scene.groups.names if scene.groups else (),
        group_of=scene.groups.of_client.copy() if scene.groups else None,
        thresholds=None if scene.thresholds is None else scene.thresholds.copy(),
        rng=lambda purpose: numpy_rng(job.seed, purpose),
    )  # fmt: skip


def _needed(trained: Trained, needs: frozenset[str], rows: list[int]) -> dict[str, np.ndarray]:
    if missing := sorted(needs - trained.signals.keys()):
        raise ValueError(f"it needs the signals {', '.join(missing)}, which this run did not measure")
    where = [trained.rows.index(r) for r in rows]
    # an axis along which a signal does not vary has length 1
    cut = {name: trained.signals[name] for name in needs}
    return {name: (a[:, where] if a.shape[1] == len(trained.rows) else a.copy()) for name, a in cut.items()}
