"""The analyses that a board draws. They are somebody's code: one that fails costs its own drawing, not the board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.board import Block, Bullets, Figure, Fold, Image, Note, Numbers, Quote, Table, Value, Words
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.ask import long_patience, patience
from fedbench.core.registry.components import Registry
from fedbench.core.words.explain import named
from fedbench.leaderboard.figures.files import image_of
from fedbench.leaderboard.statistics.findings import labels
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.findings import findings_table


@dataclass(frozen=True, kw_only=True)
class Drawer:
    """An analysis under the ``label`` of its findings; ``analysis`` None: it cannot be had, for the ``reason`` given."""

    label: str
    analysis: Analysis | None
    reason: str = ""
    own: bool = False
    """whether it comes with the harness, which knows what its figures are called"""
    who: str = ""
    """name and package"""

    @property
    def tells(self) -> tuple[str, ...]:
        """How the facts end that it shows. Somebody else's analysis leaves out nobody's facts."""
        return self.analysis.tells if self.own and self.analysis is not None else ()

    @property
    def place(self) -> str:
        """Where in a section: beside the attacks or beside the costs."""
        return "attacks" if self.analysis is None else self.analysis.place


def drawers(wanted: Sequence[Any] | None, sections: Sequence[Section]) -> list[Drawer]:
    """The analyses that the results name (a name, or name, label and params); where they name none (None), the built-in
    ones and whatever else left findings in a record."""
    registry = Registry.discover()
    if wanted is None:
        own = [c.name for c in registry.own("analysis")]
        wanted = [*own, *sorted({label for section in sections for label in labels(section)} - set(own))]
    return [_drawer(entry, registry) for entry in wanted]


def _label(entry: Any) -> str:
    return str(entry.get("label") or entry.get("name")) if isinstance(entry, dict) else str(entry)


def _drawer(entry: Any, registry: Registry) -> Drawer:
    name, params = (str(entry.get("name")), entry.get("params") or {}) if isinstance(entry, dict) else (str(entry), {})
    try:
        found = registry.get("analysis", name)
        cls = found.load()
        with at_work(str(found), patience()):
            made = cls(**params)
        return Drawer(label=_label(entry), analysis=made, own=found in registry.own("analysis"), who=str(found))
    except UserError as error:
        return Drawer(label=_label(entry), analysis=None, reason=str(error))
    except BaseException as error:  # somebody's constructor
        pass_on_interrupt(error)
        return Drawer(label=_label(entry), analysis=None, reason=named(error))


def drawn(drawer: Drawer, section: Section, plots: bool) -> list[Block]:
    """Its tables and, with ``plots``, images; the generic table of its findings, and why, where it cannot be drawn."""
    if drawer.analysis is None:
        found = findings_table(section, drawer.label)
        return [_instead(drawer.label, drawer.reason), *found] if found else []
    try:
        with at_work(drawer.who, None if drawer.own else long_patience()):
            return [b for block in drawer.analysis.draw(section, drawer.label) for b in _finished(block, drawer, section, plots)]
    except BaseException as error:  # somebody's code
        pass_on_interrupt(error)
        return [_instead(drawer.label, named(error)), *findings_table(section, drawer.label)]


def _instead(label: str, reason: str) -> Note:
    return Note((Words("The analysis "), label, Words(" could not be drawn, so its bare numbers are shown: "), reason))


def _finished(block: Block, drawer: Drawer, section: Section, plots: bool) -> list[Block]:
    if isinstance(block, Numbers):
        return [*findings_table(section, block.label)]
    if isinstance(block, Figure):
        figure = block if drawer.own else replace(block, kind=f"{drawer.label}-{block.kind}")  # no other figure's file
        return [image_of(figure, section)] if plots else []
    if isinstance(block, Fold):
        _check_text(block.summary)
        return [Fold(block.summary, tuple(b for inner in block.blocks for b in _finished(inner, drawer, section, plots)))]
    if not isinstance(block, get_args(Block)) or isinstance(block, Image):
        raise TypeError(f"it drew a {type(block).__name__}, not a block of a board")
    if isinstance(block, Table):
        _check(block)
    else:
        for text in block.items if isinstance(block, Bullets) else (block.text,):
            _check_text(text)
    return [block]


def _check(table: Table) -> None:
    """``ValueError`` or ``TypeError`` for a table that no report can write."""
    for text in (table.title, table.caption, table.empty, *table.footnotes, *(c.name for c in table.columns)):
        _check_text(text)
    for row in table.rows:
        if len(row) != len(table.columns):
            raise ValueError(f"its table has {len(table.columns)} columns and a row of {len(row)}")
        for content in row:
            if isinstance(content, Value):
                _check_value(content)
            elif content is not None:
                _check_text(content)


def _check_value(value: Value) -> None:
    for number in (value.mean, value.half_width, value.n):
        if number is not None and not isinstance(number, int | float):
            raise TypeError(f"its table holds a Value of {type(number).__name__}; use a number or None")
    _check_text(value.suffix)


def _check_text(text: object) -> None:
    """A ``Text``: ``str``, Words, Quote, or a flat tuple of these."""
    for part in text if isinstance(text, tuple) else (text,):
        if not isinstance(part.text if isinstance(part, Words | Quote) else part, str):
            raise TypeError(f"it wrote a {type(part).__name__}; use a Value, Words or a str")


def images_last(blocks: Sequence[Block]) -> tuple[list[Block], list[Image]]:
    """(everything else, images)."""
    return [b for b in blocks if not isinstance(b, Image)], [b for b in blocks if isinstance(b, Image)]
