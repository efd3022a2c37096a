"""Per-sample gradients as rows, from one forward and one backward walk along a chain of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedbench.core.numerics.chain import unfilled, walked
from fedbench.core.numerics.layers import normalised, padded
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.numerics.sums import per_row_weights


@torch.no_grad()
def gradient_rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[B, P]: as ``per_sample_gradients`` (x [B, *input], y [B]), to rounding; models that are no chain of layers are left to it.

    For a small model ``vmap`` takes several times as long to trace the model as to compute, in every call, and what it imports
    before the first one a second.
    """
    with unfilled():  # every element is written: a chain reaches all parameters
        seen = walked(model, x, y) if len(x) else None
        if seen is None or any(type(layer) not in _RULES for layer, _, _ in seen):
            return per_sample_gradients(model, x, y)
        sizes = [p.numel() for p in model.parameters()]
        out = x.new_empty(len(x), sum(sizes), dtype=seen[0][2].dtype)
        into = {id(p): part for p, part in zip(model.parameters(), out.split(sizes, dim=1), strict=True)}
        for layer, a, b in seen:
            bias = None if layer.bias is None else into[id(layer.bias)]  # type: ignore[arg-type]
            _RULES[type(layer)](layer, a, b, into[id(layer.weight)], bias)
        return out


def _linear(layer: nn.Linear, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    torch.mul(b[:, :, None], a[:, None], out=weight.unflatten(1, layer.weight.shape))
    if bias is not None:
        bias.copy_(b)


def _conv2d(layer: nn.Conv2d, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    weight.copy_(per_row_weights(layer, padded(layer, a), b))
    if bias is not None:
        torch.sum(b, (2, 3), out=bias)


def _norm(layer: nn.GroupNorm, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    torch.sum((normalised(layer, a) * b).flatten(2), 2, out=weight)
    if bias is not None:
        torch.sum(b.flatten(2), 2, out=bias)


_RULES: dict[type[nn.Module], Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None]] = {
    nn.Linear: _linear, nn.Conv2d: _conv2d, nn.GroupNorm: _norm,
}  # fmt: skip
