"""Pairwise geometry of the rows [K, P], and their order in every coordinate. Nothing here is as large as K x K x P."""

from __future__ import annotations

import numpy as np
import torch

_COLUMNS = 2**14  # of a float64 copy at a time: it stays in the cache


def gram(updates: torch.Tensor) -> np.ndarray:
    """[K, K] inner products of the rows, multiplied and summed in float64."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
    for part in updates.split(_COLUMNS, dim=1):
        exact = part.double()
        total += exact @ exact.T
    return total.cpu().numpy()


def squared_distances(updates: torch.Tensor) -> np.ndarray:
    """[K, K] squared Euclidean distances of the rows: symmetric to the last bit, zero on the diagonal."""
    products = gram(updates)
    square = np.diag(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0)
    distances = np.minimum(distances, distances.T)  # the two differ by rounding, and mutual neighbours must tie exactly
    np.fill_diagonal(distances, 0)
    return distances


def cosines(updates: torch.Tensor) -> np.ndarray:
    """[K, K] cosines between the rows; a zero row has no direction and counts as orthogonal to every other row."""
    products = gram(updates)
    norms = np.sqrt(np.diag(products))
    safe = np.where(norms > 0, norms, 1)
    found = np.clip(products / safe[:, None] / safe, -1, 1)
    np.fill_diagonal(found, 1)
    return found


def angles(updates: torch.Tensor) -> np.ndarray:
    """[K, K] angles between the rows in radians, 0 to pi; zero on the diagonal, pi/2 to a zero row."""
    return np.arccos(cosines(updates))


def sorted_columns(updates: torch.Tensor) -> torch.Tensor:
    """[K, P]: every coordinate's K values in ascending order, a copy."""
    if updates.device.type == "cpu":  # numpy sorts many short columns three to fifteen times faster than torch does
        return torch.from_numpy(np.sort(updates.detach().numpy(), axis=0))
    return updates.sort(dim=0).values


def clipped_mean(updates: torch.Tensor, lengths: torch.Tensor, bound: float) -> torch.Tensor:
    """[P]: the mean of the rows after those longer than ``bound`` are scaled down to it; ``lengths``: their norms [K]."""
    scales = (bound / lengths.clamp_min(1e-300)).clamp_max(1)
    return (scales / len(updates)).to(updates) @ updates


def combine(weights: np.ndarray, updates: torch.Tensor) -> torch.Tensor:
    """[P]: the rows [K, P] summed with these weights [K]."""
    return torch.from_numpy(weights).to(updates) @ updates
