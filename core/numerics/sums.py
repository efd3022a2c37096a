"""Contributions of a layer's parameters to |g_i|^2 and to sum_i c_i g_i, from its inputs `a` and
its outputs' gradients `b`.

One function a layer kind: ``(layer, a, b, views, into) -> Part`` for n samples of ``views``
adjacent rows each; a sample's gradient g_i is the sum over its rows. The factors c_i are known only
after every layer's |g_i|^2, so each layer keeps what it needs for the sum: book-keeping, without a
second pass (Bu et al., ICML 2023, arXiv 2210.00038). Where a sample has many positions its norm
comes from products of positions ("ghost norm": Li et al., ICLR 2022, arXiv 2110.05679) or from the
gradient itself, whichever is less work (Bu et al., NeurIPS 2022, arXiv 2205.10683); a gradient that
was made is kept for the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold
from torch.nn.grad import conv2d_weight

from fedbench.core.numerics.layers import NORMS, Directions, affine_rows, padded

# elements of one layer's per-sample gradients that are kept, or held at once: 64 MiB in float32
KEPT = 2**24
# A product of positions costs about so many times what a product for the gradient does: it is made
# in float64, since positions cancel and a norm that is too small lets through more than the bound.
# Measured on the CPU: 2.5 to 5.
DEAR = 4


class Part(NamedTuple):
    """Contribution of one layer."""

    sq: Tensor
    """[n] float64 |g_i|^2"""
    add: Callable[[Tensor], None]
    """adds sum_i c_i g_i, for c [n], to what the rule was to add ``into``"""


def linear(
    layer: nn.Linear,
    a: Tensor,
    b: Tensor,
    views: int,
    into: Directions,
) -> Part:
    """Contribution from ``a`` [n * views, *rows, d] and ``b`` [n * views, *rows, p]: g = sum_t b_t
    a_t^T over all rows of a sample.
    """
    if views == 1 and a.dim() == 2:
        return _one_row(a, b, into)
    a = _by_sample(a, views)
    b = _by_sample(b, views)
    shift = _kept(b.sum(1), into.bias)
    if into.weight is None:
        return shift
    weight = into.weight
    n, t, d = a.shape
    p = b.shape[2]

    def add(c: Tensor) -> None:
        scaled = (b * c[:, None, None]).flatten(0, 1)
        weight.addmm_(scaled.T, a.flatten(0, 1))

    if _ghost_is_less(t, d, p):
        product = Part(_ghost(a, b), add)
    else:
        product = _instantiated(lambda s: b[s].mT @ a[s], n, weight, add)
    return _both(product, shift)


def _one_row(a: Tensor, b: Tensor, into: Directions) -> Part:
    """Contribution of one row a sample: |b a^T|^2 = |b|^2 |a|^2 (Goodfellow, arXiv 1510.01799,
    2015), and |b|^2 for the bias.
    """
    weight = into.weight
    bias = into.bias
    if weight is None:
        return _kept(b, bias)
    sq = _squares(a)
    if bias is not None:
        sq.add_(1)
    sq.mul_(_squares(b))

    def add(c: Tensor) -> None:
        weight.addmm_((b * c[:, None]).T, a)
        if bias is not None:
            bias.addmv_(b.T, c)

    return Part(sq, add)


def conv2d(
    layer: nn.Conv2d,
    a: Tensor,
    b: Tensor,
    views: int,
    into: Directions,
) -> Part:
    """Contribution from ``a`` [n * views, c, h, w] and ``b`` [n * views, p, h', w']."""
    n = len(a) // views
    positions = views * math.prod(b.shape[2:])
    shift = _kept(_by_view(b.sum((2, 3)), views), into.bias)
    if into.weight is None:
        return shift
    a = padded(layer, a)
    weight = into.weight
    shape = into.weight.shape
    how = {"stride": layer.stride, "dilation": layer.dilation}

    def add(c: Tensor) -> None:
        scaled = b * c.repeat_interleave(views)[:, None, None, None]
        weight.add_(conv2d_weight(a, shape, scaled, groups=layer.groups, **how))

    def instances(s: slice) -> Tensor:
        rows = slice(s.start * views, s.stop * views)
        return _by_view(per_row_weights(layer, a[rows], b[rows]), views)

    column = math.prod(shape[1:])
    if _ghost_is_less(positions, column, shape[0] // layer.groups):
        outputs = _grouped(b.flatten(2), layer.groups, views)
        sq = _ghost(_columns(layer, a, views), outputs)
        kernel = Part(sq.unflatten(0, (n, -1)).sum(1), add)
    else:
        kernel = _instantiated(instances, n, weight, add)
    return _both(kernel, shift)


def per_row_weights(layer: nn.Conv2d, a: Tensor, b: Tensor) -> Tensor:
    """Each row's gradient [n, weight] of a convolution's weight; ``a`` is padded already.

    On the CPU as one convolution with n times the groups (Rochette et al., arXiv 1912.06015), up to
    four times as fast as products of unfolded inputs; elsewhere as such products.
    """
    if a.device.type == "cpu":
        n = len(a)
        shape = (n * layer.out_channels, *layer.weight.shape[1:])
        weights = conv2d_weight(
            a.reshape(1, -1, *a.shape[2:]),
            shape,
            b.reshape(1, -1, *b.shape[2:]),
            stride=layer.stride,
            dilation=layer.dilation,
            groups=n * layer.groups,
        )
        return weights.view(n, -1)
    outputs = _grouped(b.flatten(2), layer.groups, 1)
    return (outputs.mT @ _columns(layer, a, 1)).reshape(len(a), -1)


def affine(
    layer: Any,
    a: Tensor,
    b: Tensor,
    views: int,
    into: Directions,
) -> Part:
    """Contribution of a norm; batch norm: with running statistics."""
    scale, shift = (_by_view(rows, views) for rows in affine_rows(layer, a, b))
    return _both(_kept(scale, into.weight), _kept(shift, into.bias))


def _by_sample(rows: Tensor, views: int) -> Tensor:
    """Rows [n, all rows of a sample, width]."""
    return rows.reshape(len(rows) // views, -1, rows.shape[-1])


def _by_view(rows: Tensor, views: int) -> Tensor:
    """Sum [n, q] over a sample's views."""
    return rows if views == 1 else rows.unflatten(0, (-1, views)).sum(1)


def _columns(layer: nn.Conv2d, a: Tensor, views: int) -> Tensor:
    """Inputs [n * groups, positions of all views, kernel] of each position of the output."""
    columns = unfold(a, layer.kernel_size, dilation=layer.dilation, stride=layer.stride)
    return _grouped(columns, layer.groups, views)


def _grouped(rows: Tensor, groups: int, views: int) -> Tensor:
    """Rows [n * views, groups * w, t] as [n * groups, views * t, w]."""
    by_group = rows.unflatten(0, (-1, views)).unflatten(2, (groups, -1))
    # n=samples v=views g=groups w=width t=positions
    ordered = by_group.permute(0, 2, 1, 4, 3)
    return ordered.flatten(2, 3).flatten(0, 1)


def _ghost_is_less(t: int, d: int, p: int) -> bool:
    return DEAR * t * (d + p) < d * p


def _ghost(a: Tensor, b: Tensor) -> Tensor:
    """Norms |sum_t b_t a_t^T|^2 by products of positions; ``a``: [n, t, d], ``b``: [n, t, p]."""
    parts = []
    for s in _slices(len(a), sum(a.shape[1:]) * a.shape[1]):
        x = a[s].double()
        y = b[s].double()
        parts.append(((x @ x.mT).mul_(y @ y.mT)).sum((1, 2)).clamp_min_(0))
    return torch.cat(parts)


def _instantiated(
    make: Callable[[slice], Tensor],
    n: int,
    weight: Tensor,
    add: Callable[[Tensor], None],
) -> Part:
    """Contribution from ``make(s)``, per-sample gradients of a slice. They are kept for the sum if
    there is room; otherwise ``add`` makes it.
    """
    if n * weight.numel() <= KEPT:
        return _kept(make(slice(0, n)).reshape(n, -1), weight)
    squares = []
    for s in _slices(n, weight.numel()):
        n_rows = s.stop - s.start
        squares.append(_squares(make(s).reshape(n_rows, -1)))
    return Part(torch.cat(squares), add)


def _kept(rows: Tensor, into: Tensor | None) -> Part:
    """Contribution of per-sample gradients [n, q]; none where there is nothing to add them to."""
    if into is None:
        return Part(rows.new_zeros(1, dtype=torch.float64), lambda c: None)  # broadcasts
    flat = into.view(-1)

    def add(c: Tensor) -> None:
        flat.addmv_(rows.mT, c)

    return Part(_squares(rows), add)


def _both(one: Part, two: Part) -> Part:
    def add(c: Tensor) -> None:
        one.add(c)
        two.add(c)

    return Part(one.sq + two.sq, add)


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()


def _slices(n: int, each: int) -> list[slice]:
    """Slices of n samples with so many elements each, of as many as may be held at once."""
    step = max(1, KEPT // max(each, 1))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


RULES: dict[type[nn.Module], Callable[..., Part]] = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    **dict.fromkeys(NORMS, affine),
}
