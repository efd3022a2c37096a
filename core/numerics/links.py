"""The layers that a chain (``chain.py``) goes through by hand: each its forward and backward
kernel, as autograd calls them. Those of ``STACKED`` also take many clients at once, with the
clients on the first axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

_aten = torch.ops.aten
# bytes, as torch's own allocations are: some products round otherwise where their result lies
# elsewhere
_ALIGNED = 64
_WIDE = 4  # channels from which on maxima are taken with the channels last


Tensors = tuple[Tensor | None, ...]


class Link(ABC):
    """Kernels of a layer: ``forward`` keeps what ``backward`` needs of a batch. ``values``: weight
    and bias, of many ``clients`` with the client axis before the others; ``grads``: views that
    ``backward`` fills with their gradients; ``fresh``: whether it may overwrite its input;
    ``keeps_output``: whether it reads its own output again, which must then not be overwritten.
    """

    keeps_output: ClassVar[bool] = False

    input: Tensor
    """of the last ``forward``, of a layer with parameters"""

    def __init__(
        self,
        layer: nn.Module,
        values: Tensors,
        grads: Tensors,
        fresh: bool,
        clients: bool = False,
    ) -> None:
        self.layer = layer
        self.values = values
        self.grads = grads
        self.fresh = fresh
        self.clients = clients

    @classmethod
    def serves(cls, layer: nn.Module, rows: bool) -> bool:
        """Whether it does all that this layer does, on inputs that are ``rows`` [B, d] or may be
        anything.
        """
        return True

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""

    def backward(self, g: Tensor, deeper: bool) -> Tensor:
        """Gradient of its input (undefined unless ``deeper``) from that of its output; fills the
        parameters' own.
        """
        return self.down(g)

    @abstractmethod
    def down(self, g: Tensor) -> Tensor:
        """Gradient of its input from that of its output."""


class FlattenLink(Link):
    @classmethod
    def serves(cls, layer: nn.Flatten, rows: bool) -> bool:  # type: ignore[override]
        return layer.start_dim == 1 and layer.end_dim == -1

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        return x.flatten(1 + self.clients)

    def down(self, g: Tensor) -> Tensor:
        return g.reshape(self._shape)


class LinearLink(Link):
    @classmethod
    def serves(cls, layer: nn.Linear, rows: bool) -> bool:  # type: ignore[override]
        return rows and layer.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.values
        assert weight is not None and bias is not None  # ``serves``
        self.input = x
        if self.clients:
            return torch.baddbmm(bias[:, None], x, weight.mT)
        return torch.addmm(bias, x, weight.t())

    def backward(self, g: Tensor, deeper: bool) -> Tensor:
        weight, bias = self.grads
        assert weight is not None and bias is not None
        if self.clients:
            torch.bmm(g.mT, self.input, out=weight)
        elif weight.data_ptr() % _ALIGNED == 0:
            torch.mm(g.t(), self.input, out=weight)
        else:
            weight.copy_(torch.mm(g.t(), self.input))
        torch.sum(g, -2, out=bias)
        return self.down(g) if deeper else g

    def down(self, g: Tensor) -> Tensor:
        weight = self.values[0]
        assert weight is not None
        return torch.matmul(g, weight)

    def squares(self, g: Tensor) -> Tensor:
        """Squared norm [..., B] float64 of each sample's gradient, |g|^2 |x|^2 for the weight and
        |g|^2 for the bias (Goodfellow, arXiv 1510.01799).
        """
        x2 = torch.linalg.vector_norm(self.input, dim=-1, dtype=torch.float64).square_()
        g2 = torch.linalg.vector_norm(g, dim=-1, dtype=torch.float64).square_()
        return x2.add_(1).mul_(g2)


class AtOnce(Link):
    """A layer with parameters; one kernel computes all its gradients."""

    _weight: Tensor | None

    def backward(self, g: Tensor, deeper: bool) -> Tensor:
        mask = [deeper, *(grad is not None for grad in self.grads)]
        below, *gradients = self._kernel(g, mask)
        for grad, gradient in zip(self.grads, gradients, strict=True):
            if grad is not None:
                grad.copy_(gradient)
        return below

    def down(self, g: Tensor) -> Tensor:
        return self._kernel(g, [True, False, False])[0]

    @abstractmethod
    def _kernel(self, g: Tensor, mask: list[bool]) -> list[Tensor]:
        """Gradients of input, weight and bias, those that the mask asks for."""


class Conv2dLink(AtOnce):
    @classmethod
    def serves(cls, layer: nn.Conv2d, rows: bool) -> bool:  # type: ignore[override]
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        layer: nn.Conv2d = self.layer  # type: ignore[assignment]
        self.input = x
        self._weight, bias = self.values
        assert self._weight is not None
        padding: list[int] = list(layer.padding)  # type: ignore[arg-type]
        self._how = list(layer.stride), padding, list(layer.dilation)
        return torch.convolution(x, self._weight, bias, *self._how, False, [0, 0], layer.groups)

    def _kernel(self, g: Tensor, mask: list[bool]) -> list[Tensor]:
        layer: nn.Conv2d = self.layer  # type: ignore[assignment]
        sizes = None if layer.bias is None else [layer.out_channels]
        return _aten.convolution_backward(
            g, self.input, self._weight, sizes, *self._how, False, [0, 0], layer.groups, mask
        )


class GroupNormLink(AtOnce):
    @classmethod
    def serves(cls, layer: nn.GroupNorm, rows: bool) -> bool:  # type: ignore[override]
        return layer.affine

    def forward(self, x: Tensor) -> Tensor:
        layer: nn.GroupNorm = self.layer  # type: ignore[assignment]
        self.input = x
        self._weight, bias = self.values
        self._sizes = x.shape[0], x.shape[1], x[0, 0].numel()
        out, self._mean, self._rstd = torch.native_group_norm(
            x, self._weight, bias, *self._sizes, layer.num_groups, layer.eps
        )
        return out

    def _kernel(self, g: Tensor, mask: list[bool]) -> list[Tensor]:
        saved = self.input, self._mean, self._rstd, self._weight
        return _aten.native_group_norm_backward(
            g, *saved, *self._sizes, self.layer.num_groups, mask
        )


class ReLULink(Link):
    keeps_output = True

    def forward(self, x: Tensor) -> Tensor:
        self._out = x.relu_() if self.fresh else x.relu()
        return self._out

    def down(self, g: Tensor) -> Tensor:
        return _aten.threshold_backward(g, self._out, 0)


class TanhLink(Link):
    keeps_output = True

    def forward(self, x: Tensor) -> Tensor:
        self._out = x.tanh()
        return self._out

    def down(self, g: Tensor) -> Tensor:
        return _aten.tanh_backward(g, self._out)


class MaxPool2dLink(Link):
    @classmethod
    def serves(cls, layer: nn.MaxPool2d, rows: bool) -> bool:  # type: ignore[override]
        return not layer.return_indices

    def forward(self, x: Tensor) -> Tensor:
        layer: nn.MaxPool2d = self.layer  # type: ignore[assignment]
        self._x = x
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        self._how = *([n, n] if isinstance(n, int) else list(n) for n in sizes), layer.ceil_mode
        if x.dim() == 4 and x.shape[1] >= _WIDE:
            # the kernel is many times faster in this layout, and maxima round nothing
            x = x.contiguous(memory_format=torch.channels_last)
        out, indices = _aten.max_pool2d_with_indices(x, *self._how)
        self._indices = indices.contiguous()
        return out.contiguous()

    def down(self, g: Tensor) -> Tensor:
        return _aten.max_pool2d_with_indices_backward(g, self._x, *self._how, self._indices)


class DropoutLink(Link):
    @classmethod
    def serves(cls, layer: nn.Dropout, rows: bool) -> bool:  # type: ignore[override]
        return 0 < layer.p < 1

    def forward(self, x: Tensor) -> Tensor:
        self._drops = self.layer.training
        if not self._drops:
            return x
        keep = 1 - self.layer.p  # type: ignore[operator]
        self._noise = torch.empty_like(x).bernoulli_(keep).div_(keep)
        return x * self._noise

    def down(self, g: Tensor) -> Tensor:
        return g * self._noise if self._drops else g


LINKS: dict[type[nn.Module], type[Link]] = {
    nn.Flatten: FlattenLink,
    nn.Linear: LinearLink,
    nn.Conv2d: Conv2dLink,
    nn.GroupNorm: GroupNormLink,
    nn.ReLU: ReLULink,
    nn.Tanh: TanhLink,
    nn.MaxPool2d: MaxPool2dLink,
    nn.Dropout: DropoutLink,
}

STACKED = frozenset({nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh})
"""Layers of which many clients are computed at once. Convolutions, and what stands between them,
are as fast client by client on the CPU (tests/benchmarks/test_bench_chain.py), and autograd's on a
GPU; dropout draws from each client's generator.
"""
