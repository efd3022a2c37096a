"""The table of phases in which a defense can act.

A defense acts in a phase by overriding the method of that name. The table decides how a composite
combines the phases of its parts, whether a defense needs a coalition, which phases local training
calls, what a phase may return, and the phases' place in the documentation. A phase of ``stage``
``upload`` or ``rows`` is called by the loop for every row of the table; phases of other stages have
their own calls there.
"""

from __future__ import annotations

from collections.abc import Iterable
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


# the loop calls all phases of these stages in the table's order
CALLED: tuple[Stage, ...] = ("upload", "rows")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """``party``: the party that acts, and that its context describes; ``returns``: what the engine
    accepts from it.
    """

    name: str
    party: Party
    stage: Stage
    combines: Combines
    returns: Returns
    summary: str

    def __post_init__(self) -> None:
        if self.stage in CALLED and self.party not in ("coalition", "member"):
            raise ValueError(
                f"phase '{self.name}': a phase of stage {self.stage} is the coalition's or a "
                "member's"
            )


_TABLE = (
    Phase(
        name="begin",
        party="coalition",
        stage="begin",
        combines="every",
        returns="nothing",
        summary="plan once, before round 1, from public facts only",
    ),
    Phase(
        name="prepare",
        party="member",
        stage="begin",
        combines="chained",
        returns="data",
        summary="one-time change of its own data: soft labels, a held-out part",
    ),
    Phase(
        name="assign",
        party="member",
        stage="pick",
        combines="exclusive",
        returns="index",
        summary="pick one of several global models",
    ),
    Phase(
        name="select",
        party="member",
        stage="round",
        combines="merged",
        returns="selection",
        summary="which of its samples to train on, with flags",
    ),
    Phase(
        name="local_train",
        party="member",
        stage="round",
        combines="exclusive",
        returns="nothing",
        summary="the whole local training",
    ),
    Phase(
        name="transform",
        party="member",
        stage="batch",
        combines="chained",
        returns="batch",
        summary="change a batch before the forward pass",
    ),
    Phase(
        name="local_step",
        party="member",
        stage="batch",
        combines="exclusive",
        returns="vector or nothing",
        summary="the gradient of a batch: clipping, noise",
    ),
    Phase(
        name="loss",
        party="member",
        stage="batch",
        combines="exclusive",
        returns="scalar",
        summary="the training loss of a batch",
    ),
    Phase(
        name="protect",
        party="member",
        stage="upload",
        combines="chained",
        returns="same shape",
        summary="change its own update before it is sent",
    ),
    Phase(
        name="coordinate",
        party="coalition",
        stage="rows",
        combines="chained",
        returns="same shape",
        summary="change the present members' updates together",
    ),
    Phase(
        name="aggregate",
        party="server",
        stage="server",
        combines="exclusive",
        returns="step",
        summary="updates and weights to the global step",
    ),
    Phase(
        name="after_round",
        party="member",
        stage="end",
        combines="every",
        returns="nothing",
        summary="learn from the round",
    ),
    Phase(
        name="answer",
        party="coalition",
        stage="answer",
        combines="chained",
        returns="same shape",
        summary="answer a query of a global model",
    ),
    Phase(
        name="report",
        party="auditor",
        stage="end",
        combines="merged",
        returns="facts",
        summary="facts about the run, for its records",
    ),
)
PHASES: dict[str, Phase] = {phase.name: phase for phase in _TABLE}


def phases(
    *, party: Iterable[Party] = (), stage: Iterable[Stage] = (), combines: Iterable[Combines] = ()
) -> tuple[str, ...]:
    """Names, in the table's order, of the phases of one of these parties, stages and ways to
    combine; none given: any.
    """
    wanted = (("party", set(party)), ("stage", set(stage)), ("combines", set(combines)))
    return tuple(
        p.name
        for p in PHASES.values()
        if all(not of or getattr(p, name) in of for name, of in wanted)
    )


def phase(name: str) -> Phase:
    """The phase of that name; raises ``LookupError`` for an unknown one."""
    if name not in PHASES:
        raise LookupError(f"'{name}' is not a phase: add it to the table in contract/phases.py")
    return PHASES[name]
