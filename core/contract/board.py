"""The blocks that a board is made of, as data that any report can render."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Interval:
    """``mean`` +- ``half_width`` over ``n`` values; ``between``: whether the spread between the
    values was used.

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
    """``n`` of ``of`` seeds have the ``outcome`` (failed, skipped, ...) and no score."""

    outcome: str
    n: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number in a table. ``mean``: None where it does not apply; ``half_width``: of its 95 %
    interval, None or NaN if unknown; ``ends``: of an asymmetric interval, printed instead; ``n``:
    number of values, if other than the section's; ``best``: best of its column; ``suffix``: text
    after the number, e.g. its attack; ``outcomes``: seeds without a score.
    """

    mean: float | None
    half_width: float | None = None
    ends: tuple[float, float] | None = None
    n: int | None = None
    best: bool = False
    suffix: Text = ()
    outcomes: tuple[Shortfall, ...] = ()


def value(found: Interval | None, suffix: Text = ()) -> Value:
    """An interval as a number of a table, without its width where that leaves out the variance of
    training; None: it does not apply.
    """
    if found is None:
        return Value(mean=None)
    if not found.between:
        return Value(mean=found.mean, suffix=suffix)
    return Value(mean=found.mean, half_width=found.half_width, ends=found.ends, suffix=suffix)


Content = Value | Text | None
"""One cell of a table; None: it does not apply."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """``unit``: of the printed number, which is the value times ``scale``; ``direction``: which
    values are better for the defender; ``digits``: decimals; ``signed``: print a plus; ``align``:
    left for text, right for numbers.
    """

    name: Text
    unit: str = ""
    direction: Literal["lower", "higher", "none"] = "none"
    digits: int = 3
    scale: float = 1.0
    signed: bool = False
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, kw_only=True)
class Table:
    """``title`` and, in the same sentence, a ``caption``; rows of one ``Content`` a column;
    ``footnotes`` below. ``empty``: the text that a board shows instead of a table in which no cell
    can hold a number.
    """

    title: str
    caption: Text = ()
    columns: tuple[Column, ...]
    rows: tuple[tuple[Content, ...], ...]
    footnotes: tuple[Text, ...] = ()
    empty: Text = ()


@dataclass(frozen=True)
class Heading:
    """``level`` 1 is the report's title."""

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
    """A figure that is drawn if the report has figures. ``kind``: a word for file names; ``title``:
    what it shows; ``draw``: from a :class:`Style` to a matplotlib figure.
    """

    kind: str
    title: str
    draw: Callable[[Style], Canvas]


@dataclass(frozen=True)
class Image:
    """A drawn figure: ``files`` name -> content, the first is shown; ``alt``: its description."""

    alt: Text
    files: Mapping[str, bytes] = field(hash=False)


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
    """The blocks in their order, with every fold replaced by its blocks."""
    found: list[Block] = []
    for block in blocks:
        found += opened(block.blocks) if isinstance(block, Fold) else [block]
    return found


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
