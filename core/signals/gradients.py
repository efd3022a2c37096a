"""Signals of the sample's gradient: known by name as the others are, and measured by the engine for all clients at once."""

from __future__ import annotations

import torch

from fedbench.core import Probe, Signal


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
