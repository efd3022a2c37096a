"""How often ranks claim what is not there, and what they show of what is: ``python -m fedbench.leaderboard.simulations.ranks``.

Eight rows, five seeds, two targets. A row's worst case is its truth, plus what training adds in a seed (deviation .01), plus
what the candidates add for a target (.02, which is its standard error); rows share a third of the variance of the latter, as
they are judged on the same candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import show
from fedbench.leaderboard.statistics.ranks import rank_ranges
from fedbench.leaderboard.statistics.spread import Measured, p_value

ROWS, SEEDS, TARGETS = 8, 5, 2
OF_SEED, OF_TARGET, SHARED = 0.01, 0.02, 1 / 3
STEPS = (0.0, 0.01, 0.02, 0.05, 0.1)  # between one row and the next
REPETITIONS, QUICK = 2000, 30


def ranges(step: float, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The rank ranges of one board, rows in their true order."""
    truth = step * np.arange(ROWS)
    of_seed = OF_SEED * rng.standard_normal((ROWS, SEEDS, 1))
    own, shared = rng.standard_normal((ROWS, SEEDS, TARGETS)), rng.standard_normal((SEEDS, TARGETS))
    values = truth[:, None, None] + of_seed + OF_TARGET * (np.sqrt(1 - SHARED) * own + np.sqrt(SHARED) * shared)
    error = OF_TARGET * np.sqrt(2 * (1 - SHARED))  # of a difference on the same candidates
    names = [str(i) for i in range(ROWS)]
    differences: dict[tuple[str, str], float] = {}
    p_values: dict[tuple[str, str], float] = {}
    for a, b in combinations(range(ROWS), 2):
        d = values[a] - values[b]
        units = {(s, t): Measured(float(d[s, t]), float(error)) for s in range(SEEDS) for t in range(TARGETS)}
        differences[names[a], names[b]], p_values[names[a], names[b]] = float(d.mean()), p_value(units)
    found = rank_ranges(names, differences, p_values)
    return [found[name] for name in names]


def tables(repetitions: int) -> Iterator[str]:
    """Lines of Markdown."""
    rng = numpy_rng(0, "simulation of ranks")
    yield f"{repetitions:,} boards a row."
    yield ""
    yield "| step between rows | boards with a false claim, % | places in a range, mean | neighbours told apart, % |"
    yield "|---|---|---|---|"
    for step in STEPS:
        boards = [ranges(step, rng) for _ in range(repetitions)]
        wide = np.mean([high - low + 1 for board in boards for low, high in board])
        apart = np.mean([board[i][1] < board[i + 1][0] for board in boards for i in range(ROWS - 1)])
        yield f"| {step:.2f} | {100 * np.mean([_false(b, step) for b in boards]):.1f} | {wide:.1f} | {100 * apart:.0f} |"


def _false(board: Sequence[tuple[int, int]], step: float) -> bool:
    """Whether some range leaves out its row's true rank (any rank is true where all rows are equal)."""
    if step == 0:
        return any(found != (1, ROWS) for found in board)
    return any(not low <= i + 1 <= high for i, (low, high) in enumerate(board))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
