"""A client's own samples, and the live model that it trains, as a defense is handed them."""

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

    ``x``: [n, *input], byte images as stored (``ctx.normalise`` gives floats); ``y``: [n] int64. ``soft``: None or
    [n, C] target probabilities, used instead of ``y`` by the default loss. ``held_out``: [n] bool, samples this member
    keeps out of training: the federation's validation part, where its setting has one, and what a ``prepare`` adds to it.
    They leave the audit lists, since they are neither trained on nor strangers. Build a changed copy with
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
    """One training batch: ``x`` [B, *input] normalised floats, ``y`` [B] int64. ``index``: [B] positions in the member's data.

    ``flag``: None or [B] from ``select``. ``soft``: None or [B, C] target probabilities, used instead of ``y`` by the
    default loss.
    """

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor
    soft: torch.Tensor | None = None
    flag: torch.Tensor | None = None

    def hard_labels(self, who: str) -> torch.Tensor:
        """``y``, for a defense whose equations know no soft targets; raises ``UserError`` where the batch has some."""
        if self.soft is not None:
            raise UserError(f"{who} works on hard labels: it cannot follow a defense that makes soft targets (mixup, instahide)")
        return self.y


@dataclass(frozen=True)
class Selection:
    """What ``select`` returns: ``index`` [m] int64 positions to train on; ``flag`` None or [m] per-sample flags.

    ``batches``: train on only so many of each local epoch's shuffled batches; None: on all. ``poisson``: an epoch is
    ceil(m / B) batches, B the federation's batch size, and each of them holds every selected sample independently with
    probability B / m. Such a batch may be empty: ``local_step`` is asked about it all the same (``transform`` is not), and
    where it answers None, or there is none, an empty batch is no step.
    """

    index: torch.Tensor
    flag: torch.Tensor | None = None
    batches: int | None = None
    poisson: bool = False


_CHUNK = 1024  # samples


@dataclass(frozen=True)
class Snapshot:
    """A model as it was at some moment: copies of its parameters and buffers, for ``ctx.restore`` alone."""

    params: torch.Tensor
    buffers: tuple[torch.Tensor, ...]


class LiveModel:
    """The live module ``model`` with its parameters as one live [P] vector ``params``.

    Nothing here draws random numbers or leaves the module in another mode than it was in.
    """

    model: nn.Module
    params: torch.Tensor

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, C] of the live model in eval mode, without gradients, in chunks; leaves the mode as it was."""
        import torch

        with _evaluating(self.model), torch.no_grad():
            return torch.cat([self.model(x[i : i + _CHUNK]) for i in range(0, max(1, len(x)), _CHUNK)])

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross-entropy [n] of the live model in eval mode, without gradients; leaves the mode as it was.

        ``y``: [n] int64 labels, or [n, C] target probabilities."""
        import torch
        from torch.nn.functional import cross_entropy

        def of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits = self.model(x)
            return cross_entropy(logits, y.to(logits) if y.is_floating_point() else y, reduction="none")

        with _evaluating(self.model), torch.no_grad():
            parts = [of(x[i : i + _CHUNK], y[i : i + _CHUNK]) for i in range(0, len(x), _CHUNK)]
            return torch.cat(parts) if parts else self.params.new_zeros(0)

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """[P]: gradient of a scalar ``loss`` with respect to the live parameters, in the order of ``params``; zero where a
        parameter has no part in it. What a ``local_step`` that clips or adds noise starts from; the graph is freed."""
        import torch

        trained = [p for p in self.model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(trained, found, strict=True)])

    def snapshot(self) -> Snapshot:
        """The live parameters and buffers (running statistics) as they are now, for ``restore``; the optimiser's state is
        not part of it."""
        return Snapshot(self.params.detach().clone(), tuple(b.detach().clone() for b in self.model.buffers()))

    def restore(self, snapshot: Snapshot) -> None:
        """Set the live parameters and buffers to what they were when ``snapshot`` was taken. The optimiser goes on with what it
        has gathered since: ``restart`` begins anew."""
        import torch

        with torch.no_grad():
            self.params.copy_(snapshot.params)
            for live, kept in zip(self.model.buffers(), snapshot.buffers, strict=True):
                live.copy_(kept)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
