"""Inputs and output gradients of a model's layers from one pass, and whether row i of each layer belongs to sample i."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from fedbench.core.numerics.layers import has_samples_first
from fedbench.core.numerics.per_sample import random_state, seed_random_state, set_random_state

SAMPLES = 5  # a prime: few reorderings leave five rows where they are
DRAWS = 4  # of parameters, until a gradient reaches every layer: a narrow one may be dead under some
Asked = tuple[torch.Size, torch.dtype, bool]  # shape and type of a sample, and whether the model was training
_answers: WeakKeyDictionary[nn.Module, dict[Asked, bool]] = WeakKeyDictionary()


def rows_are_samples(model: nn.Module, layers: Collection[nn.Module], x: torch.Tensor) -> bool:
    """Whether sample i of a chunk is row i, alone, of every layer's output, as far as a few samples of ``x`` can tell.

    Found out once a model, mode and kind of sample. It depends neither on the model's parameters nor on torch's own
    generators, which it leaves as they were, like the model. What it cannot see are rows that are moved by what the samples hold;
    :func:`moves_by_index` is about those.
    """
    if len(x) < 2:
        return True  # all there is belongs to the one sample
    answers = _answers.setdefault(model, {})
    asked = x.shape[1:], x.dtype, model.training
    if asked not in answers:
        answer = _ask(model, layers, x[:SAMPLES])
        if len(x) < SAMPLES:
            return answer  # a larger chunk may tell more
        answers[asked] = answer
    return answers[asked]


def moves_by_index(node: torch.autograd.graph.Node) -> bool:
    """Whether a step of the graph picks or places rows by an index, which may be another one for the next samples."""
    return node.name().startswith(("Index", "Gather", "Scatter", "Take", "Put", "MaskedSelect", "MaskedScatter"))


def _ask(model: nn.Module, layers: Collection[nn.Module], x: torch.Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    unseen = {(layer, i) for layer in layers for i in range(len(x))}
    before = random_state(x.device)
    seed_random_state(x.device, 0)  # what a model drops while it trains shall not decide the answer
    try:
        with torch.enable_grad():  # whoever asks may have switched gradients off
            for _ in range(DRAWS):
                reached = _reached(model, layers, x.clone(), generator)
                if reached is None:
                    return False
                unseen -= reached
                if not unseen:
                    return True
    except Exception:
        return False  # what fails with other parameters is left to the way that needs no layout
    finally:
        set_random_state(before)
    return False


def _reached(
    model: nn.Module, layers: Collection[nn.Module], x: torch.Tensor, generator: torch.Generator
) -> set[tuple[nn.Module, int]] | None:
    """(layer, i) whose output's row i the gradient of sample i's logits reaches; None if one reaches any other row."""
    outputs: list[tuple[nn.Module, GradientEdge]] = []

    def keep(layer: nn.Module, args: tuple, out: torch.Tensor) -> None:
        outputs.append((layer, get_gradient_edge(out)))  # of the value as returned, even if it is overwritten later

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        logits = functional_call(model, drawn_parameters(model, generator), (x,))
    finally:
        for hook in hooks:
            hook.remove()
    weights = torch.randn(logits.shape[1], generator=generator).to(logits)
    found = set()
    for i, row in enumerate(logits):
        edges = [edge for _, edge in outputs]
        grads = torch.autograd.grad(row @ weights, edges, allow_unused=True, retain_graph=True)
        for (layer, _), g in zip(outputs, grads, strict=True):
            if g is None or len(g) != len(x) or bool(g[:i].any() | g[i + 1 :].any()):
                return None
            if bool(g[i].any()):
                found.add((layer, i))
    return found


def drawn_parameters(model: nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Parameters that keep a signal about as large as it was, whatever the layer."""
    drawn = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            scale = p[0].numel() ** -0.5 if p.dim() > 1 and p.numel() else 1.0
            drawn[name] = (scale * torch.randn(p.shape, generator=generator)).to(p).requires_grad_()
    return drawn


class Tape:
    """Keeps each layer's input in the forward pass, and the place of its output in the graph.

    That place is of the value as the layer returned it, even when an in-place activation overwrites the value afterwards.
    ``n``: how many rows the layers are given. To be closed after the backward pass.
    """

    def __init__(self, layers: Collection[nn.Module], n: int) -> None:
        self.n = n
        self.inputs: dict[nn.Module, torch.Tensor] = {}
        self.edges: dict[nn.Module, GradientEdge] = {}
        self._plain = True
        self._hooks: list = [layer.register_forward_hook(self._record) for layer in layers]

    def covers(self, loss: torch.Tensor) -> bool:
        """Whether the loss reaches each trainable parameter through one call of its own layer and in no other way: the model
        is a plain chain of such layers."""
        if not self._plain:
            return False
        through_layers = Counter(
            id(p) for layer in self.edges for p in layer._parameters.values() if p is not None and p.requires_grad
        )
        return through_layers == _uses(loss) and set(through_layers.values()) <= {1}

    def recorded(self, layer: nn.Module, a: torch.Tensor, out: torch.Tensor) -> None:
        """A layer was called, on ``a``, which gave ``out``."""
        self.inputs[layer] = a.detach()
        self.edges[layer] = get_gradient_edge(out)

    def close(self) -> None:
        """Leave the model as it was found."""
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: nn.Module, args: tuple, out: torch.Tensor) -> None:
        """Forward hook."""
        known = len(args) == 1 and out.requires_grad and has_samples_first(layer, args[0], out, self.n)
        if known and layer not in self.edges and _one_dtype(layer, args[0], out):
            self.recorded(layer, args[0], out)
        else:
            self._plain = False


def _one_dtype(layer: nn.Module, a: torch.Tensor, out: torch.Tensor) -> bool:
    """Not under autocast, whose layers compute in another dtype than their parameters have: what they did is not redone here."""
    kind, own = out.dtype, layer._parameters.values()
    return (a.dtype == kind or not a.is_floating_point()) and all(p is None or p.dtype == kind for p in own)


def _uses(loss: torch.Tensor) -> Counter[int] | None:
    """How often each parameter (by id) enters the graph below the loss; None where rows are moved by an index on the way."""
    uses: Counter[int] = Counter()
    stack, seen = [loss.grad_fn], {loss.grad_fn}
    while stack:
        node = stack.pop()
        if node is None:
            continue
        if moves_by_index(node):
            return None
        for below, _ in node.next_functions:
            leaf = getattr(below, "variable", None)
            if leaf is not None:
                uses[id(leaf)] += 1
            elif below is not None and below not in seen:
                seen.add(below)
                stack.append(below)
    return uses
