"""The errors a user or a plugin author meets."""

from __future__ import annotations


class UserError(Exception):
    """A user's mistake; printed without a traceback, exit status 2.

    ``messages`` holds every mistake found, one line each: where, what, remedy.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class BatchStatistics(UserError, ValueError):
    """The model normalises by batch statistics, so that per-sample gradients are undefined."""


class SkipCell(Exception):
    """Raised by an attack (or for it) when a cell does not apply; the reason is printed and
    recorded.
    """


class Diverged(Exception):
    """The federation produced a non-finite model; the run's cells are recorded as ``diverged``."""
