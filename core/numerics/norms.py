"""Euclidean norms of long vectors that are right to the last digits a clipping bound is stated with."""

from __future__ import annotations

import math

import torch

# Summed in float32 on the CPU, the squares of 11 million entries lose a thousandth of the sum. Blocks this short lose
# nothing worth naming, and their squares are summed in float64: as fast as the plain norm, right to 1e-8.
_BLOCK = 1024
_CHUNK = 2**14  # columns of a float64 copy at a time: it stays in the cache
_TINY = 1e-30  # mean square below which float32 squares lose digits


def norms(rows: torch.Tensor) -> torch.Tensor:
    """[K] float64 L2 norms of the rows [K, P], right to 1e-6 of themselves for entries of any size.

    For every norm that clips, scales or decides. ``torch.linalg.vector_norm`` in float32 is 4e-4 too small for 11 million
    normal entries on the CPU, so that what is clipped by it comes out too long.
    """
    if rows.dtype != torch.float32 or rows.device.type != "cpu":
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    found = torch.linalg.vector_norm(rows, dim=1).double() if rows.shape[1] <= _BLOCK else _blockwise(rows)
    low = math.sqrt(_TINY * rows.shape[1])
    odd = ~((found > low) & (found < math.inf))  # squares may have left float32's range; NaN is odd, too
    if bool(odd.any()):
        found[odd] = _exactly(rows[odd])
    return found


def norm(vector: torch.Tensor) -> torch.Tensor:
    """The L2 norm of ``vector`` [P], a float64 scalar; see :func:`norms`."""
    return norms(vector[None])[0]


def clip_factors(squares: torch.Tensor, bound: float) -> torch.Tensor:
    """[K] factors, at most 1, that scale vectors of these squared L2 norms [K] down to at most the norm ``bound``."""
    return squares.rsqrt().mul_(bound).clamp_max_(1)


def _blockwise(rows: torch.Tensor) -> torch.Tensor:
    whole = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :whole].unflatten(1, (-1, _BLOCK))
    total = torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(dim=1)
    if whole < rows.shape[1]:
        total += torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square_()
    return total.sqrt_()


def _exactly(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(rows), dtype=torch.float64)
    for part in rows.split(_CHUNK, dim=1):  # several times faster than vector_norm(dtype=float64)
        total += part.double().square_().sum(dim=1)
    return total.sqrt_()
