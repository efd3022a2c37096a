"""Table of the phases in which a defense can act.

A defense acts in a phase by overriding the method of that name. The table decides how a composite
combines the phases of its parts, whether a defense needs a coalition, which phases local training
calls, and what a phase may return. Phases of ``stage`` ``upload`` are called by the
trainer and those of ``rows`` by the loop, in the table's order; those of other stages have calls of
their own there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Party = Literal["coalition", "member", "server", "auditor"]
# begin: before round 1; pick: of a global model; round: the member's part of a round; batch: each
# step of its training; upload: a member's own update on its way out; rows: the coalition's updates
# together; server: at the server; end: after a round, or after the last one; answer: a query of a
# global model, after any round
Stage = Literal["begin", "pick", "round", "batch", "upload", "rows", "server", "end", "answer"]
# chained: each part of a composite gets the result of the one before; exclusive: one part alone may
# override it; every: all parts, one after the other; merged: all parts, with results combined by a
# rule of this phase
Combines = Literal["chained", "exclusive", "every", "merged"]
Returns = Literal[
    "nothing",
    "data",
    "index",
    "selection",
    "batch",
    "scalar",
    "vector or nothing",
    "same shape",
    "step",
    "facts",
]


@dataclass(frozen=True)
class Phase:
    """A row of the table."""

    name: str
    party: Party
    """party that acts, and that its context describes"""
    stage: Stage
    combines: Combines
    returns: Returns
    """return value that the engine accepts"""


_TABLE = (  # name, party, stage, combines, returns
    Phase("begin", "coalition", "begin", "every", "nothing"),
    Phase("prepare", "member", "begin", "chained", "data"),
    Phase("assign", "member", "pick", "exclusive", "index"),
    Phase("select", "member", "round", "merged", "selection"),
    Phase("local_train", "member", "round", "exclusive", "nothing"),
    Phase("transform", "member", "batch", "chained", "batch"),
    Phase("local_step", "member", "batch", "exclusive", "vector or nothing"),
    Phase("loss", "member", "batch", "exclusive", "scalar"),
    Phase("protect", "member", "upload", "chained", "same shape"),
    Phase("coordinate", "coalition", "rows", "chained", "same shape"),
    Phase("aggregate", "server", "server", "exclusive", "step"),
    Phase("after_round", "member", "end", "every", "nothing"),
    Phase("answer", "coalition", "answer", "chained", "same shape"),
    Phase("report", "auditor", "end", "merged", "facts"),
)
PHASES: dict[str, Phase] = {phase.name: phase for phase in _TABLE}


def phases(**columns: Collection[str]) -> tuple[str, ...]:
    """Names, in the table's order, of the phases with one of the given values in each column, e.g.
    ``phases(party=("member",), stage=("batch",))``.
    """
    names = []
    for name, row in PHASES.items():
        if all(getattr(row, column) in values for column, values in columns.items()):
            names.append(name)
    return tuple(names)


def phase(name: str) -> Phase:
    """Phase of that name; ``LookupError`` for an unknown one."""
    if name not in PHASES:
        raise LookupError(f"'{name}' is not a phase: add it to the table in contract/phases.py")
    return PHASES[name]
