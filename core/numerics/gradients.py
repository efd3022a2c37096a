"""Per-sample gradient features without per-sample gradients.

One forward, one backward to the layers' outputs; each layer's contribution is contracted with all updates as its output
gradient arrives and then freed. The cost hardly depends on the number of updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.flat import norms
from fedbench.core.numerics.layers import Directions, Handler, handler_of
from fedbench.core.numerics.per_sample import per_sample_gradients, refuse_batch_statistics
from fedbench.core.numerics.tape import Tape, rows_are_samples

FALLBACK_BUDGET = 2**26  # elements of instantiated gradients held at once by the slow way: 256 MiB in float32


class GradientFeatures(NamedTuple):
    """``dot``: [M, N] <g_i, u_k>; ``sq``: [N] |g_i|^2; ``update_sq``: [M] |u_k|^2."""

    dot: torch.Tensor
    sq: torch.Tensor
    update_sq: torch.Tensor


def gradient_features(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, updates: torch.Tensor, chunk: int = 512
) -> GradientFeatures:
    """Products of each sample's cross-entropy gradient g_i (eval mode) with each update u_k, and their squared norms.

    ``x``: [N, *input]; ``y``: [N]; ``updates``: [M, P] in the order of the trainable ``model.parameters()``.
    ``chunk`` samples are taken at once: it changes memory, not results (beyond rounding).
    The model is left as it was found.
    The model must keep its samples apart, on the first axis of what it takes and gives. Layers of unknown kind or with the
    samples on another axis, tied parameters and layers called twice are handled by per-sample gradients: same result, slower.
    Raises ``ValueError`` for updates of another size than the model's and for normalisation by batch statistics.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trainable)
    if size == 0 or updates.dim() != 2 or updates.shape[1] != size:
        raise ValueError(f"updates have shape {tuple(updates.shape)}; the model has {size} trainable parameters")
    updates = updates.detach().to(trainable[0])
    dot, sq = updates.new_zeros(len(updates), len(x)), updates.new_zeros(len(x))
    with _eval_mode(model):
        refuse_batch_statistics(model)
        plan = _plan(model, trainable, updates)
        if plan is not None and not rows_are_samples(model, plan, x[:chunk]):
            plan = None
        for start in range(0, len(x), chunk):
            s = slice(start, start + chunk)
            done = _layer_wise(model, plan, x[s], y[s], len(updates)) if plan is not None else None
            if done is None:
                plan = None
                done = _sample_wise(model, x[s], y[s], updates)
            dot[:, s], sq[s] = done
    return GradientFeatures(dot, sq, norms(updates).square().to(updates))


def _sample_wise(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, updates: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from instantiated gradients, within the memory budget."""
    step = max(1, FALLBACK_BUDGET // updates.shape[1])
    grads = (per_sample_gradients(model, a, b) for a, b in zip(x.split(step), y.split(step), strict=True))
    parts = [(updates @ g.T, norms(g).square().to(g)) for g in grads]
    return torch.cat([dot for dot, _ in parts], dim=1), torch.cat([sq for _, sq in parts])


Plan = dict[nn.Module, tuple[Handler, Directions]]


def _plan(model: nn.Module, trainable: list[nn.Parameter], updates: torch.Tensor) -> Plan | None:
    """Each layer with trainable parameters and its part of the updates; None if a layer is of unknown kind."""
    part = {
        id(p): u.unflatten(1, p.shape)
        for p, u in zip(trainable, updates.split([p.numel() for p in trainable], dim=1), strict=True)
    }
    plan: Plan = {}
    for layer in model.modules():
        own = {name: part.get(id(p)) for name, p in layer._parameters.items() if p is not None}
        if all(u is None for u in own.values()):
            continue
        handler = handler_of(layer)
        if handler is None:
            return None
        plan[layer] = handler, Directions(own.get("weight"), own.get("bias"))
    return plan


def _layer_wise(
    model: nn.Module, plan: Plan, x: torch.Tensor, y: torch.Tensor, n_updates: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(dot [M, n], sq [n]) of one chunk; None where the model turns out not to be a plain chain of known layers."""
    tape = _Tape(plan, len(x), n_updates)
    try:
        with torch.enable_grad():
            loss = cross_entropy(model(x.detach()), y, reduction="sum")
        return tape.total(loss) if tape.follow(loss) else None
    finally:
        tape.close()


class _Tape(Tape):
    """Contracts each layer's part with the updates when its output's gradient arrives, and keeps only the sums."""

    def __init__(self, plan: Plan, n: int, n_updates: int) -> None:
        super().__init__(plan, n)
        self.plan, self.n_updates = plan, n_updates
        self._roots: list[GradientEdge] = []
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def recorded(self, layer: nn.Module, a: torch.Tensor, out: torch.Tensor) -> None:
        super().recorded(layer, a, out)
        # removed by `close`: tape -> roots -> graph -> hook -> tape is a reference cycle that keeps activations alive
        self._hooks.append(out.register_hook(lambda b: self._contract(layer, b)))
        if not a.requires_grad:  # nothing trainable below: the backward pass may end here
            self._roots.append(self.edges[layer])

    def follow(self, loss: torch.Tensor) -> bool:
        """The backward pass, to the layers' outputs alone; False where not all of them were contracted."""
        if not self.covers(loss):
            return False
        if self._roots:
            torch.autograd.grad(loss, self._roots, allow_unused=True)
        return not self.inputs  # an overwritten view has lost its hook

    def _contract(self, layer: nn.Module, b: torch.Tensor) -> None:
        a = self.inputs.pop(layer)
        handler, directions = self.plan[layer]
        self._parts.append(handler(layer, a, b, directions))

    def total(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the layers."""
        dot, sq = like.new_zeros(self.n_updates, self.n), like.new_zeros(self.n)
        for d, q in self._parts:
            dot += d
            sq += q
        return dot, sq


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
