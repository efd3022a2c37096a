"""How a piece of other people's code ended, where it gave no answer."""

from __future__ import annotations

from fedbench.core.apart.channel import raised_by
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.federation.guard import PhaseError
from fedbench.core.store.record import Outcome
from fedbench.core.words.explain import message_of, one_line, told

_LONGEST = 1000  # characters: a message of somebody's with who raised it and where
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError")


class Failed(Exception):
    """Why there is no score: an outcome, the reason in a line, and whether it is what an adversary inside wanted."""

    def __init__(self, outcome: Outcome, reason: str, by_adversary: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.by_adversary = outcome, reason, by_adversary


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the one-line reason a failure is recorded with; what somebody's code raised names him and the place."""
    said = one_line(message_of(error), _LONGEST)
    if isinstance(error, SkipCell):
        return "skipped", said
    if isinstance(error, Diverged):
        return "diverged", said
    if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
        return "failed", f"out of memory: {said or 'an allocation failed'} (see limits.memory_gb)"
    if isinstance(error, UserError | PhaseError):
        return "failed", said
    who = raised_by(error)
    return "failed", (f"{who}: " if who else "") + told(error)
