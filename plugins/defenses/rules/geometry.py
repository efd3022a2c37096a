"""Pairwise geometry of the rows [K, P], clipped means, and how many rows a rule needs."""

from __future__ import annotations

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import Defense, Federation, Params, ServerContext, UserError


class ExpectsMalicious(Params):
    """Params of a rule that is told how many rows may be malicious."""

    f: int | None = Field(
        None,
        ge=0,
        description="malicious rows to expect a round; null: as many as the federation assumes",
    )


class RobustRule(Defense):
    """Rule that must know how many rows may be malicious, f."""

    rule: str
    """Name in messages."""
    condition: tuple[int, int]
    """a and b of a f + b, the fewest rows of a round."""
    param = "f"
    """Parameter that tells f."""

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` where a round has too few rows."""
        self._expected(federation, federation.cohort, *self.condition)

    def _expected(self, server: Federation | ServerContext, rows: int, a: int, b: int) -> int:
        """Return the malicious rows to expect: the parameter or, if None, the federation's number.

        In a round less its rejected rows: they were among those to expect, and sending rows that
        are not finite must not leave a rule with too few to work on.

        Raises:
            UserError: ``rows`` are fewer than a f + b.
        """
        f = getattr(self.params, self.param)
        name = self.param
        if f is None:
            f = server.assumed_malicious
        elif isinstance(server, ServerContext):
            f = max(0, f - server.federation.assumed_malicious + server.assumed_malicious)
        least = a * f + b
        times = a if a > 1 else ""
        if rows < least:
            raise UserError(
                f"{self.rule} with {name} = {f} needs at least {times}{name} + {b} = {least} rows "
                f"a round and has {rows}: expect fewer malicious clients, or let more clients take "
                "part"
            )
        return f


def require_majority(rule: str, federation: Federation) -> None:
    """Raise ``UserError`` unless the federation assumes fewer malicious rows than honest ones."""
    f = federation.assumed_malicious
    rows = federation.cohort
    if f and 2 * f >= rows:
        raise UserError(
            f"{rule} needs more honest than malicious rows, and {f} of {rows} rows a round are "
            "assumed malicious: lower adversary.assumed, or let more clients take part"
        )


_COLUMNS = 2**14  # of a float64 copy at a time: it stays in the cache


def gram(updates: Tensor) -> ndarray:
    """Inner products [K, K] of the rows, multiplied and summed in float64."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
    for part in updates.split(_COLUMNS, dim=1):
        exact = part.double()
        total += exact @ exact.T
    return total.cpu().numpy()


def squared_distances(updates: Tensor) -> ndarray:
    """Squared Euclidean distances [K, K] of the rows: symmetric to the last bit, 0 to itself."""
    products = gram(updates)
    square = np.diag(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0)
    # the two differ by rounding, and mutual neighbours must tie exactly
    distances = np.minimum(distances, distances.T)
    np.fill_diagonal(distances, 0)
    return distances


def cosines(updates: Tensor) -> ndarray:
    """Cosines [K, K] between the rows; a zero row counts as orthogonal to every other row."""
    products = gram(updates)
    norms = np.sqrt(np.diag(products))
    safe = np.where(norms > 0, norms, 1)
    cosine = np.clip(products / safe[:, None] / safe, -1, 1)
    np.fill_diagonal(cosine, 1)
    return cosine


def angles(updates: Tensor) -> ndarray:
    """Angles [K, K] between the rows in radians, 0 to pi: 0 to itself, pi/2 to a zero row."""
    return np.arccos(cosines(updates))


def sorted_columns(updates: Tensor) -> Tensor:
    """Every coordinate's K values in ascending order, [K, P], a copy."""
    # numpy sorts many short columns three to fifteen times faster than torch does
    return torch.from_numpy(np.sort(updates.detach().cpu().numpy(), axis=0)).to(updates.device)


def clipped_mean(updates: Tensor, lengths: Tensor, bound: float) -> Tensor:
    """Mean [P] of the rows, those longer than ``bound`` scaled down to it.

    ``lengths``: their norms [K].
    """
    scales = (bound / lengths.clamp_min(1e-300)).clamp_max(1)
    return (scales / len(updates)).to(updates) @ updates


def combine(weights: ndarray, updates: Tensor) -> Tensor:
    """Sum [P] of the rows [K, P] with these weights [K]."""
    return torch.from_numpy(weights).to(updates) @ updates
