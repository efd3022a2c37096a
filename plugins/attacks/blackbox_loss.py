"""Blackbox-Loss: the loss of one upload."""

from __future__ import annotations

from fedbench.plugins.attacks.loss_on import LossOn
from fedbench.plugins.attacks.measures import Measure
from fedbench.plugins.attacks.single_round import SingleRound


class BlackboxLoss(SingleRound):
    """Score = -CE(L_{k,t}(x), y) on the target's uploaded model of one round.

    Source: Yeom et al. (CSF 2018), adversary 2 (a loss threshold), the baseline of Zhu et al. (CVPR 2025), section 4.1.
    """

    class Params(LossOn):
        pass

    measure = "loss"

    @property
    def reads(self) -> Measure:
        return self.params.negative_loss
