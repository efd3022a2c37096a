"""Poison that a rule's distances or angles do not reveal: AGREvader, the adaptive attack on ATM."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import Knowledge, norms
from fedbench.plugins.attacks.poisoning.base import (
    ABOUT_DRAW,
    Draw,
    Jitter,
    Poisoning,
    benign_rows,
    copies,
    wrong_labels,
)

_COLUMNS = 2**14


def unit_rows(rows: Tensor) -> Tensor:
    """Divide every row of ``rows`` [n, P] by its norm; a zero row stays zero."""
    lengths = norms(rows)[:, None]
    return rows / torch.where(lengths > 0, lengths, 1.0).to(rows)


def products(a: Tensor, b: Tensor) -> ndarray:
    """Return the inner products [m, n] of the rows of ``a`` [m, P] and ``b`` [n, P].

    Some columns at a time, summed in float64: in float32 a vector of 11 million entries is a
    thousandth too short.
    """
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for left, right in zip(a.split(_COLUMNS, dim=1), b.split(_COLUMNS, dim=1), strict=True):
        total += left @ right.T
    return total.cpu().numpy()


def cosines(dots: ndarray, squared: ndarray) -> ndarray:
    """Return the cosines [..., n] of vectors with unit vectors, given ``dots`` [..., n] and
    ``squared`` norms [...].

    0 where either vector is zero: no direction is a right angle to every other.
    """
    lengths = np.sqrt(np.maximum(squared, 0.0))[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(lengths > 0, dots / lengths, 0.0), -1.0, 1.0)


def least_cosine(unit_gram: ndarray) -> float:
    """Return the cosine of the largest angle between two of n >= 2 unit vectors with these inner
    products [n, n].
    """
    return float(np.clip(unit_gram[np.triu_indices(len(unit_gram), 1)].min(), -1.0, 1.0))


def angles(gram: ndarray) -> ndarray:
    """Return the angles in radians [n, n] between vectors with these inner products [n, n]; 0 of
    each with itself.
    """
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    outer = lengths[:, None] * lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.arccos(np.clip(np.where(outer > 0, gram / outer, 0.0), -1.0, 1.0))
    np.fill_diagonal(out, 0.0)
    return out


class AGREvader(Poisoning):
    """Send ``cover`` c + v if that is no further from a benign row than two benign rows are apart,
    else c alone.

    c: one pass over the mask set; v: one step on the attack set with wrong labels; distances are
    Euclidean. With fewer than two benign rows in sight nothing is close enough, and c alone is
    sent. Source: Zhang et al. (CCS 2023), who send the sum unconditionally (``always``); the
    condition is that of Mo et al. (FedPoisonMIA), ICCV 2025, appendix C.
    """

    class Params(Jitter):
        cover: float = Field(0.5, ge=0, description="weight of the cover update, no unit")
        always: bool = Field(
            False, description="send the sum whatever its distance, as AGREvader's own code does"
        )
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    @property
    def knowledge(self) -> Literal["none", "own"]:  # type: ignore[override]
        """``own``, since the condition needs benign rows to compare with."""
        return "none" if self.params.always else "own"

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        cover = knowledge.train(knowledge.mask_x, knowledge.mask_y)
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        mixed = self.params.cover * cover + poison
        hidden = self.params.always or is_close(mixed, benign_rows(knowledge))
        return copies(mixed if hidden else cover, knowledge, self.params.jitter)


def is_close(row: Tensor, benign: Tensor) -> bool:
    """Return whether ``row`` [P] is no further from any of ``benign`` [n, P] than two of those are
    apart; False for n < 2.
    """
    if len(benign) < 2:
        return False
    widest = max(float(norms(benign[i + 1 :] - benign[i]).amax()) for i in range(len(benign) - 1))
    return float(norms(benign - row).amax()) <= widest


class AdaptiveATM(Poisoning):
    """Every malicious client sends the poison, averaged with benign rows until its mean angle is
    not among the largest.

    ``trim`` is how many rows it expects angular trimming to remove; its default is algorithm 3's,
    whatever the rule's kappa is: against ``atm`` with kappa 2 it is 4 that are removed. The loop of
    algorithm 3 need not end: it is cut off after ``most`` steps. The released code computes this
    row and then never sends it. With no benign row in sight its clients send the poison as it is.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, appendix C, algorithm 3.
    """

    class Params(Jitter):
        trim: int | None = Field(
            None,
            ge=1,
            description="rows it expects to be trimmed; null: two for each of its clients that "
            "takes part",
        )
        most: int = Field(50, ge=0, description="steps towards the benign rows at most")
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    knowledge = "own"

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        rows = torch.cat([poison[None], benign_rows(knowledge)])
        m = len(knowledge.clients)
        weights = blend(products(rows, rows), m, self.params.trim or 2 * m, self.params.most)
        row = torch.from_numpy(weights).to(rows) @ rows
        return copies(row, knowledge, self.params.jitter)


def blend(gram: ndarray, copies: int, trim: int, most: int) -> ndarray:
    """Return the weights [1 + n] of the poison and n benign rows in what is sent, from their inner
    products [1 + n, 1 + n].

    Start a = poison. While its mean angle to all rows (``copies`` of a among them, and itself as 0)
    is no less than the ``trim``-th largest mean angle: a <- (a + h) / 2 with h the benign row at
    the largest angle to a; ``most`` times at most.
    """
    n = len(gram) - 1
    weights = np.eye(n + 1)[0]
    if n == 0:
        return weights
    for _ in range(most):
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
