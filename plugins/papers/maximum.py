"""The papers' maximum over attacks and rounds, and the same maximum under shuffled memberships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import Measured, Unit, over_units
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section

FEWEST = 2  # single-round attacks of a section; with fewer the maximum is of no interest
_ROUNDED = 1e-6  # null values are stored in single precision


@dataclass(frozen=True, kw_only=True)
class Largest:
    """A mean over seeds x targets of one maximum. ``null_mean``, ``null_high``: mean and 95 %
    quantile of that mean under shuffled memberships; ``p``: share of the shuffles, the observed
    membership among them, that reach it.
    """

    found: Interval
    null_mean: float
    null_high: float
    p: float

    @property
    def excess(self) -> float:
        """Above the null's mean."""
        return self.found.mean - self.null_mean

    @property
    def within(self) -> bool:
        """Whether it is no larger than the maximum of as many attacks and rounds without a leak, at
        95 %.
        """
        return self.p > 1 - LEVEL


@dataclass(frozen=True, kw_only=True)
class RowMaximum:
    """Of one row: the largest ``auc`` and, for itself, the largest ``advantage``. ``looks``: fewest
    and most attacks x rounds of a target.
    """

    auc: Largest
    advantage: Largest
    looks: tuple[int, int]


def has_maxima(section: Section) -> bool:
    """Whether at least two attacks of the section score every round, and their maxima are known."""
    often = {
        a for row in section.rows for a, e in row.entries.items() if e.single_rounds and e.maxima
    }
    return len(often) >= FEWEST


def row_maximum(row: Row) -> RowMaximum | None:
    """Over all attacks of the row; None where no record has its maximum.

    Raises UserError for records that did not shuffle equally often.
    """
    values: dict[Unit, np.ndarray] = {}
    nulls: dict[Unit, np.ndarray] = {}
    looks = []
    for unit in sorted({unit for entry in row.entries.values() for unit in entry.maxima}):
        entries = [e for e in row.entries.values() if unit in e.maxima]
        # [2, B]
        shuffled = {e.records[unit[0]].stem: np.stack(e.null_maxima(unit)) for e in entries}
        _require_same_shuffles(shuffled)
        values[unit] = np.max(
            [(e.maxima[unit].auc, e.maxima[unit].advantage) for e in entries], axis=0
        )
        # the same shuffles: how attacks move together is kept
        nulls[unit] = np.max(list(shuffled.values()), axis=0)
        looks.append(sum(e.maxima[unit].rounds for e in entries))
    if not looks:
        return None
    auc, advantage = (
        _largest({u: (float(v[i]), nulls[u][i]) for u, v in values.items()}) for i in (0, 1)
    )
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


def _largest(units: Mapping[Unit, tuple[float, np.ndarray]]) -> Largest:
    found = over_units({unit: Measured(value, float("nan")) for unit, (value, _) in units.items()})
    assert found is not None
    null = null_of_mean({unit: draws for unit, (_, draws) in units.items()})
    reached = int((null >= found.mean - _ROUNDED).sum())
    high = float(np.quantile(null, LEVEL, method="higher"))
    return Largest(
        found=found, null_mean=float(null.mean()), null_high=high, p=(1 + reached) / (1 + len(null))
    )


def null_of_mean(units: Mapping[Unit, np.ndarray]) -> np.ndarray:
    """[B] draws of the mean over seeds x targets where nothing leaks, of the draws [B] of every
    unit.

    Seeds are independent. Targets of one seed share a model and non-members, so with independent
    shuffles their mean would vary too little: they are added as if perfectly correlated, which errs
    on the safe side (docs/method.md#maximum).
    """
    _require_same_shuffles({f"seed {s}, target {t}": draws for (s, t), draws in units.items()})
    total = np.zeros(len(next(iter(units.values()))))
    for seed in sorted({s for s, _ in units}):
        own = [draws for (s, _), draws in units.items() if s == seed]
        order = np.argsort(np.argsort(own[0], kind="stable"), kind="stable")
        total += np.sum([np.sort(draws) for draws in own], axis=0)[order]
    return total / len(units)
