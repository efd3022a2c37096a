"""A client's own samples as a defense is handed them: all of them, those that it selects, and one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.core.contract.errors import UserError

if TYPE_CHECKING:
    import torch


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
