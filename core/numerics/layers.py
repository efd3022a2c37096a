"""Contributions of a layer's parameters to <g_i, u_k> and |g_i|^2, from its inputs `a` and its
outputs' gradients `b`.

One function a layer kind: ``(layer, a, b, u) -> (dot [M, n], sq [n])`` for n samples and M updates.
Only layers with several positions a sample instantiate per-sample gradients, a slice of samples at
a time. Formulas: Goodfellow, arXiv 1510.01799, 2015 (linear norms); Rochette et al., arXiv
1912.06015, 2019 (convolutions).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, group_norm, layer_norm, pad, unfold
from torch.nn.modules.module import _has_any_global_hook

from fedbench.core.numerics.flat import norms

# Elements held at once where per-sample gradients are instantiated: on the CPU what stays in its
# cache. Never fewer than LEAST samples, or reading the updates again for every slice would cost
# more than the gradients.
BUDGET = {"cpu": 2**20, "cuda": 2**26}
LEAST = 16
SHORT = 2**14  # elements: the sum of their squares in float32 is right to 1e-6

Contribution = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Directions:
    """Parts [M, *shape] of the updates that belong to one layer; None where it has no such
    trainable parameter.
    """

    weight: Tensor | None
    bias: Tensor | None


def linear(
    layer: nn.Linear,
    a: Tensor,
    b: Tensor,
    u: Directions,
) -> Contribution:
    """Contribution from ``a`` [n, *rows, d] and ``b`` [n, *rows, p]. With one row a sample, neither
    g nor an [n, M, p] is built.
    """
    if a.dim() > 2:
        return _linear_rows(a.flatten(1, -2), b.flatten(1, -2), u)
    bias = _contract(b, u.bias)
    if u.weight is None:
        return bias
    dot = torch.empty(len(u.weight), len(a), dtype=a.dtype, device=a.device)
    for k, w in enumerate(u.weight):  # b_i^T U_k a_i
        torch.sum((a @ w.T).mul_(b), dim=1, out=dot[k])
    sq = _norm2(a) * _norm2(b)
    return _add((dot, sq), bias)


def _linear_rows(a: Tensor, b: Tensor, u: Directions) -> Contribution:
    bias = _contract(b.sum(1), u.bias)
    if u.weight is None:
        return bias

    def outer(s: slice) -> Contribution:
        # n=samples t=rows p=outputs d=inputs: g = sum_t b_t a_t^T
        g = b[s].mT @ a[s]
        return _contract(g.flatten(1), u.weight)

    weight = _sliced(outer, a, a.shape[2] * b.shape[2])
    return _add(weight, bias)


def conv2d(
    layer: nn.Conv2d,
    a: Tensor,
    b: Tensor,
    u: Directions,
) -> Contribution:
    """Contribution from ``a`` [n, c, h, w] and ``b`` [n, p, h', w']: g = B A^T with A the unfolded
    input, group by group.
    """
    b = b.flatten(2).unflatten(1, (layer.groups, -1))  # [n, groups, p/groups, T]
    bias = _contract(b.sum(3).flatten(1), u.bias)
    if u.weight is None:
        return bias
    a = padded(layer, a)

    def outer(s: slice) -> Contribution:
        columns = unfold(a[s], layer.kernel_size, dilation=layer.dilation, stride=layer.stride)
        columns = columns.unflatten(1, (layer.groups, -1))  # [n, groups, kernel*c/groups, T]
        g = b[s] @ columns.mT
        return _contract(g.flatten(1), u.weight)

    column = layer.in_channels * math.prod(layer.kernel_size)
    size = layer.weight.numel() + column * b.shape[3]
    return _add(_sliced(outer, a, size), bias)


def padded(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """The input as the kernel sees it, whatever the padding's size and mode."""
    sides = layer._reversed_padding_repeated_twice  # torch's own, of 'same' lopsided
    if not any(sides):
        return a
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return pad(a, sides, mode=mode)


def affine(
    layer: Any,
    a: Tensor,
    b: Tensor,
    u: Directions,
) -> Contribution:
    """Contribution of a norm; batch norm: with running statistics."""
    scale, shift = affine_rows(layer, a, b)
    return _add(_contract(scale, u.weight), _contract(shift, u.bias))


def affine_rows(layer: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's gradient [n, c] of the scale and of the shift of a norm.

    ``a``, ``b``: [n, c, *positions], of layer norm [n, *positions, *normalised].
    """
    if isinstance(layer, nn.LayerNorm):
        normal = layer_norm(a, layer.normalized_shape, eps=layer.eps)
        shape = (len(b), -1, math.prod(layer.normalized_shape))
        positions = 1
    else:
        shape = (*b.shape[:2], -1)
        positions = 2
        if isinstance(layer, nn.GroupNorm):
            normal = group_norm(a, layer.num_groups, eps=layer.eps)
        else:
            normal = batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)
    scale = (normal * b).reshape(shape)
    shift = b.reshape(shape)
    return scale.sum(positions), shift.sum(positions)


def _contract(g: Tensor, u: Tensor | None) -> Contribution:
    """Products of gradients [n, q] with updates [M, *shape of q elements]; zero without these."""
    if u is None:
        return g.new_zeros(1, 1), g.new_zeros(1)  # broadcasts
    return u.flatten(1) @ g.mT, _norm2(g)


def _norm2(a: Tensor) -> Tensor:
    if a.shape[1] > SHORT and a.device.type == "cpu":
        return norms(a).square().to(a)
    return torch.linalg.vector_norm(a, dim=1).square()  # unlike a.square().sum(1), no temporary


def _add(one: Contribution, two: Contribution) -> Contribution:
    return one[0] + two[0], one[1] + two[1]


def _sliced(work: Callable[[slice], Contribution], a: Tensor, per_sample: int) -> Contribution:
    """``work`` on slices of the samples on the first axis of ``a``, each within the budget."""
    budget = BUDGET.get(a.device.type, 2**24)
    step = max(LEAST, budget // max(per_sample, 1))
    parts = [work(slice(i, i + step)) for i in range(0, len(a), step)]
    dots, squares = zip(*parts, strict=True)
    return torch.cat(dots, dim=1), torch.cat(squares)


NORMS: tuple[type[nn.Module], ...] = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)
HANDLERS: dict[type[nn.Module], Callable[..., Contribution]] = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    **dict.fromkeys(NORMS, affine),
}


def has_plain_formula(layer: nn.Module) -> bool:
    """Whether a formula describes the layer; False where it does anything beyond its kind's.

    The exact type counts (a subclass may compute something else), as do re-parametrisations and
    foreign hooks.
    """
    if type(layer) not in HANDLERS or has_hooks(layer):
        return False
    return layer._parameters.keys() <= {"weight", "bias"}


def has_hooks(layer: nn.Module) -> bool:
    """Whether anything but its class decides what the layer computes."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(layer) or _has_any_global_hook()


def has_samples_first(
    layer: nn.Module,
    a: Tensor,
    out: Tensor,
    n: int,
) -> bool:
    """Whether input and output have n samples on an axis of their own, the first."""
    if isinstance(layer, nn.LayerNorm):
        axes = 1 + len(layer.normalized_shape)
    else:
        axes = 4 if isinstance(layer, nn.Conv2d) else 2
    return a.dim() >= axes and len(a) == len(out) == n
