"""The errors a user or a plugin author meets."""

from __future__ import annotations


class UserError(Exception):
    """A mistake the user can mend; printed without a traceback, exit status 2.

    ``messages`` holds every mistake found, one line each: where, what, remedy.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class BatchStatistics(UserError, ValueError):
    """A model normalises by statistics of the batch, where each sample is to have a gradient of its own."""


class SkipCell(Exception):
    """Raised by an attack (or for it) when a cell does not apply; the reason is printed and recorded."""


class Diverged(Exception):
    """The federation produced a non-finite model; the run's cells are recorded as ``diverged``."""
