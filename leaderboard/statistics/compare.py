"""Each defense against the undefended federation: on the same samples, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval, auc, auc_covariance, delta_accuracy
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.statistics.entry import Unit
from fedbench.leaderboard.statistics.intervals import interval_of
from fedbench.leaderboard.statistics.row import Row

if TYPE_CHECKING:
    from fedbench.leaderboard.statistics.section import Section

Judged = dict[str, tuple[LoadedRecord, Candidates]]
Measured = tuple[float, float | None]
"""a value and its standard error"""


@dataclass(frozen=True)
class Comparison:
    """What one row is worth; None: it cannot be said from the records there are. Accuracies are fractions."""

    mean_auc: Interval | None
    """over attacks, on seeds x targets where every attack of the row has a score"""
    difference: Interval | None
    """mean AUC minus the undefended row's over the attacks both have, paired on the same samples"""
    delta_accuracy: Interval | None
    runtime: float | None
    """training CPU time over the undefended run's, median over seeds; None across different machines"""


def compare(section: Section) -> dict[str, Comparison]:
    """Row label -> comparison. UserError when two records that should share their candidates do not."""
    base = section.base
    means: dict[str, list[Measured]] = {row.label: [] for row in section.rows}
    differences: dict[str, list[Measured]] = {row.label: [] for row in section.rows}
    for unit in section.units:
        plain = _judged(base, unit) if base else {}
        for row in section.rows:
            mean, difference = _unit(row, plain if row is base else _judged(row, unit), base, plain)
            means[row.label] += mean
            differences[row.label] += difference
    return {
        row.label: Comparison(
            _recentred(_interval(means[row.label]), row.mean("auc")),
            None if row is base else _interval(differences[row.label]),
            *_against(row, section),
        )
        for row in section.rows
    }


def _judged(row: Row, unit: Unit) -> Judged:
    """The row's scores on one target of one seed, by attack."""
    seed, target = unit
    return {
        attack: (loaded, loaded.candidates(target))
        for attack, entry in row.entries.items()
        if (loaded := entry.ok(seed)) and any(t.target == target for t in loaded.record.targets)
    }


def _unit(row: Row, own: Judged, base: Row | None, plain: Judged) -> tuple[list[Measured], list[Measured]]:
    """[(mean AUC, its error)] and [(difference, its error)] of one unit; empty where an attack's score is missing."""
    attacks = sorted(row.means("auc"))
    if not attacks or not set(attacks) <= own.keys():
        return [], []
    common = [] if base is None or base is row else sorted(set(attacks) & base.means("auc").keys())
    if not set(common) <= plain.keys():
        common = []
    aucs, covariance = _covariance([own[a] for a in attacks] + [plain[a] for a in common])
    weights = np.array([1 / len(attacks)] * len(attacks) + [0] * len(common))
    mean = [_weighted(weights, aucs, covariance)]
    if not common:
        return mean, []
    signs = [1 if a in common else 0 for a in attacks] + [-1] * len(common)
    return mean, [_weighted(np.array(signs) / len(common), aucs, covariance)]


def _covariance(judged: Sequence[tuple[LoadedRecord, Candidates]]) -> tuple[np.ndarray, np.ndarray | None]:
    """AUCs [V] and their covariance [V, V] over the candidates that count in every one of them."""
    first, reference = judged[0]
    for loaded, candidates in judged[1:]:
        if not np.array_equal(candidates.ids, reference.ids):
            raise UserError(
                f"{first.path} and {loaded.path}: the same setting, seed and target, but other candidates, so they "
                "cannot be compared; move one of them out of the folder, or run the suite again with --rerun always"
            )
    kinds = np.stack([c.kind for _, c in judged])
    counted = (kinds >= 0).all(axis=0) & (kinds == kinds[0]).all(axis=0)
    scores, member = np.stack([c.scores[counted] for _, c in judged]), kinds[0, counted] == 0
    if min(member.sum(), (~member).sum()) < 2:
        both = member.any() and not member.all()
        return np.array([auc(s, member) if both else np.nan for s in scores]), None
    return auc_covariance(scores, member)


def _weighted(w: np.ndarray, aucs: np.ndarray, covariance: np.ndarray | None) -> Measured:
    se = None if covariance is None else float(np.sqrt(max(w @ covariance @ w, 0.0)))
    return float(w @ aucs), se


def _interval(pairs: list[Measured]) -> Interval | None:
    finite = [(v, se) for v, se in pairs if np.isfinite(v)]
    return interval_of([v for v, _ in finite], [se for _, se in finite])


def _recentred(interval: Interval | None, mean: float | None) -> Interval | None:
    """The half-width found where every attack has a score, around the mean of the row's entries."""
    if mean is None:
        return None
    return replace(interval, mean=mean) if interval else Interval(mean, float("nan"), 0, between=False)


def _against(row: Row, section: Section) -> tuple[Interval | None, float | None]:
    """(delta-accuracy, relative runtime) over the seeds that have both runs."""
    pairs = [pair for seed in section.seeds if (pair := _pair(row, section.base, seed))]
    if not pairs or row is section.base:
        return None, 1.0 if pairs else None
    arrays = [(a.test_correct(), b.test_correct()) for a, b in pairs]
    for (a, b), (x, y) in zip(pairs, arrays, strict=True):
        if len(x) != len(y) or len(x) == 0:
            raise UserError(f"{a.path} and {b.path}: test sets of {len(x)} and {len(y)} samples; run the suite again")
    rng = numpy_rng(0, f"delta-accuracy/{section.suite}/{section.setting}/{section.coalition}/{row.label}")
    return delta_accuracy([a for a, _ in arrays], [b for _, b in arrays], rng), _runtime(pairs)


def _pair(row: Row, base: Row | None, seed: int) -> tuple[LoadedRecord, LoadedRecord] | None:
    """One record each of the row's run and of the undefended run with the same adversary inside, or none inside either."""
    for loaded in row.utility_run(seed) if base else []:
        entry = base.entries.get(loaded.record.attack.label) if base else None
        if entry and (plain := entry.ok(seed)):
            return loaded, plain
    return None


def _runtime(pairs: Sequence[tuple[LoadedRecord, LoadedRecord]]) -> float | None:
    ratios = [
        a.record.measured.train_cpu_s / b.record.measured.train_cpu_s
        for a, b in pairs
        if b.record.measured.train_cpu_s > 0 and _machine(a) == _machine(b)
    ]
    return float(np.median(ratios)) if ratios else None


def _machine(loaded: LoadedRecord) -> tuple[str, str, int, str]:
    p = loaded.record.provenance
    return p.cpu, p.device, p.threads, p.dtype
