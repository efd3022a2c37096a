"""What a check says of a component, and the report of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedbench.core.words.explain import one_line, printable

Outcome = Literal["passed", "failed", "skipped", "warned"]


class Failed(AssertionError):
    """The component does not keep the contract: what was found, what is expected, the remedy, where."""


class Skipped(Exception):
    """The check does not apply to this component or on this machine, for this reason."""


class Warned(Exception):
    """Allowed, but the author should know."""


@dataclass(frozen=True)
class Result:
    """One check of one component: ``name`` of the check; ``message``: what to do, empty where it passed; ``seconds`` it took."""

    name: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All that was asked of one component. ``component``: its kind, name and package, in words."""

    component: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not any(r.outcome == "failed" for r in self.results)

    def count(self, outcome: Outcome) -> int:
        """How many checks ended so."""
        return sum(r.outcome == outcome for r in self.results)

    def markdown(self) -> str:
        """A heading, one line of counts, and a table of the checks."""
        counts = ", ".join(f"{n} {o}" for o in ("passed", "failed", "warned", "skipped") if (n := self.count(o)))
        rows = [f"| {r.name} | {r.outcome} | {_cell(r.message)} |" for r in self.results]
        head = [f"## {_cell(self.component)}", "", f"{counts}.", "", "| check | outcome | what to do |", "|---|---|---|"]
        return "\n".join([*head, *rows]) + "\n"


def _cell(text: str) -> str:
    """Other people's words in a table: on one line, nothing in them is Markdown or HTML."""
    plain = printable(one_line(text, 2000))
    for mark in "\\`*_[]<>|":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
