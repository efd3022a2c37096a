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


def signal(name: str, sign: int = 1) -> Measure:
    """A signal as it was measured, turned over for ``sign`` -1."""
    return Measure(frozenset({name}), lambda observations: sign * np.asarray(observations[name], np.float64))


def grad_cosine(observations: Observations) -> np.ndarray:
    """cos(g_i, I_k) of the sample's gradient at the global model and the client's pseudo-gradient, 0 if one is zero.

    Source: Li et al., ICLR 2023 (Grad-Cosine); Zhu et al. (FedMIA), CVPR 2025, equation 7.
    """
    dot, sq, update_sq = (np.asarray(observations[s], np.float64) for s in ("grad-dot", "grad-sq", "update-sq"))
    length = np.sqrt(sq) * np.sqrt(update_sq)  # apart: the product of the squares could underflow
    return np.where(length == 0, 0.0 * dot, dot / np.where(length == 0, 1.0, length))  # 0 * NaN stays NaN


def grad_diff(observations: Observations) -> np.ndarray:
    """|I_k|^2 - |I_k - g_i|^2 = 2 <I_k, g_i> - |g_i|^2, the pseudo-gradient taken as it is.

    Source: Li et al., ICLR 2023 (Gradient-Diff). They subtract gradients; a pseudo-gradient is a learning rate and many
    steps away from one, and an attacker does not know the factor, so on some settings |g_i|^2 decides alone.
    """
    return 2 * np.asarray(observations["grad-dot"], np.float64) - np.asarray(observations["grad-sq"], np.float64)


MEASURES = {
    "loss": signal("loss", -1),  # Yeom et al., CSF 2018
    "confidence": signal("confidence"),  # Yeom et al., CSF 2018
    "rescaled": signal("logit-confidence"),  # Carlini et al. (LiRA), S&P 2022; from the loss it would saturate
    "modified-entropy": signal("modified-entropy", -1),  # Song & Mittal, USENIX Security 2021
    "entropy": signal("entropy", -1),  # Salem et al., NDSS 2019, as the next two
    "max-prob": signal("max-prob"),
    "std-prob": signal("std-prob"),
    "grad-cosine": Measure(frozenset({"grad-dot", "grad-sq", "update-sq"}), grad_cosine),
    "grad-diff": Measure(frozenset({"grad-dot", "grad-sq"}), grad_diff),
    "grad-norm": signal("grad-sq", -1),  # squared, as in FedMIA's code; Nasr et al., CCS 2018
}


def measure_of(name: str, sign: int = 1) -> Measure:
    """The measurement called ``name``, or the signal of that name (anybody's); turned over for ``sign`` -1."""
    known = MEASURES.get(name, signal(name))
    return known if sign == 1 else Measure(known.needs, lambda observations: -known.of(observations))


def of_target(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, n]: the target's row of a measurement."""
    return measured[:, observations.target if measured.shape[1] > 1 else 0]


def of_others(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, M-1, n]: every other client's row of a measurement.

    Raises ``SkipCell`` in a view without other clients, and for a measurement that is the same for all of them.
    """
    if len(observations.clients) < 2 and observations.view == "coalition":
        raise SkipCell(
            "every client is in the coalition: this attack compares the coalition's mean with the rows of several other clients, "
            "and there is none outside it"
        )
    if len(observations.clients) < 2:
        raise SkipCell(f"the view '{observations.view}' shows no other client to compare with")
    if measured.shape[1] == 1:
        raise SkipCell("this measurement does not depend on the client, so the others say nothing about the target")
    return np.delete(measured, observations.target, axis=1)
