"""CoFedMID before training: parameters, classes of each member and round, and noise that cancels."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor, nn

from fedbench.core import CoalitionContext, Federation, Params, UserError

Decay = Literal["linear", "cosine", "exponential", "polynomial", "constant"]
Rounding = Literal["nearest", "floor", "ceil"]


def subset_size(
    t: int, rounds: int, m_max: int, m_min: int, decay: Decay, rounding: Rounding
) -> int:
    """m^t, classes per member in round ``t`` (from 1 to ``rounds``): m_max at first, m_min at last.

    Source: CoFedMID section 4.1, linear; its table 13 names the other shapes without formulas,
    those here are the usual ones (half cosine, geometric, quadratic). C4: ``nearest`` rounds a half
    up.
    """
    s = (t - 1) / (rounds - 1) if rounds > 1 else 0.0
    span = m_max - m_min
    size = {
        "linear": m_max - span * s,
        "cosine": m_min + span * (1 + math.cos(math.pi * s)) / 2,
        "exponential": m_max * (m_min / m_max) ** s,
        "polynomial": m_min + span * (1 - s) ** 2,
        "constant": float(m_max),
    }[decay]
    size = max(float(m_min), round(size, 9))  # 9 digits: 3.5000000001 is 3.5 and rounds like it
    return {"nearest": math.floor(size + 0.5), "floor": math.floor(size), "ceil": math.ceil(size)}[
        rounding
    ]


def assign_balanced(classes: int, members: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """[members, classes] bool, ``m`` classes a member, of least total overlap.

    C2: the paper's objective, sum over pairs of |S_i & S_j|, is sum over classes of q_c (q_c - 1) /
    2 with q_c the members that hold class c: least exactly when the q_c differ by at most one. Then
    every class is held if members * m >= classes, and all subsets are disjoint if not. A class goes
    to the members with most capacity left; ties go to the smallest resulting pairwise overlap, then
    to chance. C5: no assignment keeps every pair's overlap below lambda_theo = ceil((d m^2 - N m) /
    (N (d - 1))); this one stays near it.
    """
    held = np.zeros((members, classes), bool)
    overlap = np.zeros((members, members), int)
    capacity = np.full(members, m)
    low, extra = divmod(members * m, classes)
    for i, c in enumerate(rng.permutation(classes)):
        chosen = _holders(low + (i < extra), capacity, overlap, rng)
        held[chosen, c] = True
        overlap[np.ix_(chosen, chosen)] += 1
        capacity[chosen] -= 1
    return held


def _holders(
    count: int, capacity: np.ndarray, overlap: np.ndarray, rng: np.random.Generator
) -> list[int]:
    chosen: list[int] = []
    tie = rng.permutation(len(capacity))
    for _ in range(count):
        with_chosen = overlap[:, chosen]
        worst, total = with_chosen.max(1, initial=0), with_chosen.sum(1)
        order = np.lexsort((tie, total, worst, -capacity))  # last key first
        chosen.append(next(int(k) for k in order if k not in chosen))
    return chosen


def assign_random(classes: int, members: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """[members, classes] bool: each member's ``m`` classes drawn on their own (CoFedMID table 6,
    ablation).
    """
    held = np.zeros((members, classes), bool)
    for row in held:
        row[rng.choice(classes, m, replace=False)] = True
    return held


def project(noise: Tensor, weights: Tensor) -> Tensor:
    """[d, n]: ``noise`` [d, n] without its component along ``weights`` [d], so that sum_k w_k
    delta_k = 0.

    delta_k = delta'_k - w_k / |w|^2 sum_j w_j delta'_j. One member alone is left with zero; of two
    equal ones each has the other's with the sign turned, of deviation sigma / sqrt(2) (C21).
    Source: CoFedMID section 4.3, algorithm 3.
    """
    return noise - torch.outer(weights / weights.square().sum(), weights @ noise)


def tail(ratio: float, n_params: int) -> int:
    """floor(r_p P): how many of the last parameters are perturbed; P counts trainable ones, no
    buffers (C25).
    """
    return int(ratio * n_params + 1e-9)  # 0.29 * 100 is 28.999... in floating point


def in_final_layer(model: nn.Module, perturbed: int) -> tuple[int, int]:
    """(how many of the last ``perturbed`` parameters lie in the final linear layer, how many it
    has).

    C19: parameters lie in the order of the model's definition. A scalar on the whole of that layer
    adds the same to every logit, which softmax does not see; (0, 0) where the last parameters are
    no linear layer's.
    """
    named = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    where = list(named)[-1].rpartition(".")[0]
    size = sum(n for name, n in named.items() if name.rpartition(".")[0] == where)
    return (
        (min(perturbed, size), size)
        if isinstance(model.get_submodule(where), nn.Linear)
        else (0, 0)
    )


def draw(sigma: float, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns] float64 from N(0, sigma^2)."""
    return torch.randn((rows, columns), generator=generator, dtype=torch.float64) * sigma


def _share_or_number(value: float) -> float:
    """Up to 1 a share of all classes, from 2 on a number of them: 1 and 1.0, which JSON takes for
    the same, are all classes.
    """
    if value > 1 and (value < 2 or value % 1):
        raise ValueError(
            f"{value:g} is neither a share of all classes (at most 1) nor a number of classes (2, "
            "3, ...)"
        )
    return value


_Classes = Annotated[float, Field(gt=0), AfterValidator(_share_or_number)]


class CoFedMIDParams(Params):
    """``m_max``, ``m_min``, ``sigma``, ``ratio`` by data set (section 5.1): .5, .2, .1, .2 for
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
    coverage: Literal["max_if_infeasible", "strict"] = Field(
        "max_if_infeasible",
        description="where members x classes < all classes: as many as possible, or an error",
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
    noise_resample: bool = Field(True, description="fresh noise every round, or the same in all")
    independent_noise: Literal["raw", "none"] = Field(
        "raw", description="where mode is independent: noise of sigma that does not cancel, or none"
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
        if self.mode == "independent" and self.coverage == "strict":
            raise ValueError(
                "coverage strict is for a coalition to keep: set mode collaborative or coverage "
                "max_if_infeasible"
            )
        if self.m_min > self.m_max and (self.m_max <= 1) == (self.m_min <= 1):
            raise ValueError(
                f"m_min {self.m_min:g} exceeds m_max {self.m_max:g}: members get fewer classes, "
                "not more"
            )
        return self


_RECYCLE_FROM = 10  # the paper's t', of 100 rounds


def class_count(given: float, n_classes: int) -> int:
    """How many of ``n_classes`` classes ``given`` stands for: up to 1 a share, rounded half up
    (C4), at least one class.
    """
    return max(1, math.floor(round(given * n_classes, 9) + 0.5)) if given <= 1 else int(given)


def class_limits(p: CoFedMIDParams, n_classes: int) -> tuple[int, int]:
    """(m_max, m_min) in classes; ``UserError`` where there are fewer classes, or where members
    would get more and more.
    """
    m_max, m_min = class_count(p.m_max, n_classes), class_count(p.m_min, n_classes)
    for name, given, found in (("m_max", p.m_max, m_max), ("m_min", p.m_min, m_min)):
        if found > n_classes:
            raise UserError(
                f"cofedmid: {name} {given:g} asks for {found} classes, and there are {n_classes}: "
                f"ask for at most {n_classes}, "
                "or for a share of them (up to 1)"
            )
    if m_min > m_max:
        raise UserError(
            f"cofedmid: of {n_classes} classes m_min {p.m_min:g} is {m_min} and m_max {p.m_max:g} "
            f"is {m_max}, so that members "
            "would get more classes over the rounds: lower m_min or raise m_max"
        )
    return m_max, m_min


def sizes(p: CoFedMIDParams, federation: Federation) -> list[int]:
    """[T]: m^t, classes a member has in each round."""
    limits = class_limits(p, federation.n_classes)
    rounds = federation.rounds
    return [subset_size(t, rounds, *limits, p.decay, p.m_round) for t in range(1, rounds + 1)]


def plan_classes(p: CoFedMIDParams, ctx: CoalitionContext) -> np.ndarray:
    """[T, d, N] bool: the classes of each of the d members in each round, drawn anew every round
    (C3: no fixed mapping).

    C1: where d m^t < N no plan covers all classes (a pair on CIFAR-100 from round 3 on, and
    algorithm 1 would not end): as many as possible, or ``UserError`` (``coverage: strict``).
    """
    n, d = ctx.federation.n_classes, len(ctx.members)
    assign = assign_balanced if p.assign == "balanced" else assign_random
    plan = []
    for t, m in enumerate(sizes(p, ctx.federation), 1):
        if p.coverage == "strict" and d * m < n:
            members = "1 member" if d == 1 else f"{d} members"
            raise UserError(
                f"cofedmid: from round {t} on, {members} x {m} classes cannot cover all {n} "
                "classes, which coverage strict "
                "demands: raise m_min, let more clients defend, or set coverage max_if_infeasible"
            )
        plan.append(assign(n, d, m, ctx.rng))
    return np.stack(plan)


def first_recycling(p: CoFedMIDParams, rounds: int) -> int:
    """t', the first round that recycles, itself included (C12); ``UserError`` if it is after the
    last of ``rounds``.
    """
    if p.recycle_from is None:
        return min(_RECYCLE_FROM, rounds)
    if p.recycle_from > rounds:
        raise UserError(
            f"cofedmid: recycle_from {p.recycle_from} is after the last round, {rounds}: start "
            "earlier, or set compensation false"
        )
    return p.recycle_from


def thirds(p: CoFedMIDParams, rounds: int) -> tuple[range, range]:
    """The first and the last third of the rounds that recycle: early and late; at least one round
    each.
    """
    first = first_recycling(p, rounds)
    third = max(1, (rounds - first + 1) // 3)
    return range(first, first + third), range(rounds - third + 1, rounds + 1)
