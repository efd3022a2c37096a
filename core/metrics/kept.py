"""Draws that are the same for every attack of a run, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ROOM = 128_000_000  # bytes; what does not fit any more is drawn anew each time: it bounds memory and changes no number


class Kept:
    """Arrays drawn from a keyed generator, by the generator's state and the sizes asked for.

    Whoever asks again from the same state for the same sizes gets the same array, read-only, and the generator stands where
    drawing would have left it: whether a draw was kept cannot be told from any number.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._drawn: dict[tuple[object, ...], tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {}

    def draw(
        self, rng: np.random.Generator, sizes: tuple[object, ...], make: Callable[[], tuple[np.ndarray, ...]]
    ) -> tuple[np.ndarray, ...]:
        """What ``make`` draws from ``rng``; ``sizes``: everything else that it depends on."""
        key = (repr(rng.bit_generator.state), *sizes)
        if key in self._drawn:
            arrays, after = self._drawn[key]
            rng.bit_generator.state = after
            return arrays
        arrays = make()
        needed = sum(a.nbytes for a in arrays)
        if needed <= self._room:
            self._room -= needed
            for a in arrays:
                a.setflags(write=False)
            self._drawn[key] = arrays, dict(rng.bit_generator.state)
        return arrays
