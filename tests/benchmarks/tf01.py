"""Bias and coverage of TF01 where the truth is known: the table of docs/method.md.

``python tests/benchmarks/tf01.py`` prints it. Members are non-members shifted by as much as gives the true
TPR at a false-positive rate of 0.1 %. Every unit has its own location and scale. Units with fewer than 333
non-members are aligned.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.statistics.tf01 import Sample, tf01_of

FPR, MEMBERS, REPETITIONS = 0.001, 100, 1000
RATES = (0.001, 0.005, 0.02)
DESIGNS = ((5, 2, 500), (5, 2, 2000), (5, 1, 400), (5, 5, 50), (5, 5, 140))
"""seeds, targets of each, non-members of each"""
NOISES = {"normal": stats.norm, "Student's t": stats.t(5)}


def samples(seeds: int, targets: int, others: int, noise: str, rate: float, rng: np.random.Generator) -> list[Sample]:
    """Scores of every unit, with a true TPR of ``rate`` at ``FPR``."""
    law, found = NOISES[noise], []
    shift = law.isf(FPR) - law.isf(rate)
    for unit in range(seeds * targets):
        place, scale = rng.standard_normal(), np.exp(rng.standard_normal())
        member, nonmember = (law.rvs(size=n, random_state=rng) for n in (MEMBERS, others))
        ids = others * unit + np.arange(others)
        found.append(Sample(unit // targets, place + scale * (member + shift), place + scale * nonmember, ids))
    return found


def row(design: tuple[int, int, int], noise: str, rate: float, repetitions: int) -> str:
    """A line of the table: mean estimate, its bias and how often the interval holds the truth."""
    rng = numpy_rng(0, f"simulation of TF01/{design}/{noise}/{rate}")
    found = [tf01_of(samples(*design, noise, rate, rng), aligned=design[2] < 333) for _ in range(repetitions)]
    known = [f for f in found if f is not None]
    mean, covered = np.mean([f.mean for f in known]), np.mean([f.low <= 100 * rate <= f.high for f in known])
    seeds, targets, others = design
    bias = f"{mean / rate - 100:+.0f}"
    return f"| {seeds} x {targets} of {others:,} | {noise} | {100 * rate:g} | {mean:.2f} | {bias} | {100 * covered:.1f} |"


def table(repetitions: int = REPETITIONS) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| seeds x targets of non-members | scores | true % | mean estimate % | bias % | coverage % |"
    yield "|---|---|---|---|---|---|"
    yield from (row(design, noise, rate, repetitions) for design in DESIGNS for noise in NOISES for rate in RATES)


if __name__ == "__main__":
    print("\n".join(table()))
