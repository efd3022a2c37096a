"""Angles between updates, computed from their inner products alone (float64)."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.core import norms

_COLUMNS = 2**14


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """[n, P]: every row divided by its norm; a zero row stays zero."""
    lengths = norms(rows)[:, None]
    return rows / torch.where(lengths > 0, lengths, 1.0).to(rows)


def products(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """[m, n]: inner products of the rows of ``a`` [m, P] and ``b`` [n, P].

    Some columns at a time, summed in float64: in float32 a vector of 11 million entries is a thousandth too short.
    """
    if a.shape[1] <= _COLUMNS:
        return np.asarray((a @ b.T).double().cpu().numpy())
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for part, other in zip(a.split(_COLUMNS, dim=1), b.split(_COLUMNS, dim=1), strict=True):
        total += part @ other.T
    return total.cpu().numpy()


def cosines(dots: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """[..., n]: cosines of vectors with unit vectors, given ``dots`` [..., n] and ``squared`` norms [...].

    0 where either vector is zero: no direction is a right angle to every other.
    """
    lengths = np.sqrt(np.maximum(squared, 0.0))[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(lengths > 0, dots / lengths, 0.0), -1.0, 1.0)


def least_cosine(unit_gram: np.ndarray) -> float:
    """Cosine of the largest angle between two of n >= 2 unit vectors with these inner products [n, n]."""
    return float(np.clip(unit_gram[np.triu_indices(len(unit_gram), 1)].min(), -1.0, 1.0))


def angles(gram: np.ndarray) -> np.ndarray:
    """[n, n]: angles in radians between vectors with these inner products [n, n]; 0 of each with itself."""
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    outer = lengths[:, None] * lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.arccos(np.clip(np.where(outer > 0, gram / outer, 0.0), -1.0, 1.0))
    np.fill_diagonal(out, 0.0)
    return np.asarray(out)
