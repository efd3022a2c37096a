"""How every poisoning attack infers: a candidate is a member iff the global model classifies it correctly."""

from __future__ import annotations

import numpy as np

from fedbench.core import ActiveAttack, Attack, Audit, Observations
from fedbench.plugins.attacks.single_round import last_seen


class Correctness(Attack):
    """Score = logit margin of the true label on the global model of the last audited round; member iff it is > 0.

    The sign is the papers' decision (argmax = true label), the size ranks the candidates for AUC and TPR.
    A participant's view: one model for all targets, so it can only tell samples of the federation from outsiders'.
    The papers report the best of 800 rounds, picked on the answers: that is the metric ``best_round``.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C (passive attack), after Yeom et al. (CSF 2018).
    """

    needs = frozenset({"margin"})
    view = "client"
    threshold = 0.0

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]: the margins in every audited round."""
        return np.asarray(observations.of_target("margin"), np.float64)

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        return last_seen(np.asarray(observations.of_target("margin"), np.float64))


class Poisoning(Correctness, ActiveAttack):
    """Base of the attacks that poison the training and then infer from the model's correctness."""
