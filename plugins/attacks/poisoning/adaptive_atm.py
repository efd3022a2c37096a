"""The adaptive attack on angular trimming: poison pulled towards the benign rows until the trimming would spare it."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Knowledge
from fedbench.plugins.attacks.poisoning.angles import angles, products
from fedbench.plugins.attacks.poisoning.correctness import Poisoning
from fedbench.plugins.attacks.poisoning.labels import ABOUT_DRAW, Draw, wrong_labels
from fedbench.plugins.attacks.poisoning.rows import Jitter, benign_rows, copies


class AdaptiveATM(Poisoning):
    """Every malicious client sends the poison, averaged with benign rows until its mean angle is not among the largest.

    ``trim`` is how many rows it expects angular trimming to remove. The loop of algorithm 3 need not end: it is cut off
    after ``most`` steps. The released code computes this row and then never sends it.
    With no benign row in sight its clients send the poison as it is.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C, algorithm 3.
    """

    class Params(Jitter):
        trim: int | None = Field(
            None, ge=1, description="rows it expects to be trimmed; null: two for each of its clients that takes part"
        )
        most: int = Field(50, ge=0, description="steps towards the benign rows at most")
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    knowledge = "own"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]."""
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        rows = torch.cat([poison[None], benign_rows(knowledge)])
        m = len(knowledge.clients)
        weights = blend(products(rows, rows), m, self.params.trim or 2 * m, self.params.most)
        row = torch.from_numpy(weights).to(rows) @ rows
        return copies(row, knowledge, self.params.jitter)


def blend(gram: np.ndarray, copies: int, trim: int, most: int) -> np.ndarray:
    """[1 + n] weights of the poison and n benign rows in what is sent, from their inner products [1 + n, 1 + n].

    Start a = poison. While its mean angle to all rows (``copies`` of a among them, and itself as 0) is no less than the
    ``trim``-th largest mean angle: a <- (a + h) / 2 with h the benign row at the largest angle to a; ``most`` times at most.
    """
    n = len(gram) - 1
    weights = np.eye(n + 1)[0]
    for _ in range(most if n else 0):
        # all rows as combinations of the basis: the benign ones, then a for every malicious client
        mix = np.vstack([np.eye(n + 1)[1:], np.tile(weights, (copies, 1))])
        between = angles(mix @ gram @ mix.T)
        between[n:, n:] = 0.0  # copies are the same row: rounding must not set them apart
        mean = between.mean(axis=1)
        if mean[-1] < np.sort(mean)[max(len(mean) - trim, 0)]:
            break
        farthest = int(between[-1, :n].argmax())
        weights = (weights + mix[farthest]) / 2
    return weights
