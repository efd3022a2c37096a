"""Blackbox-Loss: the loss of one upload."""

from __future__ import annotations

from fedbench.plugins.attacks.single_round import SingleRound


class BlackboxLoss(SingleRound):
    """Score = -CE(L_{k,t}(x), y) on the target's uploaded model of one round.

    Source: Yeom et al. (CSF 2018), adversary 2 (a loss threshold), the baseline of Zhu et al. (CVPR 2025), section 4.1.
    """

    measure = "loss"
