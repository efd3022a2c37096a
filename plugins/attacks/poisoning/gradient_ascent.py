"""Gradient ascent on the attack set."""

from __future__ import annotations

import torch

from fedbench.core import Knowledge
from fedbench.plugins.attacks.poisoning.correctness import Poisoning
from fedbench.plugins.attacks.poisoning.rows import Jitter, copies


class GradientAscent(Poisoning):
    """Every malicious client sends minus one optimiser step on the attack set with its true labels.

    The attack set's loss rises; the clients that hold a sample pull it back down, nobody does so for a non-member.
    Each step starts from a fresh optimiser (the released code lets Adam's state gather the descent it then reverses).
    Source: Nasr et al. (S&P 2019), as Mo et al. (FedPoisonMIA, ICCV 2025, appendix C) use it.
    """

    class Params(Jitter):
        pass

    knowledge = "none"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]."""
        return copies(-knowledge.step(knowledge.x, knowledge.y), knowledge, self.params.jitter)
