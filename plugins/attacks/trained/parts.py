"""Three parts of the lessons, to choose a setting of a classifier on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.model_selection import StratifiedKFold

PARTS = 3


def three_parts(member: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(positions to learn from, positions to ask about) of ``member`` [n] bool, three times; none with too few samples."""
    if min(int(member.sum()), int((~member).sum())) >= 2 * PARTS:
        yield from StratifiedKFold(PARTS, shuffle=True, random_state=seed).split(np.zeros(len(member)), member)
