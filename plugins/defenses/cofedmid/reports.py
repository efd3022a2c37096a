"""Reports on a CoFedMID run: remarks before training, facts after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy import ndarray

from fedbench.core import FactValue, Federation, ReportContext
from fedbench.plugins.defenses.cofedmid import planning
from fedbench.plugins.defenses.cofedmid.planning import CoFedMIDParams
from fedbench.plugins.defenses.cofedmid.recycling import Recycled, Recycler

Facts = dict[str, FactValue]


def before(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    """Say why noise will stay in the global model, from public facts alone."""
    yield from not_cancelling(p, federation)
    if p.shared_noise and federation.participation < 1:
        yield (
            f"With participation {federation.participation:g} members can be absent: in such a "
            "round the noise of the others does not cancel and stays in the global model."
        )


def not_cancelling(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    """Say why noise stays in the global model in every round (C20)."""
    noise = f"noise of deviation {p.sigma:g} on the last {100 * p.ratio:g} % of the parameters"
    if p.raw_noise:
        yield (
            f"In the independent mode a member's {noise} does not cancel: it stays in the global "
            "model, by the member's weight."
        )
    if p.shared_noise and federation.aggregation != "mean":
        yield (
            f"The coalition's {noise} cancels in the weighted mean alone: whatever else the "
            f"server's rule {federation.aggregation} makes of the updates leaves some of it in the "
            f"global model, in each of {federation.rounds} rounds."
        )
    if p.shared_noise and federation.weights == "shuffled":
        yield (
            "The server weighs each client by another one's number of samples, which the "
            "coalition does not know: unless all clients have equally many, its "
            f"{noise} does not cancel in any of {federation.rounds} rounds."
        )


def facts_of(p: CoFedMIDParams, classes: ndarray | None, ctx: ReportContext) -> Facts:
    """Collect all facts of a finished run.

    ``classes`` [T, d, N] bool: the coalition's plan, where it has one.
    """
    facts: Facts = {}
    if p.partition:
        sizes = planning.sizes(p, ctx.federation)
        facts["classes of a member, first and last round"] = [sizes[0], sizes[-1]]
        facts["assignments missed"] = _total(ctx, "missed")
        facts["rounds that a member trained on nothing"] = _total(ctx, "idle")
    if p.compensation:
        facts |= _recycling(p, ctx)
    facts |= _overhead(p, ctx.federation)
    if p.perturbation:
        facts["perturbed parameters"] = planning.tail(p.ratio, ctx.federation.n_params)
        facts["perturbed parameters in the final linear layer"] = _final_layer(ctx)[0]
    remarks = [*_on_noise(p, ctx), *_on_classes(classes, ctx), *_on_members(p, ctx)]
    if remarks:
        facts["remarks"] = remarks
    return facts


def _total(ctx: ReportContext, name: str) -> int:
    """Sum of a counter over the members."""
    return sum(memory["counts"][name] for memory in ctx.of_member.values() if "counts" in memory)


def _final_layer(ctx: ReportContext) -> tuple[int, int]:
    """Perturbed and all parameters of the final linear layer, as a member counted them."""
    for memory in ctx.of_member.values():
        if "final layer" in memory:
            return memory["final layer"]
    return 0, 0


def _recyclers(ctx: ReportContext) -> list[Recycler]:
    return [memory["recycler"] for memory in ctx.of_member.values() if "recycler" in memory]


# ---------------------------------------------------------------- what was recycled


def _recycling(p: CoFedMIDParams, ctx: ReportContext) -> Facts:
    """Facts over the members, of the first and the last third of the rounds that recycle
    (Figure 5).
    """
    recyclers = _recyclers(ctx)
    rounds = ctx.federation.rounds
    first = planning.first_recycling(p, rounds)
    third = max(1, (rounds - first + 1) // 3)
    facts: Facts = {}
    if p.recycle == "mab":
        facts["draws of each loss interval"] = _draws(p, [r.rounds for r in recyclers])
    early = range(first, first + third)
    late = range(rounds - third + 1, rounds + 1)
    facts |= _of_rounds(p, "early", [recycler.within(early) for recycler in recyclers])
    return facts | _of_rounds(p, "late", [recycler.within(late) for recycler in recyclers])


def _of_rounds(p: CoFedMIDParams, when: str, by_member: Sequence[Sequence[Recycled]]) -> Facts:
    """Facts of some of the rounds, of which each member has records."""
    facts: Facts = {}
    if p.recycle == "mab":
        facts[f"{when} draws of each loss interval"] = _draws(p, by_member)
    records = list(chain.from_iterable(by_member))
    if not records:
        return facts
    if p.recycle == "mab":
        facts[f"{when} probabilities of the loss intervals"] = _probabilities(records).tolist()
        # members that learn need not agree: their mean may be even where each has its interval
        favourites = [_probabilities(member).max() for member in by_member if member]
        facts[f"{when} probability of a member's likeliest interval"] = float(np.mean(favourites))
        known = [record.proportions for record in records if record.proportions is not None]
        proportions = np.mean(known, axis=0)
        facts[f"{when} proportions of the loss intervals"] = proportions.tolist()
    facts[f"recycled share {when}"] = float(np.mean([record.share for record in records]))
    return facts


def _probabilities(records: Sequence[Recycled]) -> ndarray:
    """Mean probability [M] of each interval."""
    known = [record.probabilities for record in records if record.probabilities is not None]
    return np.mean(known, axis=0)


def _draws(p: CoFedMIDParams, by_member: Sequence[Sequence[Recycled]]) -> list[int]:
    """Count the draws of each interval."""
    arms = [record.arm for record in chain.from_iterable(by_member)]
    return np.bincount(np.array(arms, int), minlength=p.n_intervals).tolist()


# ---------------------------------------------------------------- what was sent


def _overhead(p: CoFedMIDParams, federation: Federation) -> Facts:
    """Count what the coordinator sends one member before training, as section 5.5 does.

    The classes it is assigned, its noise and r_p, round by round, one byte an item; its bound is
    (N + 2) T: "up to N class labels along with two scalars".
    """
    name = "bytes from the coordinator a member"
    rounds = federation.rounds
    if p.mode == "independent":
        return {name: 0}
    items = 0
    if p.partition:
        items += sum(planning.sizes(p, federation))
    if p.perturbation:
        items += (planning.noise_width(p, federation) + 1) * rounds
    bound = (federation.n_classes + 2) * rounds
    return {name: items, f"{name}, (N + 2) T of section 5.5": bound}


# ---------------------------------------------------------------- what a reader must know


def _on_noise(p: CoFedMIDParams, ctx: ReportContext) -> Iterator[str]:
    yield from not_cancelling(p, ctx.federation)
    absent = ctx.coalition.get("absent", 0)
    if absent:
        yield (
            f"In {absent} of {ctx.federation.rounds} rounds some members did not take part: the "
            "noise of the others did not cancel and stayed in the global model."
        )
    n_params = ctx.federation.n_params
    perturbed = planning.tail(p.ratio, n_params)
    (within, size) = _final_layer(ctx)
    if p.perturbation and not perturbed:
        yield (
            f"ratio {p.ratio:g} of {n_params} parameters is not one of them: nothing was perturbed."
        )
    elif p.perturbation and within == perturbed:
        effect = ""
        if within == size and p.noise == "scalar":
            effect = ", where one number on all of them changes no prediction"
        yield (
            f"All {perturbed} perturbed parameters lie in the final linear layer, which has "
            f"{size}{effect}."
        )


def _on_classes(classes: ndarray | None, ctx: ReportContext) -> Iterator[str]:
    if classes is None:
        return
    n = ctx.federation.n_classes
    covered = classes.any(1).sum(1)
    short = np.flatnonzero(covered < n)
    if len(short):
        yield (
            f"In {len(short)} of {ctx.federation.rounds} rounds, the first of them round "
            f"{short[0] + 1}, the {len(ctx.members)} members were assigned fewer than all {n} "
            f"classes, {covered.min()} at the least: the coalition left the others out."
        )


def _on_members(p: CoFedMIDParams, ctx: ReportContext) -> Iterator[str]:
    missed = _total(ctx, "missed")
    if missed:
        yield (
            f"{missed} of {_total(ctx, 'asked')} times (members x rounds) a member had fewer than "
            f"{planning.fewest_samples(p, ctx.federation)} samples of its assigned classes and "
            f"left them out; {_total(ctx, 'idle')} times it had nothing to train on and uploaded "
            "what it had received."
        )
    recyclers = _recyclers(ctx)
    blind = sum(recycler.drawn is None for recycler in recyclers)
    if blind and p.recycle == "mab":
        yield (
            f"{blind} of {len(recyclers)} bandits had no samples to validate on and learnt nothing."
        )
