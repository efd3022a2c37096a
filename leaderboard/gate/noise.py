"""How far a mean over seeds moves by chance: the tolerance of one comparison, from the seeds of its whole family.

A *family* is one measure of one attack in one setting, under every defense and coalition. Few seeds say little of one cell's
spread: with five, Student's t at the level that many comparisons need is above 12. So the variance is pooled over the family, and
a cell's own counts where it is larger. The cells of a family share seeds, so their residuals are not independent: pooled, they
are worth as many degrees of freedom as their covariance has dimensions (Box, Annals of Mathematical Statistics 1954, 25:290).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from fedbench.leaderboard.gate.measures import Value


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """One measure of one cell: ``old`` and ``new`` by seed. ``paired``: the same seeds in the same order."""

    old: Sequence[Value]
    new: Sequence[Value]
    paired: bool

    @property
    def change(self) -> float:
        """New minus old."""
        return float(np.mean([v.mean for v in self.new]) - np.mean([v.mean for v in self.old]))

    @property
    def residuals(self) -> list[np.ndarray]:
        """What is left of each group of values without its mean: of the differences or, unpaired, of either side."""
        old, new = (np.array([v.mean for v in values]) for values in (self.old, self.new))
        return [x - x.mean() for x in ([new - old] if self.paired else [old, new])]

    @property
    def scale(self) -> float:
        """The variance of the change over that of a residual."""
        return 1 / len(self.new) if self.paired else 1 / len(self.old) + 1 / len(self.new)

    @property
    def candidates_error(self) -> float | None:
        """Of the change, if members and non-members were drawn anew for each side; None where not known."""
        squares = 0.0
        for values in (self.old, self.new):
            if any(v.error is None for v in values):
                return None
            squares += sum((v.error or 0.0) ** 2 for v in values) / len(values) ** 2
        return float(np.sqrt(squares))


def half_widths(family: Sequence[Pairing], level: float) -> list[float | None]:
    """Of the two-sided interval of each change; ``level``: the chance that it misses. All of them have the same seeds.

    None: with one seed a side nothing is known but the candidates' errors, and this measure has none. Unpaired, the interval is
    never narrower than these: candidates are other ones.
    """
    z = float(ndtri(1 - level / 2))
    errors = [None if (e := p.candidates_error) is None else z * e for p in family]
    groups = len(family[0].residuals)
    table = np.stack([np.concatenate(p.residuals) for p in family], axis=1)
    free = len(table) - groups
    if free == 0:
        return errors
    own = (table**2).sum(axis=0) / free
    t = float(stdtrit(free * _dimensions(table), 1 - level / 2))
    widths = [t * float(np.sqrt(max(v, own.mean()) * p.scale)) for v, p in zip(own, family, strict=True)]
    return [w if p.paired else max(w, e or 0.0) for w, e, p in zip(widths, errors, family, strict=True)]


def _dimensions(table: np.ndarray) -> float:
    """How many independent columns [seeds, cells] are worth: 1 where they move together or one outweighs the others."""
    covariance = table.T @ table
    squares = float((covariance**2).sum())
    return float(np.trace(covariance)) ** 2 / squares if squares > 0 else 1.0
