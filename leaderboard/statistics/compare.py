"""Each defense against the undefended federation: on the same samples, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval, auc, auc_covariance, combined_interval, delta_accuracy
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates, LoadedRecord
from fedbench.leaderboard.collect import Row, Table, Unit, interval_of

Judged = dict[str, tuple[LoadedRecord, Candidates]]


@dataclass(frozen=True)
class Comparison:
    """What one row is worth; None: it cannot be said from the records there are. Accuracies are fractions."""

    mean_auc: Interval | None
    """over attacks, on seeds x targets where every attack of the row has a score"""
    difference: Interval | None
    """mean AUC minus the undefended row's over the attacks both have, paired on the same samples"""
    accuracy: Interval | None
    delta_accuracy: Interval | None
    runtime: float | None
    """training CPU time over the undefended run's, median over seeds; None across different machines"""


def compare(table: Table) -> dict[str, Comparison]:
    """Row label -> comparison. UserError when two records that should share their candidates do not."""
    means: dict[str, list[tuple[float, float | None]]] = {row.label: [] for row in table.rows}
    differences: dict[str, list[tuple[float, float | None]]] = {row.label: [] for row in table.rows}
    for unit in table.units:
        plain = _judged(table.base, unit) if table.base else {}
        for row in table.rows:
            own = plain if row is table.base else _judged(row, unit)
            mean, difference = _unit(row, own, table.base, plain)
            means[row.label] += mean
            differences[row.label] += difference
    return {
        row.label: Comparison(
            _recentred(_interval(means[row.label]), row.mean("auc")),
            None if row is table.base else _interval(differences[row.label]),
            utility_of(row, table),
            *_against(row, table),
        )
        for row in table.rows
    }


def _judged(row: Row, unit: Unit) -> Judged:
    """The row's scores on one target of one seed, by attack."""
    seed, target = unit
    return {
        attack: (loaded, loaded.candidates(target))
        for attack, cell in row.cells.items()
        if (loaded := cell.ok(seed)) and any(t.target == target for t in loaded.record.targets)
    }


def _unit(row: Row, own: Judged, base: Row | None, plain: Judged) -> tuple[list, list]:
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


def _weighted(w: np.ndarray, aucs: np.ndarray, covariance: np.ndarray | None) -> tuple[float, float | None]:
    se = None if covariance is None else float(np.sqrt(max(w @ covariance @ w, 0.0)))
    return float(w @ aucs), se


def _interval(pairs: list[tuple[float, float | None]]) -> Interval | None:
    finite = [(v, se) for v, se in pairs if np.isfinite(v)]
    return interval_of([v for v, _ in finite], [se for _, se in finite])


def _recentred(interval: Interval | None, mean: float | None) -> Interval | None:
    """The half-width found where every attack has a score, around the mean that the table's cells give."""
    if mean is None:
        return None
    return replace(interval, mean=mean) if interval else Interval(mean, float("nan"), 0, between=False)


def adversary_of(loaded: LoadedRecord) -> str | None:
    """Label of the active attack that the record's run was trained with; None: of a passive run."""
    found = loaded.record.facts.get("adversary")
    return str(found) if found else None


def stands_under(row: Row) -> str | None:
    """The active attack under which the row's accuracy and time are taken; None: none, it has a passive run.

    An active attack is trained inside a run of its own, whose accuracy is not that of the defense alone. A row with
    active runs only is taken under the attack with the most seeds, a tie going to the first by name.
    """
    found = [adversary_of(loaded) for cell in row.cells.values() for s in cell.targets if (loaded := cell.ok(s))]
    active = [a for a in found if a is not None]
    if len(active) < len(found) or not active:
        return None
    return min(active, key=lambda a: (-active.count(a), a))


def utility_run(row: Row, seed: int) -> list[LoadedRecord]:
    """The records of the run that stands for the row's accuracy and time (see :func:`stands_under`).

    Of several such runs, the one most attacks judged; a tie goes to the first attack's.
    """
    under = stands_under(row)
    runs: dict[str, list[LoadedRecord]] = {}
    for attack in sorted(row.cells):
        loaded = row.cells[attack].ok(seed)
        if loaded and adversary_of(loaded) == under:
            runs.setdefault(loaded.record.run_key, []).append(loaded)
    return max(runs.values(), key=len, default=[])


def utility_of(row: Row, table: Table) -> Interval | None:
    """Test accuracy over seeds with its 95 % interval, as a fraction; None without scores."""
    found = [run[0].record.utility for seed in table.targets if (run := utility_run(row, seed))]
    shares = [(u.accuracy, u.n_test) for u in found if u is not None]
    if not shares:
        return None
    return combined_interval([p for p, _ in shares], [np.sqrt(p * (1 - p) / max(n, 1)) for p, n in shares])


def _against(row: Row, table: Table) -> tuple[Interval | None, float | None]:
    """(delta-accuracy, relative runtime) over the seeds that have both runs."""
    pairs = [pair for seed in table.targets if (pair := _pair(row, table.base, seed))]
    if not pairs or row is table.base:
        return None, 1.0 if pairs else None
    arrays = [(a.test_correct(), b.test_correct()) for a, b in pairs]
    for (a, b), (x, y) in zip(pairs, arrays, strict=True):
        if len(x) != len(y) or len(x) == 0:
            raise UserError(f"{a.path} and {b.path}: test sets of {len(x)} and {len(y)} samples; run the suite again")
    rng = numpy_rng(0, f"delta-accuracy/{table.suite}/{table.setting}/{table.coalition}/{row.label}")
    return delta_accuracy([a for a, _ in arrays], [b for _, b in arrays], rng), _runtime(pairs)


def _pair(row: Row, base: Row | None, seed: int) -> tuple[LoadedRecord, LoadedRecord] | None:
    """One record each of the row's run and of the undefended run with the same adversary inside, or none inside either."""
    for loaded in utility_run(row, seed) if base else []:
        cell = base.cells.get(loaded.record.attack.label) if base else None
        if cell and (plain := cell.ok(seed)):
            return loaded, plain
    return None


def _runtime(pairs: Sequence[tuple[LoadedRecord, LoadedRecord]]) -> float | None:
    ratios = [
        a.record.measured.train_cpu_s / b.record.measured.train_cpu_s
        for a, b in pairs
        if b.record.measured.train_cpu_s > 0 and _machine(a) == _machine(b)
    ]
    return float(np.median(ratios)) if ratios else None


def _machine(loaded: LoadedRecord) -> tuple:
    p = loaded.record.provenance
    return p.cpu, p.device, p.threads, p.dtype
