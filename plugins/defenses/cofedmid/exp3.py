"""The bandit that picks a loss interval (Auer, Cesa-Bianchi, Freund & Schapire, SIAM J. Comput. 2002, Exp3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

_REWARDS_BEFORE_SCALING = 5


@dataclass
class Exp3:
    """One member's bandit over loss intervals (CoFedMID section 4.2.1, steps 2 and 3).

    ``log_weights``: [M], 0 at first, logarithms so that no run is too long for them; ``gamma``: share of uniform exploration;
    ``step``: s, how fast weights follow rewards; ``rewards``: raw ones, oldest first. The paper names neither. Auer et al.'s
    Exp3 is ``step == gamma`` (C10): at .1 an arm that is always best has come to .15 after 51 rounds, to .20 after 91, and
    the paper's Figure 5 shows intervals that are told apart.
    """

    gamma: float
    log_weights: np.ndarray
    step: float
    rewards: list[float] = field(default_factory=list)

    def probabilities(self) -> np.ndarray:
        """[M]: (1 - gamma) w_j / sum(w) + gamma / M."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self.gamma) * weights / weights.sum() + self.gamma / len(weights)

    def draw(self, rng: np.random.Generator) -> int:
        """An arm, by these probabilities."""
        return int(rng.choice(len(self.log_weights), p=self.probabilities()))

    def learn(self, arm: int, reward: float) -> None:
        """w_arm *= exp(step r / (p_arm M)), r being the reward on the scale of the earlier ones."""
        scaled = scale_reward(reward, self.rewards)
        self.rewards.append(reward)
        self.log_weights[arm] += self.step * scaled / (self.probabilities()[arm] * len(self.log_weights))


def best_step(arms: int, rounds: int) -> float:
    """min(1, sqrt(M ln M / ((e - 1) n))): what bounds the regret of M ``arms`` over n ``rounds`` best when no reward exceeds 1.

    .38 for 10 arms and 91 rounds. Source: Auer et al. 2002, corollary 3.2, there for exploration and step in one.
    """
    return min(1.0, math.sqrt(arms * math.log(arms) / ((math.e - 1) * max(1, rounds))))


def scale_reward(reward: float, history: list[float]) -> float:
    """clip(2 (r - r20) / (r80 - r20) - 1, -1, 1) with the 20th and 80th percentile of ``history``.

    C11: 0 with fewer than five earlier rewards, or if the percentiles coincide; all earlier ones of the member count.
    Source: CoFedMID section 4.2.1, step 2.
    """
    if len(history) < _REWARDS_BEFORE_SCALING:
        return 0.0
    r20, r80 = np.percentile(history, [20, 80])
    if r80 - r20 < 1e-12:
        return 0.0
    return float(np.clip(2 * (reward - r20) / (r80 - r20) - 1, -1, 1))
