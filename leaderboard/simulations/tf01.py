"""Bias and coverage of the pooled TF01: ``python -m fedbench.leaderboard.simulations.tf01`` prints the tables.

Non-members of one seed are the same samples for each of its targets, their scores correlated by one half. Every unit
has its own location and scale. Members are shifted; the shift differs between seeds, so that the TPR does by a
fifth. The truth is the mean TPR at exactly 0.1 % FPR over such seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri, stdtr, stdtrit

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import heading, show
from fedbench.leaderboard.statistics.pooled import pooled_tpr
from fedbench.leaderboard.statistics.sample import Sample

Noise = Literal["normal", "logistic", "t5"]

FPR = 0.001
RATES = (0.001, 0.005, 0.02)
NOISES: tuple[Noise, ...] = ("normal", "logistic", "t5")
CORRELATION = 0.5  # of a non-member's scores under two targets of a seed
SPREAD = 0.2  # coefficient of variation of the TPR between seeds
REPETITIONS, QUICK = 2000, 15
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True)
class Design:
    """Seeds x targets, each with so many members and non-members."""

    name: str
    seeds: int
    targets: int
    members: int
    nonmembers: int


DESIGNS = (
    Design("digits, 2 targets", 5, 2, 100, 500),
    Design("digits, 5 targets", 5, 5, 100, 500),
    Design("images", 5, 2, 200, 2000),
    Design("poisoning", 5, 1, 100, 400),
)


@dataclass(frozen=True)
class Cell:
    """What came of one design, noise and true rate; fractions."""

    design: str
    noise: Noise
    truth: float
    estimates: np.ndarray
    """[r] over repetitions"""
    limits: np.ndarray
    """[r, 2]"""

    @property
    def bias(self) -> float:
        """Relative to the truth."""
        return float(self.estimates.mean() / self.truth - 1)

    @property
    def coverage(self) -> float:
        return float(np.mean((self.limits[:, 0] <= self.truth) & (self.truth <= self.limits[:, 1])))

    @property
    def width(self) -> float:
        return float(np.median(self.limits[:, 1] - self.limits[:, 0]))


def simulate(design: Design, noise: Noise, rates: Sequence[float], repetitions: int, rng: np.random.Generator) -> list[Cell]:
    """One cell a true rate; the rates share their non-members and the members' noise."""
    found = np.array([[_estimate(units) for units in _drawn(design, noise, rates, rng)] for _ in range(repetitions)])
    return [Cell(design.name, noise, rate, f[:, 0], f[:, 1:]) for rate, f in zip(rates, found.swapaxes(0, 1), strict=True)]


def _estimate(units: Sequence[Sample]) -> tuple[float, float, float]:
    pooled = pooled_tpr(units, FPR)
    if pooled is None:
        raise ValueError("too few non-members")
    return pooled.value, pooled.low, pooled.high


def _drawn(design: Design, noise: Noise, rates: Sequence[float], rng: np.random.Generator) -> Iterator[list[Sample]]:
    """The units of one repetition, at each of the rates."""
    shape = (design.seeds, design.targets)
    shared = CORRELATION**0.5 * rng.standard_normal((design.seeds, 1, design.nonmembers))
    own = (1 - CORRELATION) ** 0.5 * rng.standard_normal((*shape, design.nonmembers))
    nonmember, member = of_normal(noise, shared + own), of_normal(noise, rng.standard_normal((*shape, design.members)))
    seeds, ids = rng.standard_normal((design.seeds, 1, 1)), np.arange(design.nonmembers)
    location, scale = 5 * rng.standard_normal((*shape, 1)), np.exp(rng.standard_normal((*shape, 1)))
    for rate in rates:
        shift, spread = shift_of(noise, rate)
        x, y = location + scale * (member + shift + spread * seeds), location + scale * nonmember
        yield [Sample(s, x[s, t], y[s, t], ids) for s in range(design.seeds) for t in range(design.targets)]


def of_normal(noise: Noise, z: np.ndarray) -> np.ndarray:
    """Scores with the distribution ``noise``, one for each standard normal ``z``; monotone, exact in both tails."""
    if noise == "normal":
        return z
    scores: np.ndarray = np.interp(z, *_t5_table()) if noise == "t5" else log_ndtr(z) - log_ndtr(-z)
    return scores


@cache
def _t5_table() -> tuple[np.ndarray, np.ndarray]:
    half = np.linspace(-8, 0, 4001)
    t5 = stdtrit(5, np.exp(log_ndtr(half)))
    return np.r_[half, -half[-2::-1]], np.r_[t5, -t5[-2::-1]]


def above(noise: Noise, threshold: np.ndarray) -> np.ndarray:
    """P(score > threshold)."""
    if noise == "t5":
        rates: np.ndarray = stdtr(5, -threshold)
    else:
        rates = np.exp(log_ndtr(-threshold) if noise == "normal" else -np.logaddexp(0, threshold))
    return rates


def threshold_of(noise: Noise, rate: float) -> float:
    """The threshold with P(score > threshold) = ``rate``."""
    if noise == "t5":
        return float(-stdtrit(5, rate))
    return float(-ndtri(rate) if noise == "normal" else np.log1p(-rate) - np.log(rate))


@cache
def shift_of(noise: Noise, rate: float) -> tuple[float, float]:
    """(mean, spread) of the normal shift of a seed's members: a TPR of ``rate`` with a variation of SPREAD between seeds.

    (0, 0) where the rate is the FPR itself: no leak.
    """
    if rate == FPR:
        return 0.0, 0.0
    threshold = threshold_of(noise, FPR)

    def moments(shift: float, spread: float) -> tuple[float, float]:
        rates = above(noise, threshold - shift - spread * NODES)
        mean = float(WEIGHTS @ rates)
        return mean, float(np.sqrt(WEIGHTS @ (rates - mean) ** 2)) / mean

    shift, spread = threshold - threshold_of(noise, rate), 0.0
    for _ in range(30):  # alternating; each step leaves the other's equation nearly solved
        spread = float(brentq(lambda s, at=shift: moments(at, s)[1] - SPREAD, 0, 2))
        shift = float(brentq(lambda m, at=spread: moments(m, at)[0] - rate, shift - 2, shift + 2))
    return shift, spread


def step_null(n: int, repetitions: int, rng: np.random.Generator) -> float:
    """Mean TPR without a leak of the rule "at most n / 1,000 false positives seen", one unit by itself."""
    allowed, members = n // 1000, 200
    nonmember = np.sort(rng.standard_normal((repetitions, n)), axis=1)
    return float(np.mean(rng.standard_normal((repetitions, members)) > nonmember[:, [n - 1 - allowed]]))


def tables(repetitions: int) -> Iterator[str]:
    """Lines of Markdown."""
    rng = numpy_rng(0, "simulation of tf01")
    yield from heading(repetitions, ("design", "noise", "true %", "mean estimate %", "bias %", "coverage %", "median width, pp"))
    for design in DESIGNS:
        for noise in NOISES:
            for c in simulate(design, noise, RATES, repetitions, rng):
                yield (
                    f"| {c.design} | {c.noise} | {100 * c.truth:.1f} | {100 * c.estimates.mean():.3f} | {100 * c.bias:+.1f} "
                    f"| {100 * c.coverage:.1f} | {100 * c.width:.2f} |"
                )
    yield ""
    yield "| non-members of a unit | TF01 % without a leak, n / 1,000 false positives allowed |"
    yield "|---|---|"
    for n in (1000, 1050, 1100, 2000):
        yield f"| {n:,} | {100 * step_null(n, 2 * repetitions, rng):.3f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
