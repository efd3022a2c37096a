"""Aggregation-neutral perturbation: noise on the members' updates that the weighted mean does not see."""

from __future__ import annotations

import torch
from torch import nn


def project(noise: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[d, n]: ``noise`` [d, n] without its component along ``weights`` [d], so that sum_k w_k delta_k = 0.

    delta_k = delta'_k - w_k / |w|^2 sum_j w_j delta'_j. One member alone is left with zero; of two equal ones each has the
    other's with the sign turned, of deviation sigma / sqrt(2) (C21).
    Source: CoFedMID section 4.3, algorithm 3.
    """
    return noise - torch.outer(weights / weights.square().sum(), weights @ noise)


def tail(ratio: float, n_params: int) -> int:
    """floor(r_p P): how many of the last parameters are perturbed; P counts trainable ones, no buffers (C25)."""
    return int(ratio * n_params + 1e-9)  # 0.29 * 100 is 28.999... in floating point


def in_final_layer(model: nn.Module, perturbed: int) -> tuple[int, int]:
    """(how many of the last ``perturbed`` parameters lie in the final linear layer, how many it has).

    C19: parameters lie in the order of the model's definition. A scalar on the whole of that layer adds the same to every
    logit, which softmax does not see; (0, 0) where the last parameters are no linear layer's.
    """
    named = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    where = list(named)[-1].rpartition(".")[0]
    size = sum(n for name, n in named.items() if name.rpartition(".")[0] == where)
    return (min(perturbed, size), size) if isinstance(model.get_submodule(where), nn.Linear) else (0, 0)


def draw(sigma: float, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, columns] float64 from N(0, sigma^2)."""
    return torch.randn((rows, columns), generator=generator, dtype=torch.float64) * sigma
