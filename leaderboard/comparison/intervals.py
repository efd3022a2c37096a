"""Intervals of changes of a mean over seeds, from the cell's own seeds and those of its family.

Few seeds say little of their spread: at the level that many comparisons need, Student's t with five
asks for more than twelve standard errors. So there are two ways to an interval, each at half the
level, and the narrower one counts:

* *paired*, from the differences of one cell alone. They are tiny where only rounding differs, and
  of another size under each defense, so that nothing can be learnt about one from another.
* *unpaired*, which takes old and new seeds for different ones, from the variance pooled over a
  family: one measure of one attack in one setting, under every defense and coalition, where it is
  mostly the candidates'. A cell's own variance counts where it is larger. What pairs have in common
  makes this interval too wide for them, not too narrow. Cells of a family share seeds, so their
  residuals are not independent: pooled, they are worth as many degrees of freedom as their
  covariance has dimensions (Box, Annals of Mathematical Statistics 1954, 25:290).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from fedbench.leaderboard.comparison.measures import Value


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A measure of one cell, on the same seeds in the same order."""

    old: Sequence[Value]
    new: Sequence[Value]

    @property
    def means(self) -> tuple[float, float]:
        """Return (old, new) over the seeds."""
        old = np.mean(_means(self.old))
        new = np.mean(_means(self.new))
        return float(old), float(new)

    @property
    def change(self) -> float:
        """Return new minus old."""
        old, new = self.means
        return new - old


def _means(values: Sequence[Value]) -> np.ndarray:
    return np.array([value.mean for value in values])


def half_widths(family: Sequence[Pairing], level: float) -> list[float | None]:
    """Return half-widths of the two-sided intervals of the changes of a family on the same seeds.

    With one seed only the candidates' errors are known; None where the measure has none.

    Args:
        level: the chance that an interval misses.
    """
    if len(family[0].old) == 1:
        return [_of_candidates(p.old[0], p.new[0], level) for p in family]
    unpaired = _unpaired(family, level / 2)
    return [min(_paired(p, level / 2), width) for p, width in zip(family, unpaired, strict=True)]


def _of_candidates(old: Value, new: Value, level: float) -> float | None:
    """Return the half-width of the paired difference where both sides have their pulls, else as if
    each side had candidates of its own.
    """
    if old.pulls is not None and new.pulls is not None:
        error = np.linalg.norm(new.pulls - old.pulls)
    elif old.error is not None and new.error is not None:
        error = np.hypot(old.error, new.error)
    else:
        return None
    return float(ndtri(1 - level / 2) * error)


def _paired(p: Pairing, level: float) -> float:
    """Return the half-width of the mean difference, Student's."""
    differences = _means(p.new) - _means(p.old)
    n = len(differences)
    t = stdtrit(n - 1, 1 - level / 2)
    return float(t * np.std(differences, ddof=1) / np.sqrt(n))


def _unpaired(family: Sequence[Pairing], level: float) -> list[float]:
    """Return half-widths of the difference of the means, Student's with the family's variance or a
    cell's own, whichever is larger.
    """
    n = len(family[0].old)
    sides = np.array([[_means(p.old), _means(p.new)] for p in family])
    residuals = sides - sides.mean(axis=2, keepdims=True)
    table = residuals.reshape(len(family), 2 * n).T
    free = 2 * n - 2
    variances = (table**2).sum(axis=0) / free
    variances_used = np.maximum(variances, variances.mean())
    t = stdtrit(free * _dimensions(table), 1 - level / 2)
    widths = t * np.sqrt(variances_used * 2 / n)
    return list(map(float, widths))


def _dimensions(table: np.ndarray) -> float:
    """Return how many independent columns [2 seeds, cells] are worth: 1 where they move together or
    one outweighs the others.
    """
    covariance = table.T @ table
    squares = float((covariance**2).sum())
    if squares == 0:
        return 1.0
    return float(np.trace(covariance)) ** 2 / squares
