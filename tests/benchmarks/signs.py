"""Coverage of an AUC with a sign chosen on few seeds; docs/method.md has three of the rows.

``python tests/benchmarks/signs.py`` prints it. One target a seed with 90 members and 500
non-members; the AUC of a training is normal around the true one. The truth is the AUC of an
adversary who knows the sign.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from scipy.stats import norm

from fedbench.core import MEMBER, OFL
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.statistics.scores import Part, SectionScores, part_of
from fedbench.leaderboard.statistics.verdict import LeakStatistics

KIND, REPETITIONS = np.repeat([MEMBER, OFL], [90, 500]), 2000
CASES = (
    (1, 0.0),
    (2, 0.0),
    (3, 0.0),
    (4, 0.0),
    (5, 0.0),
    (2, 0.03),
    (3, 0.03),
    (4, 0.03),
    (5, 0.03),
    (10, 0.03),
)
"""seeds, standard deviation of the AUC from training to training"""
AUCS = (0.5, 0.48, 0.45, 0.4, 0.2)


def compared(seeds: int, deviation: float, auc: float, rng: np.random.Generator) -> LeakStatistics:
    """One row and attack; of a single seed the two halves of the candidates."""
    scores_of_parts = SectionScores([], [(seed, 0) for seed in range(seeds)])
    parts: list[Part] = []
    for seed in range(seeds):
        shift = np.sqrt(2) * norm.ppf(auc + deviation * rng.standard_normal())
        scores, nothing = (
            rng.standard_normal(len(KIND)) + shift * (KIND == MEMBER),
            np.zeros(len(KIND), bool),
        )
        candidates = Candidates(scores, KIND, np.arange(len(KIND)), ~nothing, nothing)
        even = np.arange(len(KIND)) % 2 == 0
        for fold, where in {0: even, 1: ~even}.items() if seeds == 1 else [(seed, ~nothing)]:
            of_entry = {("row", "attack"): candidates}
            part = part_of(fold, (seed, 0), of_entry, where, scores_of_parts.factor)
            parts += [part] if part else []
    scores_of_parts._parts = {"all": parts}
    return LeakStatistics(scores_of_parts, ["attack"])


def row(seeds: int, deviation: float, auc: float, repetitions: int) -> str:
    """A line of the table."""
    rng = numpy_rng(0, f"simulation of signs/{seeds}/{deviation}/{auc}")
    made = [compared(seeds, deviation, auc, rng) for _ in range(repetitions)]
    cells = [c.leaks.of("row", "attack") for c in made]
    found = [(i, cell.settled) for cell in cells if (i := cell.auc)]
    covered, below = (
        np.mean([i.low <= 1 - auc <= i.high for i, _ in found]),
        np.mean([i.mean < 0.5 for i, _ in found]),
    )
    settled, width = np.mean([s for _, s in found]), np.median([i.high - i.low for i, _ in found])
    shares = f"{100 * below:.0f} | {100 * settled:.0f} | {width:.3f} | {100 * covered:.1f}"
    return f"| {seeds} | {deviation:g} | {auc:g} | {shares} |"


def table(repetitions: int = REPETITIONS) -> Iterator[str]:
    """Lines of Markdown."""
    yield (
        "| seeds | deviation between trainings | AUC as measured | shown below .5, % | settled, % "
        "| median width | coverage % |"
    )
    yield "|---|---|---|---|---|---|---|"
    yield from (row(*case, auc, repetitions) for case in CASES for auc in AUCS)


if __name__ == "__main__":
    for line in table(*map(int, sys.argv[1:])):
        print(line, flush=True)
