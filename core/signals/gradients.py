"""Signals of the sample's gradient: three that the engine measures for all clients at once, and one of the uploaded model."""

from __future__ import annotations

import torch

from fedbench.core import Probe, Signal
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.signals.measure import GRADIENT_BYTES, chunk_of


class _OfTheEngine(Signal):
    """``Recorder`` (measure.py) computes it from one pass over the samples, at the model that the client received."""

    def measure(self, probe: Probe) -> torch.Tensor:
        raise NotImplementedError("the engine measures this signal for all clients at once; name it in an attack's `needs`")


class GradDot(_OfTheEngine):
    """<g_i, I_k>: the sample's gradient and received minus uploaded parameters. Source: Li et al., ICLR 2023."""


class GradSq(_OfTheEngine):
    """|g_i|^2. Source: Nasr et al., CCS 2018."""


class UpdateSq(_OfTheEngine):
    """|I_k|^2, the same for every sample."""


class UploadGradSq(Signal):
    """Squared length of the gradient of the sample's cross-entropy at the UPLOADED model, over all trainable parameters.

    It tells how well that model has learnt the sample; ``grad-sq`` is at the model that the client received, where it had not
    yet trained in the round. Source: Nasr et al., S&P 2019 (gradient norms of the attacked model itself).
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        none = probe.update.new_zeros(0, len(probe.update))
        return gradient_features(probe.model, probe.x, probe.y, none, chunk_of(probe.x, GRADIENT_BYTES)).sq.float()
