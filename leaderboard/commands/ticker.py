"""How far a command is, on stderr: one line that changes on a terminal, nothing in a pipe but the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ticker(doing: str) -> Iterator[Callable[[int, int], None]]:
    """``tick(done, of)`` shows ``doing done of of records``."""
    shown = False

    def tick(done: int, of: int) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r{doing} {done} of {of} records", end="", file=sys.stderr, flush=True)
            shown = True

    try:
        yield tick
    finally:
        if shown:
            print(file=sys.stderr)
