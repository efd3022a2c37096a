"""What one forward and one backward pass show of a model's layers: each one's input, and the gradient of its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedbench.core.numerics.layers import has_samples_first
from fedbench.core.numerics.layout import moves_by_index


class Tape:
    """Keeps each layer's input in the forward pass and hands it to :meth:`take` when the output's gradient arrives.

    A hook on the output tensor sees the gradient of the value as the layer returned it, even when an in-place
    activation overwrites that value afterwards. ``n``: how many rows the layers are given.
    """

    def __init__(self, layers: Collection[nn.Module], n: int) -> None:
        self.layers, self.n = layers, n
        self._inputs: dict[nn.Module, torch.Tensor] = {}
        self._called: set[nn.Module] = set()
        self._roots: list[GradientEdge] = []
        self._plain = True
        self._hooks: list = [layer.register_forward_hook(self._record) for layer in layers]

    def take(self, layer: nn.Module, a: torch.Tensor, b: torch.Tensor) -> None:
        """The layer's input ``a`` and its output's gradient ``b``, both with the samples first."""
        raise NotImplementedError

    def follow(self, loss: torch.Tensor) -> bool:
        """One backward pass of the sum of the samples' losses, to the layers' outputs alone. Whether every layer was taken;
        False where the model turns out not to be a plain chain of such layers."""
        if not self._covers(loss):
            return False
        if self._roots:
            torch.autograd.grad(loss, self._roots, allow_unused=True)
        return not self._inputs  # an overwritten view loses its hook

    def close(self) -> None:
        """Break the cycle tape -> roots -> graph -> hook -> tape, or activations wait for the garbage collector."""
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: nn.Module, args: tuple, out: torch.Tensor) -> None:
        """Forward hook."""
        known = len(args) == 1 and out.requires_grad and has_samples_first(layer, args[0], out, self.n)
        known = known and _one_dtype(layer, args[0], out)
        if not known or layer in self._called:
            self._plain = False
            return
        self._called.add(layer)
        self._inputs[layer] = args[0].detach()
        self._hooks.append(out.register_hook(lambda b: self.take(layer, self._inputs.pop(layer), b)))
        if not args[0].requires_grad:  # nothing trainable below: the backward pass may end here
            self._roots.append(get_gradient_edge(out))

    def _covers(self, loss: torch.Tensor) -> bool:
        """Whether the loss reaches each trainable parameter through one call of its own layer and in no other way."""
        if not self._plain:
            return False
        through_layers = Counter(
            id(p) for layer in self._called for p in layer._parameters.values() if p is not None and p.requires_grad
        )
        return through_layers == _uses(loss) and set(through_layers.values()) <= {1}


def _one_dtype(layer: nn.Module, a: torch.Tensor, out: torch.Tensor) -> bool:
    """Not under autocast, whose layers compute in another dtype than their parameters have: what they did is not redone here."""
    own = [p for p in layer._parameters.values() if p is not None]
    floats = [t for t in (a, out, *own) if t.is_floating_point()]
    return len({t.dtype for t in floats}) == 1


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
