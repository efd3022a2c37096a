"""The sum of clipped per-sample gradients, without the gradients: norms and sum from one forward and one backward pass.

Ghost clipping (Li et al., ICLR 2022) with the book-keeping of Bu et al. (ICML 2023); the layers' part is in ``sums``.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.chain import walked
from fedbench.core.numerics.flat import clip_factors, norms
from fedbench.core.numerics.layers import Directions, handler_of
from fedbench.core.numerics.per_sample import (
    by_batch_statistics,
    per_sample_gradients,
    random_state,
    refuse_batch_statistics,
    set_random_state,
)
from fedbench.core.numerics.sums import RULES, Rule
from fedbench.core.numerics.tape import Tape, rows_are_samples

CHUNK = 256  # rows (samples times views) that go through the model at once
FALLBACK_BUDGET = 2**26  # elements of instantiated gradients held at once by the slow way: 256 MiB in float32


def clipped_gradient(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float, views: int = 1, chunk: int = CHUNK
) -> torch.Tensor:
    """[P]: the sum over the samples of their cross-entropy gradients, each scaled down to at most the L2 norm ``bound``.

    At the model's current parameters, in its current mode; P over the trainable ``model.parameters()`` in their order.
    ``x``: [n * views, *input], the views of a sample adjacent; ``y``: [n * views] labels, or [n * views, C] target
    probabilities. A sample's gradient is the mean over its views. About ``chunk`` rows are taken at once: it changes
    memory, not results (beyond rounding, and what a model draws while it trains). The model is left as it was found. Layers
    of unknown kind or with the samples on another axis, tied parameters and layers called twice are handled by per-sample
    gradients: same result, slower. Raises ``ValueError`` for a bound that is not positive, for rows that are no whole
    number of samples, and where batch statistics make a per-sample gradient undefined."""
    if not bound > 0:
        raise ValueError(f"a gradient is clipped to a positive norm, not to {bound!r}")
    if views < 1 or len(x) % views:
        raise ValueError(f"{len(x)} rows are no whole number of samples with {views} views each")
    layers = list(model.modules())  # listed once: for a small model this takes as long as its matrix products
    if any(by_batch_statistics(layer) for layer in layers):
        refuse_batch_statistics(model)
    trainable = _trainable(layers)
    sizes = [p.numel() for p in trainable]
    total = trainable[0].new_zeros(sum(sizes))
    if len(x) == 0:
        return total
    if y.is_floating_point():
        y = y.to(total)
    rows = max(1, chunk // views) * views
    parts = total.split_with_sizes(sizes)
    grads = {id(p): part.view(p.shape) for p, part in zip(trainable, parts, strict=True)}
    plan = _plan(layers, grads)
    if plan is not None and not rows_are_samples(model, plan, x[:rows]):
        plan = None
    for a, t in [(x, y)] if len(x) <= rows else zip(x.split(rows), y.split(rows), strict=True):
        if plan is None or not _layer_wise(model, plan, grads, a, t, bound, views, total):
            plan = None
            _sample_wise(model, a, t, bound, views, total)
    return total


def _sample_wise(model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float, views: int, total: torch.Tensor) -> None:
    """The same from instantiated gradients, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // (views * len(total))) * views
    for a, t in zip(x.split(step), y.split(step), strict=True):
        gradients = per_sample_gradients(model, a, t)
        if views > 1:
            gradients = gradients.unflatten(0, (-1, views)).mean(1)
        total += clip_factors(norms(gradients).square(), bound).to(gradients) @ gradients


Plan = dict[nn.Module, tuple[Rule, Directions]]


def _trainable(layers: list[nn.Module]) -> list[nn.Parameter]:
    """As ``model.parameters()`` gives them: each once, in the order of the modules."""
    each = {id(p): p for layer in layers for p in layer._parameters.values() if p is not None and p.requires_grad}
    return list(each.values())


def _plan(layers: list[nn.Module], part: dict[int, torch.Tensor]) -> Plan | None:
    """Each layer with trainable parameters and where its sums go, ``part`` of each by id; None if a layer is of unknown
    kind."""
    plan: Plan = {}
    for layer in layers:
        own = {name: part[id(p)] for name, p in layer._parameters.items() if id(p) in part}
        if own and handler_of(layer) is None:
            return None
        if own:
            plan[layer] = RULES[type(layer)], Directions(own.get("weight"), own.get("bias"))
    return plan


def _layer_wise(
    model: nn.Module, plan: Plan, grads: dict[int, torch.Tensor], x: torch.Tensor, y: torch.Tensor, bound: float, views: int,
    total: torch.Tensor,
) -> bool:  # fmt: skip
    """Add one chunk; False, with nothing added, where the model turns out not to be a plain chain of known layers."""
    seen = walked(model, x, y, grads) or _taped(model, plan, x, y)
    if seen is None:
        return False
    parts = []
    for layer, a, b in seen:
        rule, into = plan[layer]
        parts.append(rule(layer, a, b, views, into))
    if parts:  # otherwise the loss depends on nothing that is trained
        squares = reduce(torch.add, (part.sq for part in parts))  # of sums over views
        factors = clip_factors(squares, views * bound).to(total)
        if views > 1:
            factors /= views
        for part in parts:
            part.add(factors)
    return True


def _taped(
    model: nn.Module, plan: Plan, x: torch.Tensor, y: torch.Tensor
) -> list[tuple[nn.Module, torch.Tensor, torch.Tensor]] | None:
    """Each layer with parameters, its input and its output's gradient, as ``chain.walked``, from a graph."""
    before, tape = random_state(x.device), Tape(plan, len(x))
    try:
        with torch.enable_grad():
            loss = cross_entropy(model(x.detach()), y, reduction="sum")
    finally:
        tape.close()
    outputs = None
    if tape.covers(loss):  # one backward pass, to the layers' outputs alone
        outputs = torch.autograd.grad(loss, list(tape.edges.values()), allow_unused=True) if tape.edges else ()
    if outputs is None or any(b is None for b in outputs):  # an output that is an overwritten view
        set_random_state(before)  # later draws must not depend on this attempt
        return None
    return [(layer, a, b) for (layer, a), b in zip(tape.inputs.items(), outputs, strict=True)]
