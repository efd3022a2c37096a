"""Keyed randomness, which every context of a phase has: the same draws wherever and whenever it is called."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Randomness:
    """Keyed randomness of one phase: ``key`` is an integer seed made from (seed, purpose, round, client); ``device``: where the
    run's tensors live.

    ``rng`` is a numpy generator for small draws, ``generator`` a torch CPU generator for tensors. Draws are made on
    the CPU and moved, so every device sees the same numbers.
    """

    key: int
    device: torch.device

    @cached_property
    def rng(self) -> np.random.Generator:
        """numpy generator of this phase."""
        return np.random.Generator(np.random.Philox(self.key))

    @cached_property
    def generator(self) -> torch.Generator:
        """torch CPU generator of this phase."""
        import torch

        return torch.Generator().manual_seed(self.key & (2**63 - 1))

    def randn(self, *shape: int) -> torch.Tensor:
        """Standard normal float32 of ``shape`` on the run's device."""
        import torch

        return torch.randn(*shape, generator=self.generator).to(self.device)

    def randn_like(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal of the shape and dtype of ``like``."""
        import torch

        return torch.randn(like.shape, generator=self.generator).to(like)

    def randperm(self, n: int) -> torch.Tensor:
        """A permutation of 0..n-1, [n] int64 on the run's device."""
        import torch

        return torch.randperm(n, generator=self.generator).to(self.device)
