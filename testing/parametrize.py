"""The checks as cases of pytest, which is needed for nothing else here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedbench.core.registry.components import Registry
from fedbench.testing.one import run_check
from fedbench.testing.results import Failed
from fedbench.testing.subject import Subject, subject_of
from fedbench.testing.table import Check, checks_of


class ConformanceWarning(UserWarning):
    """Allowed by the contract, but the author should know."""


@dataclass(frozen=True)
class Case:
    """One check of one component: call it. Raises ``AssertionError`` with one message; skips the test where it does not apply."""

    subject: Subject
    check: Check

    @property
    def id(self) -> str:
        """As pytest shows it."""
        return f"{self.subject.name}-{self.check.name}"

    def __call__(self) -> None:
        import pytest

        result = run_check(self.subject, self.check)
        if result.outcome == "failed":
            raise Failed(f"{self.subject}: {result.message}")
        if result.outcome == "skipped":
            pytest.skip(result.message)
        if result.outcome == "warned":
            warnings.warn(ConformanceWarning(f"{self.subject}: {result.message}"), stacklevel=2)


def cases_of(*components: Any) -> list[Case]:
    """A case a component and check. Raises ``UserError`` for a name that nobody announces, or two packages do."""
    registry = Registry.discover() if any(isinstance(c, str | tuple) for c in components) else None
    subjects = [subject_of(c, registry=registry) for c in components]
    for subject in subjects:
        subject.require_params()
    return [Case(subject, check) for subject in subjects for check in checks_of(subject)]


def parametrize_with_checks(*components: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a test function of one argument, ``check``: it is called once for every component and check.

    ``components``: names that installed packages announce, (name, parameters), or classes and instances of fedbench.core's bases.
    """
    import pytest

    return pytest.mark.parametrize("check", [pytest.param(case, id=case.id) for case in cases_of(*components)])
