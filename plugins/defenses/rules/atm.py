"""Angular trimmed mean (ATM): drop the rows that point away from the others."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Defense, Federation, Params, ServerContext
from fedbench.plugins.defenses.rules.geometry import angles, combine, expected

TIE = 1e-6  # radians; arccos near 1 is good to 1.5e-8 in float64


def shares(scores: np.ndarray, keep: int) -> np.ndarray:
    """[K], summing to ``keep``: 1 for the rows of the ``keep`` least scores, 0 for the others.

    Rows within ``TIE`` of the score at the cut share what places are left there equally.
    """
    cut = np.sort(scores)[keep - 1]
    below = scores < cut - TIE
    tied = np.abs(scores - cut) <= TIE
    return below + tied * (keep - below.sum()) / tied.sum()


class AngularTrimmedMean(Defense):
    """The mean angle of each row to all others; without the 2 kappa rows where it is largest, the rest is averaged.

    Angles do not see a row's length: scaling a row neither saves nor removes it, and a kept row enters at its full
    length. A zero row has no direction; it counts as orthogonal (pi/2) to every other row. Rows are not weighted.
    Rows that tie at the cut (collinear ones, within 1e-6 rad) share the places that are left there, so the result does
    not depend on the order of the rows; no other row is ever kept in part.

    The paper's code has kappa = 2 with one malicious client: of eight rows four are averaged.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, section 5.1, steps I to IV, equations 7 and 8.
    """

    class Params(Params):
        kappa: int | None = Field(
            None, ge=0, description="half of the rows to drop; null: as many as malicious rows are assumed; the paper's code: 2"
        )

    def check(self, federation: Federation) -> None:
        """Something must be left to average."""
        expected("atm", self.params.kappa, federation, federation.cohort, 2, 1, " kappa")

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        """[P]; raises ``UserError`` where nothing is left."""
        keep = len(updates) - 2 * expected("atm", self.params.kappa, ctx, len(updates), 2, 1, " kappa")
        mean = angles(updates).sum(axis=1) / max(1, len(updates) - 1)  # equation 7
        return combine(shares(mean, keep) / keep, updates)
