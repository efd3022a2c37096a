"""Mislabelled canaries: the samples a model can only know by heart."""

from __future__ import annotations

import numpy as np


def mislabel(y: np.ndarray, share: float, n_classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``(labels, canary)``: exactly round(share * n) random samples get a uniformly drawn WRONG label.

    y: [n] int -> labels [n] int64, canary [n] bool. Canaries audit the most vulnerable samples rather than the
    average one (Aerni, Zhang and Tramer, CCS 2024).
    """
    canary = np.zeros(len(y), bool)
    canary[rng.choice(len(y), round(share * len(y)), replace=False)] = True
    shift = rng.integers(1, n_classes, size=len(y))
    return np.where(canary, (y + shift) % n_classes, y).astype(np.int64), canary
