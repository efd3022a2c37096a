"""Gradient of a plain chain of layers without a graph: the kernels that autograd would call, in
its order, so its bits.

What is saved is the graph of every batch, the zeroing of the gradient and its accumulation, which
together take longer than the arithmetic of a small model: gradients are written where the optimiser
reads them. A chain of ``STACKED`` layers takes the batches of many clients at once, each with its
own parameters: one kernel call for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import deterministic

from fedbench.core.contract.task import DEFAULT_TASK, Task
from fedbench.core.numerics.flat import FlatModel, clip_factors
from fedbench.core.numerics.layers import has_hooks
from fedbench.core.numerics.links import LINKS, STACKED, DropoutLink, FlattenLink, LinearLink, Link
from fedbench.core.numerics.wrappers import Normalised, as_floats

_PACKAGES = {"torch", "torchvision", "fedbench"}


@contextmanager
def unfilled(where: bool = True) -> Iterator[None]:
    """Only for kernels of torch, which write all that they allocate: deterministic mode would fill
    it with NaN before. ``where``: False for code of a plugin, which keeps the fills.
    """
    switch: Any = deterministic  # torch's types do not know its own switch
    before = switch.fill_uninitialized_memory
    switch.fill_uninitialized_memory = before and not where
    try:
        yield
    finally:
        switch.fill_uninitialized_memory = before


def is_own(module: nn.Module, task: Task) -> bool:
    """Whether code of torch and of fedbench alone computes the module's outputs and their loss."""
    layers = list(module.modules())
    packages = {type(part).__module__.partition(".")[0] for part in (*layers, task)}
    hooked = any(map(has_hooks, layers)) or any(map(_is_hooked, module.parameters()))
    return packages <= _PACKAGES and not hooked


class Chain:
    """Gradient of the loss of one model, or of the models of many clients, into ``grads``: [P], or
    [G, P]. Made by :meth:`of`, anew for every client: it holds the layers as they are then.
    ``draws``: whether a forward pass draws random numbers; ``stackable``: whether
    :meth:`of_clients` serves this model.
    """

    def __init__(
        self,
        flat: FlatModel,
        links: list[Link],
        grads: Tensor,
    ) -> None:
        self._module = flat.module
        self._task = flat.task
        self._links = links
        self.grads = grads
        self.draws = any(type(link) is DropoutLink for link in links)
        self.stackable = all(type(link.layer) in STACKED for link in links)

    @classmethod
    def of(cls, flat: FlatModel, like: Tensor) -> Chain | None:
        """The chain for batches ``like`` this one [B, *input]. None where a layer is not of
        ``LINKS``, is used twice, hooked, frozen or not in full precision; on a GPU, where one is
        not of ``STACKED``.
        """
        if flat.params.dtype not in (torch.float32, torch.float64):
            return None
        grads = dict(zip(map(id, flat.trainable), flat.gradients, strict=True))
        links = links_of(flat.module, grads, like.dim() == 2)
        return None if links is None else cls(flat, links, flat.grad)

    def of_clients(self, flat: FlatModel, params: Tensor, grads: Tensor) -> Chain:
        """The chain for G clients at once: ``params`` and ``grads`` are [G, P], ``x`` and
        ``g`` of the methods below [G, B, ...].
        """
        rows = zip(flat.trainable, flat.views(params), flat.views(grads), strict=True)
        views = {id(p): (value, grad) for p, value, grad in rows}
        links = []
        for link in self._links:
            pairs = [views[id(p)] for p in link.layer.parameters(recurse=False)]
            values = tuple(value for value, _ in pairs)
            gradients = tuple(grad for _, grad in pairs)
            links.append(type(link)(link.layer, values, gradients, link.fresh, clients=True))
        return Chain(flat, links, grads)

    def hooked(self) -> bool:
        """Whether a layer has got a hook, which it does not call."""
        return any(has_hooks(link.layer) for link in self._links)

    @unfilled()
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of ``x`` [B, ...]."""
        return _forward(self._module, self._links, x)

    @unfilled()
    @torch.no_grad()
    def backward(self, g: Tensor) -> None:
        """Fill the parameters' gradients from that of the last logits, [B, C]."""
        first, *further = _trained(self._links)
        for link in reversed(further):
            g = link.backward(g, True)
        first.backward(g, False)

    def gradient(self, x: Tensor, target: Tensor) -> None:
        """Fill them with those of the mean loss on ``x`` [B, ...] and ``target`` [B, ...]."""
        weight = 1 / max(len(x), 1)
        g = self._task.output_gradient(self.forward(x), target, weight)
        self.backward(g)

    @unfilled()
    @torch.no_grad()
    def clipped(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor,
        bound: float,
    ) -> None:
        """Fill them with the sum over the samples of ``weight`` times the loss's gradient, clipped
        to the L2 norm ``bound``; of linear layers only. See ``gradients.clipped_gradient``.
        """
        logits = self.forward(x)
        last = self._task.output_gradient(logits, target, weight)
        linear = []
        squares = torch.zeros(())
        for link, g in _descending(self._links, last):
            if isinstance(link, LinearLink):
                linear.append((link, g))
                squares = squares + link.squares(g)
        factors = clip_factors(squares, bound).to(logits)[..., None]
        for link, g in linear:
            link.backward(g * factors, False)


@torch.no_grad()
def walked(
    module: nn.Module,
    x: Tensor,
    target: Tensor,
    grads: Mapping[int, Tensor] | None = None,
    task: Task = DEFAULT_TASK,
) -> list[tuple[nn.Module, Tensor, Tensor]] | None:
    """Each layer with parameters, its input and the gradient of the summed loss at its output;
    None where ``module`` is no chain.

    ``grads``: a value for each trainable parameter, by its id, where that is at hand: to look for
    them takes as long as a small layer.
    """
    if grads is None:
        grads = {id(p): p for p in module.parameters()}
    links = links_of(module, grads, x.dim() == 2)
    if links is None:
        return None
    outputs = _forward(module, links, x)
    g = task.output_gradient(outputs, target, 1.0)
    pairs = [(link, g) for link, g in _descending(links, g) if link.grads]
    return [(link.layer, link.input, g) for link, g in reversed(pairs)]


def _trained(links: list[Link]) -> list[Link]:
    """The links from the first one with parameters on."""
    first = next(i for i, link in enumerate(links) if link.grads)
    return links[first:]


def _descending(links: list[Link], g: Tensor) -> Iterator[tuple[Link, Tensor]]:
    """The links down to the first one with parameters, and the gradient at the output of each."""
    links = _trained(links)
    for link in reversed(links):
        yield link, g
        if link is not links[0]:
            g = link.down(g)


def links_of(module: nn.Module, grads: Mapping[int, Tensor], rows: bool) -> list[Link] | None:
    """The model as links, with where each parameter's gradient goes, by its id; None where it is no
    chain of such layers that reaches all of ``grads``. ``rows``: whether its inputs
    are [B, d].
    """
    layers = _layers(module)
    if layers is None or not grads or len(set(layers)) < len(layers):
        return None
    links = []
    fresh = False
    ids = []
    for layer in _pooled_first(layers):
        kind = LINKS.get(type(layer))
        parameters = list(layer._parameters.values())
        if kind is None or not kind.serves(layer, rows) or has_hooks(layer):
            return None
        if type(layer) not in STACKED and not next(iter(grads.values())).is_cpu:
            return None
        if not all(p is None or _plain(p, grads) for p in parameters):
            return None
        ids += [id(p) for p in parameters if p is not None]
        gradients = tuple(None if p is None else grads[id(p)] for p in parameters)
        links.append(kind(layer, tuple(parameters), gradients, fresh))
        rows = rows or kind is FlattenLink
        fresh = not kind.keeps_output and kind not in (FlattenLink, DropoutLink)
    return links if len(set(ids)) == len(ids) and set(ids) == grads.keys() else None


def obstacle(module: nn.Module) -> str:
    """Why clients of a small model are not trained together, in words."""
    for name, layer in module.named_modules():
        if type(layer) is nn.Dropout:
            return f"its layer '{name}' draws random numbers"
        if type(layer) not in (nn.Sequential, Normalised, *LINKS):
            part = f"its part '{name}'" if name else "the model"
            return f"{part} ({type(layer).__name__}) is no layer that can be stacked"
    return "a layer of it is hooked, frozen, used twice, or has options that cannot be stacked"


def _plain(p: nn.Parameter, grads: Mapping[int, Tensor]) -> bool:
    return id(p) in grads and p.requires_grad and not _is_hooked(p)


def _is_hooked(p: nn.Parameter) -> bool:
    return bool(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None))


def _forward(module: nn.Module, links: list[Link], x: Tensor) -> Tensor:
    out = as_floats(module, x)
    for link in links:
        out = link.forward(out)
    return out


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers in the order of their calls; None where it is unknown."""
    if type(module) is Normalised and not has_hooks(module):
        module = module.module
    if type(module) is nn.Sequential and not has_hooks(module):
        return list(_flattened(module))
    return None


def _flattened(module: nn.Sequential) -> Iterator[nn.Module]:
    for child in module:
        if type(child) is nn.Sequential and not has_hooks(child):
            yield from _flattened(child)
        else:
            yield child


def _pooled_first(layers: list[nn.Module]) -> list[nn.Module]:
    """The layers with every ReLU behind the maxima that follow it: the same numbers and gradients,
    of a quarter of the values.
    """
    out = list(layers)
    for i, pair in enumerate(itertools.pairwise(layers)):
        if [type(layer) for layer in pair] == [nn.ReLU, nn.MaxPool2d]:
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


# --- logits of a chain for a loss that asks for more ----------------------------------------------


class Graph:
    """The origin of a chain's logits, for a loss that asks: only a plugin that differentiates with
    respect to the parameters by itself pays for autograd. ``cut``: whether gradients end at the
    logits.
    """

    def __init__(
        self,
        module: nn.Module,
        trainable: list[nn.Parameter],
        x: Tensor,
    ) -> None:
        self._module = module
        self._trainable = trainable
        self._x = x
        self.cut = False

    def through(self, leaf: Tensor) -> Tensor:
        """Return ``leaf`` as what the module made of ``x``."""
        out: Tensor = _Logits.apply(leaf, self, *self._trainable)
        return out

    def gradients(self, g: Tensor) -> list[Tensor]:
        """Gradients of the parameters, from that of the logits."""
        create_graph = torch.is_grad_enabled()  # where the plugin asked for it
        with torch.enable_grad():
            logits = self._module(self._x)
        gradients = torch.autograd.grad(logits, self._trainable, g, create_graph=create_graph)
        return list(gradients)


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, graph, *parameters):
        ctx.graph = graph
        ctx.parameters = len(parameters)
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx, g):
        if ctx.graph.cut:
            return g, None, *[None] * ctx.parameters
        return None, None, *ctx.graph.gradients(g)
