"""Whose data an attack infers: one client, a group of clients, everybody. What a kind means is said here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["client", "everybody", "group"]
_EVERYBODY, _FIRST_GROUP = -3, -10  # codes in records; -1 and -2 are the global model and the coalition on the client axis


@dataclass(frozen=True, kw_only=True)
class Target:
    """``index``: which client, or which group in the setting's order; 0 for everybody (all honest clients together)."""

    kind: Kind
    index: int = 0

    @property
    def code(self) -> int:
        """As records, file names of arrays and keys of random draws have it: a client's id, -3, or -10, -11, ... for groups."""
        return {"client": self.index, "everybody": _EVERYBODY, "group": _FIRST_GROUP - self.index}[self.kind]

    @classmethod
    def of(cls, code: int) -> Target:
        """The target of a code; raises ``ValueError`` for a code that stands for none."""
        if code >= 0:
            return client(code)
        if code == _EVERYBODY:
            return EVERYBODY
        if code <= _FIRST_GROUP:
            return group(_FIRST_GROUP - code)
        raise ValueError(f"{code} is the code of no target")

    @property
    def client(self) -> int | None:
        """The one client whose rows an attack can follow; None where many are asked about together."""
        return self.index if self.kind == "client" else None

    def words(self, groups: Sequence[str] = ()) -> str:
        """For people; ``groups``: the names of the setting's."""
        if self.kind == "group":
            return f"group '{groups[self.index]}'" if self.index < len(groups) else f"group {self.index}"
        return "all honest clients" if self.kind == "everybody" else f"client {self.index}"


EVERYBODY = Target(kind="everybody")


def client(index: int) -> Target:
    """One client."""
    return Target(kind="client", index=index)


def group(index: int) -> Target:
    """One group of clients."""
    return Target(kind="group", index=index)
