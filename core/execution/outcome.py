"""How a piece of other people's code ended, where it gave no answer."""

from __future__ import annotations

from pathlib import Path

from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.store.record import Outcome
from fedbench.core.words.explain import message_of, named, one_line, origin

_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


class Failed(Exception):
    """Why there is no score: an outcome, and the reason in a line."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason a failure is recorded with; unexpected ones name file and line."""
    said = one_line(message_of(error))
    if isinstance(error, SkipCell):
        return "skipped", said
    if isinstance(error, Diverged):
        return "diverged", said
    if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
        return "failed", f"out of memory: {said or 'an allocation failed'} (see limits.memory_gb)"
    if isinstance(error, UserError):
        return "failed", said
    frame = origin(error.__cause__ or error)
    where = f" [{Path(frame.filename).name}:{frame.lineno}]" if frame else ""
    return "failed", (said if error.__cause__ and said else named(error)) + where
