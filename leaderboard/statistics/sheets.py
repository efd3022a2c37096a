"""The scores that contests hold in memory: so many at a time, whatever the number of sections."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from fedbench.leaderboard.statistics.sheet import Part

MOST_BYTES = 100 << 20
_held: deque[tuple[weakref.ref[Any], int]] = deque()


def kept(contest: Any, parts: list[Part]) -> list[Part]:
    """The parts, which the contest may keep until newer ones need the room: then it loses its attribute ``parts``."""
    _held.append((weakref.ref(contest), size_of(parts)))
    while len(_held) > 1 and sum(size for _, size in _held) > MOST_BYTES:
        oldest = _held.popleft()[0]()
        if oldest is not None:
            oldest.__dict__.pop("parts", None)
    return parts


def size_of(parts: Sequence[Part]) -> int:
    """Bytes of their arrays, and of the scores once more: they may be brought to one scale."""
    found = 0
    for part in parts:
        arrays = [part.aucs, part.covariance, part.pulls, part.ids]
        arrays += 2 * [a for own in part.own.values() for a in (own.sample.member, own.sample.nonmember)]
        found += sum(a.nbytes for a in arrays)
    return found
