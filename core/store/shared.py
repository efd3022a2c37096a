"""What many records have in common (the setting, the machine, the components, the run), checked once and kept once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

_MOST = 1 << 17  # different values; a folder of a hundred thousand records has a tenth of it
T = TypeVar("T")


class Shared:
    """Values by their canonical JSON: the first of many equal ones stands for all of them, and nobody may change it."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}

    def of(self, kind: str, text: str, make: Callable[[], T]) -> T:
        """What ``make()`` gives for this text, made once for each ``kind`` of value. Raises what ``make`` raises."""
        at = hashlib.sha256(f"{kind} {text}".encode()).digest()
        if at not in self._kept:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[at] = make()
        found: T = self._kept[at]
        return found
