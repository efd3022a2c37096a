"""Several defenses as one: a list in a suite applies in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from fedbench.core.contract.contexts import (
    Batch,
    CoalitionContext,
    Federation,
    MemberContext,
    MemberData,
    Selection,
    ServerContext,
)
from fedbench.core.contract.defense import Defense, overrides
from fedbench.core.contract.errors import UserError
from fedbench.core.federation.guard import PhaseError, call, call_for_rows
from fedbench.core.numerics.rng import key_for

# Each of these answers for the whole step; two answers cannot be chained.
EXCLUSIVE = ("assign", "loss", "local_step", "local_train", "aggregate")

Context = TypeVar("Context", MemberContext, CoalitionContext, ServerContext)


class Composite(Defense):
    """Applies ``parts`` in their order, in every phase.

    Chained, each part seeing what the one before made of it: ``prepare``, ``transform``, ``protect``, ``coordinate``
    (``ctx.params`` in ``protect`` stays the model as trained). ``select``: see there. ``begin``, ``after_round``: every
    part. ``assign``, ``loss``, ``local_step``, ``local_train``, ``aggregate``: the one part that has it.
    Every part has a memory of its own and a key of its own; the first part has the keys it would have alone, so that
    a composite of one gives the bits of that defense. Raises ``UserError`` for parts that cannot go together.
    """

    def __init__(self, parts: Sequence[Defense]) -> None:
        super().__init__()
        if not parts:
            raise UserError("a list of defenses needs at least one; `none` is the defense that does nothing")
        self.parts = tuple(parts)
        self.n_models = 0 if any(part.n_models == 0 for part in parts) else max(part.n_models for part in parts)
        self.least_share = max(part.least_share for part in parts)
        self.root_samples = max(part.root_samples for part in parts)
        self._owners = {phase: self._owner(phase) for phase in EXCLUSIVE}
        self._shown: tuple[Any, list[Any]] = (None, [])

    # which part acts, and what it is shown

    def _acting(self, phase: str) -> list[int]:
        return [i for i, part in enumerate(self.parts) if overrides(part, phase)]

    def _owner(self, phase: str) -> int | None:
        acting = self._acting(phase)
        if len(acting) > 1:
            raise UserError(f"{self._names(acting)} cannot be combined: each replaces '{phase}'; keep one of them")
        return acting[0] if acting else None

    def _names(self, which: Sequence[int]) -> str:
        return " and ".join(f"'{type(self.parts[i]).__name__}' (number {i + 1})" for i in which)

    def _view(self, i: int, ctx: Context) -> Context:
        """``ctx`` as part ``i`` sees it; the same object for the same ``ctx``, so that its generator goes on."""
        if self._shown[0] is not ctx:
            self._shown = (ctx, [_private(j, ctx) for j in range(len(self.parts))])
        return self._shown[1][i]

    def _call(self, phase: str, i: int, *args: Any, ctx: Any) -> Any:
        """A part's phase; its failure names the part rather than the composite."""
        return call(self.parts[i], phase, *args, self._view(i, ctx), where=_where(ctx))

    def _one(self, phase: str, *args: Any, ctx: Any) -> Any:
        """The answer of the only part that has the phase, or plain FedAvg's."""
        i = self._owners[phase]
        return getattr(super(), phase)(*args, ctx) if i is None else self._call(phase, i, *args, ctx=ctx)

    # all parts, in order

    def check(self, federation: Federation) -> None:
        for part in self.parts:
            part.check(federation)

    def begin(self, ctx: CoalitionContext) -> None:
        for i in self._acting("begin"):
            self._call("begin", i, ctx=ctx)

    def after_round(self, ctx: MemberContext) -> None:
        for i in self._acting("after_round"):
            self._call("after_round", i, ctx=ctx)

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        """Chained; what one part holds out stays held out, also when a later one holds out more."""
        for i in self._acting("prepare"):
            view, before = replace(self._view(i, ctx), data=data), data.held_out
            data = call(self.parts[i], "prepare", data, view, where=_where(ctx))
            if before is not None:
                data = replace(data, held_out=before if data.held_out is None else before | data.held_out)
        return data

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        for i in self._acting("transform"):
            batch = self._call("transform", i, batch, ctx=ctx)
        return batch

    def protect(self, update: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        return self._rows("protect", update, ctx)

    def coordinate(self, updates: torch.Tensor, ctx: CoalitionContext) -> torch.Tensor:
        return self._rows("coordinate", updates, ctx)

    def _rows(self, phase: str, rows: torch.Tensor, ctx: Any) -> torch.Tensor:
        for i in self._acting(phase):
            rows = call_for_rows(self.parts[i], phase, tuple(rows.shape), rows, self._view(i, ctx), where=_where(ctx))
        return rows

    def select(self, ctx: MemberContext) -> Selection | None:
        """The samples that every part selects, in the order (and as often as) the last one has them.

        Each part selects by itself, from all samples. At most one may set flags, and they go with their samples.
        """
        chosen = []
        for i in self._acting("select"):
            selection = self._call("select", i, ctx=ctx)
            if selection is not None and not isinstance(selection, Selection):
                name = type(self.parts[i]).__name__
                raise PhaseError(f"{name}.select ({_where(ctx)}) returned {type(selection).__name__}, not Selection")
            if selection is not None:
                chosen.append((i, selection))
        flagged = [(i, s) for i, s in chosen if s.flag is not None]
        if len(flagged) > 1:
            raise UserError(f"{self._names([i for i, _ in flagged])} cannot be combined: each flags the selected samples")
        if not chosen:
            return None
        if len(self.parts) == 1:
            return chosen[0][1]
        return _intersection([s for _, s in chosen], ctx.data, flagged[0][1] if flagged else None)

    # at most one part

    def assign(self, models: torch.Tensor, ctx: MemberContext) -> int:
        return self._one("assign", models, ctx=ctx)

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        return self._one("loss", logits, batch, ctx=ctx)

    def local_step(self, batch: Batch, ctx: MemberContext) -> torch.Tensor | None:
        gradient = self._one("local_step", batch, ctx=ctx)
        step, loss = self._owners["local_step"], self._owners["loss"]
        if gradient is not None and step is not None and loss is not None and step != loss:
            raise UserError(
                f"{self._names([step, loss])} cannot be combined: the first computes gradients itself, "
                "so the loss of the second would never be used"
            )
        return gradient

    def local_train(self, ctx: MemberContext) -> None:
        self._one("local_train", ctx=ctx)

    def aggregate(self, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> torch.Tensor:
        return self._one("aggregate", updates, weights, ctx=ctx)


def _private(i: int, ctx: Context) -> Context:
    """``ctx`` with part ``i``'s own memory and its own key (the first one keeps the engine's)."""
    memory = ctx.memory.setdefault(f"part {i + 1}", {})
    return replace(ctx, key=ctx.key if i == 0 else key_for(ctx.key, f"part {i + 1}"), memory=memory)


def _where(ctx: MemberContext | CoalitionContext | ServerContext) -> str:
    when = f"round {ctx.round}" if ctx.round else "before round 1"
    if isinstance(ctx, MemberContext):
        return f"client {ctx.client}, {when}"
    return f"server, {when}" if isinstance(ctx, ServerContext) else when


def _intersection(selections: list[Selection], data: MemberData, flagged: Selection | None) -> Selection:
    """The last selection's samples that are in all the others and not held out, with the flags of ``flagged``."""
    index = selections[-1].index
    wanted = torch.ones(len(data.y), dtype=torch.bool, device=index.device)
    if data.held_out is not None:
        wanted &= ~data.held_out
    for other in selections[:-1]:
        wanted &= torch.zeros_like(wanted).index_fill(0, other.index, True)
    keep = wanted[index]
    batches = min((s.batches for s in selections if s.batches is not None), default=None)
    if flagged is None or flagged.flag is None:
        return Selection(index[keep], batches=batches)
    if flagged is selections[-1]:
        return Selection(index[keep], flagged.flag[keep], batches)
    flags = flagged.flag.new_zeros(len(data.y)).index_copy(0, flagged.index, flagged.flag)
    return Selection(index[keep], flags[index[keep]], batches)
