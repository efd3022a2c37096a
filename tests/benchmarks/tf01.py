"""Bias and coverage of TF01 where the truth is known: the table of docs/method.md.

``python tests/benchmarks/tf01.py`` prints it. Members are non-members shifted by as much as gives
the true TPR of every target at a false-positive rate of 0.1 %. Every target has its own location
and scale. Those with fewer than 999 non-members are aligned: their true TPR is that of one
threshold with a rate of 0.1 % over all targets together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from scipy import optimize, stats

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.statistics.tf01 import Sample, enough, tf01_of

FPR, MEMBERS, REPETITIONS = 0.001, 100, 400
RATES = (0.001, 0.005, 0.02)
DESIGNS = ((1, 2, 2000), (5, 2, 2000), (5, 2, 500), (5, 1, 400), (5, 5, 140), (5, 5, 50))
"""seeds, targets of each, non-members of each"""


class Outliers:
    """Normal, but for one candidate in a hundred at six times the spread."""

    def sf(self, x: float) -> float:
        """Survival function."""
        return float(0.99 * stats.norm.sf(x) + 0.01 * stats.norm.sf(x / 6))

    def isf(self, q: float) -> float:
        """Its inverse."""
        return float(optimize.brentq(lambda x: self.sf(x) - q, -60, 60))

    def rvs(self, size: int, random_state: np.random.Generator) -> np.ndarray:
        """[size] scores."""
        return random_state.standard_normal(size) * np.where(random_state.random(size) < 0.01, 6, 1)


LAWS = {
    "normal": [stats.norm],
    "normal, shared": [stats.norm],
    "Student's t": [stats.t(5)],
    "1 % at six times the spread": [Outliers()],
    "members at half the spread": [stats.norm],
    "normal, t(3), gamma(2) in turn": [stats.norm, stats.t(3), stats.gamma(2)],
}
"""of one target after the other; shared: the targets of a seed have the same non-members, with the
same ranks
"""


def samples(
    seeds: int, targets: int, others: int, laws: str, rate: float, rng: np.random.Generator
) -> list[Sample]:
    """Scores of every target, each with a true TPR of ``rate`` at ``FPR``."""
    every, spread = LAWS[laws], 0.5 if "half" in laws else 1.0
    found = []
    for unit in range(seeds * targets):
        law, place, scale = (
            every[unit % len(every)],
            rng.standard_normal(),
            np.exp(rng.standard_normal()),
        )
        if unit % targets == 0 or "shared" not in laws:
            ids, nonmember = (
                others * unit + np.arange(others),
                law.rvs(size=others, random_state=rng),
            )
        member = (
            spread * law.rvs(size=MEMBERS, random_state=rng) + law.isf(FPR) - spread * law.isf(rate)
        )
        found.append(
            Sample(unit // targets, place + scale * member, place + scale * nonmember, ids)
        )
    return found


def together(boards: list[list[Sample]]) -> float:
    """TPR of the aligned scores of all boards at a false-positive rate of 0.1 %."""
    member, nonmember = (
        np.concatenate([getattr(s.aligned, of) for b in boards for s in b])
        for of in ("member", "nonmember")
    )
    return float(np.mean(member > np.quantile(nonmember, 1 - FPR)))


def row(design: tuple[int, int, int], laws: str, rate: float, repetitions: int) -> str:
    """A line of the table: mean estimate, its bias and how often the interval holds the truth."""
    rng, aligned = (
        numpy_rng(0, f"simulation of TF01/{design}/{laws}/{rate}"),
        not enough([design[2]] * design[1]),
    )
    boards = [samples(*design, laws, rate, rng) for _ in range(repetitions)]
    true = 100 * (together(boards) if aligned else rate)
    found = np.array([(f.mean, f.low, f.high) for b in boards if (f := tf01_of(b))])
    mean, covered = found[:, 0].mean(), np.mean((found[:, 1] <= true) & (true <= found[:, 2]))
    each = np.mean((found[:, 1] <= 100 * rate) & (100 * rate <= found[:, 2]))
    low, high = np.median(found[:, 1:], axis=0)
    seeds, targets, others = design
    return (
        f"| {seeds} x {targets} of {others:,} | {laws} | {100 * rate:g} | {true:.2f} | {mean:.2f} "
        f"| {low:.2f} to {high:.2f} "
        f"| {100 * covered:.1f} | {100 * each:.1f} |"
    )


def table(repetitions: int = REPETITIONS) -> Iterator[str]:
    """Lines of Markdown."""
    yield (
        "| seeds x targets of others | scores | a target's % | true % | mean % | median ends % | "
        "covers true % | a target's % |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    yield from (
        row(design, laws, rate, repetitions)
        for design in DESIGNS
        for laws in LAWS
        for rate in RATES
    )


if __name__ == "__main__":
    for line in table(*map(int, sys.argv[1:])):
        print(line, flush=True)
