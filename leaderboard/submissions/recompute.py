"""Recompute the metrics of imported records from their scores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

import numpy as np
from rich.console import Console
from rich.progress import track

from fedbench.core import EXCLUDED, MEMBER, UserError
from fedbench.core.metrics import Group, Score, score_groups
from fedbench.core.metrics.registry import METRICS, metric
from fedbench.core.metrics.rounds import maximum
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.reading import Candidates, LoadedRecord, run_by_run
from fedbench.core.store.scores import TargetScores
from fedbench.core.words import one_line

_TOLERANCE = 1e-9  # relative; sums may be rounded in another order on another processor
_ROUNDED = 1e-6  # null values are stored in single precision
_POOLED = -1  # the target under which a run draws the bootstrap of all targets together
_MOST_SHOWN = 20  # records with wrong numbers
NOT_RECOMPUTED = (
    "single rounds: calibrated and best round, maximum, and the null values of these (the scores "
    "of every round are not kept)",
    "decisions of attacks with a threshold of their own",
    "the test accuracy and the training loss of rounds before the last",
    "findings of analyses, facts of defenses, notes",
    "times, memory, machine and versions",
)


def require_recomputed(records: Sequence[LoadedRecord]) -> None:
    """Raises ``UserError`` for records with a number that their scores do not give, and for runs
    that contradict themselves.
    """
    scored = [r for r in records if r.record.outcome == "ok"]
    console = Console(stderr=True)
    wrong = []
    shown = track(
        scored,
        "recomputing metrics",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    for loaded in run_by_run(shown):
        try:
            found = recompute(loaded)
        # no metric can be computed from such scores
        except (ValueError, FloatingPointError) as error:
            found = [f"its scores cannot be judged ({one_line(str(error), 120)})"]
        if found:
            more = f" and {len(found) - 1} other numbers" if len(found) > 1 else ""
            wrong.append(f"{loaded.stem}: {found[0]}{more}: the record or its scores were changed")
    wrong = wrong or disagreeing(records)
    if wrong:
        raise UserError(
            *wrong[:_MOST_SHOWN],
            *([f"and {len(wrong) - _MOST_SHOWN} more"] if len(wrong) > _MOST_SHOWN else []),
        )


def disagreeing(records: Iterable[LoadedRecord]) -> list[str]:
    """Cells of one run that differ in its test accuracy, rounds, test samples or candidates."""
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    found = []
    for loaded in run_by_run(records):
        for what, content in _of_run(loaded):
            name, known = first.setdefault(
                (loaded.record.suite, loaded.record.run_key, what), (loaded.stem, content)
            )
            if known != content:
                found.append(f"{name} and {loaded.stem} are of one run, but have other {what}")
    return found


def _of_run(loaded: LoadedRecord) -> Iterator[tuple[str, str]]:
    """(name, content) of everything that the cells of a run share."""
    record = loaded.record
    if record.utility is not None:
        yield "test accuracy", f"{record.utility!r}"
        yield "rounds", f"{record.history!r}"
    if record.outcome == "ok":
        judged, correct = loaded.everything()
        yield "test samples", hashlib.sha256(correct.tobytes()).hexdigest()
        for target, c in judged.items():
            content = b"".join(
                np.ascontiguousarray(a).tobytes() for a in (c.kind, c.ids, c.in_mix, c.canary)
            )
            yield f"candidates of target {target}", hashlib.sha256(content).hexdigest()


def recompute(loaded: LoadedRecord) -> list[str]:
    """Every number of a record that differs from what its scores give; [] where all agree.

    Raises ``UserError`` for scores that cannot be read.
    """
    record = loaded.record
    judged, correct = loaded.everything()
    found: list[str] = []
    for target, c in zip(record.targets, judged.values(), strict=True):
        where = f"target {target.target}"
        if len(np.unique(c.ids)) < len(c.ids):
            found.append(f"{where}: a sample is among its candidates twice")
        found += _of_groups(loaded, where, target.groups, _groups(record.seed, target.target, c))
        found += (
            _of_last_round(where, target, c)
            if target.rounds is not None
            else _of_maximum(loaded, target, c)
        )
    parts = ("scores", "kind", "ids", "in_mix", "canary")
    everyone = Candidates(
        *(np.concatenate([getattr(c, part) for c in judged.values()]) for part in parts)
    )
    found += _of_groups(loaded, "pooled", record.pooled, _groups(record.seed, _POOLED, everyone))
    said, share = record.utility, float(correct.mean()) if len(correct) else math.nan
    if said is not None and (said.n_test != len(correct) or not _same(said.accuracy, share)):
        found.append(
            f"test accuracy is {said.accuracy!r} of {said.n_test}, its scores give {share!r} of "
            f"{len(correct)}"
        )
    return found


def other_draws(loaded: LoadedRecord) -> bool:
    """Whether the standard errors were drawn with another version of numpy, which may draw other
    numbers.
    """
    return loaded.record.outcome == "ok" and loaded.record.provenance.numpy != version("numpy")


def _groups(seed: int, target: int, c: Candidates) -> dict[Group, Score]:
    """As a run computes them, with the same draws."""
    keep = c.kind != EXCLUDED
    rng = numpy_rng(seed, "bootstrap", client=target)
    return score_groups(c.scores[keep], c.kind[keep], c.canary[keep], rng, c.in_mix[keep])


def _of_groups(
    loaded: LoadedRecord, where: str, said: dict[Group, Score], again: dict[Group, Score]
) -> Iterator[str]:
    if said.keys() != again.keys():
        yield (
            f"{where}: it has the groups {', '.join(said) or 'none'}, its scores give "
            f"{', '.join(again) or 'none'}"
        )
        return
    names = [m.name for m in METRICS]
    for group, score in said.items():
        other = again[group]
        if unknown := sorted(score.values.keys() - set(names)):
            yield (
                f"{where}, {group}: it has metrics that fedbench does not know: "
                f"{', '.join(unknown)}"
            )
        numbers: list[tuple[str, float | None, float | None]] = [
            ("members", score.n_members, other.n_members),
            ("non-members", score.n_nonmembers, other.n_nonmembers),
            *((name, score.value(name), other.value(name)) for name in names),
        ]
        if not other_draws(loaded):
            numbers += [
                (f"the error of {name}", score.error(name), other.error(name)) for name in names
            ]
        for name, value, found in numbers:
            if not _same(value, found):
                yield f"{where}, {group}: {name} is {value!r}, its scores give {found!r}"


def _of_last_round(where: str, said: TargetScores, c: Candidates) -> Iterator[str]:
    """The scores of an attack on single rounds are those of the last round
    (``Attack.score_rounds``).
    """
    assert said.rounds is not None
    keep = c.kind != EXCLUDED
    scores, member = c.scores[keep], c.kind[keep] == MEMBER
    for name, value in (("auc", said.rounds.last_auc), ("tf01", said.rounds.last_tf01)):
        if not _same(value, found := metric(name).value(scores, member)):
            yield f"{where}: {name} of its last round is {value!r}, its scores give {found!r}"


def _of_maximum(loaded: LoadedRecord, said: TargetScores, c: Candidates) -> Iterator[str]:
    """The maximum of an attack on the whole trajectory is that of its one score, and so is the
    null.
    """
    where = f"target {said.target}"
    again = maximum(c.scores[None], c.kind, shuffle_rng(loaded.record.seed, said.target))
    if said.maximum is None or again is None:
        if (said.maximum is None) != (again is None):
            yield (
                f"{where}: its scores do not say "
                f"{'why it has a' if again is None else 'that it has no'} maximum over rounds"
            )
        return
    for name, value, found in (
        ("AUC", said.maximum.auc, again.auc),
        ("advantage", said.maximum.advantage, again.advantage),
    ):
        if not _same(value, found):
            yield f"{where}: the largest {name} is {value!r}, its scores give {found!r}"
    nulls = zip(
        ("AUC", "advantage"),
        loaded.null_maxima(said.target),
        (again.null_auc, again.null_advantage),
        strict=True,
    )
    for name, of, null in nulls:
        if len(of) != len(null) or (np.abs(of - null) > _ROUNDED).any():
            yield (
                f"{where}: the null of the largest {name} is not what its scores give in the same "
                "shuffles"
            )


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
