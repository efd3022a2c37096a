"""TF01 of units too small for thresholds of their own: ``python -m fedbench.leaderboard.simulations.tf01_small``.

As ``tf01.py``, with units of unequal size, place and scale that are aligned and judged by one threshold. *Unlike*: units
have tails of their own (normal, logistic, Student's t in turn), each with a TPR of the true rate. *Shared*: all
targets of a seed have the same non-members. The truth is the mean TPR at exactly 0.1 % FPR of every unit, which an adversary
with a threshold for each target would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import heading, show
from fedbench.leaderboard.simulations.tf01 import CORRELATION, NOISES, Cell, Noise, of_normal, shift_of
from fedbench.leaderboard.statistics.aligned import aligned_tpr
from fedbench.leaderboard.statistics.sample import Sample

FPR = 0.001
RATES = (0.001, 0.005, 0.02, 0.1)
REPETITIONS, QUICK = 1000, 4
TAILS: dict[str, tuple[Noise, ...]] = {**{noise: (noise,) for noise in NOISES}, "unlike": NOISES}


@dataclass(frozen=True, kw_only=True)
class Design:
    """Seeds x targets with so many members, and ``nonmembers`` evenly between (fewest, most)."""

    name: str
    seeds: int
    targets: int
    members: int
    nonmembers: tuple[int, int]
    shared: bool = False

    @property
    def sizes(self) -> list[int]:
        """Non-members of each target."""
        return [round(n) for n in np.linspace(*self.nonmembers, self.targets)]


DESIGNS = (
    Design(name="5 x 5 of 34 to 62", seeds=5, targets=5, members=190, nonmembers=(34, 62)),
    Design(name="5 x 5 of 106 to 174", seeds=5, targets=5, members=240, nonmembers=(106, 174)),
    Design(name="5 x 5 of 200, shared", seeds=5, targets=5, members=100, nonmembers=(200, 200), shared=True),
    Design(name="5 x 1 of 250", seeds=5, targets=1, members=100, nonmembers=(250, 250)),
)


def simulate(design: Design, tails: str, rates: Sequence[float], repetitions: int, rng: np.random.Generator) -> list[Cell]:
    """One cell a true rate; the rates share their non-members and the members' noise."""
    found = np.array([[_estimate(units) for units in _drawn(design, tails, rates, rng)] for _ in range(repetitions)])
    return [Cell(design.name, TAILS[tails][0], r, f[:, 0], f[:, 1:]) for r, f in zip(rates, found.swapaxes(0, 1), strict=True)]


def _estimate(units: Sequence[Sample]) -> tuple[float, float, float]:
    found = aligned_tpr(units, FPR)
    if found is None:
        raise ValueError("too few non-members")
    return found.value, found.low, found.high


def _drawn(design: Design, tails: str, rates: Sequence[float], rng: np.random.Generator) -> Iterator[list[Sample]]:
    """The units of one repetition, at each of the rates."""
    kinds = cycle(TAILS[tails])
    drawn = []
    for seed in range(design.seeds):
        luck, common = rng.standard_normal(), rng.standard_normal(max(design.sizes))
        for target, n in enumerate(design.sizes):
            noise, own = next(kinds), rng.standard_normal(n)
            z = CORRELATION**0.5 * common[:n] + (1 - CORRELATION) ** 0.5 * own if design.shared else own
            ids = np.arange(n) + (0 if design.shared else 10_000 * target)
            place, scale = 5 * rng.standard_normal(), np.exp(rng.standard_normal())
            member = of_normal(noise, rng.standard_normal(design.members))
            drawn.append((seed, noise, luck, place, scale, member, place + scale * of_normal(noise, z), ids))
    for rate in rates:
        units = []
        for seed, noise, luck, place, scale, member, nonmember, ids in drawn:
            shift, spread = shift_of(noise, rate)
            units.append(Sample(seed, place + scale * (member + shift + spread * luck), nonmember, ids))
        yield units


def tables(repetitions: int) -> Iterator[str]:
    """Lines of Markdown."""
    rng = numpy_rng(0, "simulation of small units")
    columns = ("design", "tails", "true %", "mean estimate %", "bias %", "coverage %", "above the truth %", "median width, pp")
    yield from heading(repetitions, columns)
    for design in DESIGNS:
        for tails in TAILS:
            for c in simulate(design, tails, RATES, repetitions, rng):
                above = np.mean(c.limits[:, 0] > c.truth)
                yield (
                    f"| {c.design} | {tails} | {100 * c.truth:.1f} | {100 * c.estimates.mean():.3f} | {100 * c.bias:+.1f} "
                    f"| {100 * c.coverage:.1f} | {100 * above:.1f} | {100 * c.width:.2f} |"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
