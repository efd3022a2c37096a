"""A model as one flat vector, so that a client is a row and a step is four vector operations;
accurate norms of such vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from fedbench.core.contract.contexts import Layer

# Summed in float32 on the CPU, the squares of 11 million entries lose a thousandth of the sum.
# Short blocks lose nothing, and their sums are added in float64: as fast as the plain norm, right
# to 1e-8.
_BLOCK = 1024
_CHUNK = 2**14  # columns of a float64 copy at a time: it stays in the cache
_TINY = 1e-30  # mean square below which float32 squares lose digits


def norms(rows: torch.Tensor) -> torch.Tensor:
    """[K] float64 L2 norms of the rows [K, P], right to 1e-6 of themselves for entries of any size.

    ``torch.linalg.vector_norm`` in float32 is 4e-4 too small for 11 million normal entries on the
    CPU, so that a vector clipped by it would be too long.
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    found = (
        torch.linalg.vector_norm(rows, dim=1).double()
        if rows.shape[1] <= _BLOCK
        else _blockwise(rows)
    )
    low = math.sqrt(_TINY * rows.shape[1])
    odd = ~((found > low) & (found < math.inf))  # squares outside float32's range, or NaN
    if bool(odd.any()):
        found[odd] = _exactly(rows[odd])
    return found


def norm(vector: torch.Tensor) -> torch.Tensor:
    """The L2 norm of ``vector`` [P], a float64 scalar; see :func:`norms`."""
    return norms(vector[None])[0]


def clip_factors(squares: torch.Tensor, bound: float) -> torch.Tensor:
    """[K] factors, at most 1, that scale vectors of these squared L2 norms [K] down to at most the
    norm ``bound``.
    """
    return squares.rsqrt().mul_(bound).clamp_max_(1)


def _blockwise(rows: torch.Tensor) -> torch.Tensor:
    whole = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :whole].unflatten(1, (-1, _BLOCK))
    total = torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(dim=1)
    if whole < rows.shape[1]:
        total += torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square_()
    return total.sqrt_()


def _exactly(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(rows), dtype=torch.float64)
    for part in rows.split(_CHUNK, dim=1):  # several times faster than vector_norm(dtype=float64)
        total += part.double().square_().sum(dim=1)
    return total.sqrt_()


def mean_counts(weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[I] int64: the mean of integer ``counts`` [n, I] by ``weights`` [n], which sum to 1, rounded
    to the nearest integer; exact where all rows agree.
    """
    first = counts[0]
    return first + (weights.double() @ (counts - first).double()).round().long()


# --- models ---------------------------------------------------------------------------------------


EVALUATION_CHUNK = 512  # samples; of a ResNet18: 1 GB of activations


class FlatModel:
    """Wraps ``module``: ``params`` [P], ``grad`` [P] and ``buffers`` [B] are live flat vectors its
    tensors view. ``layers``: where each of the ``trainable`` tensors lies in them; ``gradients``:
    views of ``grad`` in their shapes. While clients train together the module shows one of them at
    a time (:meth:`show`).

    Order: ``module.parameters()`` with ``requires_grad``. Floating-point buffers (running
    statistics) travel with a client's update but are not part of P, so noise and gradient features
    act on trainable parameters only; ``counts`` [I], the elements of all other buffers (batch
    counters, masks), travel as int64.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.trainable = [p for _, p in named]
        ends = list(accumulate(p.numel() for p in self.trainable))
        self.layers = tuple(
            Layer(name, end - p.numel(), end, tuple(p.shape))
            for (name, p), end in zip(named, ends, strict=True)
        )
        self._floating = [b for b in module.buffers() if b.is_floating_point()]
        self._integers = [b for b in module.buffers() if not b.is_floating_point()]
        with torch.no_grad():
            self.params = torch.cat([p.reshape(-1) for p in self.trainable])
            self.buffers = torch.cat(
                [b.reshape(-1) for b in self._floating] or [self.params.new_zeros(0)]
            )
        self.grad = torch.zeros_like(self.params)
        for b, part in zip(
            self._floating, self.buffers.split([b.numel() for b in self._floating]), strict=True
        ):
            b.data = part.view_as(b)
        self._own = self.params, self.views(self.params)
        self.gradients = tuple(self.views(self.grad))
        self.show_own()

    @property
    def counts(self) -> torch.Tensor:
        """[I] int64, a copy."""
        parts = [b.detach().reshape(-1).long() for b in self._integers]
        return torch.cat(parts or [torch.zeros(0, dtype=torch.int64, device=self.params.device)])

    @torch.no_grad()
    def load(self, params: torch.Tensor, buffers: torch.Tensor, counts: torch.Tensor) -> None:
        """Let the module hold ``params`` [P], ``buffers`` [B] and ``counts`` [I], which stay
        unchanged.
        """
        self.params.copy_(params)
        self.buffers.copy_(buffers)
        for b, part in zip(
            self._integers, counts.split([b.numel() for b in self._integers]), strict=True
        ):
            b.copy_(part.view_as(b))

    @torch.no_grad()
    def logits(
        self,
        params: torch.Tensor,
        buffers: torch.Tensor,
        x: torch.Tensor,
        counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[n, C] at ``params`` [P], ``buffers`` [B] and ``counts`` [I], by default the present
        ones, in eval mode; leaves all loaded and eval mode on.
        """
        self.load(params, buffers, self.counts if counts is None else counts)
        self.module.eval()
        return torch.cat([self.module(part) for part in x.split(EVALUATION_CHUNK)])

    def views(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Each trainable tensor in ``rows`` [..., P], as [..., *shape]."""
        parts = rows.split([p.numel() for p in self.trainable], dim=-1)
        return [
            part.view(rows.shape[:-1] + p.shape)
            for p, part in zip(self.trainable, parts, strict=True)
        ]

    def show(self, params: torch.Tensor, views: Sequence[torch.Tensor]) -> None:
        """Let the module hold ``params`` [P], live, in place of its own vector; ``views``: of
        :meth:`views`. Its gradients are None until :meth:`show_own`.
        """
        self.params = params
        for p, view in zip(self.trainable, views, strict=True):
            p.data, p.grad = view, None

    def show_own(self) -> None:
        """Let the module hold its own vectors again."""
        self.show(*self._own)
        self.bind_grad()

    def bind_grad(self, gradients: Sequence[torch.Tensor | None] | None = None) -> None:
        """Make these every parameter's ``.grad``, by default the views of ``grad`` again, in case a
        plugin replaced it.
        """
        for p, part in zip(
            self.trainable, self.gradients if gradients is None else gradients, strict=True
        ):
            p.grad = part
