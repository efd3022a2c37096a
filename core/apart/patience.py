"""How long to wait for other people's code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a process. ``cpu_s``: seconds of CPU that it and what it started may use; ``idle_s``: seconds by
    the clock in which it may neither say anything, read or write files, nor use a hundredth of them as CPU. None: for ever."""

    cpu_s: float | None = None
    idle_s: float | None = None
