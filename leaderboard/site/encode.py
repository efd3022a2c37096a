"""Numbers and texts as a board's document holds them: rounded, bounded, and each text once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fedbench.core.metrics import Interval
from fedbench.core.words.explain import one_line

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LARGEST = 64 * 64 - 1
DECADES = 4  # of the rates that a curve holds: 1e-4 to 1
LONGEST = 200  # characters of a name or a value
_PAIRS = np.array([a + b for a in DIGITS for b in DIGITS])


def text(given: object, limit: int = LONGEST) -> str:
    """Somebody's text on one line of printable characters."""
    return one_line(str(given), limit)


def number(value: float | None, digits: int = 4) -> float | int | None:
    """Rounded behind the point, or to so many significant digits where it is small; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = round(float(value), digits)
    if rounded == 0 and value != 0:
        rounded = float(f"{value:.{digits - 1}e}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def interval(found: Interval | None) -> list[float | int | None] | None:
    """[mean, low, high]; the ends are None where the width is not known."""
    return None if found is None else [number(found.mean), number(found.low), number(found.high)]


def packed(values: np.ndarray) -> str:
    """[n] whole numbers as two characters each; larger ones as the largest."""
    return "".join(_PAIRS[np.clip(values, 0, LARGEST).astype(np.int64)])


def packed_numbers(values: Sequence[float | None], scale: int, width: int) -> str:
    """Each as ``scale`` times the number, rounded, in ``width`` characters; the largest they hold where there is none."""
    none = 64**width - 1
    steps = [none if v is None or not math.isfinite(v) else min(max(round(v * scale), 0), none - 1) for v in values]
    return "".join(DIGITS[step >> 6 * place & 63] for step in steps for place in reversed(range(width)))


def packed_rates(rates: np.ndarray) -> str:
    """[n] rates on a logarithmic scale from 1e-4 to 1; 0 is what is below half of its first step."""
    with np.errstate(divide="ignore"):
        steps = np.round((np.log10(rates) / DECADES + 1) * LARGEST)
    return packed(np.where(rates > 0, np.clip(steps, 1, LARGEST), 0))


def unpacked(given: str, width: int = 2) -> list[int]:
    """The whole numbers of so many characters each."""
    parts = [given[i : i + width] for i in range(0, len(given), width)]
    return [sum(DIGITS.index(digit) << 6 * place for place, digit in enumerate(reversed(part))) for part in parts]


class Table:
    """Values that many places of a document share: each once, in the order in which they came."""

    def __init__(self, first: Sequence[Any] = ()) -> None:
        self.values: list[Any] = []
        self._at: dict[Hashable, int] = {}
        for value in first:
            self.index(value)

    def index(self, value: Any, known_as: Hashable | None = None) -> int:
        """Its position; ``known_as``: by what it is told from others, where it cannot be hashed itself."""
        at = repr(value) if known_as is None else known_as
        if at not in self._at:
            self._at[at] = len(self.values)
            self.values.append(value)
        return self._at[at]
