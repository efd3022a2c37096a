"""A mean over runs and how sure it is; ``fedbench.core.metrics`` makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """``mean`` +- ``half_width`` over ``n`` values; ``between``: whether the spread between the values was used.

    ``ends``: (low, high) of one that is not symmetric; ``half_width`` is then half of its length.
    """

    mean: float
    half_width: float
    n: int
    between: bool
    ends: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        """Lower end."""
        return self.ends[0] if self.ends else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.ends[1] if self.ends else self.mean + self.half_width
