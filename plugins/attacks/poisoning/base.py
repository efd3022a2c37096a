"""Base of the poisoning attacks (labels, rows, inference), the passive baselines and gradient
ascent.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import ActiveAttack, Knowledge, Params, UserError, norm
from fedbench.plugins.attacks.trajectory import SingleRound


class Correctness(SingleRound):
    """Score = logit margin of the true label on the global model of the last audited round; member
    iff it is > 0.

    The sign is the papers' decision (argmax = true label), the size ranks the candidates for AUC
    and TPR. A participant's view: one model for all targets, so it can only tell samples of the
    federation from outsiders'. The papers report the best of 800 rounds, picked on the answers:
    that is the metric ``best_round``. Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C
    (passive attack), after Yeom et al. (CSF 2018).
    """

    measure = "margin"
    view = "client"
    threshold = 0.0


class Poisoning(Correctness, ActiveAttack):
    """Base of the attacks that poison the training and then infer from the model's correctness."""


Draw = Literal["uniform", "permuted"]
ABOUT_DRAW = (
    "wrong labels: uniform over all other classes, or permuted as in the released code (the true "
    "labels permuted, "
    "collisions drawn again below the highest label)"
)


def wrong_labels(knowledge: Knowledge, draw: Draw = "uniform") -> Tensor:
    """Return a wrong label for every sample of the attack set, [n] int64, drawn in the first round
    and kept.

    Source: Mo et al. (FedPoisonMIA), ICCV 2025, section 4.2, step I ("randomly chosen from the
    remaining available labels"). Raises ``UserError`` for fewer than two classes.
    """
    if "wrong-labels" not in knowledge.memory:
        true = knowledge.y.cpu().numpy()
        classes = knowledge.federation.n_classes
        if classes < 2:
            raise UserError("an attack that mislabels its samples needs at least two classes")
        if draw == "uniform":
            drawn = uniform(true, classes, knowledge.rng)
        else:
            drawn = permuted(true, knowledge.rng)
        knowledge.memory["wrong-labels"] = torch.from_numpy(drawn).to(knowledge.y)
    wrong: Tensor = knowledge.memory["wrong-labels"]
    return wrong


def uniform(true: ndarray, n_classes: int, rng: np.random.Generator) -> ndarray:
    """Draw labels [n], every class but the true one with equal probability."""
    return (true + rng.integers(1, n_classes, len(true))) % n_classes


def permuted(true: ndarray, rng: np.random.Generator) -> ndarray:
    """Permute the labels [n]; where that hits the true one, draw again from 0..max-1, so never the
    highest label.

    With labels 0 and 1 a zero has no such label left and becomes 1 (the released code would draw
    for ever).
    """
    wrong = rng.permutation(true)
    top = int(true.max(initial=0))
    hit = wrong == true
    # "drawn until it differs" is a uniform draw among the labels below the highest, the true one
    # left out
    open_labels = np.where(true == top, top, top - 1)
    again = rng.integers(0, np.maximum(open_labels, 1))
    again += again >= true
    return np.where(hit, np.where(open_labels > 0, again, 1 - true), wrong)


class Jitter(Params):
    """Parameters of every attack that submits one vector in the name of several clients."""

    jitter: float = Field(
        0.0,
        ge=0,
        description="Gaussian noise on each submitted row, its norm in units of the row's own; 0: "
        "identical rows",
    )


def copies(row: Tensor, knowledge: Knowledge, jitter: float) -> Tensor:
    """Return ``row`` [P] once for every malicious client that takes part, [m, P].

    The released code of FedPoisonMIA sends one row, multiplied by the number of clients: a rule
    that looks at rows then faces one outlier instead of a group.
    """
    rows = row.repeat(len(knowledge.clients), 1)
    if jitter:
        scale = jitter * norm(row) / max(row.numel(), 1) ** 0.5
        rows += scale * knowledge.randn_like(rows)
    return rows


def benign_rows(knowledge: Knowledge) -> Tensor:
    """Return the rows [n, P] that the attacker takes for benign: the other clients', or with
    partial knowledge its own honest ones.

    Where only one other client takes part, its own honest rows join it: a distance between benign
    rows needs two. Source: Mo et al. (FedPoisonMIA), ICCV 2025, table 1 (full and partial
    knowledge).
    """
    rows = [row for row in (knowledge.honest, knowledge.own) if row is not None]
    if not rows:
        return knowledge.start.new_zeros(0, len(knowledge.start))
    if knowledge.honest is not None and len(knowledge.honest) > 1:
        return knowledge.honest
    return torch.cat(rows)


class Passive(Correctness):
    """No poisoning: the malicious client is an honest participant that looks at the model it
    receives.

    Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C, after Yeom et al. (CSF 2018). Its code
    runs ``passive-trained``.
    """


class PassiveTrained(Poisoning):
    """Passive baseline of the released code: its clients send an honest step on the attack set,
    non-members and all, with true labels.

    Non-members are trained on as well, so the gap to the members shrinks. It flatters whatever is
    compared with it. Source: the code of FedPoisonMIA.
    """

    Params = Jitter
    knowledge = "none"

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        return copies(knowledge.step(knowledge.x, knowledge.y), knowledge, self.params.jitter)


class GradientAscent(Poisoning):
    """Every malicious client sends minus one optimiser step on the attack set with its true labels.

    The attack set's loss rises; the clients that hold a sample pull it back down, no client does so
    for a non-member. Each step starts from a fresh optimiser (the released code lets Adam's state
    gather the descent it then reverses). Source: Nasr et al. (S&P 2019), as Mo et al.
    (FedPoisonMIA, ICCV 2025, appendix C) use it.
    """

    Params = Jitter
    knowledge = "none"

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        return copies(-knowledge.step(knowledge.x, knowledge.y), knowledge, self.params.jitter)
