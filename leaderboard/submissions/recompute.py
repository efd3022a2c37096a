"""Recompute the metrics of imported records from their scores."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from fedbench.core import EXCLUDED, MEMBER, UserError
from fedbench.core.metrics import score_groups
from fedbench.core.metrics.registry import metric
from fedbench.core.metrics.rounds import Maximum, maximum
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.reading import Candidates, LoadedRecord, run_by_run
from fedbench.core.words import bounded, one_line
from fedbench.leaderboard.comparison.fields import leaves

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
    """Raise ``UserError`` for records with a number that their scores do not give, and for runs
    that contradict themselves.
    """
    scored = [r for r in records if r.record.outcome == "ok"]
    console = Console(stderr=True)
    followed = track(
        scored,
        "recomputing metrics",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    wrong = []
    for loaded in run_by_run(followed):
        try:
            mistakes = recompute(loaded)
        # no metric can be computed from such scores
        except (ValueError, FloatingPointError) as error:
            mistakes = [f"its scores cannot be judged ({one_line(str(error), 120)})"]
        if mistakes:
            more = f" and {len(mistakes) - 1} other numbers" if len(mistakes) > 1 else ""
            wrong.append(
                f"{loaded.stem}: {mistakes[0]}{more}: the record or its scores were changed"
            )
    wrong = wrong or disagreeing(records)
    if wrong:
        raise UserError(*bounded(wrong, most=_MOST_SHOWN))


def disagreeing(records: Iterable[LoadedRecord]) -> list[str]:
    """Return cells of one run that differ in its test accuracy, rounds, test samples or
    candidates.
    """
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    lines = []
    for loaded in run_by_run(records):
        for name, content in _of_run(loaded):
            place = loaded.record.suite, loaded.record.run_key, name
            stem, earlier = first.setdefault(place, (loaded.stem, content))
            if earlier != content:
                lines.append(f"{stem} and {loaded.stem} are of one run, but have other {name}")
    return lines


def _of_run(loaded: LoadedRecord) -> Iterator[tuple[str, str]]:
    """Yield (name, content) of everything that the cells of a run share."""
    record = loaded.record
    if record.utility is not None:
        yield "test accuracy", f"{record.utility!r}"
        yield "rounds", f"{record.history!r}"
    if record.outcome == "ok":
        candidates, correct = loaded.everything()
        yield "test samples", hashlib.sha256(correct.tobytes()).hexdigest()
        for target, c in candidates.items():
            arrays = (c.kind, c.ids, c.in_mix, c.canary)
            content = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
            yield f"candidates of target {target}", hashlib.sha256(content).hexdigest()


def recompute(loaded: LoadedRecord) -> list[str]:
    """Return every number of a record that differs from what its scores give; [] where all agree.

    Raises ``UserError`` for scores that cannot be read.
    """
    candidates, correct = loaded.everything()
    mistakes = []
    for target, c in candidates.items():
        if len(np.unique(c.ids)) < len(c.ids):
            mistakes.append(f"target {target}: a sample is among its candidates twice")
    recorded = loaded.record.model_dump(
        mode="json", include={"targets": True, "pooled": True, "utility": True}
    )
    seed = loaded.record.seed
    maxima = {
        t.target: maximum(c.scores[None], c.kind, shuffle_rng(seed, t.target))
        for t, c in zip(loaded.record.targets, candidates.values(), strict=True)
        if t.rounds is None
    }
    again = {
        "targets": [
            _target(seed, fields, candidates[fields["target"]], maxima)
            for fields in recorded["targets"]
        ],
        "pooled": _pooled(loaded, list(candidates.values())),
        "utility": recorded["utility"],
    }
    if recorded["utility"] is not None:
        accuracy = float(correct.mean()) if len(correct) else math.nan
        again["utility"] = {**recorded["utility"], "accuracy": accuracy, "n_test": len(correct)}
    before, now = dict(leaves(recorded)), dict(leaves(again))
    for path in sorted(before.keys() | now.keys()):
        drawn = path.endswith(".error") and other_draws(loaded)
        value, number = before.get(path), now.get(path)
        if not drawn and not _same(value, number):
            mistakes.append(f"{one_line(path, 120)} is {value!r}, its scores give {number!r}")
    return mistakes + list(_nulls(loaded, maxima))


def other_draws(loaded: LoadedRecord) -> bool:
    """Return whether the standard errors were drawn with another version of numpy, which may draw
    other numbers.
    """
    return loaded.record.outcome == "ok" and loaded.record.provenance.numpy != version("numpy")


def _groups(seed: int, target: int, c: Candidates) -> dict[str, Any]:
    """Return the scores by group as a run computes them, with the same draws."""
    keep = c.kind != EXCLUDED
    rng = numpy_rng(seed, "bootstrap", client=target)
    scores = score_groups(c.scores[keep], c.kind[keep], c.canary[keep], rng, c.in_mix[keep])
    return {group: dataclasses.asdict(score) for group, score in scores.items()}


def _pooled(loaded: LoadedRecord, targets: Sequence[Candidates]) -> dict[str, Any]:
    columns = zip(*(vars(c).values() for c in targets), strict=True)
    together = Candidates(*map(np.concatenate, columns))
    return _groups(loaded.record.seed, _POOLED, together)


def _target(
    seed: int, recorded: dict[str, Any], c: Candidates, maxima: Mapping[int, Maximum | None]
) -> dict[str, Any]:
    """Return the fields of a target; those that its scores do not give are the recorded ones.

    Scores of an attack on single rounds are those of the last round (``Attack.score_rounds``), and
    the maximum of an attack on the whole trajectory is that of its one score.
    """
    target = recorded["target"]
    again = {**recorded, "groups": _groups(seed, target, c)}
    if target not in maxima:
        keep = c.kind != EXCLUDED
        scores, member = c.scores[keep], c.kind[keep] == MEMBER
        last = {f"last_{name}": metric(name).value(scores, member) for name in ("auc", "tf01")}
        again["rounds"] = {**recorded["rounds"], **last}
    elif (largest := maxima[target]) is None:
        again["maximum"] = None
    else:
        rounds = (recorded["maximum"] or {}).get("rounds")
        numbers = {"auc": largest.auc, "advantage": largest.advantage}
        again["maximum"] = {**numbers, "rounds": rounds}
    return again


def _nulls(loaded: LoadedRecord, maxima: Mapping[int, Maximum | None]) -> Iterator[str]:
    """Yield the null distributions of maxima that the scores do not give in the same shuffles."""
    for t in loaded.record.targets:
        again = maxima.get(t.target)
        if t.maximum is None or again is None:
            continue
        expected = again.null_auc, again.null_advantage
        recorded = loaded.null_maxima(t.target)
        for name, null, numbers in zip(("AUC", "advantage"), recorded, expected, strict=True):
            if len(null) != len(numbers) or (np.abs(null - numbers) > _ROUNDED).any():
                yield (
                    f"target {t.target}: the null of the largest {name} is not what its scores "
                    "give in the same shuffles"
                )


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None or isinstance(a, str):
        return a == b
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)
