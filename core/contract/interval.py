"""A mean over runs and how sure it is; ``fedbench.core.metrics`` makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """``mean`` +- ``half_width`` over ``n`` values; ``between``: whether the spread between the values was used."""

    mean: float
    half_width: float
    n: int
    between: bool

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width
