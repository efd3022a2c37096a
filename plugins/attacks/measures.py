"""Measurements M_{k,t}(x) of a client's update on a sample, higher = member, [R, M, n]; FedMIA lifts any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedbench.core import Observations, SkipCell


@dataclass(frozen=True)
class Measure:
    """``needs``: signals it reads; ``of``: observations -> [R, M, n] float64, NaN where a client was absent."""

    needs: frozenset[str]
    of: Callable[[Observations], np.ndarray]


def negative_loss(observations: Observations) -> np.ndarray:
    """-CE(L_{k,t}(x), y). Source: Yeom et al., CSF 2018."""
    return -np.asarray(observations["loss"], np.float64)


def grad_cosine(observations: Observations) -> np.ndarray:
    """cos(g_i, I_k) of the sample's gradient at the global model and the client's pseudo-gradient, 0 if one is zero.

    Source: Li et al., ICLR 2023 (Grad-Cosine); Zhu et al. (FedMIA), CVPR 2025, equation 7.
    """
    dot, sq, update_sq = (np.asarray(observations[s], np.float64) for s in ("grad-dot", "grad-sq", "update-sq"))
    length = np.sqrt(sq) * np.sqrt(update_sq)  # apart: the product of the squares could underflow
    return np.where(length == 0, 0.0 * dot, dot / np.where(length == 0, 1.0, length))  # 0 * NaN stays NaN


MEASURES = {
    "loss": Measure(frozenset({"loss"}), negative_loss),
    "grad-cosine": Measure(frozenset({"grad-dot", "grad-sq", "update-sq"}), grad_cosine),
}


def of_target(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, n]: the target's row of a measurement."""
    return measured[:, observations.target if measured.shape[1] > 1 else 0]


def of_others(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, M-1, n]: every other client's row of a measurement; raises ``SkipCell`` in a view without other clients."""
    if len(observations.clients) < 2:
        raise SkipCell(f"the view '{observations.view}' shows no other client to compare with")
    full = np.broadcast_to(measured, (measured.shape[0], len(observations.clients), measured.shape[2]))
    return np.delete(full, observations.target, axis=1)
