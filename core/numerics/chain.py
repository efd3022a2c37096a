"""The gradient of a plain chain of layers without a graph: the kernels that autograd would call, in its order, so its bits.

What is saved is the graph of every batch, the zeroing of the gradient and its accumulation, which together take longer than
the arithmetic of a small model: gradients are written where the optimiser reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import deterministic

from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.links import LINKS, DropoutLink, FlattenLink, Link
from fedbench.core.numerics.wrappers import Normalised, as_floats

_ANY_LABEL = -100  # what cross-entropy ignores; no label is negative
_MEAN, _SUM = 1, 2  # torch's numbers of reductions


class Chain:
    """The mean cross-entropy's gradient of one model on the CPU. Made by :meth:`of`, anew for every client: it holds the
    layers as they are then."""

    def __init__(self, flat: FlatModel, links: list[Link]) -> None:
        self._module, self._links = flat.module, links
        self._first = next(i for i, link in enumerate(links) if link.grads)

    @classmethod
    def of(cls, flat: FlatModel) -> Chain | None:
        """None where a layer is not of ``LINKS``, is used twice, hooked, frozen or not on the CPU in float32: autograd
        then."""
        if flat.params.dtype != torch.float32:
            return None
        links = links_of(flat.module, dict(zip(map(id, flat.trainable), flat.gradients, strict=True)))
        return None if links is None else cls(flat, links)

    @torch.no_grad()
    def gradient(self, x: torch.Tensor, target: torch.Tensor) -> None:
        """Fill ``flat.grad`` with that of the mean cross-entropy on ``x`` [B, ...] and ``target`` [B] int64 or [B, C]
        float."""
        g: torch.Tensor | None = _of_logits(_forward(self._module, self._links, x), target, _MEAN)
        for i in range(len(self._links) - 1, self._first - 1, -1):
            assert g is not None  # every link above the first with parameters is asked for it
            g = self._links[i].backward(g, i > self._first)


@torch.no_grad()
def walked(
    module: nn.Module, x: torch.Tensor, target: torch.Tensor, grads: dict[int, torch.Tensor] | None = None
) -> list[tuple[nn.Module, torch.Tensor, torch.Tensor]] | None:
    """Each layer with parameters, its input and the gradient of the summed cross-entropy at its output; None where
    ``module`` is no chain, or on a GPU. ``target``: [B] int64 or [B, C] float. ``grads``: something for each trainable
    parameter, by its id, where that is at hand: to look for them takes as long as a small layer."""
    links = links_of(module, {id(p): p for p in module.parameters()} if grads is None else grads)
    if links is None:
        return None
    g = _of_logits(_forward(module, links, x), target, _SUM)
    first, seen = next(i for i, link in enumerate(links) if link.grads), []
    for i in range(len(links) - 1, first - 1, -1):
        link = links[i]
        if link.grads:
            seen.append((link.layer, link.input, g))
        if i > first:
            g = link.down(g)
    return seen[::-1]


def links_of(module: nn.Module, grads: dict[int, torch.Tensor]) -> list[Link] | None:
    """The model as links, with where each parameter's gradient goes, by its id; None where it is no chain of such layers,
    on the CPU, that reaches all of ``grads``."""
    layers = _layers(module)
    if layers is None or not grads or len(set(layers)) < len(layers):
        return None
    links: list[Link] = []
    rows, fresh = False, False
    for layer in _pooled_first(layers):
        kind, own = LINKS.get(type(layer)), list(layer._parameters.values())
        known = kind is not None and kind.serves(layer, rows) and not _hooked(layer)
        if kind is None or not known or not all(p is None or _plain(p, grads) for p in own):
            return None
        links.append(kind(layer, tuple(None if p is None else grads[id(p)] for p in own), fresh))
        rows = rows or kind is FlattenLink
        fresh = not kind.keeps_output and kind not in (FlattenLink, DropoutLink)
    ids = [id(p) for link in links for p in link.layer._parameters.values() if p is not None]
    return links if len(set(ids)) == len(ids) and set(ids) == grads.keys() else None


def _plain(p: nn.Parameter, grads: dict[int, torch.Tensor]) -> bool:
    hooks = p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None)
    return id(p) in grads and p.requires_grad and p.is_cpu and not any(hooks)


def _forward(module: nn.Module, links: list[Link], x: torch.Tensor) -> torch.Tensor:
    out = as_floats(module, x)
    for link in links:
        out = link.forward(out)
    return out


def _of_logits(logits: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    """[B, C]: the gradient of the cross-entropy."""
    logs = torch._log_softmax(logits, 1, False)
    if target.is_floating_point():
        target = target.to(torch.promote_types(target.dtype, logs.dtype))  # the type of their product, and of its gradient
        one = target.new_ones(())
        g = (target * -(one / len(target) if reduction == _MEAN else one)).to(logs.dtype)
    else:
        one = logs.new_ones(())
        _, n = torch.ops.aten.nll_loss_forward(logs, target, None, reduction, _ANY_LABEL)  # refuses a label that is no class
        g = torch.ops.aten.nll_loss_backward(one, logs, target, None, reduction, _ANY_LABEL, n)
    return torch._log_softmax_backward_data(g, logs, 1, logits.dtype)


@contextmanager
def unfilled() -> Iterator[None]:
    """Only for a chain's kernels, which write all that they allocate: deterministic mode would fill it with NaN before."""
    switch: Any = deterministic  # torch's types do not know its own switch
    before = switch.fill_uninitialized_memory
    switch.fill_uninitialized_memory = False
    try:
        yield
    finally:
        switch.fill_uninitialized_memory = before


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers in the order of their calls; None where it is unknown."""
    if type(module) is Normalised and not _hooked(module):
        module = module.module
    return list(_flattened(module)) if type(module) is nn.Sequential and not _hooked(module) else None


def _flattened(module: nn.Sequential) -> Iterator[nn.Module]:
    for child in module:
        if type(child) is nn.Sequential and not _hooked(child):
            yield from _flattened(child)
        else:
            yield child


def _pooled_first(layers: list[nn.Module]) -> list[nn.Module]:
    """With every ReLU behind the maxima that follow it: the same numbers and gradients, of a quarter of the values."""
    out = list(layers)
    for i, pair in enumerate(itertools.pairwise(layers)):
        if [type(layer) for layer in pair] == [nn.ReLU, nn.MaxPool2d]:
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def _hooked(layer: nn.Module) -> bool:
    own = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return any(own) or "forward" in vars(layer) or _has_any_global_hook()
