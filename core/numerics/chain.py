"""The gradient of a plain chain of layers without a graph: the kernels that autograd would call, in
its order, so its bits.

What is saved is the graph of every batch, the zeroing of the gradient and its accumulation, which
together take longer than the arithmetic of a small model: gradients are written where the optimiser
reads them. A chain of ``STACKED`` layers takes the batches of many clients at once, each with its
own parameters: one kernel call for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import deterministic

from fedbench.core.numerics.flat import FlatModel, clip_factors
from fedbench.core.numerics.links import LINKS, STACKED, DropoutLink, FlattenLink, LinearLink, Link
from fedbench.core.numerics.wrappers import Normalised, as_floats


@contextmanager
def unfilled() -> Iterator[None]:
    """Only for a chain's kernels, which write all that they allocate: deterministic mode would fill
    it with NaN before.
    """
    switch: Any = deterministic  # torch's types do not know its own switch
    before = switch.fill_uninitialized_memory
    switch.fill_uninitialized_memory = False
    try:
        yield
    finally:
        switch.fill_uninitialized_memory = before


class Chain:
    """The cross-entropy's gradient of one model on the CPU, or of the models of many clients, into
    ``grads``: [P], or [G, P]. Made by :meth:`of`, anew for every client: it holds the layers as
    they are then.
    """

    def __init__(self, module: nn.Module, links: list[Link], grads: Tensor) -> None:
        self._module, self._links, self.grads = module, links, grads
        self._first = next(i for i, link in enumerate(links) if link.grads)
        self.draws = any(type(link) is DropoutLink for link in links)
        """whether a forward pass draws random numbers"""
        self.stackable = all(type(link.layer) in STACKED for link in links)
        """whether :meth:`of_clients` serves this model"""

    @classmethod
    def of(cls, flat: FlatModel, like: Tensor) -> Chain | None:
        """For batches ``like`` this one [B, *input]. None where a layer is not of ``LINKS``, is
        used twice, hooked, frozen or not on the CPU in full precision: autograd then.
        """
        if flat.params.dtype not in (torch.float32, torch.float64):
            return None
        grads = dict(zip(map(id, flat.trainable), flat.gradients, strict=True))
        links = links_of(flat.module, grads, like.dim() == 2)
        return None if links is None else cls(flat.module, links, flat.grad)

    def of_clients(self, flat: FlatModel, params: Tensor, grads: Tensor) -> Chain:
        """The same layers for G clients at once: ``params`` and ``grads`` are [G, P], ``x`` and
        ``g`` of the methods below [G, B, ...].
        """
        values, views = (
            dict(zip(map(id, flat.trainable), flat.views(rows), strict=True))
            for rows in (params, grads)
        )
        return Chain(
            self._module,
            [
                type(link)(
                    link.layer,
                    tuple(values[id(p)] for p in own),
                    tuple(views[id(p)] for p in own),
                    link.fresh,
                    clients=True,
                )
                for link in self._links
                for own in [[p for p in link.layer._parameters.values() if p is not None]]
            ],
            grads,
        )

    def hooked(self) -> bool:
        """Whether a layer has got a hook, which it does not call."""
        return any(_hooked(link.layer) for link in self._links)

    @unfilled()
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """[B, C] logits of ``x`` [B, ...]."""
        return _forward(self._module, self._links, x)

    @unfilled()
    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Fill the parameters' gradients from that of the last logits, [B, C]."""
        g: Tensor | None = gradient
        for i in range(len(self._links) - 1, self._first - 1, -1):
            assert g is not None  # every link above the first with parameters is asked for it
            g = self._links[i].backward(g, i > self._first)

    def gradient(self, x: Tensor, target: Tensor) -> None:
        """Fill them with those of the mean cross-entropy on ``x`` [B, ...] and ``target`` [B] int64
        or [B, C] float.
        """
        self.backward(of_logits(self.forward(x), target, 1 / max(len(x), 1)))

    @unfilled()
    @torch.no_grad()
    def clipped(self, x: Tensor, target: Tensor, weight: Tensor, bound: float) -> None:
        """Fill them with the sum over the samples of ``weight`` times the cross-entropy's gradient,
        clipped to the L2 norm ``bound``; of linear layers only. As ``gradients.clipped_gradient``,
        of many clients at once.
        """
        g, seen = of_logits(self.forward(x), target, weight), []
        for i in range(len(self._links) - 1, self._first - 1, -1):
            link = self._links[i]
            if isinstance(link, LinearLink):
                seen.append((link, g, link.squares(g)))
            g = link.down(g) if i > self._first else g
        factors = clip_factors(sum((squares for _, _, squares in seen), torch.zeros(())), bound).to(
            g
        )[..., None]
        for link, g, _ in seen:
            link.backward(g * factors, False)


@torch.no_grad()
def walked(
    module: nn.Module,
    x: Tensor,
    target: Tensor,
    grads: dict[int, Tensor] | None = None,
) -> list[tuple[nn.Module, Tensor, Tensor]] | None:
    """Each layer with parameters, its input and the gradient of the summed cross-entropy at its
    output; None where ``module`` is no chain, or on a GPU. ``target``: [B] int64 or [B, C] float.
    ``grads``: something for each trainable parameter, by its id, where that is at hand: to look for
    them takes as long as a small layer.
    """
    links = links_of(
        module, {id(p): p for p in module.parameters()} if grads is None else grads, x.dim() == 2
    )
    if links is None:
        return None
    g = of_logits(_forward(module, links, x), target, 1.0)
    first, seen = next(i for i, link in enumerate(links) if link.grads), []
    for i in range(len(links) - 1, first - 1, -1):
        link = links[i]
        if link.grads:
            seen.append((link.layer, link.input, g))
        if i > first:
            g = link.down(g)
    return seen[::-1]


def links_of(module: nn.Module, grads: dict[int, Tensor], rows: bool) -> list[Link] | None:
    """The model as links, with where each parameter's gradient goes, by its id; None where it is no
    chain of such layers, on the CPU, that reaches all of ``grads``. ``rows``: whether its inputs
    are [B, d].
    """
    layers = _layers(module)
    if layers is None or not grads or len(set(layers)) < len(layers):
        return None
    links: list[Link] = []
    fresh = False
    for layer in _pooled_first(layers):
        kind, own = LINKS.get(type(layer)), list(layer._parameters.values())
        known = kind is not None and kind.serves(layer, rows) and not _hooked(layer)
        if kind is None or not known or not all(p is None or _plain(p, grads) for p in own):
            return None
        links.append(
            kind(layer, tuple(own), tuple(None if p is None else grads[id(p)] for p in own), fresh)
        )
        rows = rows or kind is FlattenLink
        fresh = not kind.keeps_output and kind not in (FlattenLink, DropoutLink)
    ids = [id(p) for link in links for p in link.layer._parameters.values() if p is not None]
    return links if len(set(ids)) == len(ids) and set(ids) == grads.keys() else None


def obstacle(module: nn.Module) -> str:
    """Why clients of a small model are not trained together, in words."""
    for name, layer in module.named_modules():
        if type(layer) is nn.Dropout:
            return f"its layer '{name}' draws random numbers"
        if type(layer) not in (nn.Sequential, Normalised, *LINKS):
            what = f"its part '{name}'" if name else "the model"
            return f"{what} ({type(layer).__name__}) is no layer that can be stacked"
    return "a layer of it is hooked, frozen, used twice, or has options that cannot be stacked"


def _plain(p: nn.Parameter, grads: dict[int, Tensor]) -> bool:
    hooks = p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None)
    return id(p) in grads and p.requires_grad and p.is_cpu and not any(hooks)


def _forward(module: nn.Module, links: list[Link], x: Tensor) -> Tensor:
    out = as_floats(module, x)
    for link in links:
        out = link.forward(out)
    return out


@torch.no_grad()
def of_logits(logits: Tensor, target: Tensor, weight: float | Tensor) -> Tensor:
    """[..., C]: the gradient, at ``logits``, of the sum of ``weight`` (a number, or [...]) times
    each row's cross-entropy. ``target``: [...] int64, or [..., C] float. Raises ``RuntimeError``
    for a label that is no class.
    """
    logs = torch._log_softmax(logits, -1, False)
    if isinstance(weight, Tensor):
        weight = weight[..., None]
    if target.is_floating_point():
        # the type of their product, and of its gradient
        wide = target.to(torch.promote_types(target.dtype, logs.dtype))
        g = (wide * -weight).to(logs.dtype)
    else:
        g = torch.zeros_like(logs).scatter_(-1, target[..., None], -weight)
    return torch._log_softmax_backward_data(g, logs, -1, logits.dtype)


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers in the order of their calls; None where it is unknown."""
    if type(module) is Normalised and not _hooked(module):
        module = module.module
    return (
        list(_flattened(module)) if type(module) is nn.Sequential and not _hooked(module) else None
    )


def _flattened(module: nn.Sequential) -> Iterator[nn.Module]:
    for child in module:
        if type(child) is nn.Sequential and not _hooked(child):
            yield from _flattened(child)
        else:
            yield child


def _pooled_first(layers: list[nn.Module]) -> list[nn.Module]:
    """With every ReLU behind the maxima that follow it: the same numbers and gradients, of a
    quarter of the values.
    """
    out = list(layers)
    for i, pair in enumerate(itertools.pairwise(layers)):
        if [type(layer) for layer in pair] == [nn.ReLU, nn.MaxPool2d]:
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def _hooked(layer: nn.Module) -> bool:
    own = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return any(own) or "forward" in vars(layer) or _has_any_global_hook()


# --- logits of a chain for a loss that asks for more ----------------------------------------------


class Graph:
    """Where the logits of a chain come from, for a loss that asks: only a plugin that
    differentiates with respect to the parameters by itself pays for autograd. ``cut``: whether
    gradients end at the logits.
    """

    def __init__(self, module: nn.Module, trainable: list[nn.Parameter], x: Tensor) -> None:
        self._module, self._trainable, self._x, self.cut = module, trainable, x, False

    def through(self, leaf: Tensor) -> Tensor:
        """``leaf`` as what the module made of ``x``."""
        out: Tensor = _Logits.apply(leaf, self, *self._trainable)
        return out

    def gradients(self, g: Tensor) -> list[Tensor]:
        """Of the parameters, from that of the logits."""
        further = torch.is_grad_enabled()  # where the plugin asked for a graph of the gradient
        with torch.enable_grad():
            logits = self._module(self._x)
        return list(torch.autograd.grad(logits, self._trainable, g, create_graph=further))


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, graph, *parameters):
        ctx.graph, ctx.parameters = graph, len(parameters)
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx, g):
        if ctx.graph.cut:
            return g, None, *[None] * ctx.parameters
        return None, None, *ctx.graph.gradients(g)
