"""What a reader must know of a CoFedMID run: remarks before training, facts after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedbench.core import FactValue, Federation, ReportContext
from fedbench.plugins.defenses.cofedmid import planning
from fedbench.plugins.defenses.cofedmid.planning import CoFedMIDParams
from fedbench.plugins.defenses.cofedmid.recycling import Recycled


def shared_noise(p: CoFedMIDParams) -> bool:
    """Whether the coalition plans noise together, so that it may cancel."""
    return p.perturbation and p.sigma > 0 and p.mode == "collaborative"


def own_noise(p: CoFedMIDParams) -> bool:
    """Whether every member adds noise that does not cancel."""
    return (
        p.perturbation and p.sigma > 0 and p.mode == "independent" and p.independent_noise == "raw"
    )


def before(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    """Why noise stays in the global model, from public facts alone."""
    yield from not_cancelling(p, federation)
    if shared_noise(p) and federation.participation < 1:
        yield (
            f"With participation {federation.participation:g} members can be absent: in such a "
            "round the noise of the others "
            "does not cancel and stays in the global model."
        )


def not_cancelling(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    """Why noise stays in the global model in every round (C20)."""
    noise = f"noise of deviation {p.sigma:g} on the last {100 * p.ratio:g} % of the parameters"
    if own_noise(p):
        yield f"In the independent mode a member's {noise} does not cancel: it stays in the global model, by the member's weight."
    if shared_noise(p) and federation.aggregation != "mean":
        yield (
            f"The coalition's {noise} cancels in the weighted mean alone: whatever else the "
            "server's rule "
            f"{federation.aggregation} makes of the updates leaves some of it in the global model, "
            "in each of "
            f"{federation.rounds} rounds."
        )
    if shared_noise(p) and federation.weights == "shuffled":
        yield (
            "The server weighs each client by another one's number of samples, which the "
            "coalition does not know: unless all "
            f"clients have equally many, its {noise} does not cancel in any of {federation.rounds} "
            "rounds."
        )


def count(memory: dict[str, Any], name: str, by: int = 1) -> None:
    """Add to one of a party's counters."""
    memory[name] = memory.get(name, 0) + int(by)


def fewest(p: CoFedMIDParams, federation: Federation) -> int:
    """Assigned samples below which a member leaves them out."""
    return federation.batch_size if p.min_assigned is None else p.min_assigned


def facts_of(
    p: CoFedMIDParams, classes: np.ndarray | None, ctx: ReportContext
) -> dict[str, FactValue]:
    """All facts of a finished run; ``classes`` [T, d, N] bool: the coalition's plan, where it has
    one.
    """
    found: dict[str, FactValue] = {}
    if p.partition:
        sizes = planning.sizes(p, ctx.federation)
        found["classes of a member, first and last round"] = [sizes[0], sizes[-1]]
        found["assignments missed"] = _total(ctx, "missed")
        found["rounds that a member trained on nothing"] = _total(ctx, "idle")
    if p.compensation:
        found |= _recycling(p, ctx)
    found |= _overhead(p, ctx.federation)
    if p.perturbation:
        found["perturbed parameters"] = planning.tail(p.ratio, ctx.federation.n_params)
        found["perturbed parameters in the final linear layer"] = _final_layer(ctx)[0]
    if said := [*_on_noise(p, ctx), *_on_classes(classes, ctx), *_on_members(p, ctx)]:
        found["remarks"] = said
    return found


def _total(ctx: ReportContext, name: str) -> int:
    return sum(memory.get(name, 0) for memory in ctx.of_member.values())


def _final_layer(ctx: ReportContext) -> tuple[int, int]:
    found: Iterator[tuple[int, int]] = (
        m["final layer"] for m in ctx.of_member.values() if "final layer" in m
    )
    return next(found, (0, 0))


# ---------------------------------------------------------------- what was recycled


def _recycling(p: CoFedMIDParams, ctx: ReportContext) -> dict[str, FactValue]:
    """Over the members, with the first and the last third of the rounds that recycle apart (Figure
    5).
    """
    by_member = [
        memory["recycler"].rounds for memory in ctx.of_member.values() if "recycler" in memory
    ]
    found: dict[str, FactValue] = {}
    if p.recycle == "mab":
        found["draws of each loss interval"] = _draws(
            p, [r for rounds in by_member for r in rounds]
        )
    for when, third in zip(
        ("early", "late"), planning.thirds(p, ctx.federation.rounds), strict=True
    ):
        apart = [[r for r in rounds if r.round in third] for rounds in by_member]
        some = [r for rounds in apart for r in rounds]
        if p.recycle == "mab":
            found[f"{when} draws of each loss interval"] = _draws(p, some)
        if some and p.recycle == "mab":
            found[f"{when} probabilities of the loss intervals"] = np.mean(
                [r.probabilities for r in some], axis=0
            ).tolist()
            # members that learn need not agree: their mean may be even where each has its interval
            favourites = [
                np.mean([r.probabilities for r in rounds], axis=0).max()
                for rounds in apart
                if rounds
            ]
            found[f"{when} probability of a member's likeliest interval"] = float(
                np.mean(favourites)
            )
            found[f"{when} proportions of the loss intervals"] = np.mean(
                [r.proportions for r in some], axis=0
            ).tolist()
        if some:
            found[f"recycled share {when}"] = float(np.mean([r.share for r in some]))
    return found


def _draws(p: CoFedMIDParams, rounds: Sequence[Recycled]) -> list[int]:
    drawn: list[int] = np.bincount(
        [r.arm for r in rounds if r.arm is not None], minlength=p.n_intervals
    ).tolist()
    return drawn


# ---------------------------------------------------------------- what was sent


def _overhead(p: CoFedMIDParams, federation: Federation) -> dict[str, FactValue]:
    """What the coordinator sends one member before training: the classes it is assigned, its noise
    and r_p, round by round.

    Counted as section 5.5 does, one byte an item; its bound is (N + 2) T: "up to N class labels
    along with two scalars".
    """
    if p.mode == "independent":
        return {"bytes from the coordinator a member": 0}
    labels = sum(planning.sizes(p, federation)) if p.partition else 0
    numbers = 1 if p.noise == "scalar" else planning.tail(p.ratio, federation.n_params)
    noise = (numbers + 1) * (federation.rounds if p.noise_resample else 1) if p.perturbation else 0
    return {
        "bytes from the coordinator a member": labels + noise,
        "bytes from the coordinator a member, (N + 2) T of section 5.5": (federation.n_classes + 2)
        * federation.rounds,
    }


# ---------------------------------------------------------------- what a reader must know


def _on_noise(p: CoFedMIDParams, ctx: ReportContext) -> Iterator[str]:
    yield from not_cancelling(p, ctx.federation)
    if absent := ctx.coalition.get("absent", 0):
        yield (
            f"In {absent} of {ctx.federation.rounds} rounds some members did not take part: the "
            "noise of the others did not "
            "cancel and stayed in the global model."
        )
    n_perturbed, (within, size) = planning.tail(p.ratio, ctx.federation.n_params), _final_layer(ctx)
    if p.perturbation and not n_perturbed:
        yield f"ratio {p.ratio:g} of {ctx.federation.n_params} parameters is not one of them: nothing was perturbed."
    elif p.perturbation and within == n_perturbed:
        scalar = (
            ", where one number on all of them changes no prediction"
            if within == size and p.noise == "scalar"
            else ""
        )
        yield f"All {n_perturbed} perturbed parameters lie in the final linear layer, which has {size}{scalar}."


def _on_classes(classes: np.ndarray | None, ctx: ReportContext) -> Iterator[str]:
    if classes is None:
        return
    n, covered = ctx.federation.n_classes, classes.any(1).sum(1)
    short = np.flatnonzero(covered < n)
    if len(short):
        d = len(ctx.members)
        yield (
            f"In {len(short)} of {ctx.federation.rounds} rounds, the first of them round "
            f"{short[0] + 1}, the "
            f"{'one member was' if d == 1 else f'{d} members were'} assigned fewer than all {n} "
            "classes, "
            f"{covered.min()} at the least: the coalition left the others out."
        )


def _on_members(p: CoFedMIDParams, ctx: ReportContext) -> Iterator[str]:
    asked, missed, idle = (_total(ctx, name) for name in ("asked", "missed", "idle"))
    if missed:
        yield (
            f"{missed} of {asked} times (members x rounds) a member had fewer than "
            f"{fewest(p, ctx.federation)} samples of its "
            f"assigned classes and left them out; {idle} times it had nothing to train on and "
            "uploaded what it had received."
        )
    recyclers = [memory["recycler"] for memory in ctx.of_member.values() if "recycler" in memory]
    blind = sum(r.drawn is None for r in recyclers) if p.recycle == "mab" else 0
    if blind:
        yield f"{blind} of {len(recyclers)} bandits had no samples to validate on and learnt nothing."
