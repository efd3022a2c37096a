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
    """One measure of one cell, by seed."""

    old: Sequence[Value]
    new: Sequence[Value]
    paired: bool
    """whether both have the same seeds in the same order"""

    @property
    def means(self) -> tuple[float, float]:
        """Return (old, new) over the seeds."""
        return float(np.mean(_means(self.old))), float(np.mean(_means(self.new)))

    @property
    def change(self) -> float:
        """Return new minus old."""
        old, new = self.means
        return new - old

    @property
    def residuals(self) -> np.ndarray:
        """Return the values of either side without its mean, old ones first."""
        old, new = _means(self.old), _means(self.new)
        return np.concatenate([old - old.mean(), new - new.mean()])

    @property
    def candidates_error(self) -> float | None:
        """Return the error of the change from the candidates: that of the paired difference where
        both sides have their pulls, else as if each side had its own candidates; None if unknown.
        """
        squares = [_paired_square(a, b) for a, b in zip(self.old, self.new, strict=False)]
        if self.paired and None not in squares:
            return _root_over(squares, len(squares))
        errors = [
            _root_over([_square(v) for v in side], len(side)) for side in (self.old, self.new)
        ]
        return None if None in errors else float(np.hypot(*errors))


def _means(values: Sequence[Value]) -> np.ndarray:
    return np.array([value.mean for value in values])


def _square(value: Value) -> float | None:
    return None if value.error is None else value.error**2


def _paired_square(old: Value, new: Value) -> float | None:
    if old.pulls is None or new.pulls is None:
        return None
    return float(np.sum((new.pulls - old.pulls) ** 2))


def _root_over(squares: Sequence[float | None], n: int) -> float | None:
    """Return the error of a mean of ``n`` values with these squared errors; None if unknown."""
    known = [square for square in squares if square is not None]
    return float(np.sqrt(sum(known))) / n if len(known) == len(squares) else None


def half_widths(family: Sequence[Pairing], level: float) -> list[float | None]:
    """Return half-widths of the two-sided intervals of the changes of a family on the same seeds.

    With one seed a side only the candidates' errors are known; None where the measure has none. Of
    different seeds the interval is never narrower than these, since candidates are other ones.

    Args:
        level: the chance that an interval misses.
    """
    errors = [_of_candidates(p, level) for p in family]
    if len(family[0].old) == len(family[0].new) == 1:
        return errors
    if not family[0].paired:
        return [max(w, e or 0.0) for w, e in zip(_unpaired(family, level), errors, strict=True)]
    unpaired = _unpaired(family, level / 2)
    return [min(_paired(p, level / 2), width) for p, width in zip(family, unpaired, strict=True)]


def _of_candidates(p: Pairing, level: float) -> float | None:
    error = p.candidates_error
    return None if error is None else float(ndtri(1 - level / 2)) * error


def _paired(p: Pairing, level: float) -> float:
    """Return the half-width of the mean difference, Student's."""
    differences = _means(p.new) - _means(p.old)
    n = len(differences)
    return float(stdtrit(n - 1, 1 - level / 2) * np.std(differences, ddof=1) / np.sqrt(n))


def _unpaired(family: Sequence[Pairing], level: float) -> list[float]:
    """Return half-widths of the difference of the means, Student's with the family's variance or a
    cell's own, whichever is larger.
    """
    table = np.stack([p.residuals for p in family], axis=1)
    free = len(table) - 2
    variances = (table**2).sum(axis=0) / free
    t = stdtrit(free * _dimensions(table), 1 - level / 2)
    seeds = 1 / len(family[0].old) + 1 / len(family[0].new)
    widths = t * np.sqrt(np.maximum(variances, variances.mean()) * seeds)
    return [float(width) for width in widths]


def _dimensions(table: np.ndarray) -> float:
    """Return how many independent columns [seeds, cells] are worth: 1 where they move together or
    one outweighs the others.
    """
    covariance = table.T @ table
    squares = float((covariance**2).sum())
    return float(np.trace(covariance)) ** 2 / squares if squares > 0 else 1.0
