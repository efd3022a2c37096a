"""Utility-aware compensation: intervals of losses, and the penalty on confidence."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch.nn.functional import log_softmax


def normalise(losses: np.ndarray) -> np.ndarray:
    """[n] losses to [0, 1] by their minimum and maximum; all 0 if equal."""
    span = np.ptp(losses)
    return (losses - losses.min()) / span if span > 0 else np.zeros_like(losses)


def interval_bounds(normalised: np.ndarray, intervals: int) -> np.ndarray:
    """[M-1] inner bounds cutting the sorted losses [n] into M runs of equal size: those at floor(j n / M)."""
    n = len(normalised)
    return np.sort(normalised)[[j * n // intervals for j in range(1, intervals)]]


def buckets(normalised: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """[n] interval of each loss, 0 to M-1; half open on the right, the outer ones unbounded (C7)."""
    return np.searchsorted(bounds, normalised, side="right")


def limit(mask: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: ``mask``, thinned at random to ``most`` entries where it has more."""
    candidates = np.flatnonzero(mask)
    if len(candidates) <= most:
        return mask
    thinned = np.zeros_like(mask)
    thinned[rng.choice(candidates, most, replace=False)] = True
    return thinned


def confidence_regulariser(
    logits: torch.Tensor, y: torch.Tensor, mu: float, detach: bool, kl_reduction: Literal["sum", "mean"]
) -> torch.Tensor:
    """[B]: KL(soft || p) - mu H(p), the soft label keeping p_y on the true class and spreading 1 - p_y evenly.

    ``logits`` [B, N]. C13: written KL(log p || soft) in the paper, the argument order of ``kl_div``; ``kl_reduction``: over
    classes. C14: ``detach``: the soft label is a label, a constant. C17: then the divergence has no gradient at the true
    logit and p_i - (1 - p_y)/(N - 1) at the others: it only levels the wrong classes. C15: ``mu`` is as printed, while
    HAMP's .005 went with a divergence divided by the number of classes.
    Source: CoFedMID section 4.2.2.
    """
    log_p = log_softmax(logits, 1)
    p_true = log_p.gather(1, y[:, None]).exp()
    rest = (1 - p_true) / (logits.shape[1] - 1)
    # Above zero, where the logarithm has no finite gradient.
    soft = rest.expand_as(log_p).scatter(1, y[:, None], p_true).clamp_min(torch.finfo(logits.dtype).tiny)
    if detach:
        soft = soft.detach()
    divergence = torch.xlogy(soft, soft) - soft * log_p
    entropy = -(log_p.exp() * log_p).sum(1)
    return (divergence.sum(1) if kl_reduction == "sum" else divergence.mean(1)) - mu * entropy
