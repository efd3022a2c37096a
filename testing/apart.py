"""The checks of a component in a process of their own: one that hangs, leaves or crashes costs one check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from fedbench.core.apart.channel import at_work
from fedbench.core.registry.ask import Ended, ask, ask_each, long_patience, patience
from fedbench.testing.one import run_check
from fedbench.testing.results import Report, Result
from fedbench.testing.subject import Subject, subject_of
from fedbench.testing.table import CHECKS, checks_of
from fedbench.testing.trials.trial import ENDED

_LOADS = ("dataset", "report")  # what may take its time


def check_component(what: Any, kind: str | None = None, params: dict[str, Any] | None = None) -> Report:
    """Every check of a component: a name that a package announces, or a class or an instance of fedbench.core's bases.

    Raises ``UserError`` for what cannot be found or imported, and for parameters that it does not take.
    """
    subject = subject_of(what, kind, params)
    return Report(str(subject), tuple(results(subject)))


def results(subject: Subject, begins: Callable[[str], None] = lambda check: None) -> Iterator[Result]:
    """One result a check, in the table's order. ``begins``: told each check's name before it runs."""
    names = ask(lambda: _names(subject))
    table = {check.name: check for check in CHECKS}
    long = long_patience() if subject.kind in _LOADS else patience()

    def question(name: str) -> tuple[Any, ...]:
        with at_work(f"{subject}: {name}", long):
            return astuple(run_check(subject, table[name]))

    answers = ask_each(names, question)
    for name in names:
        begins(name)
        answer = next(answers)
        if isinstance(answer.error, Ended):
            subject.notes.setdefault(ENDED, name)  # the process that is forked for the next check knows it
        yield Result(name, "failed", str(answer.error)) if answer.error else Result(*answer.get())


def _names(subject: Subject) -> list[str]:
    """The checks that apply; its class is imported for that, and its parameters looked at."""
    with at_work(str(subject), patience()):
        _ = subject.cls
        subject.require_params()
        return [check.name for check in checks_of(subject)]
