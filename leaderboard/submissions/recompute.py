"""Every number of a record that its score file decides, made again from it: the metrics with their errors, and more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np

from fedbench.core import EXCLUDED, MEMBER
from fedbench.core.metrics import Group, Score, score_groups
from fedbench.core.metrics.registry import METRICS, metric
from fedbench.core.metrics.rounds import maximum
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.core.store.scores import DecisionScores, TargetScores

_TOLERANCE = 1e-9  # relative; sums may be rounded in another order on another processor
_ROUNDED = 1e-6  # null values are stored in single precision
_POOLED = -1  # the target under which a run draws the bootstrap of all targets together
# What stands in a record and no score file decides, in the words of docs/submissions.md.
NOT_RECOMPUTED = (
    "single rounds: calibrated and best round, maximum, and the null values of these (the scores of every round are not kept)",
    "decisions: the threshold itself, the calibrated and the best round (some threshold gives what is said of the last one)",
    "the test accuracy and the training loss of rounds before the last",
    "findings of analyses, facts of defenses, notes",
    "times, memory, machine and versions",
)


def recompute(loaded: LoadedRecord) -> list[str]:
    """Every number of a record with scores that its score file does not give, in words; [] where all agree.

    Raises ``UserError`` for a score file that cannot be read.
    """
    record = loaded.record
    judged, correct = loaded.everything()
    found: list[str] = []
    for target, candidates in zip(record.targets, judged.values(), strict=True):
        again = _groups(record.seed, target.target, candidates)
        found += _of_groups(loaded, f"target {target.target}", target.groups, again)
        found += _of_rounds(f"target {target.target}", target, candidates)
        found += _of_maximum(loaded, target, candidates)
        if target.decision is not None:
            found += _of_decision(f"target {target.target}", target.decision, candidates)
    parts = ("scores", "kind", "ids", "in_mix", "canary")
    everyone = Candidates(*(np.concatenate([getattr(c, part) for c in judged.values()]) for part in parts))
    pooled = _groups(record.seed, _POOLED, everyone)
    found += _of_groups(loaded, "pooled", record.pooled, pooled)
    said, share = record.utility, float(correct.mean()) if len(correct) else math.nan
    if said is not None and (said.n_test != len(correct) or not _same(said.accuracy, share)):
        found.append(f"test accuracy is {said.accuracy!r} of {said.n_test}, its scores give {share!r} of {len(correct)}")
    return found


def draws_differ(loaded: LoadedRecord) -> bool:
    """Whether the record's standard errors were drawn with another numpy, whose draws need not be those of this one."""
    return loaded.record.provenance.numpy != version("numpy")


def _groups(seed: int, target: int, c: Candidates) -> dict[Group, Score]:
    """As a run computes them, with the same draws."""
    keep = c.kind != EXCLUDED
    rng = numpy_rng(seed, "bootstrap", client=target)
    return score_groups(c.scores[keep], c.kind[keep], c.canary[keep], rng, c.in_mix[keep])


def _of_groups(loaded: LoadedRecord, where: str, said: dict[Group, Score], again: dict[Group, Score]) -> Iterator[str]:
    if said.keys() != again.keys():
        yield f"{where}: it has the groups {', '.join(said) or 'none'}, its scores give {', '.join(again) or 'none'}"
        return
    names = [m.name for m in METRICS]
    for group, score in said.items():
        other = again[group]
        if unknown := sorted(score.values.keys() - set(names)):
            yield f"{where}, {group}: it has metrics that fedbench does not know: {', '.join(unknown)}"
        numbers: list[tuple[str, float | None, float | None]] = [
            ("members", score.n_members, other.n_members), ("non-members", score.n_nonmembers, other.n_nonmembers),
            *((name, score.value(name), other.value(name)) for name in names),
        ]  # fmt: skip
        if not draws_differ(loaded):
            numbers += [(f"the error of {name}", score.error(name), other.error(name)) for name in names]
        elif not _near(score.error("auc"), other.error("auc")):
            yield f"{where}, {group}: the error of auc is {score.error('auc')!r}, other draws give {other.error('auc')!r}"
        for name, value, found in numbers:
            if not _same(value, found):
                yield f"{where}, {group}: {name} is {value!r}, its scores give {found!r}"


def _of_rounds(where: str, said: TargetScores, c: Candidates) -> Iterator[str]:
    """The last round is the score (``Attack.score_rounds``), over all candidates; the best round is no worse than it."""
    if (rounds := said.rounds) is None:
        return
    keep = c.kind != EXCLUDED
    scores, member = c.scores[keep], c.kind[keep] == MEMBER
    for name, value in (("auc", rounds.last_auc), ("tf01", rounds.last_tf01)):
        if not _same(value, found := metric(name).value(scores, member)):
            yield f"{where}: {name} of its last round is {value!r}, its scores give {found!r}"
    if rounds.best_tf01 is None and rounds.best_auc < rounds.last_auc - _TOLERANCE:
        yield f"{where}: the best round's AUC {rounds.best_auc!r} is below the last one's {rounds.last_auc!r}"
    if rounds.best_tf01 is not None and rounds.last_tf01 is not None and rounds.best_tf01 < rounds.last_tf01 - _TOLERANCE:
        yield f"{where}: the best round's TF01 {rounds.best_tf01!r} is below the last one's {rounds.last_tf01!r}"
    numbers = [v for v in rounds.model_dump(exclude={"best_round"}).values() if v is not None]
    if not all(0 <= v <= 100 for v in numbers):
        yield f"{where}: a number of its single rounds is no AUC or TF01"


def _of_maximum(loaded: LoadedRecord, said: TargetScores, c: Candidates) -> Iterator[str]:
    """Of an attack on the whole trajectory, its null included; over single rounds it is no less than the last one's."""
    where, rng = f"target {said.target}", shuffle_rng(loaded.record.seed, said.target)
    again = maximum(c.scores[None], c.kind, rng)
    if said.maximum is None or again is None:
        if (said.maximum is None) != (again is None):
            yield f"{where}: its scores do not say {'why it has a' if again is None else 'that it has no'} maximum over rounds"
        return
    pairs = [("AUC", said.maximum.auc, again.auc), ("advantage", said.maximum.advantage, again.advantage)]
    nulls = list(zip(("AUC", "advantage"), loaded.null_maxima(said.target), (again.null_auc, again.null_advantage), strict=True))
    if said.rounds is not None:
        low = [(name, v, w) for name, v, w in pairs if v < w - _TOLERANCE]
        yield from (f"{where}: the largest {name} {v!r} is below the last round's {w!r}" for name, v, w in low)
    else:
        other = [(name, v, w) for name, v, w in pairs if not _same(v, w)]
        yield from (f"{where}: the largest {name} is {v!r}, its scores give {w!r}" for name, v, w in other)
        if said.maximum.rounds != 1:
            yield f"{where}: its maximum is of {said.maximum.rounds} rounds, but it has one score"
    for name, of, found in nulls:
        below = len(of) != len(found) or (of < found - _ROUNDED).any()
        if below or (said.rounds is None and (of > found + _ROUNDED).any()):
            yield f"{where}: the null of the largest {name} is not what its scores give in the same shuffles"


def _of_decision(where: str, said: DecisionScores, c: Candidates) -> Iterator[str]:
    """Whether there is a threshold at which the last round's scores give what is said of it."""
    keep = c.kind != EXCLUDED
    scores, member = c.scores[keep], c.kind[keep] == MEMBER
    if not member.any() or member.all():
        yield f"{where}: it has decisions without members or non-members"
        return
    values, group = np.unique(scores, return_inverse=True)
    of_members = np.bincount(group[member], minlength=len(values))
    above = np.concatenate([[0], np.cumsum(of_members[::-1])])  # members above the i-th largest distinct score
    others = np.concatenate([[0], np.cumsum((np.bincount(group, minlength=len(values)) - of_members)[::-1])])
    recall, false = above / member.sum(), others / (~member).sum()
    called = above + others
    for i in np.flatnonzero(np.abs(recall - said.last_recall) <= _TOLERANCE):
        precision = above[i] / called[i] if called[i] else None
        if _same(said.last_accuracy, float((recall[i] + 1 - false[i]) / 2)) and _same(said.last_precision, precision):
            return
    yield f"{where}: no threshold on its scores gives accuracy {said.last_accuracy!r} with recall {said.last_recall!r}"


def _near(one: float | None, other: float | None) -> bool:
    """Whether two errors may be of other draws of one bootstrap: of 200 replicates, each is right to 5 %, so a factor of two is
    ten of its own errors. TF01's are coarse, and not compared."""
    if one is None or other is None:
        return one is other
    return other / 2 <= one <= 2 * other


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
