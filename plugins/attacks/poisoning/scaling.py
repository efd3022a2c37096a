"""The scale of the mask: the exact optimum on a segment, from inner products alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbench.plugins.attacks.poisoning.angles import cosines

Objective = Literal["angle", "norm"]
SLACK = 1e-9  # of a cosine: float64 rounding at a point that lies on the bound


@dataclass(frozen=True)
class Segment:
    """The candidates a(s) = s m + v, 0 <= s <= 1, seen through inner products with n unit benign rows.

    ``mask``: [n] m's, ``poison``: [n] v's; ``mask_sq`` |m|^2, ``cross`` <m, v>, ``poison_sq`` |v|^2.
    """

    mask: np.ndarray
    poison: np.ndarray
    mask_sq: float
    cross: float
    poison_sq: float

    def squared(self, s: np.ndarray) -> np.ndarray:
        """[k]: |a(s)|^2."""
        return np.maximum(s * s * self.mask_sq + 2 * s * self.cross + self.poison_sq, 0.0)

    def least_cosine(self, s: np.ndarray) -> np.ndarray:
        """[k]: cosine of the largest angle between a(s) and a benign row."""
        return cosines(s[:, None] * self.mask + self.poison, self.squared(s)).min(axis=1)

    def value(self, s: np.ndarray, objective: Objective) -> np.ndarray:
        """[k]: what is maximised: the largest angle to a benign row (as minus its cosine), or the squared norm."""
        return -self.least_cosine(s) if objective == "angle" else self.squared(s)


def optimal_scale(segment: Segment, bound: float, objective: Objective) -> float | None:
    """The s in [0, 1] with the largest objective among those whose cosines are all >= ``bound``; None if there is none.

    No search: a cosine along a segment, (p s + q) / sqrt(A s^2 + 2 B s + C), has one stationary point and meets the bound
    at the roots of a quadratic. The allowed s are intervals between such roots, 0 and 1; within one, the largest
    angle is attained at an end or a stationary point, the norm (convex) at an end. Of equal optima the smallest s is
    taken: more of what is sent is poison then.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, equation 6 (the released code's call of SLSQP for it is commented out).
    """
    s = _candidates(segment, bound)
    s = s[segment.least_cosine(s) >= bound - SLACK]
    if len(s) == 0:
        return None
    value = segment.value(s, objective)
    return float(s[value >= value.max() - SLACK * np.abs(value).max()].min())


def closest_scale(segment: Segment) -> float:
    """The s in [0, 1] whose largest angle to a benign row is smallest, for where the bound cannot be kept.

    The least of several cosines is largest at 0 or 1, where one of them is stationary, or where two of them cross.
    """
    p, q = segment.mask, segment.poison
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = (-(q[:, None] - q) / (p[:, None] - p)).ravel()
    s = _within(np.concatenate([[0.0, 1.0], _stationary(segment), crossing]))
    return float(s[segment.least_cosine(s).argmax()])


def _candidates(segment: Segment, bound: float) -> np.ndarray:
    """[k]: 0, 1, and within them every stationary point of a cosine and every point where one meets the bound."""
    p, q = segment.mask, segment.poison
    a, b, c = segment.mask_sq, segment.cross, segment.poison_sq
    # (p s + q)^2 = bound^2 (a s^2 + 2 b s + c); roots of the other sign are not feasible and drop out
    square, half, rest = p * p - bound**2 * a, p * q - bound**2 * b, q * q - bound**2 * c
    with np.errstate(divide="ignore", invalid="ignore"):
        # half^2 - square rest, its factor bound^2 taken out by hand: near a right angle it would drown in rounding
        inner = p * p * c - 2 * p * q * b + q * q * a - bound**2 * (a * c - b * b)
        root = abs(bound) * np.sqrt(np.maximum(inner, 0.0))
        large = -(half + np.where(half < 0, -root, root))  # a sum without cancellation; the other root follows from it
        roots = np.concatenate([large / square, rest / large])
    return _within(np.concatenate([[0.0, 1.0], _stationary(segment), roots]))


def _stationary(segment: Segment) -> np.ndarray:
    """[n]: where the cosine (p s + q) / sqrt(A s^2 + 2 B s + C) with each benign row has slope 0; not finite if nowhere."""
    p, q, b = segment.mask, segment.poison, segment.cross
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((q * b - p * segment.poison_sq) / (p * b - q * segment.mask_sq))


def _within(s: np.ndarray) -> np.ndarray:
    """Those of [k] in [0, 1]."""
    return s[np.isfinite(s) & (s >= 0) & (s <= 1)]
