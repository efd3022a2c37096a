"""The sum of clipped per-sample gradients, without the gradients: norms and sum from one forward and one backward pass.

Ghost clipping (Li et al., ICLR 2022) with the book-keeping of Bu et al. (ICML 2023); the layers' part is in ``sums``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.layers import Directions, handler_of
from fedbench.core.numerics.layout import rows_are_samples
from fedbench.core.numerics.norms import clip_factors, norms
from fedbench.core.numerics.per_sample import per_sample_gradients, random_state, refuse_batch_statistics, set_random_state
from fedbench.core.numerics.sums import RULES, Part, Rule
from fedbench.core.numerics.tape import Tape

CHUNK = 256  # rows (samples times views) that go through the model at once
FALLBACK_BUDGET = 2**26  # elements of instantiated gradients held at once by the slow way: 256 MiB in float32


def clipped_gradient(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float, views: int = 1, chunk: int = CHUNK
) -> torch.Tensor:
    """[P]: the sum over the samples of their cross-entropy gradients, each scaled down to at most the L2 norm ``bound``.

    At the model's current parameters, in its current mode; P over the trainable ``model.parameters()`` in their order.
    ``x``: [n * views, *input], the views of a sample adjacent; ``y``: [n * views] labels, or [n * views, C] target
    probabilities. A sample's gradient is the mean over its views. About ``chunk`` rows are taken at once: it changes memory, not
    results (beyond rounding, and what a model draws while it trains). The model is left as it was found.
    Layers of unknown kind or with the samples on another axis, tied parameters and layers called twice are handled by
    per-sample gradients: same result, slower.
    Raises ``ValueError`` for a bound that is not positive, for rows that are no whole number of samples, and where batch
    statistics make a per-sample gradient undefined.
    """
    if not bound > 0:
        raise ValueError(f"a gradient is clipped to a positive norm, not to {bound!r}")
    if views < 1 or len(x) % views:
        raise ValueError(f"{len(x)} rows are no whole number of samples with {views} views each")
    refuse_batch_statistics(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    total = trainable[0].new_zeros(sum(p.numel() for p in trainable))
    if len(x) == 0:
        return total
    if y.is_floating_point():
        y = y.to(total)
    rows = max(1, chunk // views) * views
    plan = _plan(model, trainable, total)
    if plan is not None and not rows_are_samples(model, plan, x[:rows]):
        plan = None
    for a, t in zip(x.split(rows), y.split(rows), strict=True):
        if plan is None or not _layer_wise(model, plan, a, t, bound, views):
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
        total += clip_factors(norms(gradients), bound).to(gradients) @ gradients


Plan = dict[nn.Module, tuple[Rule, Directions]]


def _plan(model: nn.Module, trainable: list[nn.Parameter], total: torch.Tensor) -> Plan | None:
    """Each layer with trainable parameters and where in ``total`` its sums go; None if a layer is of unknown kind."""
    parts = total.split([p.numel() for p in trainable])
    part = {id(p): t.view(p.shape) for p, t in zip(trainable, parts, strict=True)}
    plan: Plan = {}
    for layer in model.modules():
        own = {name: part.get(id(p)) for name, p in layer._parameters.items() if p is not None}
        if all(t is None for t in own.values()):
            continue
        if handler_of(layer) is None:
            return None
        plan[layer] = RULES[type(layer)], Directions(own.get("weight"), own.get("bias"))
    return plan


def _layer_wise(model: nn.Module, plan: Plan, x: torch.Tensor, y: torch.Tensor, bound: float, views: int) -> bool:
    """Add one chunk; False, with nothing added, where the model turns out not to be a plain chain of known layers."""
    before = random_state(x.device)
    tape = _Tape(plan, len(x), views)
    try:
        with torch.enable_grad():
            loss = cross_entropy(model(x.detach()), y, reduction="sum")
        if not tape.follow(loss):
            set_random_state(before)  # the attempt leaves no trace
            return False
    finally:
        tape.close()
    lengths = torch.stack([part.sq.expand(len(x) // views) for part in tape.parts]).sum(0).sqrt_() / views
    factors = (clip_factors(lengths, bound) / views).to(loss.dtype)
    for part in tape.parts:
        part.add(factors)
    return True


class _Tape(Tape):
    """Keeps what each layer needs for its part of the sum until all have said how long the gradients are."""

    def __init__(self, plan: Plan, n: int, views: int) -> None:
        super().__init__(plan, n)
        self.plan, self.views = plan, views
        self.parts: list[Part] = []

    def take(self, layer: nn.Module, a: torch.Tensor, b: torch.Tensor) -> None:
        rule, into = self.plan[layer]
        self.parts.append(rule(layer, a, b, self.views, into))
