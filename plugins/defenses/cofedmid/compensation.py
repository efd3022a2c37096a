"""Utility-aware compensation: which excluded samples to reuse, and how not to memorise them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import log_softmax

_REWARDS_BEFORE_SCALING = 5


@dataclass
class Exp3:
    """One member's bandit over loss intervals (Auer et al., SIAM J. Comput. 2002, Exp3; CoFedMID section 4.2.1).

    ``log_weights``: [M], 0 at first; ``gamma``: share of uniform exploration; ``rewards``: raw ones, oldest first.
    """

    gamma: float
    log_weights: np.ndarray
    rewards: list[float] = field(default_factory=list)

    def probabilities(self) -> np.ndarray:
        """[M]: (1 - gamma) w_j / sum(w) + gamma / M."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self.gamma) * weights / weights.sum() + self.gamma / len(weights)

    def draw(self, rng: np.random.Generator) -> int:
        """An arm, by these probabilities."""
        return int(rng.choice(len(self.log_weights), p=self.probabilities()))

    def learn(self, arm: int, reward: float) -> None:
        """w_arm *= exp(gamma r / (p_arm M)), r being the reward on the scale of the earlier ones."""
        scaled = scale_reward(reward, self.rewards)
        self.rewards.append(reward)
        self.log_weights[arm] += self.gamma * scaled / (self.probabilities()[arm] * len(self.log_weights))


def scale_reward(reward: float, history: list[float]) -> float:
    """clip(2 (r - r20) / (r80 - r20) - 1, -1, 1) with the 20th and 80th percentile of ``history``.

    0 with fewer than five earlier rewards, or if the percentiles coincide. Source: CoFedMID section 4.2.1, step 2.
    """
    if len(history) < _REWARDS_BEFORE_SCALING:
        return 0.0
    r20, r80 = np.percentile(history, [20, 80])
    if r80 - r20 < 1e-12:
        return 0.0
    return float(np.clip(2 * (reward - r20) / (r80 - r20) - 1, -1, 1))


def normalise(losses: np.ndarray) -> np.ndarray:
    """[n] losses to [0, 1] by their minimum and maximum; all 0 if equal."""
    span = np.ptp(losses)
    return (losses - losses.min()) / span if span > 0 else np.zeros_like(losses)


def interval_bounds(normalised: np.ndarray, intervals: int) -> np.ndarray:
    """[M-1] inner bounds cutting the sorted losses [n] into M runs of equal size: those at floor(j n / M)."""
    n = len(normalised)
    return np.sort(normalised)[[j * n // intervals for j in range(1, intervals)]]


def buckets(normalised: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """[n] interval of each loss, 0 to M-1; half open on the right, the outer ones unbounded."""
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

    ``logits`` [B, N]. ``kl_reduction``: over classes. With a constant soft label the divergence has no gradient at the
    true logit and p_i - (1 - p_y)/(N - 1) at the others: it only levels the wrong classes.
    Source: CoFedMID section 4.2.2; written there KL(log p || soft), the argument order of ``kl_div``.
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
