"""Blocks of a board, as data that any report can render."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Interval:
    """Interval ``mean`` +- ``half_width`` over ``n`` values."""

    mean: float
    half_width: float
    n: int
    between: bool
    """whether the spread between the values was used"""
    ends: tuple[float, float] | None = None
    """(low, high) of one that is not symmetric; ``half_width`` is then half of its length"""

    @property
    def low(self) -> float:
        """Lower end."""
        return self.ends[0] if self.ends else self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.ends[1] if self.ends else self.mean + self.half_width


# ---------------------------------------------------------------- text


TextStyle = Literal["plain", "strong", "code"]


@dataclass(frozen=True)
class Words:
    """Text of the program, written unescaped; never text from a record."""

    text: str
    style: TextStyle = "plain"


@dataclass(frozen=True)
class Quote:
    """Text from a record or a plugin: one line, cut at ``limit`` characters, escaped for the
    report's format.
    """

    text: str
    limit: int = 200
    style: TextStyle = "plain"


Part = str | Words | Quote
Text = Part | tuple[Part, ...]
"""A plain ``str`` is a ``Quote``: it is escaped."""


# ---------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Shortfall:
    """Seeds without a score: ``n`` of ``of`` have the ``outcome`` (failed, skipped, ...)."""

    outcome: str
    n: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number in a table."""

    mean: float | None
    """None where it does not apply"""
    half_width: float | None = None
    """of its 95 % interval, None or NaN if unknown"""
    ends: tuple[float, float] | None = None
    """of an asymmetric interval, printed instead"""
    n: int | None = None
    """number of values, if other than the section's"""
    best: bool = False
    """best of its column"""
    suffix: Text = ()
    """text after the number, e.g. its attack"""
    outcomes: tuple[Shortfall, ...] = ()
    """seeds without a score"""


def value(interval: Interval | None, suffix: Text = ()) -> Value:
    """Convert an interval to a number of a table, without its width where that leaves out the
    variance of training; None: it does not apply.
    """
    if interval is None:
        return Value(mean=None)
    number = Value(mean=interval.mean, suffix=suffix)
    if not interval.between:
        return number
    return replace(number, half_width=interval.half_width, ends=interval.ends)


Content = Value | Text | None
"""Cell of a table; None: it does not apply."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; the printed number is the value times ``scale``."""

    name: Text
    unit: str = ""
    direction: Literal["lower", "higher", "none"] = "none"
    """which values are better for the defender"""
    digits: int = 3
    """decimals"""
    scale: float = 1.0
    signed: bool = False
    """print a plus"""
    align: Literal["left", "right"] = "right"
    """left for text, right for numbers"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with footnotes below."""

    title: str
    caption: Text = ()
    """in the same sentence as the title"""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Content, ...], ...]
    """one ``Content`` a column"""
    footnotes: tuple[Text, ...] = ()
    empty: Text = ()
    """text that a board shows instead of a table in which no cell can hold a number"""


@dataclass(frozen=True)
class Heading:
    """A heading; ``level`` 1 is the report's title."""

    level: int
    text: Text


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: Text


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: tuple[Text, ...]


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn if the report has figures."""

    kind: str
    """word for file names"""
    title: str
    draw: Callable[[Style], Canvas]
    """to a matplotlib figure"""


@dataclass(frozen=True)
class Image:
    """A drawn figure."""

    alt: Text
    """description"""
    files: Mapping[str, bytes] = field(hash=False)
    """name -> content, the first is shown"""


@dataclass(frozen=True)
class Numbers:
    """Placeholder for the generic table of the findings under ``label``: a row a defense, a column
    a number.
    """

    label: str


@dataclass(frozen=True)
class Fold:
    """Collapsible ``blocks`` under a ``summary`` of one line. A report that cannot fold writes both
    one after the other.
    """

    summary: Text
    blocks: tuple[Block, ...]


Block = Heading | Note | Bullets | Table | Figure | Image | Numbers | Fold


def opened(blocks: Iterable[Block]) -> list[Block]:
    """Blocks in their order, with every fold replaced by its blocks."""
    flat: list[Block] = []
    for block in blocks:
        flat += opened(block.blocks) if isinstance(block, Fold) else [block]
    return flat


class Style(Protocol):
    """Colours, dashes and markers of a board's figures; the i-th defense has the same in all of
    them.
    """

    def colour(self, i: int) -> str:
        """Distinguishable with common colour blindness."""

    def dashes(self, i: int) -> Any:
        """A matplotlib line style."""

    def marker(self, i: int) -> str:
        """A matplotlib marker."""

    def literal(self, text: str, limit: int = 40) -> str:
        """Text that matplotlib draws literally; for text from a record."""

    def new_figure(self, width: float, height: float) -> Canvas:
        """An empty figure of this size in inches."""
