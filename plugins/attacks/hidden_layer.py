"""Several small nets of one hidden layer at once, with their gradient written out in NumPy.

A step of one such net is a dozen products of small matrices: autograd, or a library's checks, take longer than they do.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit


class HiddenLayer:
    """K nets Linear(d, H) -> ReLU -> Linear(H, 1). ``flat``: [K, P] all weights; ``hidden`` [K, d + 1, H] and ``out`` [K, H + 1],
    the biases last, are views of it."""

    def __init__(self, hidden: np.ndarray, out: np.ndarray) -> None:
        self._shape = hidden.shape[1:]
        self.flat = np.concatenate([hidden.reshape(len(hidden), -1), out], axis=1)
        self.hidden, self.out = self.views(self.flat)

    def views(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hidden layer's and the last one's part of [K, P]."""
        size = self._shape[0] * self._shape[1]
        return flat[:, :size].reshape(-1, *self._shape), flat[:, size:]

    def keep(self, which: np.ndarray) -> None:
        """These of the nets alone."""
        self.flat = self.flat[which]
        self.hidden, self.out = self.views(self.flat)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """[K, n]: of ``x`` [K, n, d + 1], its last column 1."""
        return self._said(self._lit(x))

    def gradient(self, x: np.ndarray, member: np.ndarray, out: np.ndarray) -> np.ndarray:
        """The logits [K, n]; ``out`` [K, P]: the gradient of each net's mean cross-entropy on ``x`` [K, n, d + 1], ``member``
        [K, n] 0 or 1."""
        lit = self._lit(x)
        said = self._said(lit)
        wrong = (expit(said) - member) / np.asarray(x.shape[1], said.dtype)
        by_hidden, by_out = self.views(out)
        by_out[:, :-1] = (wrong[:, None] @ lit)[:, 0]
        by_out[:, -1] = wrong.sum(axis=1)
        np.greater(lit, 0, out=lit)  # where a unit is lit its slope is 1
        lit *= self.out[:, None, :-1]
        lit *= wrong[..., None]
        np.matmul(x.swapaxes(1, 2), lit, out=by_hidden)
        return said

    def _lit(self, x: np.ndarray) -> np.ndarray:
        lit = x @ self.hidden
        return np.maximum(lit, 0, out=lit)

    def _said(self, lit: np.ndarray) -> np.ndarray:
        return np.asarray((lit @ self.out[:, :-1, None])[..., 0] + self.out[:, -1:])


def with_ones(x: np.ndarray) -> np.ndarray:
    """[..., d + 1]: ``x`` [..., d] with a last column of 1."""
    return np.concatenate([x, np.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)
