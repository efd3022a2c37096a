"""Flat vectors: a client is a row, and a step is four vector operations; accurate norms of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedbench.core.contract.contexts import Layer
from fedbench.core.contract.task import DEFAULT_TASK, Purpose, Task
from fedbench.core.numerics.wrappers import task_rows

# Summed in float32 on the CPU, the squares of 11 million entries lose a thousandth of the sum.
# Short blocks lose nothing, and their sums are added in float64: as fast as the plain norm, right
# to 1e-8.
_BLOCK = 1024
_CHUNK = 2**14  # columns of a float64 copy at a time: it stays in the cache
_TINY = 1e-30  # mean square below which float32 squares lose digits


def norms(rows: Tensor) -> Tensor:
    """L2 norms [K] float64 of the rows [K, P], right to 1e-6 of themselves for entries of any size.

    ``torch.linalg.vector_norm`` in float32 is 4e-4 too small for 11 million normal entries on the
    CPU, so that a vector clipped by it would be too long.
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    if rows.shape[1] <= _BLOCK:
        lengths = torch.linalg.vector_norm(rows, dim=1).double()
    else:
        lengths = _blockwise(rows)
    low = math.sqrt(_TINY * rows.shape[1])
    ordinary = (lengths > low) & (lengths < math.inf)
    odd = ~ordinary  # squares outside float32's range, or NaN
    if bool(odd.any()):
        lengths[odd] = _exactly(rows[odd])
    return lengths


def norm(vector: Tensor) -> Tensor:
    """L2 norm of ``vector`` [P], a float64 scalar; see :func:`norms`."""
    return norms(vector[None])[0]


def clip_factors(squares: Tensor, bound: float) -> Tensor:
    """Factors [K] <= 1 that scale vectors of these squared L2 norms [K] to at most ``bound``."""
    return squares.rsqrt().mul_(bound).clamp_max_(1)


def _blockwise(rows: Tensor) -> Tensor:
    end = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :end].unflatten(1, (-1, _BLOCK))
    lengths = torch.linalg.vector_norm(blocks, dim=2).double()
    total = lengths.square_().sum(dim=1)
    if end < rows.shape[1]:
        last = torch.linalg.vector_norm(rows[:, end:], dim=1).double()
        total += last.square_()
    return total.sqrt_()


def _exactly(rows: Tensor) -> Tensor:
    total = torch.zeros(len(rows), dtype=torch.float64)
    for part in rows.split(_CHUNK, dim=1):  # several times faster than vector_norm(dtype=float64)
        total += part.double().square_().sum(dim=1)
    return total.sqrt_()


def mean_counts(weights: Tensor, counts: Tensor) -> Tensor:
    """Mean [I] int64 of ``counts`` [n, I] by ``weights`` [n], which sum to 1, rounded to the
    nearest integer; exact where all rows agree.
    """
    first = counts[0]
    differences = (counts - first).double()
    return first + (weights.double() @ differences).round().long()


# --- models ---------------------------------------------------------------------------------------


EVALUATION_CHUNK = 512  # samples; of a ResNet18: 1 GB of activations


@dataclass(frozen=True, eq=False)
class ModelState:
    """Numbers of one model, or of several models as rows: what a client starts from."""

    params: Tensor
    """[P] trainable parameters, or [n, P]"""
    buffers: Tensor
    """[B] floating-point buffers (running statistics), or [n, B]"""
    counts: Tensor
    """[I] int64, elements of all other buffers (batch counters, masks), or [n, I]"""

    def __getitem__(self, rows: int | Sequence[int]) -> ModelState:
        """The model of one row, or those of several."""
        return ModelState(self.params[rows], self.buffers[rows], self.counts[rows])

    def clone(self) -> ModelState:
        """A copy."""
        return ModelState(self.params.clone(), self.buffers.clone(), self.counts.clone())


def joined(states: Sequence[ModelState]) -> ModelState:
    """The models of all rows of several states."""
    if len(states) == 1:
        return states[0]
    return ModelState(
        torch.cat([state.params for state in states]),
        torch.cat([state.buffers for state in states]),
        torch.cat([state.counts for state in states]),
    )


class ModuleVectors(NamedTuple):
    """Vectors [P] that a module can train in, with their views in its tensors' shapes."""

    params: Tensor
    grad: Tensor
    tensors: list[Tensor]
    gradients: list[Tensor]


class FlatModel:
    """Wraps ``module``: ``params`` [P], ``grad`` [P] and ``buffers`` [B] are live flat vectors its
    tensors view. While clients train together the module shows one of them at a time
    (:meth:`show`).

    ``layers``: where each of the ``trainable`` tensors lies in them; ``gradients``: views of
    ``grad`` in their shapes; ``counters``: the module's other buffers; ``task``: its loss.

    Order: ``module.parameters()`` with ``requires_grad``. Floating-point buffers travel with a
    client's update but are not part of P, so noise and gradient features act on trainable
    parameters only; the elements of all other buffers travel as int64.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        task: Task = DEFAULT_TASK,
    ) -> None:
        self.module = module.to(device)
        self.task = task
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        self.layers = _layers_of(module)
        self._floating = [b for b in module.buffers() if b.is_floating_point()]
        self.counters = [b for b in module.buffers() if not b.is_floating_point()]
        with torch.no_grad():
            params = torch.cat([p.reshape(-1) for p in self.trainable])
            floats = [b.reshape(-1) for b in self._floating]
            self.buffers = torch.cat(floats or [params.new_zeros(0)])
        parts = _parts(self.buffers, self._floating)
        for b, part in zip(self._floating, parts, strict=True):
            b.data = part.view_as(b)
        self._own = self.row(params, torch.zeros_like(params))
        self.show_own()

    @property
    def state(self) -> ModelState:
        """The present model: live parameters and buffers, and a copy of the counts."""
        integers = [b.detach().reshape(-1).long() for b in self.counters]
        none = torch.zeros(0, dtype=torch.int64, device=self.params.device)
        return ModelState(self.params, self.buffers, torch.cat(integers or [none]))

    @torch.no_grad()
    def load(self, state: ModelState) -> None:
        """Let the module hold ``state``, which stays unchanged."""
        self.params.copy_(state.params)
        self.buffers.copy_(state.buffers)
        parts = _parts(state.counts, self.counters)
        for b, part in zip(self.counters, parts, strict=True):
            b.copy_(part.view_as(b))

    def rows(
        self,
        x: Tensor,
        y: Tensor,
        purpose: Purpose,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Inputs and target of samples; see :func:`task_rows`."""
        return task_rows(self.module, self.task, x, y, purpose, generator)

    @torch.no_grad()
    def logits(self, state: ModelState, x: Tensor) -> Tensor:
        """Logits [n, C] of ``state`` in eval mode; leaves it loaded and eval mode on."""
        self.load(state)
        self.module.eval()
        chunks = x.split(EVALUATION_CHUNK)
        return torch.cat([self.module(chunk) for chunk in chunks])

    def views(self, rows: Tensor) -> list[Tensor]:
        """Each trainable tensor in ``rows`` [..., P], as [..., *shape]."""
        parts = rows.split([p.numel() for p in self.trainable], dim=-1)
        pairs = zip(self.trainable, parts, strict=True)
        return [part.view(rows.shape[:-1] + p.shape) for p, part in pairs]

    def row(self, params: Tensor, grad: Tensor) -> ModuleVectors:
        """``params`` [P] and ``grad`` [P] for :meth:`show`."""
        return ModuleVectors(params, grad, self.views(params), self.views(grad))

    def show(self, row: ModuleVectors) -> None:
        """Let the module hold these vectors, live, in place of its own. Its gradients are None."""
        self.params, self.grad, tensors, self.gradients = row
        for p, view in zip(self.trainable, tensors, strict=True):
            p.data = view
            p.grad = None

    def show_own(self) -> None:
        """Let the module hold its own vectors again, with a gradient of zeros."""
        self.show(self._own)
        self.grad.zero_()
        self._bind_grad()

    def _bind_grad(self) -> None:
        for p, part in zip(self.trainable, self.gradients, strict=True):
            p.grad = part

    def take_grad(self) -> None:
        """Copy the gradients that autograd left in ``.grad``, which was None before, into ``grad``,
        and make ``.grad`` a view of it: one copy in place of an addition to zeros a parameter.
        """
        pairs = zip(self.gradients, [p.grad for p in self.trainable], strict=True)
        computed = [(into, g.to_dense()) for into, g in pairs if g is not None]
        if len(computed) < len(self.trainable):
            self.grad.zero_()
        torch._foreach_copy_([into for into, _ in computed], [g for _, g in computed])
        self._bind_grad()

    def drop_grad(self) -> None:
        """Make every parameter's ``.grad`` None, as for a module that has not been trained."""
        for p in self.trainable:
            p.grad = None


def _layers_of(module: nn.Module) -> tuple[Layer, ...]:
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    ends = accumulate(p.numel() for _, p in named)
    return tuple(
        Layer(name, end - p.numel(), end, tuple(p.shape))
        for (name, p), end in zip(named, ends, strict=True)
    )


def _parts(vector: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return vector.split([t.numel() for t in tensors])
