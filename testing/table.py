"""The table of checks: name, kinds, function, one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedbench.core.registry.kinds import KINDS
from fedbench.testing.checks import declared
from fedbench.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """``kinds``: of which kinds of component it asks; ``function``: returns, or raises Failed, Skipped or Warned."""

    name: str
    kinds: tuple[str, ...]
    function: Callable[[Subject], None]

    @property
    def doc(self) -> str:
        """What it asks, one line."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


def _check(function: Callable[[Subject], None], *kinds: str) -> Check:
    return Check(function.__name__, kinds or KINDS, function)


CHECKS: tuple[Check, ...] = (
    _check(declared.announced),
    _check(declared.documented),
    _check(declared.parameters_documented),
    _check(declared.parameters_bounded),
    _check(declared.defaults_construct),
)


def checks_of(subject: Subject) -> tuple[Check, ...]:
    """Those that ask of components like this one."""
    return tuple(check for check in CHECKS if set(check.kinds) & set(subject.kinds))
