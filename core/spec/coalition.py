"""Which clients defend, and who of them does so together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedbench.core.spec import most
from fedbench.core.spec.base import Name, SpecModel, mistake
from fedbench.core.words.nearest import did_you_mean

NAMED = ("none", "pair", "half", "uniform")
_FORMS = "none, pair, half, uniform, {name, clients}, {name, fraction} or {name, groups}"
_Client = Annotated[int, Field(ge=0, lt=most.CLIENTS)]
_Group = Annotated[list[_Client], Field(min_length=1, max_length=most.CLIENTS)]


class Coalition(SpecModel):
    """A named coalition, or the suite's own: a label with a list of client ids, a share of the clients, or several lists."""

    short_forms = ({"enum": list(NAMED)},)

    name: Name = Field(description="none, pair, half or uniform; or a label of your own")
    clients: list[_Client] | None = Field(
        None, min_length=1, max_length=most.CLIENTS, description="ids of the members"
    )
    fraction: float | None = Field(None, gt=0, le=1, description="the first clients up to this share of all")
    groups: list[_Group] | None = Field(
        None, min_length=2, max_length=most.GROUPS,
        description="several coalitions at once: the ids of each one's members, who defend together and with no others",
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_form(self) -> Coalition:
        given = [field for field in ("clients", "fraction", "groups") if getattr(self, field) is not None]
        if self.name in NAMED and given:
            raise mistake(f"'{self.name}' has fixed members: remove {given[0]} or choose another name")
        if self.name not in NAMED and len(given) != 1:
            hint = did_you_mean(self.name, NAMED)
            raise mistake(f"the coalition '{self.name}' needs one of clients, fraction and groups{hint}; expected {_FORMS}")
        return self

    @property
    def ids(self) -> list[int]:
        """The clients that are named one by one, in the order of the file."""
        return self.clients or [k for group in self.groups or [] for k in group]


def resolve_coalition(coalition: Coalition | str, clients: int) -> list[int]:
    """Ids of the members among ``clients``, ascending: pair [0, 1], half the first K//2, uniform all, none [].

    A fraction f takes the first max(1, round(f K)); of several groups it is everybody.
    """
    who = Coalition.model_validate(coalition) if isinstance(coalition, str) else coalition
    if who.ids:
        return sorted(who.ids)
    if who.fraction is not None:
        return list(range(max(1, round(who.fraction * clients))))
    return list(range({"none": 0, "pair": 2, "half": clients // 2, "uniform": clients}[who.name]))


def groups_of(coalition: Coalition) -> tuple[tuple[int, ...], ...]:
    """The members of each of several coalitions, ascending, the one with the smallest id first: in which order a suite names them
    decides nothing. Empty where all members defend together."""
    return tuple(sorted(tuple(sorted(group)) for group in coalition.groups or []))


def coalition_problem(coalition: Coalition, clients: int) -> str:
    """Why this coalition cannot be formed among ``clients`` clients, or nothing."""
    if coalition.name in ("pair", "half") and clients < 2:
        return f"'{coalition.name}' needs at least 2 clients, but federation.clients is {clients}"
    ids = coalition.ids
    if len(set(ids)) > clients:
        return f"'{coalition.name}' has {len(set(ids))} members, but federation.clients is {clients}"
    outside = [k for k in ids if k >= clients]
    if outside:
        return f"there is no client {outside[0]}, federation.clients is {clients} (ids count from 0)"
    return ""
