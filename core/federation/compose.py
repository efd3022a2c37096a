"""Several defenses as one, applied in order, and one defense for each of several coalitions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from fedbench.core.contract.contexts import (
    AnswerContext,
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
    call,
    call_phase,
    remarks_of,
    where_of,
)
from fedbench.core.numerics.rng import key_for

Facts = Mapping[str, FactValue]
_UNIT = "unit of privacy"
_DECLARED = ("least_members", "least_share", "n_models", "root_samples")


def allied(groups: Sequence[tuple[int, ...]], make: Callable[[], Defense]) -> Defense:
    """Return ``make()`` for one coalition; a defense with an instance each for several."""
    return Coalitions(groups, make) if len(groups) > 1 else make()


class Coalitions(Delegating, Defense):
    """Calls every phase on the instance of the coalition that the context belongs to.

    The round loop calls member phases with the member's context and coordinator phases once per
    coalition, each with its own context, memory and key (``Parties``). Server phases are those of
    the first instance; so is the answer of a global model, unless it serves no member of the first
    coalition.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, ...]],
        make: Callable[[], Defense],
    ) -> None:
        super().__init__()
        self.groups = tuple(groups)
        self.parts = tuple(make() for _ in self.groups)
        first = self.parts[0]
        for attribute in _DECLARED:
            setattr(self, attribute, getattr(first, attribute))
        self._part_of: dict[int, Defense] = {}
        for group, part in zip(self.groups, self.parts, strict=True):
            self._part_of |= dict.fromkeys(group, part)
        for name in PHASES:
            if overrides(first, name):  # the others are plain FedAvg's, at no cost
                setattr(self, name, partial(self._ask, name))

    def _ask(self, name: str, *args: Any) -> Any:
        ctx = args[-1]
        return call_phase(self._instance(ctx), name, *args, where=where_of(ctx))

    def _instance(self, ctx: Any) -> Defense:
        if isinstance(ctx, ServerContext):
            return self.parts[0]
        client = ctx.client if isinstance(ctx, MemberContext) else ctx.members[0]
        return self._part_of[client]

    def remarks(self, federation: Federation) -> list[str]:
        """Return those of the first instance: all have the same parameters and federation."""
        return remarks_of(self.parts[0], federation)


def merged(reports: Sequence[Facts]) -> dict[str, FactValue]:
    """Return the facts of all coalitions as facts of one run: a fact with one value in all of them
    once, any other per coalition, with the prefix ``group 1``, ``group 2``, ... ``remarks`` become
    one list.
    """
    merged_facts = {}
    for g, facts in enumerate(reports, 1):
        for name, value in facts.items():
            if name == REMARKS:
                continue
            # 1, 1.0 and True are three values
            kinds = {(type(report.get(name)), repr(report.get(name))) for report in reports}
            merged_facts[name if len(kinds) == 1 else f"group {g}: {name}"] = value
    return merged_facts | remarks_together(reports)


def remarks_together(reports: Iterable[Facts]) -> dict[str, FactValue]:
    """Return the ``remarks`` of all as one fact, each sentence once; empty without any."""
    sentences: dict[str, None] = {}
    for facts in reports:
        remarks = facts.get(REMARKS, [])
        texts = remarks if isinstance(remarks, list) else [remarks]
        sentences |= dict.fromkeys(map(str, texts))
    return {REMARKS: list(sentences)[:LONGEST_FACT]} if sentences else {}


# --- several defenses -----------------------------------------------------------------------------


def still_held_out(data: MemberData, before: MemberData) -> MemberData:
    """Return ``data``, which a defense made of ``before``, with the samples held out in ``before``
    still held out.
    """
    if before.held_out is None:
        return data
    if data.held_out is None:
        return replace(data, held_out=before.held_out)
    return replace(data, held_out=before.held_out | data.held_out)


def composed(parts: Sequence[Defense]) -> Defense:
    """Return the single defense, or a :class:`Composite` of several."""
    return parts[0] if len(parts) == 1 else Composite(parts)


class Composite(Delegating, Defense):
    """Defense that applies ``parts`` in their order; the table of phases says how answers combine.

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
        for attribute in _DECLARED:
            setattr(self, attribute, max(getattr(part, attribute) for part in parts))
        if any(part.n_models == 0 for part in parts):
            self.n_models = 0
        self._owners = {name: self._owner(name) for name in phases(combines=("exclusive",))}
        self._views: dict[int | None, tuple[Any, list[Any]]] = {}
        ways: dict[str, Callable[..., Any]] = {
            "chained": self._chain,
            "every": self._each,
            "exclusive": self._one,
        }
        for name, row in PHASES.items():  # a phase added to the table is one that composites have
            if row.combines in ways:
                setattr(self, name, partial(ways[row.combines], name))
        for name in ("prepare", "select", "local_step", "report"):
            setattr(self, name, getattr(self, f"_{name}"))

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

    def _names(self, positions: Sequence[int]) -> str:
        return " and ".join(f"'{type(self.parts[i]).__name__}' (number {i + 1})" for i in positions)

    def _view(self, i: int, ctx: Any) -> Any:
        """Return the context of part ``i``: the same object for the same ``ctx``, so that its
        generator continues while other members train in turn with this one.
        """
        client = ctx.client if isinstance(ctx, MemberContext) else None
        if client not in self._views or self._views[client][0] is not ctx:
            contexts = [_context_of(j, ctx) for j in range(len(self.parts))]
            self._views[client] = ctx, contexts
        return self._views[client][1][i]

    def _ask(
        self,
        name: str,
        i: int,
        *args: Any,
        ctx: Any,
    ) -> Any:
        """Call a phase of a part; an error names the part, not the composite."""
        view = self._view(i, ctx)
        return call_phase(self.parts[i], name, *args, view, where=where_of(ctx))

    def remarks(self, federation: Federation) -> list[str]:
        """Return every part's, led by its class."""
        lines = []
        for part in self.parts:
            lines += [f"{type(part).__name__}: {text}" for text in remarks_of(part, federation)]
        return lines

    # the ways to combine

    def _chain(
        self,
        name: str,
        value: Any,
        ctx: Any,
    ) -> Any:
        for i in self._acting(name):
            value = self._ask(name, i, value, ctx=ctx)
        return value

    def _each(self, name: str, ctx: Any) -> None:
        for i in self._acting(name):
            self._ask(name, i, ctx=ctx)

    def _one(self, name: str, *args: Any) -> Any:
        """Return the result of the only part that overrides the phase, or plain FedAvg's."""
        i = self._owners[name]
        if i is None:
            return getattr(Defense, name)(self, *args)
        return self._ask(name, i, *args[:-1], ctx=args[-1])

    # phases with their own rule

    def _prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        """Chain the parts; samples that one part holds out stay held out."""
        for i in self._acting("prepare"):
            view = replace(self._view(i, ctx), data=data)
            prepared = call_phase(self.parts[i], "prepare", data, view, where=where_of(ctx))
            data = still_held_out(prepared, data)
        return data

    def _select(self, ctx: MemberContext) -> Selection | None:
        """Return the samples that every part selects, in the order (and as often as) the last one
        has them.

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
        flags = flagged[0][1] if flagged else None
        common = _intersection([s for _, s in chosen], ctx.data, flags)
        self._require_rates(chosen, common)
        return common

    def _require_rates(self, chosen: list[tuple[int, Selection]], common: Selection) -> None:
        """Raise ``UserError`` where samples that a part draws by Poisson sampling are left out."""
        for i, s in chosen:
            if s.poisson and not torch.equal(s.index.sort().values, common.index.sort().values):
                rest = self._names([j for j, _ in chosen if j != i])
                raise UserError(
                    f"{self._names([i])} draws batches by Poisson sampling from {len(s.index)} "
                    f"samples, and with {rest} {len(common.index)} are left: each would be drawn "
                    "at another rate than it counts on; keep one of them"
                )

    def _local_step(
        self,
        batch: Batch,
        ctx: MemberContext,
    ) -> torch.Tensor | None:
        gradient = self._one("local_step", batch, ctx)
        step = self._owners["local_step"]
        loss = self._owners["loss"]
        if gradient is not None and step is not None and loss is not None and step != loss:
            raise UserError(
                f"{self._names([step, loss])} cannot be combined: the first computes gradients "
                "itself, so the loss of the second would never be used"
            )
        return gradient

    def _report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Return every part's facts; a name that two of them use is led by the part's class and
        number. ``remarks`` are one list.
        """
        reports = []
        for i in self._acting("report"):
            view = _context_of(i, ctx)
            facts = call_phase(self.parts[i], "report", view, where=where_of(ctx))
            reports.append((f"{type(self.parts[i]).__name__} {i + 1}", self._proven(i, facts, ctx)))
        uses: Counter[str] = Counter()
        for _, facts in reports:
            uses.update(facts.keys() - {REMARKS})
        named = {}
        for part, facts in reports:
            for name, value in facts.items():
                if name != REMARKS:
                    named[f"{part}: {name}" if uses[name] > 1 else name] = value
        return named | remarks_together(facts for _, facts in reports)

    def _proven(self, i: int, facts: Facts, ctx: ReportContext) -> Facts:
        """Return the ``facts`` of part ``i``. Where other parts void its epsilon, that of all their
        events together takes its place, or nothing if one has no event.
        """
        if "epsilon" not in facts:
            return facts
        covered = self.parts[i].covers
        reasons: dict[int, str] = {}
        for j, part in enumerate(self.parts):
            of_part = filter(None, (voids(inner, covered) for inner in innermost(part)))
            if j != i and (text := "; ".join(of_part)):
                reasons[j] = text
        if not reasons:
            return facts
        epsilon = self._epsilon_with([i, *reasons], facts, ctx)
        if math.isfinite(epsilon):
            rest = {n: v for n, v in facts.items() if n != "epsilon if replaced"}
            together: dict[str, FactValue] = {
                "epsilon": epsilon,
                "neighbours": f"{facts[_UNIT]} without its contribution",
                "accountant": "RDP of dp-accounting, all parts together, upper bound",
            }
            return rest | together
        rest = {n: v for n, v in facts.items() if not n.startswith(("epsilon", "delta"))}
        name = type(self.parts[i]).__name__
        remark = f"{name} states no epsilon here: {'; '.join(reasons.values())}."
        return rest | remarks_together([facts, {REMARKS: remark}])

    def _epsilon_with(self, parts: Sequence[int], facts: Facts, ctx: ReportContext) -> float:
        """Return the epsilon of these parts' events together at the delta of ``facts``, of the
        client that it costs most; infinite where an event is missing.
        """
        from dp_accounting import DpEvent, rdp  # importing it takes .2 seconds

        # a class declares its own event: a subclass may do more than its base
        declared = all("private" in vars(type(self.parts[j])) for j in parts)
        unit, delta = facts.get(_UNIT), facts.get("delta")
        if not (declared and ctx.of_member and isinstance(delta, float)):
            return math.inf
        epsilon = 0.0
        for client in ctx.of_member:
            accountant = rdp.RdpAccountant()
            for j in parts:
                arguments = unit, client, _context_of(j, ctx)
                event = call(self.parts[j], "privacy_event", *arguments, where=where_of(ctx))
                if not isinstance(event, DpEvent) or not accountant.supports(event):
                    return math.inf
                accountant.compose(event)
            epsilon = max(epsilon, float(accountant.get_epsilon(delta)))
        return epsilon


def _context_of(i: int, ctx: Any) -> Any:
    """Return ``ctx`` with part ``i``'s own memories, read-only after a round, and its own key: the
    first part keeps the engine's.
    """
    part = f"part {i + 1}"
    changes: dict[str, Any] = {}
    if not isinstance(ctx, ReportContext):
        changes["key"] = ctx.key if i == 0 else key_for(ctx.key, part)
    if not isinstance(ctx, ReportContext | AnswerContext):
        return replace(ctx, memory=ctx.memory.setdefault(part, {}), **changes)

    def of_part(memory: Mapping[str, Any]) -> Mapping[str, Any]:
        return MappingProxyType(memory.get(part, {}))

    changes["coalition"] = of_part(ctx.coalition)
    for name in ("of_member", "of_server"):
        if hasattr(ctx, name):
            changes[name] = {k: of_part(memory) for k, memory in getattr(ctx, name).items()}
    return replace(ctx, **changes)


def _intersection(
    selections: list[Selection], data: MemberData, flagged: Selection | None
) -> Selection:
    """Return the last selection's samples that are in all earlier ones and not held out, with the
    flags of ``flagged``.
    """
    index = selections[-1].index
    wanted = torch.ones(len(data.y), dtype=torch.bool, device=index.device)
    if data.held_out is not None:
        wanted &= ~data.held_out
    for earlier in selections[:-1]:
        wanted &= torch.zeros_like(wanted).index_fill(0, earlier.index, True)
    common = wanted[index]
    return Selection(
        index[common],
        _flags(selections[-1], common, flagged, len(data.y)),
        min((s.batches for s in selections if s.batches is not None), default=None),
        any(s.poisson for s in selections),
    )


def _flags(
    last: Selection,
    common: torch.Tensor,
    flagged: Selection | None,
    n: int,
) -> torch.Tensor | None:
    """Return the flags of ``flagged`` for those samples of the last selection that are ``common``;
    ``n``: number of the client's samples.
    """
    if flagged is None or flagged.flag is None:
        return None
    if flagged is last:
        return flagged.flag[common]
    flags = flagged.flag.new_zeros(n).index_copy(0, flagged.index, flagged.flag)
    return flags[last.index[common]]
