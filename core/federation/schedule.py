"""The learning rate over the rounds."""

from __future__ import annotations

import math

from fedbench.core.spec.federation import FederationSpec


def lr_at(federation: FederationSpec, round: int) -> float:
    """Learning rate of a round counted from 1.

    Exponential: times the factor every round; milestones: times the factor after each of the rounds named. Cosine as
    FedMIA's released code has it: the rate is renewed AFTER each round e = 0, 1, ... to lr (1 + cos(pi e / T)) / 2, so that
    rounds 1 and 2 share the first value (docs/methods/federation.md#schedules).
    """
    optimizer, schedule = federation.optimizer, federation.optimizer.schedule
    factor = schedule.factor or 1.0
    if schedule.name == "exponential":
        return optimizer.lr * factor ** (round - 1)
    if schedule.name == "cosine":
        return optimizer.lr * (1 + math.cos(math.pi * max(round - 2, 0) / federation.rounds)) / 2
    if schedule.name == "milestones":
        return optimizer.lr * factor ** sum(round > m for m in schedule.rounds or ())
    return optimizer.lr
