"""Several coalitions at once: each defends by itself, with an instance of the defense of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fedbench.core.contract.contexts import Federation, MemberContext, ServerContext
from fedbench.core.contract.defense import LONGEST_FACT, REMARKS, Defense, FactValue, overrides
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.guard import AsksEach, act, remarks_of, require_served, where_of

Facts = Mapping[str, FactValue]


def allied(groups: Sequence[tuple[int, ...]], make: Callable[[], Defense]) -> Defense:
    """The one defense that ``make`` gives, or one that keeps the coalitions of these ``groups`` apart."""
    return Coalitions(groups, make) if len(groups) > 1 else make()


class Coalitions(AsksEach, Defense):
    """Puts every phase to the instance of the coalition whose it is; the context says whose.

    A defense like any other, so that the loop of the rounds knows nothing of several: it asks a member by its context, and the
    coordinator once for each coalition, with a context, a memory and a key of its own (``federation/parties.py``). The server is
    one party however many coalitions there are: its phases are those of the first one's instance. So is the answer of a global
    model, unless none of that coalition's members has this model.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]], make: Callable[[], Defense]) -> None:
        super().__init__()
        self.groups = tuple(groups)
        self.parts = tuple(make() for _ in self.groups)
        first = self.parts[0]
        self.n_models, self.least_share, self.root_samples = first.n_models, first.least_share, first.root_samples
        self._of = {k: part for group, part in zip(self.groups, self.parts, strict=True) for k in group}
        for name in PHASES:
            if overrides(first, name):  # the others are plain FedAvg's, at no cost
                setattr(self, name, partial(self._ask, name))

    def _ask(self, name: str, *args: Any) -> Any:
        return act(self._whose(args[-1]), name, *args, where=where_of(args[-1]))

    def _whose(self, ctx: Any) -> Defense:
        if isinstance(ctx, ServerContext):
            return self.parts[0]
        return self._of[ctx.client if isinstance(ctx, MemberContext) else ctx.members[0]]

    def check(self, federation: Federation) -> None:
        for part in self.parts:
            require_served(part, federation)

    def remarks(self, federation: Federation) -> list[str]:
        """The first one's: all have the same parameters, and the federation is everybody's."""
        return remarks_of(self.parts[0], federation)


def merged(said: Sequence[Facts]) -> dict[str, FactValue]:
    """The facts of every coalition as one run's: a fact that all of them state alike once, any other of each, its name led by
    ``group 1``, ``group 2``, ... ``remarks`` are one list."""
    together: dict[str, FactValue] = {}
    for g, facts in enumerate(said, 1):
        for name, value in facts.items():
            if name != REMARKS:
                alike = all(name in other and _same(other[name], value) for other in said)
                together[name if alike else f"group {g}: {name}"] = value
    return together | remarks_together(said)


def remarks_together(said: Iterable[Facts]) -> dict[str, FactValue]:
    """The ``remarks`` of all as one fact, each sentence once; nothing where nobody has any."""
    texts = dict.fromkeys(str(text) for facts in said for text in _list(facts.get(REMARKS, [])))
    return {REMARKS: list(texts)[:LONGEST_FACT]} if texts else {}


def _list(value: FactValue) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _same(a: FactValue, b: FactValue) -> bool:
    """1, 1.0 and True are three values."""
    return type(a) is type(b) and a == b
