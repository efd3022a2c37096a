"""Adam for the small nets of attacks, on arrays."""

from __future__ import annotations

import numpy as np


class FlatAdam:
    """Adam with weight decay in the gradient, on one array of any shape. Source: Kingma & Ba, ICLR 2015, algorithm 1.

    ``late``: epsilon is added before the second moment's correction, as scikit-learn does (the end of their section 2).
    """

    def __init__(self, flat: np.ndarray, weight_decay: float = 0.0, late: bool = False) -> None:
        self._flat, self._weight_decay, self._late, self._steps = flat, weight_decay, late, 0
        self._m, self._v, self._room = np.zeros_like(flat), np.zeros_like(flat), np.empty_like(flat)

    def step(self, g: np.ndarray, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down ``g``, shaped as the array, which is used up."""
        self._steps += 1
        room, m, v, scale = self._room, self._m, self._v, 1 - beta2**self._steps
        if self._weight_decay:
            g += np.multiply(self._flat, self._weight_decay, out=room)
        m *= beta1
        m += np.multiply(g, 1 - beta1, out=room)
        v *= beta2
        g *= g
        g *= 1 - beta2
        v += g
        np.sqrt(np.divide(v, scale, out=room), out=room)
        room += 1e-8 * (scale**-0.5 if self._late else 1)
        np.divide(m, room, out=room)
        room *= rate / (1 - beta1**self._steps)
        self._flat -= room

    def keep(self, which: np.ndarray, flat: np.ndarray) -> None:
        """Go on with the rows ``which`` alone, which are ``flat`` now."""
        self._flat, self._room = flat, np.empty_like(flat)
        self._m, self._v = self._m[which], self._v[which]
