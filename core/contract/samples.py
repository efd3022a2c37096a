"""Samples of a client, and the live model that it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class MemberData:
    """Training data of one client; build a changed copy with ``dataclasses.replace``."""

    x: Tensor
    """[n, *input], byte images as stored (``ctx.normalise`` gives floats)"""
    y: Tensor
    """[n] int64"""
    soft: Tensor | None = None
    """[n, ...] target that the default loss uses instead of ``y``, e.g. class probabilities"""
    held_out: Tensor | None = None
    """[n] bool, samples kept out of training: the federation's validation part, where its setting
    has one, and what a ``prepare`` adds to it. They leave the audit lists, since they are neither
    members nor non-members.
    """

    @property
    def trainable(self) -> Tensor:
        """[m] int64 positions of the samples that are not held out."""
        import torch

        if self.held_out is None:
            return torch.arange(len(self.y), device=self.y.device)
        return torch.nonzero(~self.held_out).reshape(-1)


@dataclass(frozen=True)
class Batch:
    """Training batch."""

    x: Tensor
    """[B, *input] normalised floats"""
    y: Tensor
    """[B] int64"""
    index: Tensor
    """[B] positions in the member's data"""
    soft: Tensor | None = None
    """[B, ...] target that the default loss uses instead of ``y``, e.g. class probabilities"""
    flag: Tensor | None = None
    """[B] from ``select``"""

    @property
    def target(self) -> Tensor:
        """Target of the default loss."""
        return self.y if self.soft is None else self.soft

    def hard_labels(self, defense: str) -> Tensor:
        """Labels ``y``, for a defense that is defined for hard labels only. Raises ``UserError`` if
        the batch has soft targets.
        """
        if self.soft is not None:
            raise UserError(
                f"{defense} works on hard labels: it cannot follow a defense that makes soft "
                "targets (mixup, instahide)"
            )
        return self.y


@dataclass(frozen=True)
class Selection:
    """Result of ``select``."""

    index: Tensor
    """[m] int64 positions to train on"""
    flag: Tensor | None = None
    """[m] per-sample flags"""
    batches: int | None = None
    """train on only so many of each local epoch's shuffled batches; None: on all"""
    poisson: bool = False
    """an epoch is ceil(m / B) batches, B the federation's batch size, and each of them holds every
    selected sample independently with probability B / m. Such a batch may be empty: ``transform``
    is then not called, ``local_step`` is, and if that returns None the batch is skipped.
    """


# --- the live model -------------------------------------------------------------------------------


_CHUNK = 1024  # samples


@dataclass(frozen=True)
class Snapshot:
    """Copies of a model's parameters and buffers, for ``ctx.restore``."""

    params: Tensor
    buffers: tuple[Tensor, ...]


class LiveModel:
    """Live module ``model`` with its parameters as one live [P] vector ``params``.

    No method draws random numbers; each leaves the module's mode unchanged.
    """

    model: nn.Module
    params: Tensor
    task: Task

    def normalise(self, x: Tensor) -> Tensor:
        """Byte images as normalised floats, anything else unchanged."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Logits [n, C] of the live model in eval mode, without gradients, in chunks."""
        import torch

        with evaluating(self.model), torch.no_grad():
            starts = range(0, max(1, len(x)), _CHUNK)
            return torch.cat([self.model(x[start : start + _CHUNK]) for start in starts])

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss [n] of the live model in eval mode, without gradients, on the rows of an audit.

        ``y``: [n] targets of the task, or in their place others such as class probabilities.
        """
        import torch

        losses = [self.params.new_zeros(0)]
        with evaluating(self.model), torch.no_grad():
            for start in range(0, len(x), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                rows, target = self.task.rows(self.normalise(x[chunk]), y[chunk], "audit")
                losses.append(self.task.sample_losses(self.model(rows), target))
        return torch.cat(losses)

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient [P] of a scalar ``loss`` with respect to the live parameters, in the order of
        ``params``; zero for an unused parameter. Frees the graph.
        """
        import torch

        trained = [p for p in self.model.parameters() if p.requires_grad]
        pairs = zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])

    def snapshot(self) -> Snapshot:
        """Copies of the live parameters and buffers (running statistics), for ``restore``; without
        the optimiser's state.
        """
        buffers = tuple(b.detach().clone() for b in self.model.buffers())
        return Snapshot(self.params.detach().clone(), buffers)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the live parameters and buffers to those of ``snapshot``. The optimiser keeps its
        present state; ``restart`` resets that, too.
        """
        import torch

        with torch.no_grad():
            self.params.copy_(snapshot.params)
            for live, copy in zip(self.model.buffers(), snapshot.buffers, strict=True):
                live.copy_(copy)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards the mode from before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
