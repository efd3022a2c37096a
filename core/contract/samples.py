"""A client's own samples and the live model that it trains: what a defense's member phases work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.core.contract.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class MemberData:
    """One client's own training data.

    ``x``: [n, *input], byte images as stored (``ctx.normalise`` gives floats); ``y``: [n] int64.
    ``soft``: None or [n, C] target probabilities, used instead of ``y`` by the default loss.
    ``held_out``: [n] bool, samples this member keeps out of training: the federation's validation
    part, where its setting has one, and what a ``prepare`` adds to it. They leave the audit lists,
    since they are neither members nor non-members. Build a changed copy with
    ``dataclasses.replace``.
    """

    x: torch.Tensor
    y: torch.Tensor
    soft: torch.Tensor | None = None
    held_out: torch.Tensor | None = None

    @property
    def trainable(self) -> torch.Tensor:
        """[m] int64 positions of the samples that are not held out."""
        import torch

        if self.held_out is None:
            return torch.arange(len(self.y), device=self.y.device)
        return torch.nonzero(~self.held_out).reshape(-1)


@dataclass(frozen=True)
class Batch:
    """One training batch: ``x`` [B, *input] normalised floats, ``y`` [B] int64. ``index``: [B]
    positions in the member's data.

    ``flag``: None or [B] from ``select``. ``soft``: None or [B, C] target probabilities, used
    instead of ``y`` by the default loss.
    """

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor
    soft: torch.Tensor | None = None
    flag: torch.Tensor | None = None

    def hard_labels(self, who: str) -> torch.Tensor:
        """``y``, for a defense that is defined for hard labels only. Raises ``UserError`` if the
        batch has soft targets.
        """
        if self.soft is not None:
            raise UserError(
                f"{who} works on hard labels: it cannot follow a defense that makes soft targets "
                "(mixup, instahide)"
            )
        return self.y


@dataclass(frozen=True)
class Selection:
    """What ``select`` returns: ``index`` [m] int64 positions to train on; ``flag`` None or [m]
    per-sample flags.

    ``batches``: train on only so many of each local epoch's shuffled batches; None: on all.
    ``poisson``: an epoch is ceil(m / B) batches, B the federation's batch size, and each of them
    holds every selected sample independently with probability B / m. Such a batch may be empty:
    ``transform`` is then not called, ``local_step`` is, and if that returns None the batch is
    skipped.
    """

    index: torch.Tensor
    flag: torch.Tensor | None = None
    batches: int | None = None
    poisson: bool = False


# --- the live model -------------------------------------------------------------------------------


_CHUNK = 1024  # samples


@dataclass(frozen=True)
class Snapshot:
    """Copies of a model's parameters and buffers, for ``ctx.restore``."""

    params: torch.Tensor
    buffers: tuple[torch.Tensor, ...]


class LiveModel:
    """The live module ``model`` with its parameters as one live [P] vector ``params``.

    No method draws random numbers; each leaves the module's mode unchanged.
    """

    model: nn.Module
    params: torch.Tensor

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, C] of the live model in eval mode, without gradients, in chunks."""
        import torch

        with evaluating(self.model), torch.no_grad():
            return torch.cat(
                [self.model(x[i : i + _CHUNK]) for i in range(0, max(1, len(x)), _CHUNK)]
            )

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross-entropy [n] of the live model in eval mode, without gradients.

        ``y``: [n] int64 labels, or [n, C] target probabilities."""
        import torch
        from torch.nn.functional import cross_entropy

        def of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits = self.model(x)
            return cross_entropy(
                logits, y.to(logits) if y.is_floating_point() else y, reduction="none"
            )

        with evaluating(self.model), torch.no_grad():
            parts = [of(x[i : i + _CHUNK], y[i : i + _CHUNK]) for i in range(0, len(x), _CHUNK)]
            return torch.cat(parts) if parts else self.params.new_zeros(0)

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """[P]: gradient of a scalar ``loss`` with respect to the live parameters, in the order of
        ``params``; zero for an unused parameter. Frees the graph.
        """
        import torch

        trained = [p for p in self.model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for p, g in zip(trained, found, strict=True)
            ]
        )

    def snapshot(self) -> Snapshot:
        """Copies of the live parameters and buffers (running statistics), for ``restore``; without
        the optimiser's state.
        """
        return Snapshot(
            self.params.detach().clone(), tuple(b.detach().clone() for b in self.model.buffers())
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Set the live parameters and buffers to those of ``snapshot``. The optimiser keeps its
        present state; ``restart`` resets that, too.
        """
        import torch

        with torch.no_grad():
            self.params.copy_(snapshot.params)
            for live, kept in zip(self.model.buffers(), snapshot.buffers, strict=True):
                live.copy_(kept)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards the mode from before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
