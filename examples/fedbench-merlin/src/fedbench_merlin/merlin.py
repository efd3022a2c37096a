"""Merlin: the share of noise vectors that raise the loss, averaged over rounds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from fedbench.core import Attack, Audit, Observations, Params, SkipCell
from pydantic import Field


class Merlin(Attack):
    """Score = mean over the last ``rounds`` audited rounds of the share of noises that raise the
    sample's loss.

    Source: Jayaraman et al., PoPETs 2021, the Merlin attack on one model; a server sees a model
    every round, so the ratios are averaged as a loss is (Yeom et al. over rounds). Their decision
    is ratio >= phi with phi chosen for a false-positive rate; fedbench does that for every score
    (TF01).
    """

    needs: ClassVar = frozenset({"loss-rises"})

    class Params(Params):
        rounds: int = Field(
            1_000_000,
            ge=1,
            le=1_000_000,
            description="how many of the last audited rounds count; default: all",
        )

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        """[n] float in 0..1."""
        ratios = observations.of_target("loss-rises")
        present = ratios[~np.isnan(ratios).any(axis=1)]
        if not len(present):
            raise SkipCell("the target took part in none of the audited rounds")
        return present[-self.params.rounds :].mean(axis=0)
