"""What one forward and one backward pass show of a model's layers: each one's input, and the way to its output's gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedbench.core.numerics.layers import has_samples_first
from fedbench.core.numerics.layout import moves_by_index


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
