"""One cell that somebody claims against the same cell run again: the same bits, within tolerance, or another result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from fedbench.core import MEMBER
from fedbench.core.metrics.registry import group_masks
from fedbench.core.metrics.roc import auc, auc_covariance
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.submissions.merging import differing

FLOOR = 0.005  # of an AUC, and of the test accuracy: below, no board tells two rows apart
_LEVEL = 0.05  # chance of refusing an honest cell by its intervals, over all comparisons of the cell
_NAMES = ("suite", "setting", "coalition")  # for people: a cell may stand in several suites
Verdict = Literal["bit for bit", "within tolerance", "not reproduced"]


@dataclass(frozen=True)
class Compared:
    """``verdict``, and ``how`` in a line: the largest difference beside its tolerance, or what is another."""

    verdict: Verdict
    how: str


@dataclass(frozen=True)
class _Difference:
    what: str
    claimed: float
    again: float
    error: float  # of the paired difference; 0 where it is not known

    def tolerance(self, z: float) -> float:
        return max(FLOOR, z * self.error)

    def told(self, z: float) -> str:
        source = "its floor" if self.tolerance(z) == FLOOR else "its paired interval"
        found = f"{self.claimed:.4f} claimed, {self.again:.4f} here, tolerance {self.tolerance(z):.4f} ({source})"
        return f"{self.what}: {found}"


def compare(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    """Both of one key. Within tolerance: every AUC, and the test accuracy, differ by at most ``FLOOR`` or by the interval of
    their paired difference (DeLong; Bonferroni over the comparisons of the cell), whichever is larger.

    Raises ``UserError`` for score files that cannot be read.
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


def _of_scores(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    (ours, correct), (theirs, other) = again.everything(), claimed.everything()
    same_targets = [t.target for t in claimed.record.targets] == [t.target for t in again.record.targets]
    for a, b in zip(ours.values(), theirs.values(), strict=False):
        same_targets &= all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("kind", "ids", "in_mix", "canary"))
    if not same_targets or len(correct) != len(other):
        return Compared("not reproduced", "the candidates or the test samples are others")
    found = [*_aucs(claimed, again), _accuracy(other, correct)]
    z = float(norm.ppf(1 - _LEVEL / (2 * len(found))))
    worst = max(found, key=lambda d: abs(d.claimed - d.again) / d.tolerance(z))
    within = abs(worst.claimed - worst.again) <= worst.tolerance(z)
    same_cpu = claimed.record.provenance.cpu_type == again.record.provenance.cpu_type
    note = "; on this type of CPU the same bits were to be expected" if same_cpu else ""
    return Compared("within tolerance" if within else "not reproduced", worst.told(z) + note)


def _aucs(claimed: LoadedRecord, again: LoadedRecord) -> Iterator[_Difference]:
    """Of every group of every target."""
    (ours, _), (theirs, _) = again.everything(), claimed.everything()
    for target, a in ours.items():
        b = theirs[target]
        for name, mask in group_masks(a.kind, a.canary, a.in_mix).items():
            member, scores = a.kind[mask] == MEMBER, np.stack([b.scores[mask], a.scores[mask]])
            aucs, error = (auc(scores[0], member), auc(scores[1], member)), 0.0
            if member.sum() > 1 and (~member).sum() > 1:
                _, c = auc_covariance(scores, member)
                error = math.sqrt(max(0.0, float(c[0, 0] + c[1, 1] - 2 * c[0, 1])))
            yield _Difference(f"AUC of target {target}, {name}", aucs[0], aucs[1], error)


def _accuracy(claimed: np.ndarray, again: np.ndarray) -> _Difference:
    change = again.astype(float) - claimed.astype(float)
    error = float(change.std(ddof=1) / math.sqrt(len(change))) if len(change) > 1 else 0.0
    return _Difference("test accuracy", float(claimed.mean()), float(again.mean()), error)
