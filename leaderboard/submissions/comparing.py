"""Compare two records of one cell: field by field, and by the paired difference of their scores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

from fedbench.core import MEMBER
from fedbench.core.metrics.registry import group_masks
from fedbench.core.metrics.roc import (
    TF01_FPR,
    TF01_MIN_NONMEMBERS,
    allowed_false_positives,
    auc,
    auc_covariance,
)
from fedbench.core.store.integrity import canonical
from fedbench.core.store.reading import (
    REPRODUCED,
    Candidates,
    LoadedRecord,
    load_records,
    record_paths,
)
from fedbench.core.words import one_line

# of an AUC, of TF01 and of the test accuracy, as fractions: smaller differences change no board
FLOOR = 0.005
_SHARE = 0.05  # of the sum of a column's values, by which those of another machine may differ
_SLACK = 0.02  # beside it, of a fraction that depends on few candidates or rounds
# among rounds that are nearly equal
_CHOSEN = ("targets.rounds.best_round", "targets.decision.best_round")
# chance of refusing an honest cell by its intervals, over all comparisons of the cell
_LEVEL = 0.05
_NAMES = ("suite", "setting", "coalition")  # for people: a cell may stand in several suites
_MAY_DIFFER = ("measured", "provenance")  # of two runs of one cell
Verdict = Literal["bit for bit", "within tolerance", "not reproduced", "not repeatable"]


def reproductions(root: Path) -> dict[str, LoadedRecord]:
    """The records of the imported cells that were computed again in a results folder, by key."""
    folder = root / REPRODUCED
    return (
        {r.record.key: r for r in load_records(folder)} if record_paths(folder / "records") else {}
    )


def differing(one: LoadedRecord, other: LoadedRecord, besides: Sequence[str] = ()) -> Iterator[str]:
    """The fields in which two records of one cell differ, with their values, except those of
    machine and time and ``besides``.
    """
    a, b = (
        loaded.record.model_dump(mode="json", exclude={*_MAY_DIFFER, *besides})
        for loaded in (one, other)
    )
    for path, x, y in _unequal(a, b):
        yield f"{path} ({one_line(canonical(x), 40)} and {one_line(canonical(y), 40)})"


def _unequal(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            yield from _unequal(a.get(name), b.get(name), f"{at}.{name}" if at else str(name))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _unequal(x, y, f"{at}[{i}]")
    elif a != b:
        yield one_line(at, 80), a, b


@dataclass(frozen=True)
class Compared:
    """``verdict``, and ``how`` in a line: the largest difference beside its tolerance, or the field
    that differs.
    """

    verdict: Verdict
    how: str


def compare(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    """Compare a claimed record with one of the same key that was computed here.

    Within tolerance: every AUC, the TF01 of every group and the test accuracy differ by at most
    ``FLOOR`` or by the interval of their paired difference (DeLong; of the members or test samples
    that change sides; Bonferroni over the comparisons of the cell), whichever is larger, and facts,
    findings, history, single rounds and decisions agree as :func:`_far` says. Times, memory,
    machine and versions are not compared. Raises ``UserError`` for scores that cannot be read.
    """
    one, other = claimed.record, again.record
    if one.outcome != other.outcome:
        reason = f": {other.reason}" if other.reason else ""
        return Compared(
            "not reproduced", f"'{one.outcome}' claimed, '{other.outcome}' here{reason}"
        )
    if one.outcome != "ok" or one.digests == other.digests:
        fields = list(differing(claimed, again, _NAMES))
        if not fields:
            return Compared("bit for bit", "every score and number is the same")
        # no scores: in what round, or with which last digit, may depend on the CPU
        if one.outcome != "ok":
            return Compared("within tolerance", f"'{one.outcome}' here, too, but not {fields[0]}")
        return Compared("not reproduced", f"the scores are the same, but not {fields[0]}")
    return _of_scores(claimed, again)


def judged(loaded: LoadedRecord, again: LoadedRecord) -> Compared:
    """:func:`compare`; a record that was measured here is not repeatable where one type of
    processor gave other bits, or any type a result outside the tolerance.
    """
    said = compare(loaded, again)
    one, other = loaded.record.provenance, again.record.provenance
    alike = (one.cpu_type, one.device) == (other.cpu_type, other.device)
    if (
        loaded.bundle
        or said.verdict == "bit for bit"
        or (said.verdict == "within tolerance" and not alike)
    ):
        return said
    return Compared("not repeatable", said.how)


@dataclass(frozen=True)
class _Difference:
    """``error``: of the paired difference; 0 where it is not known."""

    what: str
    claimed: float
    again: float
    error: float

    def tolerance(self, z: float) -> float:
        return max(FLOOR, z * self.error)

    def text(self, z: float) -> str:
        source = "its floor" if self.tolerance(z) == FLOOR else "its paired interval"
        return (
            f"{self.what}: {self.claimed:.4f} claimed, {self.again:.4f} here, tolerance "
            f"{self.tolerance(z):.4f} ({source})"
        )


def _of_scores(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    (theirs, correct), (ours, other) = claimed.everything(), again.everything()
    same = (
        list(theirs) == list(ours)
        and len(correct) == len(other)
        and all(
            np.array_equal(getattr(theirs[target], part), getattr(c, part))
            for target, c in ours.items()
            for part in ("kind", "ids", "in_mix", "canary")
        )
    )
    if not same:
        return Compared("not reproduced", "the candidates or the test samples are others")
    differences = [
        *_aucs(theirs, ours),
        *_tf01s(theirs, ours),
        _paired("test accuracy", correct, other),
    ]
    z = float(norm.ppf(1 - _LEVEL / (2 * len(differences))))
    worst = max(differences, key=lambda d: abs(d.claimed - d.again) / d.tolerance(z))
    same_cpu = claimed.record.provenance.cpu_type == again.record.provenance.cpu_type
    note = "; on this type of CPU the same bits were to be expected" if same_cpu else ""
    if abs(worst.claimed - worst.again) > worst.tolerance(z):
        return Compared("not reproduced", worst.text(z) + note)
    if field := next(_far(_columns(claimed), _columns(again)), None):
        return Compared("not reproduced", f"the scores are within tolerance, but not {field}{note}")
    return Compared("within tolerance", worst.text(z) + note)


def _aucs(theirs: dict[int, Candidates], ours: dict[int, Candidates]) -> Iterator[_Difference]:
    """Of every group of every target."""
    for target, name, member, scores in _groups(theirs, ours):
        error = 0.0
        if member.sum() > 1 and (~member).sum() > 1:
            _, c = auc_covariance(scores, member)
            error = math.sqrt(max(0.0, float(c[0, 0] + c[1, 1] - 2 * c[0, 1])))
        yield _Difference(
            f"AUC of target {target}, {name}", auc(scores[0], member), auc(scores[1], member), error
        )


def _tf01s(theirs: dict[int, Candidates], ours: dict[int, Candidates]) -> Iterator[_Difference]:
    """Of every group, over the members of all targets that have enough non-members."""
    called: dict[str, list[np.ndarray]] = {}
    for _, name, member, scores in _groups(theirs, ours):
        if (~member).sum() >= TF01_MIN_NONMEMBERS:
            called.setdefault(name, []).append(np.stack([_called(row, member) for row in scores]))
    for name, parts in called.items():
        yield _paired(f"TF01, {name}, as a fraction", *np.concatenate(parts, axis=1))


def _called(scores: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[members] bool: who is called a member at the threshold of TF01."""
    others = np.sort(scores[~member])
    not_below = len(others) - np.searchsorted(others, scores[member], "left")
    called: np.ndarray = not_below <= allowed_false_positives(len(others), TF01_FPR)
    return called


def _groups(
    theirs: dict[int, Candidates], ours: dict[int, Candidates]
) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
    """(target, group, member [n] bool, scores [2, n]) of every group of every target."""
    for target, c in ours.items():
        for name, mask in group_masks(c.kind, c.canary, c.in_mix).items():
            yield (
                target,
                name,
                c.kind[mask] == MEMBER,
                np.stack([theirs[target].scores[mask], c.scores[mask]]),
            )


def _paired(what: str, claimed: np.ndarray, again: np.ndarray) -> _Difference:
    """The difference of two shares of the same samples: [n] bool each."""
    change = again.astype(float) - claimed.astype(float)
    error = float(change.std(ddof=1) / math.sqrt(len(change))) if len(change) > 1 else 0.0
    return _Difference(what, float(claimed.mean()), float(again.mean()), error)


# -- what no scores decide -------------------------------------------------------------------------


def _columns(loaded: LoadedRecord) -> dict[str, list[Any]]:
    """Facts, findings, history, single rounds, decisions and maxima by their paths: of each the
    values of all rounds or targets, and the vectors of analyses and shuffles.
    """
    columns: dict[str, list[Any]] = {}
    content = loaded.record.model_dump(mode="json", include={"facts", "analyses", "history"})
    of_targets = [
        t.model_dump(mode="json", include={"rounds", "decision", "maximum"})
        for t in loaded.record.targets
    ]
    _gather(content | {"targets": of_targets}, "", columns)
    vectors = {
        name: a.tolist()
        for name, a in loaded.all_arrays().items()
        if ":" in name or "_null_" in name
    }
    return {name: values for name, values in (columns | vectors).items() if name not in _CHOSEN}


def _gather(value: Any, at: str, columns: dict[str, list[Any]]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _gather(inner, f"{at}.{name}" if at else name, columns)
    elif isinstance(value, list):
        for inner in value:
            _gather(inner, at, columns)
    else:
        columns.setdefault(at, []).append(value)


def _far(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> Iterator[str]:
    """The columns outside the tolerance, with their values. Texts may differ in numbers alone. The
    differences of numbers may add up to ``_SHARE`` of the larger sum, and: of counts among facts
    two events, of other counts one each, of other numbers but facts ``_SLACK`` each, of TF01 a
    point.
    """
    for path in sorted(one.keys() | other.keys()):
        a, b = one.get(path, []), other.get(path, [])
        near = _near(path, a, b) if _are_numbers([*a, *b]) else _texts(a) == _texts(b)
        if not near:
            yield f"{one_line(path, 80)} ({one_line(repr(a), 40)} and {one_line(repr(b), 40)})"


def _are_numbers(values: list[Any]) -> bool:
    return all(value is None or type(value) in (int, float) for value in values)


def _texts(values: list[Any]) -> list[Any]:
    return [re.sub(r"\d+", "0", value) if isinstance(value, str) else value for value in values]


def _near(path: str, one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    counts = all(type(value) is int for value in [*one, *other])
    slack = len(one) * (1.0 if counts or "tf01" in path else _SLACK)
    if path.startswith("facts."):
        slack = 2.0 if counts else 0.0
    a, b = np.array(one, float), np.array(other, float)  # NaN where there is none
    difference = np.nansum(abs(a - b))
    largest = max(np.nansum(abs(a)), np.nansum(abs(b)))
    return bool((np.isnan(a) == np.isnan(b)).all() and difference <= _SHARE * largest + slack)
