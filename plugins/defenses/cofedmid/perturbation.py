"""Aggregation-neutral perturbation: noise on the members' updates that the weighted mean does not see."""

from __future__ import annotations

import torch


def project(noise: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[d, n]: ``noise`` [d, n] without its component along ``weights`` [d], so that sum_k w_k delta_k = 0.

    delta_k = delta'_k - w_k / |w|^2 sum_j w_j delta'_j. One member alone is left with zero.
    Source: CoFedMID section 4.3, algorithm 3.
    """
    return noise - torch.outer(weights / weights.square().sum(), weights @ noise)


def tail(ratio: float, n_params: int) -> int:
    """floor(r_p P): how many of the last parameters are perturbed."""
    return int(ratio * n_params + 1e-9)  # 0.29 * 100 is 28.999... in floating point
