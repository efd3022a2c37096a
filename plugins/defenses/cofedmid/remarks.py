"""What a reader must know of CoFedMID in a federation: where its noise stays, what it does not cover. Whole sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedbench.core import Federation
from fedbench.plugins.defenses.cofedmid import perturbation, planning
from fedbench.plugins.defenses.cofedmid.params import CoFedMIDParams


def shared_noise(p: CoFedMIDParams) -> bool:
    """Whether the coalition plans noise together, so that it may cancel."""
    return p.perturbation and p.sigma > 0 and p.mode == "collaborative"


def own_noise(p: CoFedMIDParams) -> bool:
    """Whether every member adds noise that nobody cancels."""
    return p.perturbation and p.sigma > 0 and p.mode == "independent" and p.independent_noise == "raw"


def before(p: CoFedMIDParams, federation: Federation) -> list[str]:
    """From public facts alone, before anything is trained."""
    asked = (not_cancelling, _absent, _does_nothing, _never_covered)
    return [sentence for ask in asked for sentence in ask(p, federation)]


def not_cancelling(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    """Why noise stays in the global model in every round (C20)."""
    noise = f"noise of deviation {p.sigma:g} on the last {100 * p.ratio:g} % of the parameters"
    if own_noise(p):
        yield f"In the independent mode nobody cancels a member's {noise}: it stays in the global model, by the member's weight."
    if shared_noise(p) and federation.aggregation != "mean":
        yield (
            f"The coalition's {noise} cancels in the weighted mean alone: whatever else the server's rule "
            f"{federation.aggregation} makes of the updates leaves some of it in the global model, in each of "
            f"{federation.rounds} rounds."
        )
    if shared_noise(p) and federation.weights == "shuffled":
        yield (
            f"The server weighs each client by another one's number of samples, which the coalition does not know: unless all "
            f"clients have equally many, its {noise} does not cancel in any of {federation.rounds} rounds."
        )


def _absent(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    if shared_noise(p) and federation.participation < 1:
        yield (
            f"With participation {federation.participation:g} members can be absent: in such a round the noise of the others "
            "does not cancel and stays in the global model."
        )


def _does_nothing(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    rounds, n_params = federation.rounds, federation.n_params
    if p.compensation and p.recycle_from is None and planning.first_recycling(p, rounds) == rounds:
        yield f"Of {rounds} rounds the last one alone recycles samples: set recycle_from."
    if p.perturbation and n_params and not perturbation.tail(p.ratio, n_params):
        yield f"ratio {p.ratio:g} of {n_params} parameters is not one of them: nothing is perturbed."


def _never_covered(p: CoFedMIDParams, federation: Federation) -> Iterator[str]:
    if not p.partition or p.mode == "independent":
        return
    n, sizes = federation.n_classes, planning.sizes(p, federation)
    short = [t for t, m in enumerate(sizes, 1) if m * federation.clients < n]
    if short:
        yield (
            f"All {federation.clients} clients together are too few to cover all {n} classes in {len(short)} of "
            f"{federation.rounds} rounds, the first of them round {short[0]}: in the last one that takes "
            f"{math.ceil(n / sizes[-1])} members with {sizes[-1]} {'class' if sizes[-1] == 1 else 'classes'} each."
        )
