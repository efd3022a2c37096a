"""Inputs and output gradients of a model's layers from one pass, and whether row i of each layer
belongs to sample i.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn import Module

from fedbench.core.numerics.layers import has_samples_first
from fedbench.core.numerics.per_sample import random_state, set_random_state

SAMPLES = 5  # a prime: few reorderings leave five rows where they are
# of parameters, until a gradient reaches every layer: a narrow one may be dead under some
DRAWS = 4
# shape and type of a sample, and whether the model was training
Kind = tuple[torch.Size, torch.dtype, bool]
_answers: WeakKeyDictionary[Module, dict[Kind, bool]] = WeakKeyDictionary()


def rows_are_samples(model: Module, layers: Collection[Module], x: Tensor) -> bool:
    """Whether row i of every layer's output depends on sample i alone, tested on a few samples of
    ``x``.

    The layer-wise formulas need this, and shapes do not show it: a chunk may be as long as a
    sequence. With random parameters, the gradient of sample i's logits must reach row i of each
    layer's output and be zero elsewhere. Tested once a model, mode and kind of sample; leaves the
    model and torch's generators unchanged. Rows that are moved by the samples' values are found by
    :func:`moves_by_index`.
    """
    if len(x) < 2:
        return True  # one sample cannot be mixed with others
    answers = _answers.setdefault(model, {})
    kind = x.shape[1:], x.dtype, model.training
    if kind not in answers:
        answer = _tested(model, layers, x[:SAMPLES])
        if len(x) < SAMPLES:
            return answer  # a larger chunk may tell more
        answers[kind] = answer
    return answers[kind]


def moves_by_index(node: torch.autograd.graph.Node) -> bool:
    """Whether a step of the graph picks or places rows by an index, which may be another one for
    the next samples.
    """
    return node.name().startswith(
        ("Index", "Gather", "Scatter", "Take", "Put", "MaskedSelect", "MaskedScatter")
    )


def _tested(model: Module, layers: Collection[Module], x: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    missing = set(itertools.product(layers, range(len(x))))
    # dropout must not decide the result; the caller may have disabled gradients
    with _seeded(x.device), torch.enable_grad():
        try:
            for _ in range(DRAWS):
                reached = _reached(model, layers, x.clone(), generator)
                if reached is None:
                    return False
                missing -= reached
                if not missing:
                    return True
        except Exception:
            return False  # a failure with random parameters: use per-sample gradients
    return False


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    before = random_state(device)
    torch.manual_seed(0)
    try:
        yield
    finally:
        set_random_state(before)


def _reached(
    model: Module,
    layers: Collection[Module],
    x: Tensor,
    generator: torch.Generator,
) -> set[tuple[Module, int]] | None:
    """The (layer, i) where the gradient of sample i's logits reaches row i of the layer's output;
    None if it reaches another row.
    """
    logits, outputs = _outputs(model, layers, x, generator)
    weights = torch.randn(logits.shape[1], generator=generator).to(logits)
    edges = [edge for _, edge in outputs]
    reached = set()
    for i, row in enumerate(logits):
        grads = torch.autograd.grad(row @ weights, edges, allow_unused=True, retain_graph=True)
        for (layer, _), g in zip(outputs, grads, strict=True):
            if g is None or len(g) != len(x) or bool(g[:i].any() | g[i + 1 :].any()):
                return None
            if bool(g[i].any()):
                reached.add((layer, i))
    return reached


def _outputs(
    model: Module,
    layers: Collection[Module],
    x: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, list[tuple[Module, GradientEdge]]]:
    """Logits at random parameters, and the edge of each layer's output as returned, even if it is
    overwritten later.
    """
    outputs = []

    def keep(layer: Module, args: tuple, out: Tensor) -> None:
        outputs.append((layer, get_gradient_edge(out)))

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        return functional_call(model, drawn_parameters(model, generator), (x,)), outputs
    finally:
        for hook in hooks:
            hook.remove()


def drawn_parameters(model: Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Random parameters, scaled to keep the size of activations."""
    drawn = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            scale = p[0].numel() ** -0.5 if p.dim() > 1 and p.numel() else 1.0
            values = scale * torch.randn(p.shape, generator=generator)
            drawn[name] = values.to(p).requires_grad_()
    return drawn


# --- inputs and graph edges of layers -------------------------------------------------------------


class Tape:
    """Records each layer's input in the forward pass, and the graph edge of its output as returned,
    even if an in-place activation overwrites it afterwards. ``n``: rows of the batch. Close it
    after the backward pass.
    """

    def __init__(self, layers: Collection[Module], n: int) -> None:
        self.n = n
        self.inputs: dict[Module, Tensor] = {}
        self.edges: dict[Module, GradientEdge] = {}
        self._plain = True
        self._hooks: list = [layer.register_forward_hook(self._record) for layer in layers]

    def covers(self, loss: Tensor) -> bool:
        """Whether the loss depends on each trainable parameter through exactly one call of its
        layer.
        """
        if not self._plain:
            return False
        uses: Counter[int] = Counter()
        for layer in self.edges:
            uses.update(id(p) for p in layer.parameters(recurse=False) if p.requires_grad)
        return uses == _uses(loss) and set(uses.values()) <= {1}

    def gradients(self, loss: Tensor) -> list[tuple[Module, Tensor, Tensor]] | None:
        """Each layer, its input and the gradient at its output, by one backward pass to the layers'
        outputs alone; None where an output is a view that was overwritten.
        """
        if not self.edges:
            return []
        outputs = torch.autograd.grad(loss, list(self.edges.values()), allow_unused=True)
        layers = []
        for (layer, a), b in zip(self.inputs.items(), outputs, strict=True):
            if b is None:
                return None
            layers.append((layer, a, b))
        return layers

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: Module, args: tuple, out: Tensor) -> None:
        """Forward hook."""
        plain = len(args) == 1 and out.requires_grad and layer not in self.edges
        if plain:
            a = args[0]
            plain = has_samples_first(layer, a, out, self.n) and _one_dtype(layer, a, out)
        if plain:
            self.inputs[layer] = a.detach()
            self.edges[layer] = get_gradient_edge(out)
        else:
            self._plain = False


def _one_dtype(layer: Module, a: Tensor, out: Tensor) -> bool:
    """Whether input, output and parameters have one dtype; False under autocast."""
    return all(t.dtype == out.dtype for t in (a, *layer.parameters(recurse=False)))


def _uses(loss: Tensor) -> Counter[int] | None:
    """How often each parameter (by id) enters the graph below the loss; None where rows are moved
    by an index on the way.
    """
    uses: Counter[int] = Counter()
    stack = [loss.grad_fn]
    visited = {loss.grad_fn}
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
            elif below is not None and below not in visited:
                visited.add(below)
                stack.append(below)
    return uses
