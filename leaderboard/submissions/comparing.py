"""Compare two records of one cell: field by field, and by the paired difference of their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import norm

from fedbench.core import MEMBER
from fedbench.core.metrics.registry import group_masks
from fedbench.core.metrics.roc import auc, auc_covariance
from fedbench.core.store.integrity import canonical
from fedbench.core.store.reading import REPRODUCED, LoadedRecord, load_records, record_paths
from fedbench.core.words import one_line

FLOOR = 0.005  # of an AUC, and of the test accuracy: smaller differences change no board
_LEVEL = 0.05  # chance of refusing an honest cell by its intervals, over all comparisons of the cell
_NAMES = ("suite", "setting", "coalition")  # for people: a cell may stand in several suites
_MAY_DIFFER = ("measured", "provenance")  # of two runs of one cell
Verdict = Literal["bit for bit", "within tolerance", "not reproduced", "not repeatable"]


def reproductions(root: Path) -> dict[str, LoadedRecord]:
    """The records of the imported cells that were computed again in a results folder, by key."""
    folder = root / REPRODUCED
    return {r.record.key: r for r in load_records(folder)} if record_paths(folder / "records") else {}


def differing(one: LoadedRecord, other: LoadedRecord, besides: Sequence[str] = ()) -> Iterator[str]:
    """The fields in which two records of one cell differ, with their values, except those of machine and time and ``besides``."""
    a, b = (loaded.record.model_dump(mode="json", exclude={*_MAY_DIFFER, *besides}) for loaded in (one, other))
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
    """``verdict``, and ``how`` in a line: the largest difference beside its tolerance, or the field that differs."""

    verdict: Verdict
    how: str


def compare(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    """Compare a claimed record with one of the same key that was computed here.

    Within tolerance: every AUC, and the test accuracy, differ by at most ``FLOOR`` or by the interval of their paired
    difference (DeLong; Bonferroni over the comparisons of the cell), whichever is larger. Raises ``UserError`` for scores that
    cannot be read.
    """
    one, other = claimed.record, again.record
    if one.outcome != other.outcome:
        reason = f": {other.reason}" if other.reason else ""
        return Compared("not reproduced", f"'{one.outcome}' claimed, '{other.outcome}' here{reason}")
    if one.outcome != "ok" or one.digests == other.digests:
        fields = list(differing(claimed, again, _NAMES))
        if not fields:
            return Compared("bit for bit", "every score and number is the same")
        if one.outcome != "ok":  # no scores: in what round, or with which last digit, may depend on the CPU
            return Compared("within tolerance", f"'{one.outcome}' here, too, but not {fields[0]}")
        return Compared("not reproduced", f"the scores are the same, but not {fields[0]}")
    return _of_scores(claimed, again)


def judged(loaded: LoadedRecord, again: LoadedRecord) -> Compared:
    """:func:`compare`; a record that was measured here is not repeatable where one type of processor gave other bits, or any type
    a result outside the tolerance."""
    said = compare(loaded, again)
    one, other = loaded.record.provenance, again.record.provenance
    alike = (one.cpu_type, one.device) == (other.cpu_type, other.device)
    if loaded.bundle or said.verdict == "bit for bit" or (said.verdict == "within tolerance" and not alike):
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
        return f"{self.what}: {self.claimed:.4f} claimed, {self.again:.4f} here, tolerance {self.tolerance(z):.4f} ({source})"


def _of_scores(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    (theirs, correct), (ours, other) = claimed.everything(), again.everything()
    same = list(theirs) == list(ours) and len(correct) == len(other) and all(
        np.array_equal(getattr(theirs[target], part), getattr(c, part))
        for target, c in ours.items() for part in ("kind", "ids", "in_mix", "canary")
    )  # fmt: skip
    if not same:
        return Compared("not reproduced", "the candidates or the test samples are others")
    found = [*_aucs(claimed, again), _accuracy(correct, other)]
    z = float(norm.ppf(1 - _LEVEL / (2 * len(found))))
    worst = max(found, key=lambda d: abs(d.claimed - d.again) / d.tolerance(z))
    within = abs(worst.claimed - worst.again) <= worst.tolerance(z)
    same_cpu = claimed.record.provenance.cpu_type == again.record.provenance.cpu_type
    note = "; on this type of CPU the same bits were to be expected" if same_cpu else ""
    return Compared("within tolerance" if within else "not reproduced", worst.text(z) + note)


def _aucs(claimed: LoadedRecord, again: LoadedRecord) -> Iterator[_Difference]:
    """Of every group of every target."""
    theirs = claimed.everything()[0]
    for target, ours in again.everything()[0].items():
        for name, mask in group_masks(ours.kind, ours.canary, ours.in_mix).items():
            member, scores = ours.kind[mask] == MEMBER, np.stack([theirs[target].scores[mask], ours.scores[mask]])
            error = 0.0
            if member.sum() > 1 and (~member).sum() > 1:
                _, c = auc_covariance(scores, member)
                error = math.sqrt(max(0.0, float(c[0, 0] + c[1, 1] - 2 * c[0, 1])))
            yield _Difference(f"AUC of target {target}, {name}", auc(scores[0], member), auc(scores[1], member), error)


def _accuracy(claimed: np.ndarray, again: np.ndarray) -> _Difference:
    change = again.astype(float) - claimed.astype(float)
    error = float(change.std(ddof=1) / math.sqrt(len(change))) if len(change) > 1 else 0.0
    return _Difference("test accuracy", float(claimed.mean()), float(again.mean()), error)
