"""How far a mean over seeds moves by chance: the interval of one comparison, from its own seeds and
those of its family.

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

from fedbench.leaderboard.gate.measures import Value


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """One measure of one cell: ``old`` and ``new`` by seed. ``paired``: the same seeds in the same
    order.
    """

    old: Sequence[Value]
    new: Sequence[Value]
    paired: bool

    @property
    def change(self) -> float:
        """New minus old."""
        return float(np.mean([v.mean for v in self.new]) - np.mean([v.mean for v in self.old]))

    @property
    def residuals(self) -> np.ndarray:
        """What is left of the values of either side without its mean, one behind the other."""
        old, new = (np.array([v.mean for v in values]) for values in (self.old, self.new))
        return np.concatenate([old - old.mean(), new - new.mean()])

    @property
    def candidates_error(self) -> float | None:
        """Of the change, if members and non-members were drawn anew for each side; None where not
        known.
        """
        squares = 0.0
        for values in (self.old, self.new):
            if any(v.error is None for v in values):
                return None
            squares += sum((v.error or 0.0) ** 2 for v in values) / len(values) ** 2
        return float(np.sqrt(squares))


def half_widths(family: Sequence[Pairing], level: float) -> list[float | None]:
    """Of the two-sided interval of each change; ``level``: the chance that it misses. All of them
    have the same seeds.

    With one seed a side nothing is known but the candidates' errors; None where the measure has
    none. Of different seeds the interval is never narrower than these, since candidates are other
    ones.
    """
    errors = [_of_candidates(p, level) for p in family]
    if len(family[0].old) == len(family[0].new) == 1:
        return errors
    if not family[0].paired:
        return [max(w, e or 0.0) for w, e in zip(_unpaired(family, level), errors, strict=True)]
    either = zip((_paired(p, level / 2) for p in family), _unpaired(family, level / 2), strict=True)
    return [min(widths) for widths in either]


def _of_candidates(p: Pairing, level: float) -> float | None:
    return None if (e := p.candidates_error) is None else float(ndtri(1 - level / 2)) * e


def _paired(p: Pairing, level: float) -> float:
    """Of the mean difference, Student's."""
    differences = [b.mean - a.mean for a, b in zip(p.old, p.new, strict=True)]
    n = len(differences)
    return float(stdtrit(n - 1, 1 - level / 2) * np.std(differences, ddof=1) / np.sqrt(n))


def _unpaired(family: Sequence[Pairing], level: float) -> list[float]:
    """Of the difference of the means, Student's with the family's variance or a cell's own,
    whichever is larger.
    """
    table = np.stack([p.residuals for p in family], axis=1)
    free = len(table) - 2
    own = (table**2).sum(axis=0) / free
    t = float(stdtrit(free * _dimensions(table), 1 - level / 2))
    return [
        t * float(np.sqrt(max(v, own.mean()) * (1 / len(p.old) + 1 / len(p.new))))
        for v, p in zip(own, family, strict=True)
    ]


def _dimensions(table: np.ndarray) -> float:
    """How many independent columns [seeds, cells] are worth: 1 where they move together or one
    outweighs the others.
    """
    covariance = table.T @ table
    squares = float((covariance**2).sum())
    return float(np.trace(covariance)) ** 2 / squares if squares > 0 else 1.0
