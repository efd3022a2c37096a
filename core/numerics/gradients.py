"""Products, norms and clipped sums of per-sample gradients, computed layer by layer without the
gradients themselves.

One forward and one backward pass give each layer's input and its output's gradient; ``layers`` and
``sums`` have the formulas. Models that are no plain chain of known layers take per-sample gradients
instead: same result, slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.chain import walked
from fedbench.core.numerics.flat import clip_factors, norms
from fedbench.core.numerics.layers import HANDLERS, Directions, has_plain_formula
from fedbench.core.numerics.per_sample import (
    by_batch_statistics,
    per_sample_gradients,
    random_state,
    refuse_batch_statistics,
    set_random_state,
)
from fedbench.core.numerics.sums import RULES
from fedbench.core.numerics.tape import Tape, rows_are_samples

CHUNK = 256  # rows (samples times views) of a clipped sum that go through the model at once
# elements of instantiated gradients held at once by the slow way: 256 MiB in float32
FALLBACK_BUDGET = 2**26

Plan = dict[nn.Module, tuple[Callable[..., Any], Directions]]
"""each layer with trainable parameters -> the formula of its kind, and its parts of the updates or
of the result
"""


def _plan(
    layers: list[nn.Module],
    parts: Mapping[int, Tensor],
    formulas: Mapping[type[nn.Module], Callable[..., Any]],
) -> Plan | None:
    """``parts``: parameter id -> its part. None if a layer with trainable parameters has no
    formula.
    """
    plan: Plan = {}
    for layer in layers:
        own = {name: parts[id(p)] for name, p in layer._parameters.items() if id(p) in parts}
        if own and not has_plain_formula(layer):
            return None
        if own:
            plan[layer] = formulas[type(layer)], Directions(own.get("weight"), own.get("bias"))
    return plan


def _layer_gradients(
    model: nn.Module, plan: Plan, parts: dict[int, Tensor], x: Tensor, y: Tensor
) -> list[tuple[nn.Module, Tensor, Tensor]] | None:
    """(layer, its input, the gradient of the summed cross-entropy at its output), in the order of
    the forward pass; None where the model turns out not to be a plain chain of known layers.
    ``parts``: as for :func:`_plan`.
    """
    if (seen := walked(model, x, y, parts)) is not None:
        return seen
    before, tape = random_state(x.device), Tape(plan, len(x))
    try:
        with torch.enable_grad():
            loss = cross_entropy(model(x.detach()), y, reduction="sum")
    finally:
        tape.close()
    outputs = None
    if tape.covers(loss):  # one backward pass, to the layers' outputs alone
        outputs = (
            torch.autograd.grad(loss, list(tape.edges.values()), allow_unused=True)
            if tape.edges
            else ()
        )
    if outputs is None or any(b is None for b in outputs):  # an output that is an overwritten view
        set_random_state(before)  # later draws must not depend on this attempt
        return None
    return [(layer, a, b) for (layer, a), b in zip(tape.inputs.items(), outputs, strict=True)]


# --- features -------------------------------------------------------------------------------------


class GradientFeatures(NamedTuple):
    """``dot``: [M, N] <g_i, u_k>; ``sq``: [N] |g_i|^2; ``update_sq``: [M] |u_k|^2."""

    dot: Tensor
    sq: Tensor
    update_sq: Tensor


def gradient_features(
    model: nn.Module, x: Tensor, y: Tensor, updates: Tensor, chunk: int = 512
) -> GradientFeatures:
    """Products of each sample's cross-entropy gradient g_i (eval mode) with each update u_k, and
    their squared norms.

    ``x``: [N, *input], samples on the first axis; ``y``: [N]; ``updates``: [M, P] in the order of
    the trainable ``model.parameters()``. The cost hardly depends on M. ``chunk`` samples are taken
    at once: it changes memory, not results (beyond rounding). The model is left unchanged. Raises
    ``ValueError`` for updates of another size than the model's and for normalisation by batch
    statistics.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trainable]
    if not sizes or updates.dim() != 2 or updates.shape[1] != sum(sizes):
        raise ValueError(
            f"updates have shape {tuple(updates.shape)}; the model has {sum(sizes)} trainable "
            "parameters"
        )
    updates = updates.detach().to(trainable[0])
    dot, sq = updates.new_zeros(len(updates), len(x)), updates.new_zeros(len(x))
    parts = {
        id(p): u.unflatten(1, p.shape)
        for p, u in zip(trainable, updates.split(sizes, dim=1), strict=True)
    }
    with _eval_mode(model):
        refuse_batch_statistics(model)
        plan = _plan(list(model.modules()), parts, HANDLERS)
        if plan is not None and not rows_are_samples(model, plan, x[:chunk]):
            plan = None
        for start in range(0, len(x), chunk):
            s = slice(start, start + chunk)
            seen = None if plan is None else _layer_gradients(model, plan, parts, x[s], y[s])
            if seen is None or plan is None:
                plan = None
                dot[:, s], sq[s] = _sample_wise_features(model, x[s], y[s], updates)
                continue
            for layer, a, b in reversed(seen):
                handler, directions = plan[layer]
                products, squares = handler(layer, a, b, directions)
                dot[:, s] += products
                sq[s] += squares
    return GradientFeatures(dot, sq, norms(updates).square().to(updates))


def _sample_wise_features(
    model: nn.Module, x: Tensor, y: Tensor, updates: Tensor
) -> tuple[Tensor, Tensor]:
    """(dot [M, n], sq [n]) from instantiated gradients, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // updates.shape[1])
    grads = (
        per_sample_gradients(model, a, b) for a, b in zip(x.split(step), y.split(step), strict=True)
    )
    parts = [(updates @ g.T, norms(g).square().to(g)) for g in grads]
    return torch.cat([dot for dot, _ in parts], dim=1), torch.cat([sq for _, sq in parts])


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every submodule's own mode afterwards."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True


# --- clipped sums ---------------------------------------------------------------------------------


def clipped_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    bound: float,
    views: int = 1,
    chunk: int = CHUNK,
) -> Tensor:
    """[P]: the sum over the samples of their cross-entropy gradients, each scaled down to at most
    the L2 norm ``bound``.

    At the model's current parameters, in its current mode; P over the trainable
    ``model.parameters()`` in their order. ``x``: [n * views, *input], the views of a sample
    adjacent; ``y``: [n * views] labels, or [n * views, C] target probabilities. A sample's gradient
    is the mean over its views. About ``chunk`` rows are taken at once: it changes memory, not
    results (beyond rounding, and what a model draws while it trains). The model is left unchanged.
    Raises ``ValueError`` for a bound that is not positive, for rows that are no whole number of
    samples, and where batch statistics make a per-sample gradient undefined. Source: ghost clipping
    (Li et al., ICLR 2022) with the book-keeping of Bu et al. (ICML 2023).
    """
    if not bound > 0:
        raise ValueError(f"a gradient is clipped to a positive norm, not to {bound!r}")
    if views < 1 or len(x) % views:
        raise ValueError(f"{len(x)} rows are no whole number of samples with {views} views each")
    # listed once: for a small model this takes as long as its matrix products
    layers = list(model.modules())
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
    grads = {
        id(p): part.view(p.shape)
        for p, part in zip(trainable, total.split_with_sizes(sizes), strict=True)
    }
    plan = _plan(layers, grads, RULES)
    if plan is not None and not rows_are_samples(model, plan, x[:rows]):
        plan = None
    for a, t in [(x, y)] if len(x) <= rows else zip(x.split(rows), y.split(rows), strict=True):
        seen = None if plan is None else _layer_gradients(model, plan, grads, a, t)
        if seen is None or plan is None:
            plan = None
            _add_sample_wise(model, a, t, bound, views, total)
        elif seen:  # otherwise the loss depends on nothing that is trained
            _add_layer_wise(plan, seen, bound, views, total.dtype)
    return total


def _trainable(layers: list[nn.Module]) -> list[nn.Parameter]:
    """As ``model.parameters()`` gives them: each once, in the order of the modules."""
    each = {
        id(p): p
        for layer in layers
        for p in layer._parameters.values()
        if p is not None and p.requires_grad
    }
    return list(each.values())


def _add_layer_wise(
    plan: Plan,
    seen: list[tuple[nn.Module, Tensor, Tensor]],
    bound: float,
    views: int,
    dtype: torch.dtype,
) -> None:
    """Add one chunk's clipped gradients to the parts of the result in ``plan``."""
    parts = []
    for layer, a, b in seen:
        rule, into = plan[layer]
        parts.append(rule(layer, a, b, views, into))
    squares = reduce(torch.add, (part.sq for part in parts))  # of sums over views
    factors = clip_factors(squares, views * bound).to(dtype)
    if views > 1:
        factors /= views
    for part in parts:
        part.add(factors)


def _add_sample_wise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    bound: float,
    views: int,
    total: Tensor,
) -> None:
    """The same from instantiated gradients, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // (views * len(total))) * views
    for a, t in zip(x.split(step), y.split(step), strict=True):
        gradients = per_sample_gradients(model, a, t)
        if views > 1:
            gradients = gradients.unflatten(0, (-1, views)).mean(1)
        total += clip_factors(norms(gradients).square(), bound).to(gradients) @ gradients
