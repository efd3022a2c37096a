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
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.chain import walked
from fedbench.core.numerics.flat import clip_factors, norms
from fedbench.core.numerics.layers import HANDLERS, Directions, has_plain_formula
from fedbench.core.numerics.per_sample import (
    per_sample_gradients,
    random_state,
    refuse_batch_statistics,
    set_random_state,
    trainable_of,
)
from fedbench.core.numerics.sums import RULES
from fedbench.core.numerics.tape import Tape, rows_are_samples

CHUNK = 256  # rows (samples times views) of a clipped sum that go through the model at once
# elements of instantiated gradients held at once by the slow way: 256 MiB in float32
FALLBACK_BUDGET = 2**26

Formula = Callable[..., Any]
Plan = dict[Module, tuple[Formula, Directions]]
"""each layer with trainable parameters -> the formula of its kind, and its parts of the updates or
of the result
"""


def _by_layer(
    model: Module,
    parts: Mapping[int, Tensor],
    formulas: Mapping[type[Module], Formula],
    x: Tensor,
    y: Tensor,
    step: int,
) -> Iterator[tuple[slice, list[tuple[Formula, Directions, Module, Tensor, Tensor]] | None]]:
    """Slices of ``step`` samples, each with (formula, its parts, layer, the layer's input, gradient
    of the summed cross-entropy at its output) in the order of the forward pass; None from the slice
    on in which the model turns out not to be a plain chain of known layers.

    ``parts``: id of a parameter -> its part of the updates or of the result.
    """
    plan = _plan(model, parts, formulas)
    if plan is not None and not rows_are_samples(model, plan, x[:step]):
        plan = None
    for start in range(0, len(x), step):
        s = slice(start, start + step)
        layers = None if plan is None else _layer_gradients(model, plan, parts, x[s], y[s])
        if layers is None or plan is None:
            plan = None
            yield s, None
        else:
            yield s, [(*plan[layer], layer, a, b) for layer, a, b in layers]


def _plan(
    model: Module, parts: Mapping[int, Tensor], formulas: Mapping[type[Module], Formula]
) -> Plan | None:
    """The plan; None if a layer with trainable parameters has no formula."""
    plan: Plan = {}
    for layer in model.modules():
        named = {name: parts[id(p)] for name, p in layer._parameters.items() if id(p) in parts}
        if named and not has_plain_formula(layer):
            return None
        if named:
            plan[layer] = formulas[type(layer)], Directions(named.get("weight"), named.get("bias"))
    return plan


def _layer_gradients(
    model: Module, plan: Plan, parts: Mapping[int, Tensor], x: Tensor, y: Tensor
) -> list[tuple[Module, Tensor, Tensor]] | None:
    """Each layer, its input and the gradient at its output; None where a layer is called twice, or
    its rows are moved.
    """
    if (layers := walked(model, x, y, parts)) is not None:
        return layers
    before = random_state(x.device)
    tape = Tape(plan, len(x))
    try:
        with torch.enable_grad():
            loss = cross_entropy(model(x.detach()), y, reduction="sum")
    finally:
        tape.close()
    outputs: tuple[Tensor | None, ...] | None = None
    if tape.covers(loss):  # one backward pass, to the layers' outputs alone
        edges = list(tape.edges.values())
        outputs = torch.autograd.grad(loss, edges, allow_unused=True) if edges else ()
    known = [b for b in outputs or () if b is not None]
    if outputs is None or len(known) < len(outputs):  # an output that is an overwritten view
        set_random_state(before)  # later draws must not depend on this attempt
        return None
    return [(layer, a, b) for (layer, a), b in zip(tape.inputs.items(), known, strict=True)]


# --- features -------------------------------------------------------------------------------------


class GradientFeatures(NamedTuple):
    """``dot``: [M, N] <g_i, u_k>; ``sq``: [N] |g_i|^2; ``update_sq``: [M] |u_k|^2."""

    dot: Tensor
    sq: Tensor
    update_sq: Tensor


def gradient_features(
    model: Module, x: Tensor, y: Tensor, updates: Tensor, chunk: int = 512
) -> GradientFeatures:
    """Products of each sample's cross-entropy gradient g_i (eval mode) with each update u_k, and
    their squared norms.

    ``x``: [N, *input], samples on the first axis; ``y``: [N]; ``updates``: [M, P] in the order of
    the trainable ``model.parameters()``. The cost hardly depends on M. ``chunk`` samples are taken
    at once: it changes memory, not results (beyond rounding). The model is left unchanged. Raises
    ``ValueError`` for updates of another size than the model's and for normalisation by batch
    statistics.
    """
    trainable = trainable_of(model)
    sizes = [p.numel() for p in trainable]
    if not sizes or updates.dim() != 2 or updates.shape[1] != sum(sizes):
        shape = tuple(updates.shape)
        raise ValueError(
            f"updates have shape {shape}; the model has {sum(sizes)} trainable parameters"
        )
    updates = updates.detach().to(trainable[0])
    dot = updates.new_zeros(len(updates), len(x))
    sq = updates.new_zeros(len(x))
    columns = zip(trainable, updates.split(sizes, dim=1), strict=True)
    parts = {id(p): u.unflatten(1, p.shape) for p, u in columns}
    with _eval_mode(model):
        refuse_batch_statistics(model)
        for s, layers in _by_layer(model, parts, HANDLERS, x, y, chunk):
            if layers is None:
                dot[:, s], sq[s] = _sample_wise_features(model, x[s], y[s], updates)
            for formula, directions, layer, a, b in reversed(layers or []):
                products, squares = formula(layer, a, b, directions)
                dot[:, s] += products
                sq[s] += squares
    return GradientFeatures(dot, sq, norms(updates).square().to(updates))


def _sample_wise_features(
    model: Module, x: Tensor, y: Tensor, updates: Tensor
) -> tuple[Tensor, Tensor]:
    """Products [M, n] and squares [n] from gradients themselves, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // updates.shape[1])
    dot = []
    sq = []
    for a, b in zip(x.split(step), y.split(step), strict=True):
        gradients = per_sample_gradients(model, a, b)
        dot.append(updates @ gradients.T)
        sq.append(norms(gradients).square().to(gradients))
    return torch.cat(dot, dim=1), torch.cat(sq)


@contextmanager
def _eval_mode(model: Module) -> Iterator[None]:
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
    model: Module,
    x: Tensor,
    y: Tensor,
    bound: float,
    views: int = 1,
    chunk: int = CHUNK,
) -> Tensor:
    """Sum [P] over the samples of their cross-entropy gradients, each scaled down to at most the L2
    norm ``bound``.

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
    refuse_batch_statistics(model)
    trainable = trainable_of(model)
    sizes = [p.numel() for p in trainable]
    total = trainable[0].new_zeros(sum(sizes))
    pairs = zip(trainable, total.split_with_sizes(sizes), strict=True)
    parts = {id(p): part.view(p.shape) for p, part in pairs}
    y = y.to(total) if y.is_floating_point() else y
    step = max(1, chunk // views) * views
    for s, layers in _by_layer(model, parts, RULES, x, y, step) if len(x) else ():
        if layers is None:
            _add_sample_wise(model, x[s], y[s], bound, views, total)
            continue
        sums = [rule(layer, a, b, views, into) for rule, into, layer, a, b in layers]
        if sums:  # otherwise the loss depends on nothing that is trained
            squares = reduce(torch.add, (part.sq for part in sums))  # of sums over views
            factors = clip_factors(squares, views * bound).to(total) / views
            for part in sums:
                part.add(factors)
    return total


def _add_sample_wise(
    model: Module,
    x: Tensor,
    y: Tensor,
    bound: float,
    views: int,
    total: Tensor,
) -> None:
    """Add one chunk's clipped gradients, from gradients themselves, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // (views * len(total))) * views
    for a, t in zip(x.split(step), y.split(step), strict=True):
        gradients = per_sample_gradients(model, a, t)
        if views > 1:
            gradients = gradients.unflatten(0, (-1, views)).mean(1)
        total += clip_factors(norms(gradients).square(), bound).to(gradients) @ gradients
