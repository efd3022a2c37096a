"""What single-round attacks share: a score in every audited round, of which the last one is the attack's."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedbench.core import Attack, Audit, Observations, SkipCell
from fedbench.plugins.attacks.measures import MEASURES, Measure, of_target


class SingleRound(Attack):
    """Score = a measurement in the last audited round in which the target took part.

    FedMIA's table reports the best snapshot instead, picked on the answers (Zhu et al., CVPR 2025, table 1 and its
    code): that is the metric ``best_round`` over ``score_rounds``, never the score.
    """

    measure: ClassVar[str]

    @property
    def reads(self) -> Measure:
        """The measurement."""
        return MEASURES[self.measure]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of the measurement."""
        return self.reads.needs

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]; a row of NaN for a round without the target."""
        return self._measured(observations)

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return last_seen(self._measured(observations))

    def _measured(self, observations: Observations) -> np.ndarray:
        """[R, n]: the measurement on the target's row."""
        return of_target(self.reads.of(observations), observations)


def last_seen(series: np.ndarray) -> np.ndarray:
    """The last row of [R, n] without NaN; raises ``SkipCell`` when there is none."""
    seen = np.flatnonzero(~np.isnan(series).any(axis=1))
    if len(seen) == 0:
        raise SkipCell("the target took part in no audited round that this attack can use")
    return np.asarray(series[seen[-1]])
