"""The metrics of a record, recomputed from the scores beside it: a board shows no number that its scores do not give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.attack import MEMBER, Group
from fedbench.core.metrics.registry import Score, group_masks
from fedbench.core.metrics.roc import TF01_FPR, TF01_MIN_NONMEMBERS, allowed_false_positives, auc_of_counts, tpr_of_counts
from fedbench.core.store.reading import LoadedRecord

_TOLERANCE = 1e-9  # counts are exact; their quotients may be rounded in another order


@dataclass(frozen=True)
class Recount:
    """What the scores of one group of candidates give; ``tf01`` in percent, None with too few non-members."""

    auc: float
    tf01: float | None
    n_members: int
    n_nonmembers: int


def recount(scores: np.ndarray, kind: np.ndarray, canary: np.ndarray, in_mix: np.ndarray) -> dict[Group, Recount]:
    """The groups of ``core.metrics.score_groups`` with their numbers, all from one sort. Arguments as there, [n] each."""
    masks = group_masks(kind, canary, in_mix)
    if not masks:
        return {}
    order = np.argsort(scores)
    ascending, member = scores[order], kind[order] == MEMBER
    chosen = np.stack([mask[order] for mask in masks.values()])
    members, nonmembers = (chosen & member).astype(np.int64), (chosen & ~member).astype(np.int64)
    if (tied := ascending[1:] == ascending[:-1]).any():
        first = np.flatnonzero(np.concatenate([[True], ~tied]))  # of every distinct score
        members, nonmembers = (np.add.reduceat(counts, first, axis=1) for counts in (members, nonmembers))
    found: dict[Group, Recount] = {}
    for name, m, n, auc in zip(masks, members, nonmembers, auc_of_counts(members, nonmembers), strict=True):
        others = int(n.sum())
        enough = others >= TF01_MIN_NONMEMBERS
        tf01 = 100 * float(tpr_of_counts(m, n, allowed_false_positives(others, TF01_FPR))) if enough else None
        found[name] = Recount(float(auc), tf01, int(m.sum()), others)
    return found


def not_recounted(loaded: LoadedRecord) -> Iterator[str]:
    """Every AUC, TF01, number of candidates or test accuracy of a record that its score file does not give.

    Raises ``UserError`` for scores that cannot be used.
    """
    record = loaded.record
    if record.outcome != "ok":
        return
    judged, correct = loaded.everything()
    parts = [(c.scores, c.kind, c.canary, c.in_mix) for c in judged.values()]
    for target, part in zip(record.targets, parts, strict=True):
        yield from _of_groups(f"target {target.target}", target.groups, recount(*part))
    yield from _of_groups("pooled", record.pooled, recount(*map(np.concatenate, zip(*parts, strict=True))))
    said = record.utility
    if said is not None and (said.n_test != len(correct) or abs(said.accuracy - correct.mean()) > _TOLERANCE):
        yield f"test accuracy is {said.accuracy!r} of {said.n_test}, its scores give {float(correct.mean())!r} of {len(correct)}"


def _of_groups(where: str, said: dict[Group, Score], found: dict[Group, Recount]) -> Iterator[str]:
    if said.keys() != found.keys():
        yield f"{where}: it has the groups {', '.join(said) or 'none'}, its scores give {', '.join(found) or 'none'}"
        return
    for name, score in said.items():
        again = found[name]
        numbers = (
            ("AUC", score.value("auc"), again.auc), ("TF01", score.value("tf01"), again.tf01),
            ("members", score.n_members, again.n_members), ("non-members", score.n_nonmembers, again.n_nonmembers),
        )  # fmt: skip
        for number, value, other in numbers:
            if not _same(value, other):
                yield f"{where}, {name}: {number} is {value!r}, its scores give {other!r}"


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _TOLERANCE
