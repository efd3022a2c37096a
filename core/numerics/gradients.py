"""Products, norms and clipped sums of per-sample gradients, computed layer by layer without the
gradients themselves.

One forward and one backward pass give each layer's input and its output's gradient; ``layers`` and
``sums`` have the formulas. Models that are no plain chain of known layers take per-sample gradients
instead: same result, slower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from fedbench.core.contract.task import DEFAULT_TASK, Task
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
Layer = tuple[Formula, Directions, Module, Tensor, Tensor]
"""formula of its kind, its parts of the updates or of the result, the layer, its input, and the
gradient of the summed loss at its output
"""


class _Layers:
    """Layers of ``model`` with the gradients at their outputs, one slice of rows at a time.

    ``parts``: id of a parameter -> its part of the updates or of the result.
    """

    def __init__(
        self,
        model: Module,
        task: Task,
        parts: Mapping[int, Tensor],
        formulas: Mapping[type[Module], Formula],
    ) -> None:
        self._model = model
        self._task = task
        self._parts = parts
        self._plan: dict[Module, tuple[Formula, Directions]] | None = {}
        for layer in model.modules():
            named = {n: parts[id(p)] for n, p in layer._parameters.items() if id(p) in parts}
            if not named:
                continue
            if not has_plain_formula(layer):
                self._plan = None
                return
            directions = Directions(named.get("weight"), named.get("bias"))
            self._plan[layer] = formulas[type(layer)], directions

    def slices(
        self, x: Tensor, target: Tensor, step: int
    ) -> Iterator[tuple[slice, list[Layer] | None]]:
        """Slices of ``step`` rows, each with its layers in the order of the forward pass; None from
        the slice on in which the model turns out not to be a plain chain of known layers.
        """
        plan = self._plan
        if plan is not None and not rows_are_samples(self._model, plan, x[:step]):
            plan = None
        for start in range(0, len(x), step):
            s = slice(start, start + step)
            gradients = None
            if plan is not None:
                gradients = self._gradients(plan, x[s], target[s])
            if plan is None or gradients is None:
                plan = None
                yield s, None
            else:
                yield s, [(*plan[layer], layer, a, b) for layer, a, b in gradients]

    def _gradients(
        self,
        plan: Collection[Module],
        x: Tensor,
        target: Tensor,
    ) -> list[tuple[Module, Tensor, Tensor]] | None:
        """Each layer, its input and the gradient at its output; None where a layer is called twice,
        or its rows are moved.
        """
        layers = walked(self._model, x, target, self._parts, self._task)
        if layers is not None:
            return layers
        before = random_state(x.device)
        tape = Tape(plan, len(x))
        try:
            with torch.enable_grad():
                loss = self._task.loss(self._model(x.detach()), target, reduction="sum")
        finally:
            tape.close()
        if tape.covers(loss):
            gradients = tape.gradients(loss)
            if gradients is not None:
                return gradients
        set_random_state(before)  # later draws must not depend on this attempt
        return None


# --- features -------------------------------------------------------------------------------------


class GradientFeatures(NamedTuple):
    """``dot``: [M, N] <g_i, u_k>; ``sq``: [N] |g_i|^2; ``update_sq``: [M] |u_k|^2."""

    dot: Tensor
    sq: Tensor
    update_sq: Tensor


def gradient_features(
    model: Module,
    x: Tensor,
    y: Tensor,
    updates: Tensor,
    chunk: int = 512,
    task: Task = DEFAULT_TASK,
) -> GradientFeatures:
    """Products of the gradient g_i of each sample's loss (eval mode) with each update u_k, and
    their squared norms.

    The cost hardly depends on M, except for a task with several views of a sample, which takes
    gradients themselves. The model is left unchanged.

    Args:
        x: [N * views, *input], the task's views of a sample adjacent.
        y: target of these rows.
        updates: [M, P] in the order of the trainable ``model.parameters()``.
        chunk: rows at once; it changes memory, not results (beyond rounding).

    Raises:
        ValueError: normalisation by batch statistics.
    """
    trainable = trainable_of(model)
    updates = updates.detach().to(trainable[0])
    with _eval_mode(model):
        refuse_batch_statistics(model)
        if task.views > 1:
            step = max(1, chunk // task.views) * task.views
            parts = zip(x.split(step), y.split(step), strict=True)
            features = [_sample_wise_features(model, *part, updates, task) for part in parts]
            dot = torch.cat([products for products, _ in features], dim=1)
            sq = torch.cat([squares for _, squares in features])
        else:
            sizes = [p.numel() for p in trainable]
            columns = zip(trainable, updates.split(sizes, dim=1), strict=True)
            directions = {id(p): u.unflatten(1, p.shape) for p, u in columns}
            layers = _Layers(model, task, directions, HANDLERS)
            dot, sq = _layer_wise_features(layers, model, x, y, updates, chunk, task)
    return GradientFeatures(dot, sq, norms(updates).square().to(updates))


def _layer_wise_features(
    layers: _Layers,
    model: Module,
    x: Tensor,
    y: Tensor,
    updates: Tensor,
    chunk: int,
    task: Task,
) -> tuple[Tensor, Tensor]:
    dot = updates.new_zeros(len(updates), len(x))
    sq = updates.new_zeros(len(x))
    for s, of_slice in layers.slices(x, y, chunk):
        if of_slice is None:
            dot[:, s], sq[s] = _sample_wise_features(model, x[s], y[s], updates, task)
            continue
        for formula, directions, layer, a, b in reversed(of_slice):
            products, squares = formula(layer, a, b, directions)
            dot[:, s] += products
            sq[s] += squares
    return dot, sq


def _sample_wise_features(
    model: Module,
    x: Tensor,
    y: Tensor,
    updates: Tensor,
    task: Task,
) -> tuple[Tensor, Tensor]:
    """Products [M, n] and squares [n] from gradients themselves, within the memory budget."""
    dot = [updates.new_zeros(len(updates), 0)]
    sq = [updates.new_zeros(0)]
    for gradients in _mean_gradients(model, x, y, task.views, task):
        dot.append(updates @ gradients.T)
        sq.append(norms(gradients).square().to(gradients))
    return torch.cat(dot, dim=1), torch.cat(sq)


def _mean_gradients(
    model: Module,
    x: Tensor,
    y: Tensor,
    views: int,
    task: Task,
) -> Iterator[Tensor]:
    """Gradients [n, P] of samples, means over their ``views``, within the memory budget."""
    size = sum(p.numel() for p in trainable_of(model))
    step = max(1, FALLBACK_BUDGET // (views * size)) * views
    for inputs, target in zip(x.split(step), y.split(step), strict=True):
        gradients = per_sample_gradients(model, inputs, target, task)
        if views > 1:
            gradients = gradients.unflatten(0, (-1, views)).mean(1)
        yield gradients


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
    task: Task = DEFAULT_TASK,
) -> Tensor:
    """Sum [P] over the samples of their loss's gradients, each scaled down to at most the L2 norm
    ``bound``.

    At the model's current parameters, in its current mode; P over the trainable
    ``model.parameters()`` in their order. A sample's gradient is the mean over its views. The model
    is left unchanged. Source: ghost clipping (Li et al., ICLR 2022) with the book-keeping of Bu et
    al. (ICML 2023).

    Args:
        x: [n * views, *input], the views of a sample adjacent.
        y: target of these rows; in classification [n * views] labels, or probabilities.
        chunk: rows at once, about; it changes memory, not results (beyond rounding, and what a
            model draws while it trains).

    Raises:
        ValueError: a bound that is not positive, rows that are no whole number of samples, or
            batch statistics, which make a per-sample gradient undefined.
    """
    if not bound > 0:
        raise ValueError(f"a gradient is clipped to a positive norm, not to {bound!r}")
    if views < 1 or len(x) % views:
        raise ValueError(f"{len(x)} rows are no whole number of samples with {views} views each")
    refuse_batch_statistics(model)
    trainable = trainable_of(model)
    sizes = [p.numel() for p in trainable]
    total = trainable[0].new_zeros(sum(sizes))
    if not len(x):
        return total
    pairs = zip(trainable, total.split_with_sizes(sizes), strict=True)
    layers = _Layers(model, task, {id(p): part.view(p.shape) for p, part in pairs}, RULES)
    if y.is_floating_point():
        y = y.to(total)
    step = max(1, chunk // views) * views
    for s, of_slice in layers.slices(x, y, step):
        if of_slice is None:
            for gradients in _mean_gradients(model, x[s], y[s], views, task):
                squares = norms(gradients).square()
                total += clip_factors(squares, bound).to(gradients) @ gradients
        elif of_slice:  # otherwise the loss depends on nothing that is trained
            _add_clipped(of_slice, bound, views, total)
    return total


def _add_clipped(
    layers: list[Layer],
    bound: float,
    views: int,
    total: Tensor,
) -> None:
    """Add the clipped gradients of one slice to ``total``, of which the layers' parts are views."""
    sums = [rule(layer, a, b, views, into) for rule, into, layer, a, b in layers]
    squares = reduce(torch.add, [part.sq for part in sums])  # of sums over views
    factors = clip_factors(squares, views * bound).to(total) / views
    for part in sums:
        part.add(factors)
