"""The papers' maximum over attacks and rounds, and the same maximum under shuffled memberships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Estimate, Unit, UnitValue
from fedbench.leaderboard.statistics.rows import AttackEntry, DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection

FEWEST = 2  # single-round attacks of a section; with fewer the maximum is of no interest
_ROUNDED = 1e-6  # null values are stored in single precision


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Mean over seeds x targets of one maximum."""

    found: Interval
    null_mean: float
    """mean of that mean under shuffled memberships"""
    null_high: float
    """its 95 % quantile there"""
    p: float
    """share of the shuffles, the observed membership among them, that reach it"""

    @property
    def excess(self) -> float:
        """Difference from the null's mean."""
        return self.found.mean - self.null_mean

    @property
    def within(self) -> bool:
        """Whether it is no larger than the maximum of as many attacks and rounds without a leak, at
        95 %.
        """
        return self.p > 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class RowMaximum:
    """Largest AUC of a row and, for itself, largest advantage."""

    auc: Largest
    advantage: Largest
    looks: tuple[int, int]
    """fewest and most attacks x rounds of a target"""


def has_maxima(section: BoardSection) -> bool:
    """Tell whether at least two attacks of the section score every round, and their maxima are
    known.
    """
    attacks = set()
    for row in section.rows:
        attacks |= {a for a, entry in row.entries.items() if entry.single_rounds and entry.maxima}
    return len(attacks) >= FEWEST


def row_maximum(row: DefenseRow) -> RowMaximum | None:
    """Return the maxima over all attacks of the row; None where no record has its maximum.

    Raises UserError for records that did not shuffle equally often.
    """
    of_units: dict[Unit, list[AttackEntry]] = {}
    for entry in row.entries.values():
        for unit in entry.maxima:
            of_units.setdefault(unit, []).append(entry)
    values: dict[Unit, np.ndarray] = {}
    nulls: dict[Unit, np.ndarray] = {}
    looks = []
    for unit, entries in sorted(of_units.items()):
        maxima = [entry.maxima[unit] for entry in entries]
        # [2, B]
        shuffled = {e.records[unit[0]].stem: np.stack(e.null_maxima(unit)) for e in entries}
        _require_same_shuffles(shuffled)
        values[unit] = np.max([(m.auc, m.advantage) for m in maxima], axis=0)
        # the same shuffles: how attacks move together is kept
        nulls[unit] = np.max(list(shuffled.values()), axis=0)
        looks.append(sum(m.rounds for m in maxima))
    if not looks:
        return None
    auc, advantage = (_largest(values, nulls, at) for at in (0, 1))
    return RowMaximum(auc=auc, advantage=advantage, looks=(min(looks), max(looks)))


def _require_same_shuffles(nulls: Mapping[str, np.ndarray]) -> None:
    (first, reference), *others = nulls.items()
    for name, null in others:
        if null.shape[-1] != reference.shape[-1]:
            raise UserError(
                f"{name}: its null has other shuffles than that of {first}, so no maximum can be "
                "taken over both; run the "
                "suite again with --rerun always"
            )


def _largest(
    values: Mapping[Unit, np.ndarray], nulls: Mapping[Unit, np.ndarray], at: int
) -> Largest:
    by_unit = {unit: UnitValue(float(value[at]), float("nan")) for unit, value in values.items()}
    interval = Estimate(by_unit).interval
    null = null_of_mean({unit: draws[at] for unit, draws in nulls.items()})
    reached = int((null >= interval.mean - _ROUNDED).sum())
    high = float(np.quantile(null, LEVEL, method="higher"))
    p = (1 + reached) / (1 + len(null))
    return Largest(found=interval, null_mean=float(null.mean()), null_high=high, p=p)


def null_of_mean(units: Mapping[Unit, np.ndarray]) -> np.ndarray:
    """Return [B] draws of the mean over seeds x targets where nothing leaks, of the draws [B] of
    every unit.

    Seeds are independent. Targets of one seed share a model and non-members, so with independent
    shuffles their mean would vary too little: they are added as if perfectly correlated, which errs
    on the safe side (docs/method.md#maximum).
    """
    _require_same_shuffles({f"seed {s}, target {t}": draws for (s, t), draws in units.items()})
    total = np.zeros(len(next(iter(units.values()))))
    for seed in sorted({s for s, _ in units}):
        targets = [draws for (s, _), draws in units.items() if s == seed]
        order = np.argsort(np.argsort(targets[0], kind="stable"), kind="stable")
        total += np.sum([np.sort(draws) for draws in targets], axis=0)[order]
    return total / len(units)
