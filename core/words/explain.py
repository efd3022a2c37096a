"""Exceptions of plugins in bounded, printable lines."""

from __future__ import annotations

import sys

from fedbench.core.words.frames import debugging, place, whole
from fedbench.core.words.printable import bounded, one_line, printable, printable_lines

__all__ = ["bounded", "explain", "message_of", "named", "one_line", "printable", "printable_lines", "told"]


def message_of(error: BaseException) -> str:
    """What the exception says of itself; empty where it says nothing or fails at that."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exception whose __str__ raises, or leaves
        return ""


def named(error: BaseException) -> str:
    """``ValueError: out of ideas``."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r:.60})"
    if isinstance(error, SyntaxError):
        return one_line(f"{type(error).__name__}: {error.msg}")
    return one_line(f"{type(error).__name__}: {message_of(error)}").removesuffix(":")


def told(error: BaseException) -> str:
    """``ValueError: out of ideas (my_package/defense.py:42 in protect)``."""
    return named(error) + place(error)


def explain(error: BaseException) -> str:
    """The same, for a failure outside a run, which has no log: where the user asked for whole tracebacks, its own goes to
    standard error."""
    if debugging():
        print(whole(error), file=sys.stderr, end="")
    return told(error)
