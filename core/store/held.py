"""Arrays of score files that were read not long ago: the tables of a section ask for the same ones several times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

MOST_BYTES = 32 << 20


class Held:
    """What was read of files, each told by its name and a digest of its content; nobody may change it."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[str, str], tuple[dict[Hashable, Any], int]] = OrderedDict()
        self._bytes = 0

    def of(self, path: str, content: str) -> Mapping[Hashable, Any]:
        """What is kept of this file; {}: nothing."""
        if (at := (path, content)) not in self._of:
            return {}
        self._of.move_to_end(at)
        return self._of[at][0]

    def add(self, path: str, content: str, found: Mapping[Hashable, Any], size: int) -> None:
        """Keep this, too, which has so many bytes; the files that were asked for longest ago go."""
        before, had = self._of.pop((path, content), ({}, 0))
        self._of[path, content] = {**before, **found}, had + size
        self._bytes += size
        while self._bytes > MOST_BYTES and len(self._of) > 1:
            self._bytes -= self._of.popitem(last=False)[1][1]
