"""Does an estimator do what it says? Simulations with known truth."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence


def show(tables: Callable[[int], Iterable[str]], repetitions: int, quick: int, arguments: Sequence[str] | None) -> None:
    """Print the lines of ``tables(repetitions)`` as they come; with ``--quick`` those of ``quick`` repetitions.

    ``arguments``: None for the command line's.
    """
    few = "--quick" in (sys.argv[1:] if arguments is None else arguments)
    for line in tables(quick if few else repetitions):
        print(line, flush=True)


def heading(repetitions: int, columns: Sequence[str]) -> Iterator[str]:
    """How sure a row of a table of coverages is, and the first lines of the table."""
    error = 100 * math.sqrt(0.95 * 0.05 / repetitions)
    yield f"{repetitions:,} repetitions a row; the standard error of a coverage of 95 % is {error:.1f} points."
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
