"""Run the checks: one process per component, or one pytest case per check."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.process.ask import Ended, ask, ask_each, long_plugin_limits, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.components import Registry
from fedbench.core.words import explain, one_line
from fedbench.testing.subject import (
    Failed,
    Outcome,
    Report,
    Result,
    Subject,
    Warned,
    subject_of,
)
from fedbench.testing.table import CHECKS, Check, checks_of

# --- one check ------------------------------------------------------------------------------------


def run_check(subject: Subject, check: Check) -> Result:
    """Run one check in this process. No exception of the component passes, except the user's
    Ctrl-C.
    """
    began = time.perf_counter()
    outcome, message = _outcome(subject, check)
    return Result(check.name, outcome, one_line(message, 2000), time.perf_counter() - began)


def _outcome(subject: Subject, check: Check) -> tuple[Outcome, str]:
    import torch

    from fedbench.core.process.library_state import kept
    from fedbench.testing.trials import reference

    try:
        with kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            if check.after_run:
                reference(subject)
            return "passed", check.function(subject) or ""
    except SkipCell as why:
        return "skipped", str(why)
    except Warned as why:
        return "warned", str(why)
    except (UserError, Failed) as error:
        return "failed", str(error)
    except BaseException as error:
        pass_on_interrupt(error)
        return "failed", explain(error)


# --- in another process ---------------------------------------------------------------------------


def check_component(
    component: Any, kind: str | None = None, params: dict[str, Any] | None = None
) -> Report:
    """Run all checks of a component: an announced name, or a class or an instance of
    fedbench.core's base classes.

    Raises ``UserError`` for unknown components, components that cannot be imported, and invalid
    parameters.
    """
    subject = subject_of(component, kind, params)
    return Report(str(subject), tuple(results(subject)))


def results(
    subject: Subject, begins: Callable[[str], None] = lambda check: None
) -> Iterator[Result]:
    """Yield one result per check, in the table's order. ``begins`` is called with the component and
    check before it runs.

    The checks share a process; a crash or a timeout fails one check, and the next one gets a new
    process.
    """
    names = ask(lambda: _names(subject))
    table = {check.name: check for check in CHECKS}
    limit = long_plugin_limits() if subject.kind == "dataset" else plugin_limits()

    def question(name: str) -> tuple[Any, ...]:
        with at_work(f"{subject}: {name}", limit):
            return astuple(run_check(subject, table[name]))

    answers = ask_each(names, question)
    ended = False
    for name in names:
        if ended and table[name].after_run:
            yield Result(name, "skipped", "the small run fails, see `runs`")
            continue
        begins(f"{subject}: {name}")
        answer = next(answers)
        ended |= name == "runs" and isinstance(answer.error, Ended)
        if answer.error:
            yield Result(name, "failed", str(answer.error))
        else:
            yield Result(*answer.value)


def _names(subject: Subject) -> list[str]:
    """Return the names of the checks that apply. Imports the class and validates the parameters."""
    with at_work(str(subject), plugin_limits()):
        subject.require_params()
        return [check.name for check in checks_of(subject)]


# --- in pytest ------------------------------------------------------------------------------------


class ConformanceWarning(UserWarning):
    """Remark on something that the contract allows, but the author should know."""


@dataclass(frozen=True)
class Case:
    """Check of one component, to be called in a test."""

    subject: Subject
    check: Check

    @property
    def id(self) -> str:
        """The id of the pytest case."""
        return f"{self.subject.name}-{self.check.name}"

    def __call__(self) -> None:
        """Raise ``AssertionError``, skip the test or warn."""
        import pytest

        result = run_check(self.subject, self.check)
        message = f"{self.subject}: {result.message}"
        if result.outcome == "failed":
            raise Failed(message)
        if result.outcome == "skipped":
            pytest.skip(result.message)
        if result.outcome == "warned":
            warnings.warn(ConformanceWarning(message), stacklevel=2)


def cases_of(*components: Any) -> list[Case]:
    """Return one case per component and check. Raises ``UserError`` for unknown or ambiguous
    names.
    """
    registry = Registry.discover() if any(isinstance(c, str | tuple) for c in components) else None
    subjects = [subject_of(c, registry=registry) for c in components]
    for subject in subjects:
        subject.require_params()
    pairs = ((subject, check) for subject in subjects for check in checks_of(subject))
    return [Case(*pair) for pair in pairs]


def parametrize_with_checks(*components: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Parametrize a test function of one argument, ``check``, with one case per component and
    check.

    ``components``: names of announced components, (name, parameters), or classes and instances of
    fedbench.core's base classes.
    """
    import pytest

    cases = cases_of(*components)
    return pytest.mark.parametrize("check", cases, ids=[case.id for case in cases])
