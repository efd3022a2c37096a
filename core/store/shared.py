"""What many records have in common (the setting, the machine, the components, the run), checked once and kept once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from fedbench.core.store.canonical import canonical
from fedbench.core.store.json_file import plain_values

_MOST = 1 << 17  # different values; a folder of a hundred thousand records has a tenth of it
T = TypeVar("T")


class Part:
    """A value that stands in many files, and what was made of it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._made: dict[str, Any] = {}

    @cached_property
    def text(self) -> str:
        """Its canonical JSON."""
        return canonical(self.value)

    def made(self, kind: str, make: Callable[[Any], T]) -> T:
        """What ``make(value)`` gives, made once for each ``kind``. Raises what ``make`` raises."""
        if kind not in self._made:
            self._made[kind] = make(self.value)
        found: T = self._made[kind]
        return found


class Shared:
    """Values by their JSON: the first of many equal ones stands for all of them, and nobody may change it."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}

    def of(self, kind: str, text: str, make: Callable[[], T]) -> T:
        """What ``make()`` gives for this canonical JSON, made once for each ``kind`` of value. Raises what ``make`` raises."""
        return self._once(hashlib.sha256(f"{kind} {text}".encode()).digest(), make)

    def part(self, given: bytes, known: bool) -> Part:
        """The value of these very bytes. Raises ``ValueError`` for JSON that needs a closer look (``plain_values``)."""
        return self._once(hashlib.sha256(given).digest(), lambda: Part(plain_values([given], known)[0]))

    def _once(self, at: bytes, make: Callable[[], T]) -> T:
        if at not in self._kept:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[at] = make()
        found: T = self._kept[at]
        return found
