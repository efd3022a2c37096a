"""The baselines that nobody poisons for, and the released code's version of it."""

from __future__ import annotations

import torch

from fedbench.core import Knowledge
from fedbench.plugins.attacks.poisoning.correctness import Correctness, Poisoning
from fedbench.plugins.attacks.poisoning.rows import Jitter, copies


class Passive(Correctness):
    """Nobody poisons: the malicious client is an honest participant that looks at the model it receives.

    Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C, after Yeom et al. (CSF 2018). Its code runs
    ``passive-trained``.
    """


class PassiveTrained(Poisoning):
    """As ``passive``, but its clients send an honest step on the attack set, non-members and all, with true labels.

    So the released code of FedPoisonMIA runs its passive baseline: non-members are trained on as well, and the gap to
    the members shrinks. It flatters whatever is compared with it.
    """

    class Params(Jitter):
        pass

    knowledge = "none"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]."""
        return copies(knowledge.step(knowledge.x, knowledge.y), knowledge, self.params.jitter)
