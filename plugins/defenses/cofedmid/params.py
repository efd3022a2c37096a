"""What can be set of CoFedMID, with the values of the paper's tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from fedbench.core import Params
from fedbench.plugins.defenses.cofedmid.partition import Decay, Rounding


def _share_or_number(value: float) -> float:
    """Up to 1 a share of all classes, from 2 on a number of them: 1 and 1.0, which JSON takes for the same, are all classes."""
    if value > 1 and (value < 2 or value % 1):
        raise ValueError(f"{value:g} is neither a share of all classes (at most 1) nor a number of classes (2, 3, ...)")
    return value


_Classes = Annotated[float, Field(gt=0), AfterValidator(_share_or_number)]


class CoFedMIDParams(Params):
    """``m_max``, ``m_min``, ``sigma``, ``ratio`` by data set (section 5.1): .5, .2, .1, .2 for CIFAR-100, the defaults (Tables 1
    to 11, 13 to 15, 21); 1, .2, .1, .3 for TinyImageNet (11, 19, 20, 23); 1, .2, .01, .01 for CIFAR-10 (5 to 12, 16 to 18, 22).
    """

    partition: bool = Field(True, description="module 1: train on assigned classes only")
    compensation: bool = Field(True, description="module 2: recycle excluded samples (needs module 1)")
    perturbation: bool = Field(True, description="module 3: noise that cancels in the aggregate")
    mode: Literal["collaborative", "independent"] = Field(
        "collaborative", description="classes and noise planned together, or every member on its own, as if alone"
    )

    m_max: _Classes = Field(
        0.5, description="classes a member has in round 1: up to 1 a share of all classes, from 2 on how many"
    )
    m_min: _Classes = Field(
        0.2, description="classes a member has in the last round: up to 1 a share of all classes, from 2 on how many"
    )
    decay: Decay = Field("linear", description="how the number of classes falls from m_max to m_min; constant: it stays m_max")
    m_round: Rounding = Field("nearest", description="rounding of a fractional number of classes")
    assign: Literal["balanced", "random"] = Field(
        "balanced", description="least overlap, or each member's classes at random (always so where mode is independent)"
    )
    coverage: Literal["max_if_infeasible", "strict"] = Field(
        "max_if_infeasible", description="where members x classes < all classes: as many as possible, or an error"
    )
    min_assigned: int | None = Field(
        None, ge=1, description="with fewer assigned samples a member trains on recycled ones only; null: one batch"
    )

    val_fraction: float = Field(
        0.05, gt=0, le=0.2, description="share of a member's samples held out to validate, where no part of them is already"
    )
    val_min: int = Field(100, ge=1, description="fewest held-out samples; never more than a fifth of the member's")
    recycle: Literal["mab", "random", "sequential"] = Field(
        "mab", description="which excluded samples: of a loss interval a bandit picks, any, or in turn from low loss to high"
    )
    recycle_from: int | None = Field(
        None, ge=1, description="t', first round that recycles; null: 10, or the last round of fewer"
    )
    recycle_limit: float = Field(
        0.1, ge=0, le=1, description="r_l, recycled samples per training sample: at most (mab), or as many (random, sequential)"
    )
    n_intervals: int = Field(10, ge=2, description="M, loss intervals, the arms of the bandit")
    intervals: Literal["fixed_bounds", "requantile"] = Field(
        "fixed_bounds", description="interval bounds set in round t' in normalised losses, or anew every round"
    )
    exp3_gamma: float = Field(0.1, gt=0, le=1, description="share of uniform exploration in the bandit")
    exp3_step: float | None = Field(
        None, gt=0, description="s in the bandit's w <- w exp(s r / (p M)); null: Auer et al.'s for M and the rounds that recycle"
    )
    confidence: bool = Field(True, description="confidence regularisation of recycled samples")
    mu: float = Field(0.005, ge=0, description="weight of the entropy of recycled samples' predictions")
    kl_reduction: Literal["sum", "mean"] = Field("sum", description="of the divergence, over classes")
    detach_soft: bool = Field(True, description="whether the soft label is a constant, without gradient")

    sigma: float = Field(0.1, ge=0, description="standard deviation of the noise on a parameter, before it is projected")
    ratio: float = Field(0.2, gt=0, le=1, description="r_p, share of the parameters perturbed, the last ones")
    noise: Literal["scalar", "vector"] = Field("scalar", description="one number a member, or one a parameter")
    noise_resample: bool = Field(True, description="fresh noise every round, or the same in all")
    independent_noise: Literal["raw", "none"] = Field(
        "raw", description="where mode is independent: noise of sigma that nobody cancels, or none"
    )
    allow_absent: bool = Field(False, description="run under client sampling, where the noise does not cancel")

    @model_validator(mode="after")
    def _consistent(self) -> CoFedMIDParams:
        if self.compensation and not self.partition:
            raise ValueError("compensation recycles what partition leaves out: switch it off too, or partition on")
        if self.mode == "independent" and self.coverage == "strict":
            raise ValueError("coverage strict is for a coalition to keep: set mode collaborative or coverage max_if_infeasible")
        if self.m_min > self.m_max and (self.m_max <= 1) == (self.m_min <= 1):
            raise ValueError(f"m_min {self.m_min:g} exceeds m_max {self.m_max:g}: members get fewer classes, not more")
        return self
