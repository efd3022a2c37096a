"""The papers' maximum over attacks and rounds, beside what the same looking finds in shuffled memberships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Measured, Unit, over_units
from fedbench.leaderboard.statistics.rows import Entry, Row
from fedbench.leaderboard.statistics.sections import Section

FEWEST = 2  # single-round attacks of a section; a board of fewer does not look often enough for the maximum to be its subject
_ROUNDED = 1e-6  # null values are stored in single precision


@dataclass(frozen=True, kw_only=True)
class Largest:
    """A mean over seeds x targets of one maximum. ``null_mean``, ``null_high``: mean and 95 % quantile of that mean
    under shuffled memberships; ``p``: share of the shuffles, the observed membership among them, that reach it."""

    found: Interval
    null_mean: float
    null_high: float
    p: float

    @property
    def excess(self) -> float:
        """Above the null's mean: what many looks alone do not give."""
        return self.found.mean - self.null_mean

    @property
    def within(self) -> bool:
        """Whether it is no larger than what the same looks find where nothing leaks, at 95 %."""
        return self.p > 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class RowMaximum:
    """Of one row: the largest ``auc`` and, for itself, the largest ``advantage``. ``looks``: attacks x rounds of a
    target."""

    auc: Largest
    advantage: Largest
    looks: tuple[int, int]


@dataclass(frozen=True)
class _Looked:
    """One unit: the two maxima [2] over its attacks, the same under each shuffle [2, B], and how many looks there
    were."""

    values: np.ndarray
    nulls: np.ndarray
    looks: int


def looks_often(section: Section) -> bool:
    """Whether at least two attacks of the section score every round, and their maxima are known."""
    often = {a for row in section.rows for a, e in row.entries.items() if e.single_rounds and e.maxima}
    return len(often) >= FEWEST


def row_maximum(row: Row) -> RowMaximum | None:
    """Over all attacks of the row; None where no record knows its maximum.

    Raises ``UserError`` for records that did not shuffle equally often.
    """
    looked = _units(row)
    if not looked:
        return None
    auc, advantage = (_largest({u: (m.values[i], m.nulls[i]) for u, m in looked.items()}) for i in (0, 1))
    looks = [m.looks for m in looked.values()]
    return RowMaximum(auc=auc, advantage=advantage, looks=(min(looks), max(looks)))


def _units(row: Row) -> dict[Unit, _Looked]:
    units = sorted({unit for entry in row.entries.values() for unit in entry.maxima})
    return {unit: _of_unit([e for e in row.entries.values() if unit in e.maxima], unit) for unit in units}


def _of_unit(entries: Sequence[Entry], unit: Unit) -> _Looked:
    """For each shuffle the maximum over the attacks, whose shuffles are the same: how they move together is kept."""
    said = [e.maxima[unit] for e in entries]
    nulls = [np.stack(e.null_maxima(unit)) for e in entries]
    _require_alike([n.shape[1] for n in nulls], [str(e.records[unit[0]].path) for e in entries])
    values = np.max([(m.auc, m.advantage) for m in said], axis=0)
    return _Looked(values, np.max(nulls, axis=0), sum(m.rounds for m in said))


def _require_alike(shuffles: Sequence[int], paths: Sequence[str]) -> None:
    if len(set(shuffles)) > 1:
        other = next(p for p, n in zip(paths, shuffles, strict=True) if n != shuffles[0])
        raise UserError(
            f"{other}: its null has other shuffles than that of {paths[0]}, so no maximum can be taken over both; run the "
            "suite again with --rerun always"
        )


def _largest(units: Mapping[Unit, tuple[float, np.ndarray]]) -> Largest:
    found = over_units({unit: Measured(value, float("nan")) for unit, (value, _) in units.items()})
    assert found is not None
    null = null_of_mean({unit: draws for unit, (_, draws) in units.items()})
    reached = int((null >= found.mean - _ROUNDED).sum())
    high = float(np.quantile(null, LEVEL, method="higher"))
    return Largest(found=found, null_mean=float(null.mean()), null_high=high, p=(1 + reached) / (1 + len(null)))


def null_of_mean(units: Mapping[Unit, np.ndarray]) -> np.ndarray:
    """[B] draws of the mean over seeds x targets where nothing leaks, of the draws [B] of every unit.

    Seeds are independent. Targets of one seed share a model and non-members, so shuffles of each by itself would make
    their mean too sure: they are added as if they rose and fell together, which errs on the safe side
    (docs/method.md#maximum).
    """
    _require_alike([len(draws) for draws in units.values()], [f"seed {s}, target {t}" for s, t in units])
    total = np.zeros(len(next(iter(units.values()))))
    for seed in sorted({s for s, _ in units}):
        own = [draws for (s, _), draws in units.items() if s == seed]
        order = np.argsort(np.argsort(own[0], kind="stable"), kind="stable")
        total += np.sum([np.sort(draws) for draws in own], axis=0)[order]
    return total / len(units)
