"""CoFedMID before training: parameters, classes of a member and round, noise that cancels."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy import ndarray
from numpy.random import Generator
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor, nn

from fedbench.core import CoalitionContext, Federation, Params, UserError

Decay = Literal["linear", "cosine", "exponential", "polynomial", "constant"]
Rounding = Literal["nearest", "floor", "ceil"]


def subset_size(
    t: int, rounds: int, m_max: int, m_min: int, decay: Decay, rounding: Rounding
) -> int:
    """Return m^t, classes per member in round ``t`` of ``rounds``: m_max at first, m_min at last.

    Source: CoFedMID section 4.1, linear; its table 13 names the other shapes without formulas,
    those here are the usual ones (half cosine, geometric, quadratic). C4: ``nearest`` rounds a half
    up.
    """
    s = (t - 1) / max(1, rounds - 1)
    span = m_max - m_min
    shapes = {
        "linear": m_max - span * s,
        "cosine": m_min + span * (1 + math.cos(math.pi * s)) / 2,
        "exponential": m_max * (m_min / m_max) ** s,
        "polynomial": m_min + span * (1 - s) ** 2,
        "constant": float(m_max),
    }
    size = max(float(m_min), round(shapes[decay], 9))  # 3.5000000001 is 3.5 and rounds like it
    if rounding == "ceil":
        return math.ceil(size)
    if rounding == "nearest":
        size += 0.5
    return math.floor(size)


def assign_balanced(classes: int, members: int, m: int, rng: Generator) -> ndarray:
    """Assign ``m`` classes to each member, [members, classes] bool, with least total overlap.

    C2: the paper's objective, sum over pairs of |S_i & S_j|, is sum over classes of q_c (q_c - 1) /
    2 with q_c the members that hold class c: least exactly when the q_c differ by at most one. Then
    every class is held if members * m >= classes, and all subsets are disjoint if not. A class goes
    to the members with most capacity left; ties go to the smallest resulting pairwise overlap, then
    to chance. C5: no assignment keeps every pair's overlap below lambda_theo = ceil((d m^2 - N m) /
    (N (d - 1))); this one stays near it.
    """
    assigned = np.zeros((members, classes), bool)
    overlap = np.zeros((members, members), int)
    capacity = np.full(members, m)
    low, extra = divmod(members * m, classes)
    for i, c in enumerate(rng.permutation(classes)):
        holders = _holders(low + (i < extra), capacity, overlap, rng)
        assigned[holders, c] = True
        overlap[np.ix_(holders, holders)] += 1
        capacity[holders] -= 1
    return assigned


def _holders(count: int, capacity: ndarray, overlap: ndarray, rng: Generator) -> list[int]:
    holders: list[int] = []
    tie = rng.permutation(len(capacity))
    for _ in range(count):
        shared = overlap[:, holders]
        worst = shared.max(1, initial=0)
        total = shared.sum(1)
        order = np.lexsort((tie, total, worst, -capacity))  # last key first
        holders.append(next(int(k) for k in order if k not in holders))
    return holders


def assign_random(classes: int, members: int, m: int, rng: Generator) -> ndarray:
    """Draw each member's ``m`` classes on their own (CoFedMID table 6): [members, classes] bool."""
    assigned = np.zeros((members, classes), bool)
    for row in assigned:
        row[rng.choice(classes, m, replace=False)] = True
    return assigned


def project(noise: Tensor, weights: Tensor) -> Tensor:
    """Remove the component of ``noise`` [d, n] along ``weights`` [d]: sum_k w_k delta_k = 0.

    delta_k = delta'_k - w_k / |w|^2 sum_j w_j delta'_j. One member alone is left with zero; of two
    equal ones each has the other's with the sign turned, of deviation sigma / sqrt(2) (C21).
    Source: CoFedMID section 4.3, algorithm 3.
    """
    return noise - torch.outer(weights / weights.square().sum(), weights @ noise)


def tail(ratio: float, n_params: int) -> int:
    """Return floor(r_p P), how many of the last parameters are perturbed (C25).

    P counts trainable ones, no buffers.
    """
    return int(ratio * n_params + 1e-9)  # 0.29 * 100 is 28.999... in floating point


def in_final_layer(model: nn.Module, perturbed: int) -> tuple[int, int]:
    """Count the last ``perturbed`` parameters in the final linear layer, and all that it has.

    C19: parameters lie in the order of the model's definition. A scalar on the whole of that layer
    adds the same to every logit, which softmax does not see; (0, 0) where the last parameters are
    no linear layer's.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    last = trainable[-1][0].rpartition(".")[0]
    if not isinstance(model.get_submodule(last), nn.Linear):
        return 0, 0
    size = sum(p.numel() for name, p in trainable if name.rpartition(".")[0] == last)
    return min(perturbed, size), size


def _share_or_number(value: float) -> float:
    """Refuse what is neither a share of all classes, up to 1, nor a number of them, from 2 on.

    1 and 1.0, which JSON takes for the same, are all classes.
    """
    if value > 1 and (value < 2 or value % 1):
        raise ValueError(
            f"{value:g} is neither a share of all classes (at most 1) nor a number of classes (2, "
            "3, ...)"
        )
    return value


_Classes = Annotated[float, Field(gt=0), AfterValidator(_share_or_number)]


class CoFedMIDParams(Params):
    """Parameters of CoFedMID.

    ``m_max``, ``m_min``, ``sigma``, ``ratio`` by data set (section 5.1): .5, .2, .1, .2 for
    CIFAR-100, the defaults (Tables 1 to 11, 13 to 15, 21); 1, .2, .1, .3 for TinyImageNet (11, 19,
    20, 23); 1, .2, .01, .01 for CIFAR-10 (5 to 12, 16 to 18, 22).
    """

    partition: bool = Field(True, description="module 1: train on assigned classes only")
    compensation: bool = Field(
        True, description="module 2: recycle excluded samples (needs module 1)"
    )
    perturbation: bool = Field(True, description="module 3: noise that cancels in the aggregate")
    mode: Literal["collaborative", "independent"] = Field(
        "collaborative",
        description="classes and noise planned together, or every member on its own, as if alone",
    )

    m_max: _Classes = Field(
        0.5,
        description="classes a member has in round 1: up to 1 a share of all classes, from 2 on "
        "how many",
    )
    m_min: _Classes = Field(
        0.2,
        description="classes a member has in the last round: up to 1 a share of all classes, from "
        "2 on how many",
    )
    decay: Decay = Field(
        "linear",
        description="how the number of classes falls from m_max to m_min; constant: it stays m_max",
    )
    m_round: Rounding = Field("nearest", description="rounding of a fractional number of classes")
    assign: Literal["balanced", "random"] = Field(
        "balanced",
        description="least overlap, or each member's classes at random (always so where mode is "
        "independent)",
    )
    min_assigned: int | None = Field(
        None,
        ge=1,
        description="with fewer assigned samples a member trains on recycled ones only; null: one "
        "batch",
    )

    val_fraction: float = Field(
        0.05,
        gt=0,
        le=0.2,
        description="share of a member's samples held out to validate, where no part of them is "
        "already",
    )
    val_min: int = Field(
        100, ge=1, description="fewest held-out samples; never more than a fifth of the member's"
    )
    recycle: Literal["mab", "random", "sequential"] = Field(
        "mab",
        description="which excluded samples: of a loss interval a bandit picks, any, or in turn "
        "from low loss to high",
    )
    recycle_from: int | None = Field(
        None,
        ge=1,
        description="t', first round that recycles; null: 10, or the last round of fewer",
    )
    recycle_limit: float = Field(
        0.1,
        ge=0,
        le=1,
        description="r_l, recycled samples per training sample: at most (mab), or as many (random, "
        "sequential)",
    )
    n_intervals: int = Field(10, ge=2, description="M, loss intervals, the arms of the bandit")
    intervals: Literal["fixed_bounds", "requantile"] = Field(
        "fixed_bounds",
        description="interval bounds set in round t' in normalised losses, or anew every round",
    )
    exp3_gamma: float = Field(
        0.1, gt=0, le=1, description="share of uniform exploration in the bandit"
    )
    exp3_step: float | None = Field(
        None,
        gt=0,
        description="s in the bandit's w <- w exp(s r / (p M)); null: Auer et al.'s for M and the "
        "rounds that recycle",
    )
    confidence: bool = Field(True, description="confidence regularisation of recycled samples")
    mu: float = Field(
        0.005, ge=0, description="weight of the entropy of recycled samples' predictions"
    )
    kl_reduction: Literal["sum", "mean"] = Field(
        "sum", description="of the divergence, over classes"
    )
    detach_soft: bool = Field(
        True, description="whether the soft label is a constant, without gradient"
    )

    sigma: float = Field(
        0.1,
        ge=0,
        description="standard deviation of the noise on a parameter, before it is projected",
    )
    ratio: float = Field(
        0.2, gt=0, le=1, description="r_p, share of the parameters perturbed, the last ones"
    )
    noise: Literal["scalar", "vector"] = Field(
        "scalar", description="one number a member, or one a parameter"
    )
    allow_absent: bool = Field(
        False, description="run under client sampling, where the noise does not cancel"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CoFedMIDParams:
        if self.compensation and not self.partition:
            raise ValueError(
                "compensation recycles what partition leaves out: switch it off too, or partition "
                "on"
            )
        if self.m_min > self.m_max and (self.m_max <= 1) == (self.m_min <= 1):
            raise ValueError(
                f"m_min {self.m_min:g} exceeds m_max {self.m_max:g}: members get fewer classes, "
                "not more"
            )
        return self

    @property
    def shared_noise(self) -> bool:
        """Whether the coalition plans noise together, so that it may cancel."""
        return self.perturbation and self.sigma > 0 and self.mode == "collaborative"

    @property
    def raw_noise(self) -> bool:
        """Whether every member adds noise that does not cancel."""
        return self.perturbation and self.sigma > 0 and self.mode == "independent"


_RECYCLE_FROM = 10  # the paper's t', of 100 rounds


def draw_noise(
    p: CoFedMIDParams, rows: int, federation: Federation, generator: torch.Generator
) -> Tensor:
    """Draw [rows, ``noise_width``] float64 from N(0, sigma^2)."""
    shape = rows, noise_width(p, federation)
    device = generator.device
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float64) * p.sigma


def noise_width(p: CoFedMIDParams, federation: Federation) -> int:
    """Return how many numbers a member's noise has: one, or one for each perturbed parameter."""
    return 1 if p.noise == "scalar" else tail(p.ratio, federation.n_params)


def fewest_samples(p: CoFedMIDParams, federation: Federation) -> int:
    """Return the number of assigned samples below which a member leaves them out."""
    return p.min_assigned or federation.batch_size


def class_count(share: float, n_classes: int) -> int:
    """Return ``share`` of the classes, rounded half up (C4), at least one; above 1 a number."""
    if share > 1:
        return int(share)
    return max(1, math.floor(round(share * n_classes, 9) + 0.5))


def class_limits(p: CoFedMIDParams, n_classes: int) -> tuple[int, int]:
    """Return m_max and m_min in classes.

    Raises:
        UserError: there are fewer classes, or members would get more and more.
    """
    m_max = class_count(p.m_max, n_classes)
    m_min = class_count(p.m_min, n_classes)
    for name, count in (("m_max", m_max), ("m_min", m_min)):
        if count > n_classes:
            raise UserError(
                f"cofedmid: {name} {getattr(p, name):g} asks for {count} classes, and there are "
                f"{n_classes}: ask for at most {n_classes}, or for a share of them (up to 1)"
            )
    if m_min > m_max:
        raise UserError(
            f"cofedmid: of {n_classes} classes m_min {p.m_min:g} is {m_min} and m_max {p.m_max:g} "
            f"is {m_max}, so that members would get more classes over the rounds: lower m_min or "
            "raise m_max"
        )
    return m_max, m_min


def sizes(p: CoFedMIDParams, federation: Federation) -> list[int]:
    """Return m^t, classes a member has in each of the T rounds."""
    limits = class_limits(p, federation.n_classes)
    rounds = federation.rounds
    return [subset_size(t, rounds, *limits, p.decay, p.m_round) for t in range(1, rounds + 1)]


def plan_classes(p: CoFedMIDParams, ctx: CoalitionContext) -> ndarray:
    """Plan the classes [T, d, N] bool of d members, drawn anew every round (C3: no fixed mapping).

    C1: where d m^t < N no plan covers all classes (a pair on CIFAR-100 from round 3 on, and
    algorithm 1 would not end): as many as possible.
    """
    n = ctx.federation.n_classes
    d = len(ctx.members)
    assign = assign_balanced if p.assign == "balanced" else assign_random
    return np.stack([assign(n, d, m, ctx.rng) for m in sizes(p, ctx.federation)])


def first_recycling(p: CoFedMIDParams, rounds: int) -> int:
    """Return t', the first round that recycles, itself included (C12).

    Raises:
        UserError: it is after the last of ``rounds``.
    """
    if p.recycle_from is None:
        return min(_RECYCLE_FROM, rounds)
    if p.recycle_from > rounds:
        raise UserError(
            f"cofedmid: recycle_from {p.recycle_from} is after the last round, {rounds}: start "
            "earlier, or set compensation false"
        )
    return p.recycle_from
