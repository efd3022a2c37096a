"""Wrong labels for the attack set, drawn once."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fedbench.core import Knowledge, UserError

Draw = Literal["uniform", "permuted"]
ABOUT_DRAW = (
    "wrong labels: uniform over all other classes, or permuted as in the released code (the true labels permuted, "
    "collisions drawn again below the highest label)"
)


def wrong_labels(knowledge: Knowledge, draw: Draw = "uniform") -> torch.Tensor:
    """[n] int64: a wrong label for every sample of the attack set, drawn in the first round and kept.

    Source: Mo et al. (FedPoisonMIA), ICCV 2025, section 4.2, step I ("randomly chosen from the remaining available labels").
    Raises ``UserError`` for fewer than two classes.
    """
    if "wrong-labels" not in knowledge.memory:
        true, classes = knowledge.y.cpu().numpy(), knowledge.federation.n_classes
        if classes < 2:
            raise UserError("an attack that mislabels its samples needs at least two classes")
        drawn = uniform(true, classes, knowledge.rng) if draw == "uniform" else permuted(true, knowledge.rng)
        knowledge.memory["wrong-labels"] = torch.from_numpy(drawn).to(knowledge.y)
    wrong: torch.Tensor = knowledge.memory["wrong-labels"]
    return wrong


def uniform(true: np.ndarray, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """[n]: every class but the true one with equal probability."""
    return (true + rng.integers(1, n_classes, len(true))) % n_classes


def permuted(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[n]: the labels permuted; where that hits the true one, drawn again from 0..max-1, so never the highest label.

    With labels 0 and 1 a zero has no such label left and becomes 1 (the released code would draw for ever).
    """
    wrong, top = rng.permutation(true), int(true.max(initial=0))
    hit = wrong == true
    # "drawn until it differs" is a uniform draw among the labels below the highest, the true one left out
    open_labels = np.where(true == top, top, top - 1)
    again = rng.integers(0, np.maximum(open_labels, 1))
    again += again >= true
    return np.where(hit, np.where(open_labels > 0, again, 1 - true), wrong)
