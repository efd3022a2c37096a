"""Several defenses as one, applied in order, and one defense for each of several coalitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from fedbench.core.contract.contexts import (
    AnswerContext,
    CoalitionContext,
    Federation,
    MemberContext,
    ReportContext,
    ServerContext,
)
from fedbench.core.contract.defense import (
    LONGEST_FACT,
    REMARKS,
    Defense,
    FactValue,
    innermost,
    overrides,
    voids,
)
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection
from fedbench.core.federation.guard import (
    Delegating,
    call_phase,
    remarks_of,
    require_served,
    where_of,
)
from fedbench.core.numerics.rng import key_for

Facts = Mapping[str, FactValue]


def allied(groups: Sequence[tuple[int, ...]], make: Callable[[], Defense]) -> Defense:
    """``make()`` for one coalition; for several ``groups``, a defense with an instance for each."""
    return Coalitions(groups, make) if len(groups) > 1 else make()


class Coalitions(Delegating, Defense):
    """Calls every phase on the instance of the coalition that the context belongs to.

    The round loop calls member phases with the member's context and coordinator phases once per
    coalition, each with its own context, memory and key (``Parties``). Server phases are those of
    the first instance; so is the answer of a global model, unless it serves no member of the first
    coalition.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]], make: Callable[[], Defense]) -> None:
        super().__init__()
        self.groups = tuple(groups)
        self.parts = tuple(make() for _ in self.groups)
        first = self.parts[0]
        self.least_members = first.least_members
        self.n_models, self.least_share, self.root_samples = (
            first.n_models,
            first.least_share,
            first.root_samples,
        )
        self._of = {
            k: part for group, part in zip(self.groups, self.parts, strict=True) for k in group
        }
        for name in PHASES:
            if overrides(first, name):  # the others are plain FedAvg's, at no cost
                setattr(self, name, partial(self._ask, name))

    def _ask(self, name: str, *args: Any) -> Any:
        return call_phase(self._instance(args[-1]), name, *args, where=where_of(args[-1]))

    def _instance(self, ctx: Any) -> Defense:
        if isinstance(ctx, ServerContext):
            return self.parts[0]
        return self._of[ctx.client if isinstance(ctx, MemberContext) else ctx.members[0]]

    def check(self, federation: Federation) -> None:
        for part in self.parts:
            require_served(part, federation)

    def remarks(self, federation: Federation) -> list[str]:
        """The first instance's: all have the same parameters and federation."""
        return remarks_of(self.parts[0], federation)


def merged(reports: Sequence[Facts]) -> dict[str, FactValue]:
    """The facts of all coalitions as facts of one run: a fact with one value in all of them once,
    any other per coalition, with the prefix ``group 1``, ``group 2``, ... ``remarks`` become one
    list.
    """
    together: dict[str, FactValue] = {}
    for g, facts in enumerate(reports, 1):
        for name, value in facts.items():
            if name != REMARKS:
                alike = all(name in other and _same(other[name], value) for other in reports)
                together[name if alike else f"group {g}: {name}"] = value
    return together | remarks_together(reports)


def remarks_together(reports: Iterable[Facts]) -> dict[str, FactValue]:
    """The ``remarks`` of all as one fact, each sentence once; empty without any."""
    texts = dict.fromkeys(str(text) for facts in reports for text in _list(facts.get(REMARKS, [])))
    return {REMARKS: list(texts)[:LONGEST_FACT]} if texts else {}


def _list(value: FactValue) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _same(a: FactValue, b: FactValue) -> bool:
    """1, 1.0 and True are three values."""
    return type(a) is type(b) and a == b


Context = TypeVar("Context", MemberContext, CoalitionContext, ServerContext)


# --- several defenses -----------------------------------------------------------------------------


def still_held_out(data: MemberData, before: MemberData) -> MemberData:
    """``data``, which a defense made of ``before``, with the samples held out in ``before`` still
    held out.
    """
    if before.held_out is None:
        return data
    return replace(
        data, held_out=before.held_out if data.held_out is None else before.held_out | data.held_out
    )


def composed(parts: Sequence[Defense]) -> Defense:
    """The single defense, or a :class:`Composite` of several."""
    return parts[0] if len(parts) == 1 else Composite(parts)


class Composite(Delegating, Defense):
    """Applies ``parts`` in their order, in every phase, as the table of phases says its answers
    combine.

    Chained: each part gets the result of the one before (``ctx.params`` in ``protect`` stays the
    model as trained). Every: one after the other. Exclusive: the one part that overrides it.
    Merged: see ``_select`` and ``_report``. Every part has its own memory and key; the first part
    has the keys it would have alone, so that a composite of one gives the same bits as that
    defense. Raises ``UserError`` for parts that cannot be combined.
    """

    def __init__(self, parts: Sequence[Defense]) -> None:
        super().__init__()
        if not parts:
            raise UserError(
                "a list of defenses needs at least one; `none` is the defense that does nothing"
            )
        self.parts = tuple(parts)
        self.n_models = (
            0 if any(part.n_models == 0 for part in parts) else max(part.n_models for part in parts)
        )
        self.least_members = max(part.least_members for part in parts)
        self.least_share = max(part.least_share for part in parts)
        self.root_samples = max(part.root_samples for part in parts)
        self._owners = {name: self._owner(name) for name in phases(combines=("exclusive",))}
        self._shown: dict[int | None, tuple[Any, list[Any]]] = {}
        ways: dict[str, Callable[..., Any]] = {
            "chained": self._chain,
            "every": self._each,
            "exclusive": self._one,
        }
        special = {
            "prepare": self._prepare,
            "select": self._select,
            "local_step": self._local_step,
            "report": self._report,
        }
        for name, row in PHASES.items():  # a phase added to the table is one that composites have
            setattr(
                self, name, special[name] if name in special else partial(ways[row.combines], name)
            )

    # parts and their contexts

    def _acting(self, name: str) -> list[int]:
        return [i for i, part in enumerate(self.parts) if overrides(part, name)]

    def _owner(self, name: str) -> int | None:
        acting = self._acting(name)
        if len(acting) > 1:
            raise UserError(
                f"{self._names(acting)} cannot be combined: each replaces '{name}'; keep one of "
                "them"
            )
        return acting[0] if acting else None

    def _names(self, which: Sequence[int]) -> str:
        return " and ".join(f"'{type(self.parts[i]).__name__}' (number {i + 1})" for i in which)

    def _view(self, i: int, ctx: Any) -> Any:
        """The context of part ``i``; the same object for the same ``ctx``, so that its generator
        continues while other members train in turn with this one.
        """
        who = ctx.client if isinstance(ctx, MemberContext) else None
        if who not in self._shown or self._shown[who][0] is not ctx:
            view = _answering if isinstance(ctx, AnswerContext) else _private
            self._shown[who] = ctx, [view(j, ctx) for j in range(len(self.parts))]
        return self._shown[who][1][i]

    def _ask(self, name: str, i: int, *args: Any, ctx: Any) -> Any:
        """Call a phase of a part; an error names the part, not the composite."""
        return call_phase(self.parts[i], name, *args, self._view(i, ctx), where=where_of(ctx))

    def check(self, federation: Federation) -> None:
        for part in self.parts:
            require_served(part, federation)

    def remarks(self, federation: Federation) -> list[str]:
        """Every part's, led by its class."""
        return [
            f"{type(part).__name__}: {text}"
            for part in self.parts
            for text in remarks_of(part, federation)
        ]

    # the ways to combine

    def _chain(self, name: str, value: Any, ctx: Any) -> Any:
        for i in self._acting(name):
            value = self._ask(name, i, value, ctx=ctx)
        return value

    def _each(self, name: str, ctx: Any) -> None:
        for i in self._acting(name):
            self._ask(name, i, ctx=ctx)

    def _one(self, name: str, *args: Any) -> Any:
        """The result of the only part that overrides the phase, or plain FedAvg's."""
        i = self._owners[name]
        return (
            getattr(Defense, name)(self, *args)
            if i is None
            else self._ask(name, i, *args[:-1], ctx=args[-1])
        )

    # phases with their own rule

    def _prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        """Chained; samples that one part holds out stay held out."""
        for i in self._acting("prepare"):
            view = replace(self._view(i, ctx), data=data)
            data = still_held_out(
                call_phase(self.parts[i], "prepare", data, view, where=where_of(ctx)), data
            )
        return data

    def _select(self, ctx: MemberContext) -> Selection | None:
        """The samples that every part selects, in the order (and as often as) the last one has
        them.

        Each part selects by itself, from all samples. At most one may set flags, and they go with
        their samples. Batches are drawn by Poisson sampling if a part requires it; then no other
        part may leave out samples, which would change its rate.
        """
        answers = [(i, self._ask("select", i, ctx=ctx)) for i in self._acting("select")]
        chosen = [(i, selection) for i, selection in answers if selection is not None]
        flagged = [(i, s) for i, s in chosen if s.flag is not None]
        if len(flagged) > 1:
            raise UserError(
                f"{self._names([i for i, _ in flagged])} cannot be combined: each flags the "
                "selected samples"
            )
        if not chosen:
            return None
        if len(self.parts) == 1:
            return chosen[0][1]
        found = _intersection([s for _, s in chosen], ctx.data, flagged[0][1] if flagged else None)
        for i, s in chosen:
            if s.poisson and not torch.equal(s.index.sort().values, found.index.sort().values):
                others = self._names([j for j, _ in chosen if j != i])
                raise UserError(
                    f"{self._names([i])} draws batches by Poisson sampling from {len(s.index)} "
                    f"samples, and with {others} "
                    f"{len(found.index)} are left: each would be drawn at another rate than it "
                    "counts on; keep one of them"
                )
        return found

    def _local_step(self, batch: Batch, ctx: MemberContext) -> torch.Tensor | None:
        gradient = self._one("local_step", batch, ctx)
        step, loss = self._owners["local_step"], self._owners["loss"]
        if gradient is not None and step is not None and loss is not None and step != loss:
            raise UserError(
                f"{self._names([step, loss])} cannot be combined: the first computes gradients "
                "itself, "
                "so the loss of the second would never be used"
            )
        return gradient

    def _report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Every part's facts; a name that two of them use is led by the part's class and number.
        ``remarks`` are one list.
        """
        reports = []
        for i in self._acting("report"):
            facts = call_phase(self.parts[i], "report", _share(i, ctx), where=where_of(ctx))
            reports.append((f"{type(self.parts[i]).__name__} {i + 1}", self._proven(i, facts)))
        names = Counter(name for _, facts in reports for name in facts)
        own = {
            (f"{who}: {n}" if names[n] > 1 else n): v
            for who, facts in reports
            for n, v in facts.items()
            if n != REMARKS
        }
        return own | remarks_together(facts for _, facts in reports)

    def _proven(self, i: int, facts: Facts) -> Facts:
        """The ``facts`` of part ``i``, without its epsilon and delta where another part voids
        them.
        """
        others = (part for own in self.parts if own is not self.parts[i] for part in innermost(own))
        why = [text for part in others if (text := voids(part, self.parts[i].covers))]
        if "epsilon" not in facts or not why:
            return facts
        said = f"{type(self.parts[i]).__name__} states no epsilon here: {'; '.join(why)}."
        kept = {
            name: value
            for name, value in facts.items()
            if not name.startswith(("epsilon", "delta"))
        }
        return kept | remarks_together([facts, {REMARKS: said}])


def _share(i: int, ctx: ReportContext) -> ReportContext:
    """``ctx`` with part ``i``'s own memories."""
    return replace(
        ctx,
        coalition=_own(i, ctx.coalition),
        of_member=_owns(i, ctx.of_member),
        of_server=_owns(i, ctx.of_server),
    )


def _answering(i: int, ctx: AnswerContext) -> AnswerContext:
    """``ctx`` with part ``i``'s own memories and its own key."""
    owns = _owns(i, ctx.of_member)
    return replace(ctx, key=_key_of(i, ctx.key), coalition=_own(i, ctx.coalition), of_member=owns)


def _own(i: int, memory: Mapping[str, Any]) -> Mapping[str, Any]:
    """Part ``i``'s memory of a party, read-only."""
    return MappingProxyType(memory.get(_memory_of(i), {}))


def _owns(i: int, memories: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {k: _own(i, memory) for k, memory in memories.items()}


def _memory_of(i: int) -> str:
    return f"part {i + 1}"


def _private(i: int, ctx: Context) -> Context:
    """``ctx`` with part ``i``'s own memory and its own key (the first one keeps the engine's)."""
    return replace(ctx, key=_key_of(i, ctx.key), memory=ctx.memory.setdefault(_memory_of(i), {}))


def _key_of(i: int, key: int) -> int:
    return key if i == 0 else key_for(key, _memory_of(i))


def _intersection(
    selections: list[Selection], data: MemberData, flagged: Selection | None
) -> Selection:
    """The last selection's samples that are in all the others and not held out, with the flags of
    ``flagged``.
    """
    index = selections[-1].index
    wanted = torch.ones(len(data.y), dtype=torch.bool, device=index.device)
    if data.held_out is not None:
        wanted &= ~data.held_out
    for other in selections[:-1]:
        wanted &= torch.zeros_like(wanted).index_fill(0, other.index, True)
    keep = wanted[index]
    batches = min((s.batches for s in selections if s.batches is not None), default=None)
    poisson = any(s.poisson for s in selections)
    if flagged is None or flagged.flag is None:
        return Selection(index[keep], batches=batches, poisson=poisson)
    if flagged is selections[-1]:
        return Selection(index[keep], flagged.flag[keep], batches, poisson)
    flags = flagged.flag.new_zeros(len(data.y)).index_copy(0, flagged.index, flagged.flag)
    return Selection(index[keep], flags[index[keep]], batches, poisson)
