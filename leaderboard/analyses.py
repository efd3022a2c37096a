"""Tables and figures that analyses make of a section. An analysis that fails to draw is replaced by
a table of its findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.board import Block, Figure, Fold, Image, Note, Numbers, Words
from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import long_plugin_limits, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.components import Registry
from fedbench.core.words import error_text
from fedbench.leaderboard.figures import image_of
from fedbench.leaderboard.markdown import paragraphs
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.attacks import analyses_with_findings, findings_table


@dataclass(frozen=True, kw_only=True)
class Drawer:
    """An analysis under the ``label`` of its findings; ``analysis`` None: it cannot be had, for the
    ``reason`` given. ``own``: it is part of fedbench; ``source``: its name and package.
    """

    label: str
    analysis: Analysis | None
    reason: str = ""
    own: bool = False
    source: str = ""

    @property
    def tells(self) -> tuple[str, ...]:
        """Ends of the names of facts that it shows. Analyses of other packages leave out no
        facts.
        """
        return self.analysis.tells if self.own and self.analysis is not None else ()

    @property
    def place(self) -> str:
        """Where in a section: with the attacks or with the costs."""
        return "attacks" if self.analysis is None else self.analysis.place


def drawers(wanted: Sequence[Any] | None, sections: Sequence[Section]) -> list[Drawer]:
    """The analyses that the results name (a name, or name, label and params); where they name none
    (None), the built-in ones and every other one with findings in a record.
    """
    registry = Registry.discover()
    own = [c.name for c in registry.own("analysis")]
    if wanted is None:
        with_findings = {label for s in sections for label in analyses_with_findings(s)}
        wanted = [*own, *sorted(with_findings - set(own))]
    entries = [entry if isinstance(entry, dict) else {"name": str(entry)} for entry in wanted]
    named = {entry.get("name") for entry in entries}
    others = [_drawer({"name": name}, registry) for name in own if name not in named]
    every_board = [d for d in others if d.analysis is not None and d.analysis.every_board]
    return [*(_drawer(entry, registry) for entry in entries), *every_board]


def _drawer(entry: dict[str, Any], registry: Registry) -> Drawer:
    name = str(entry.get("name"))
    label = str(entry.get("label") or name)
    try:
        found = registry.get("analysis", name)
        cls = found.load()
        with at_work(str(found), plugin_limits()):
            made = cls(**(entry.get("params") or {}))
        return Drawer(
            label=label, analysis=made, own=found in registry.own("analysis"), source=str(found)
        )
    except BaseException as error:  # the constructor of another package may raise anything
        pass_on_interrupt(error)
        return Drawer(
            label=label,
            analysis=None,
            reason=str(error) if isinstance(error, UserError) else error_text(error),
        )


def drawn(drawer: Drawer, section: Section, plots: bool) -> list[Block]:
    """Its tables and, with ``plots``, images; the generic table of its findings, and why, where it
    cannot be drawn.
    """
    found, reason = findings_table(section, drawer.label), drawer.reason
    if drawer.analysis is not None:
        try:
            with at_work(drawer.source, None if drawer.own else long_plugin_limits()):
                blocks = drawer.analysis.draw(section, drawer.label)
                return [b for block in blocks for b in _finished(block, drawer, section, plots)]
        except BaseException as error:  # the code of another package may raise anything
            pass_on_interrupt(error)
            reason = error_text(error)
    elif not found:
        return []
    why = (
        Words("The analysis "),
        drawer.label,
        Words(" could not be drawn, so its bare numbers are shown: "),
        reason,
    )
    return [Note(why), *found]


def drawn_on_board(
    drawer: Drawer, sections: Sequence[Section], published: Sequence[dict[str, Any]]
) -> list[Block]:
    """The analysis's blocks about the whole board, or a note of why there are none."""
    if drawer.analysis is None:
        return []
    try:
        with at_work(drawer.source, None if drawer.own else long_plugin_limits()):
            blocks = list(drawer.analysis.draw_board(sections, published))
            for block in blocks:
                paragraphs(block)
            return blocks
    except BaseException as error:  # the code of another package may raise anything
        pass_on_interrupt(error)
        failed = Words(" could not be drawn for the board: ")
        return [Note((Words("The analysis "), drawer.label, failed, error_text(error)))]


def _finished(block: Block, drawer: Drawer, section: Section, plots: bool) -> list[Block]:
    """Raises TypeError or ValueError for what a board cannot show."""
    if isinstance(block, Numbers):
        return [*findings_table(section, block.label)]
    if isinstance(block, Figure):
        # no other figure's file
        figure = block if drawer.own else replace(block, kind=f"{drawer.label}-{block.kind}")
        return [image_of(figure, section)] if plots else []
    if isinstance(block, Fold):
        return [
            Fold(
                block.summary,
                tuple(
                    b for inner in block.blocks for b in _finished(inner, drawer, section, plots)
                ),
            )
        ]
    if isinstance(block, Image):
        raise TypeError("it drew an Image, not a Figure")
    paragraphs(block)
    return [block]
