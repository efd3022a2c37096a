"""Numbers of a board as its tables print them."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.leaderboard.site.fields import Interval


@dataclass(frozen=True)
class Shown:
    """A number with its ``interval``, "" where that is not known."""

    mean: str
    interval: str


@dataclass(frozen=True)
class As:
    """How a column prints: the value times ``scale``, so many ``digits``, its ``unit``, with a plus where ``signed``."""

    scale: float = 1
    digits: int = 3
    unit: str = ""
    signed: bool = False


AS = {
    "worst": As(), "mean": As(), "tf01": As(digits=2, unit=" %"), "delta": As(scale=100, digits=2, unit=" pp", signed=True),
    "accuracy": As(scale=100, digits=1, unit=" %"), "contribution": As(scale=100, digits=2, unit=" pp", signed=True),
    "runtime": As(digits=2, unit="×"),  # noqa: RUF001
}  # fmt: skip


def shown(found: Interval, how: As) -> Shown | None:
    """None: it cannot be said."""
    if found is None:
        return None
    mean, low, high = found
    ends = "" if low is None or high is None else f"[{written(low, how)}, {written(high, how)}]"
    return Shown(written(mean, how) + how.unit, ends)


def written(value: float, how: As) -> str:
    """With a true minus sign, and none before a zero."""
    rounded = round(value * how.scale, how.digits) + 0.0
    text = f"{rounded:+.{how.digits}f}" if how.signed and rounded > 0 else f"{rounded:.{how.digits}f}"
    return text.replace("-", "\u2212")
