"""Does an estimator do what it says? Simulations with known truth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence


def show(tables: Callable[[int], Iterable[str]], repetitions: int, quick: int, arguments: Sequence[str] | None) -> None:
    """Print the lines of ``tables(repetitions)`` as they come; with ``--quick`` those of ``quick`` repetitions.

    ``arguments``: None for the command line's.
    """
    few = "--quick" in (sys.argv[1:] if arguments is None else arguments)
    for line in tables(quick if few else repetitions):
        print(line, flush=True)
