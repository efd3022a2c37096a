"""A signal: what is measured of a sample on an uploaded model in an audited round, a number or a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.core.contract.params import Configured

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Probe:
    """One model in front of one batch of candidates.

    ``model``: in eval mode, holding the uploaded parameters; ``update``: [P] uploaded minus received parameters;
    ``x``: [n, *input]; ``y``: [n]; ``logits``: [n, C] of ``model`` on ``x``. Gradients are disabled. All of it is the signal's
    own copy; the model must be left as it was found, since the next batch is put to it.
    """

    model: nn.Module
    update: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    logits: torch.Tensor

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """[n, *input] as the model takes them inside: byte images as normalised floats, anything else unchanged.

        The model answers the same to both, so that a signal may perturb the floats. The engine's probes know the data's
        normalisation; one that is made by hand has none.
        """
        return x


class Signal(Configured):
    """Base of a signal plugin.

    ``vector``: whether it measures a vector of a sample instead of one number.
    """

    vector: bool = False

    def measure(self, probe: Probe) -> torch.Tensor:
        """[n] float32 on the device of ``probe.y``, finite wherever the logits are; un-augmented inputs, eval mode.

        Of a ``vector`` signal [n, d], d >= 1 the same in every call of a run.

        One that raises or answers anything else is not asked again in this run: the cells that need it fail and say why.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement measure(probe)")
