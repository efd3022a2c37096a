"""Pairwise geometry of the rows [K, P], clipped means, and how many rows a rule needs."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Federation, Params, ServerContext, UserError


class ExpectsMalicious(Params):
    """Params of a rule that is told how many rows may be malicious."""

    f: int | None = Field(
        None,
        ge=0,
        description="malicious rows to expect a round; null: as many as the federation assumes",
    )


def expected(
    rule: str,
    f: int | None,
    known: Federation | ServerContext,
    rows: int,
    a: int,
    b: int,
    name: str = "f",
) -> int:
    """``f``, the malicious rows to expect, or where it is None what the server was told: the
    federation's number.

    In a round less its rejected rows: they were among those to expect, and sending rows that are
    not finite must not leave a rule with too few to work on. Raises ``UserError``, which calls f
    ``name``, unless ``rows`` >= a f + b.
    """
    if f is None:
        f = known.assumed_malicious
    elif isinstance(known, ServerContext):
        f = max(0, f - known.federation.assumed_malicious + known.assumed_malicious)
    if rows < a * f + b:
        raise UserError(
            f"{rule} with {name.strip()} = {f} needs at least {a if a > 1 else ''}{name} + {b} = "
            f"{a * f + b} rows a round and "
            f"has {rows}: expect fewer malicious clients, or let more clients take part"
        )
    return f


def require_majority(rule: str, known: Federation) -> None:
    """Raise ``UserError`` unless the federation assumes fewer malicious rows than honest ones."""
    f = known.assumed_malicious
    if f and 2 * f >= known.cohort:
        raise UserError(
            f"{rule} needs more honest than malicious rows, and {f} of {known.cohort} rows a round "
            "are assumed malicious: "
            "lower adversary.assumed, or let more clients take part"
        )


_COLUMNS = 2**14  # of a float64 copy at a time: it stays in the cache


def gram(updates: torch.Tensor) -> np.ndarray:
    """[K, K] inner products of the rows, multiplied and summed in float64."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
    for part in updates.split(_COLUMNS, dim=1):
        exact = part.double()
        total += exact @ exact.T
    return total.cpu().numpy()


def squared_distances(updates: torch.Tensor) -> np.ndarray:
    """[K, K] squared Euclidean distances of the rows: symmetric to the last bit, zero on the
    diagonal.
    """
    products = gram(updates)
    square = np.diag(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0)
    # the two differ by rounding, and mutual neighbours must tie exactly
    distances = np.minimum(distances, distances.T)
    np.fill_diagonal(distances, 0)
    return distances


def cosines(updates: torch.Tensor) -> np.ndarray:
    """[K, K] cosines between the rows; a zero row has no direction and counts as orthogonal to
    every other row.
    """
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
    # numpy sorts many short columns three to fifteen times faster than torch does
    return torch.from_numpy(np.sort(updates.detach().cpu().numpy(), axis=0)).to(updates.device)


def clipped_mean(updates: torch.Tensor, lengths: torch.Tensor, bound: float) -> torch.Tensor:
    """[P]: the mean of the rows after those longer than ``bound`` are scaled down to it;
    ``lengths``: their norms [K].
    """
    scales = (bound / lengths.clamp_min(1e-300)).clamp_max(1)
    return (scales / len(updates)).to(updates) @ updates


def combine(weights: np.ndarray, updates: torch.Tensor) -> torch.Tensor:
    """[P]: the rows [K, P] summed with these weights [K]."""
    return torch.from_numpy(weights).to(updates) @ updates
