"""Inputs and output gradients of a model's layers from one pass, and whether row i of each layer
belongs to sample i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from fedbench.core.numerics.layers import has_samples_first
from fedbench.core.numerics.per_sample import random_state, seed_random_state, set_random_state

SAMPLES = 5  # a prime: few reorderings leave five rows where they are
# of parameters, until a gradient reaches every layer: a narrow one may be dead under some
DRAWS = 4
# shape and type of a sample, and whether the model was training
Kind = tuple[torch.Size, torch.dtype, bool]
_answers: WeakKeyDictionary[nn.Module, dict[Kind, bool]] = WeakKeyDictionary()


def rows_are_samples(model: nn.Module, layers: Collection[nn.Module], x: Tensor) -> bool:
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


def _tested(model: nn.Module, layers: Collection[nn.Module], x: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    unseen = {(layer, i) for layer in layers for i in range(len(x))}
    before = random_state(x.device)
    seed_random_state(x.device, 0)  # dropout must not decide the result
    try:
        with torch.enable_grad():  # the caller may have disabled gradients
            for _ in range(DRAWS):
                reached = _reached(model, layers, x.clone(), generator)
                if reached is None:
                    return False
                unseen -= reached
                if not unseen:
                    return True
    except Exception:
        return False  # a failure with random parameters: use per-sample gradients
    finally:
        set_random_state(before)
    return False


def _reached(
    model: nn.Module, layers: Collection[nn.Module], x: Tensor, generator: torch.Generator
) -> set[tuple[nn.Module, int]] | None:
    """(layer, i) where the gradient of sample i's logits reaches row i of the layer's output; None
    if it reaches another row.
    """
    outputs: list[tuple[nn.Module, GradientEdge]] = []

    def keep(layer: nn.Module, args: tuple, out: Tensor) -> None:
        # of the value as returned, even if it is overwritten later
        outputs.append((layer, get_gradient_edge(out)))

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


def drawn_parameters(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Random parameters, scaled to keep the size of activations."""
    drawn = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            scale = p[0].numel() ** -0.5 if p.dim() > 1 and p.numel() else 1.0
            drawn[name] = (scale * torch.randn(p.shape, generator=generator)).to(p).requires_grad_()
    return drawn


# --- inputs and graph edges of layers -------------------------------------------------------------


class Tape:
    """Records each layer's input in the forward pass, and the graph edge of its output as returned,
    even if an in-place activation overwrites it afterwards. ``n``: rows of the batch. Close it
    after the backward pass.
    """

    def __init__(self, layers: Collection[nn.Module], n: int) -> None:
        self.n = n
        self.inputs: dict[nn.Module, Tensor] = {}
        self.edges: dict[nn.Module, GradientEdge] = {}
        self._plain = True
        self._hooks: list = [layer.register_forward_hook(self._record) for layer in layers]

    def covers(self, loss: Tensor) -> bool:
        """Whether the loss depends on each trainable parameter through exactly one call of its
        layer.
        """
        if not self._plain:
            return False
        through_layers = Counter(
            id(p)
            for layer in self.edges
            for p in layer._parameters.values()
            if p is not None and p.requires_grad
        )
        return through_layers == _uses(loss) and set(through_layers.values()) <= {1}

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: nn.Module, args: tuple, out: Tensor) -> None:
        """Forward hook."""
        known = (
            len(args) == 1 and out.requires_grad and has_samples_first(layer, args[0], out, self.n)
        )
        if known and layer not in self.edges and _one_dtype(layer, args[0], out):
            self.inputs[layer] = args[0].detach()
            self.edges[layer] = get_gradient_edge(out)
        else:
            self._plain = False


def _one_dtype(layer: nn.Module, a: Tensor, out: Tensor) -> bool:
    """Whether input, output and parameters have one dtype; False under autocast."""
    kind, own = out.dtype, layer._parameters.values()
    return (a.dtype == kind or not a.is_floating_point()) and all(
        p is None or p.dtype == kind for p in own
    )


def _uses(loss: Tensor) -> Counter[int] | None:
    """How often each parameter (by id) enters the graph below the loss; None where rows are moved
    by an index on the way.
    """
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
