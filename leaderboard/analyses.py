"""Tables and figures that analyses make of a section. An analysis that fails to draw is replaced by
a table of its findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
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
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.attacks import analyses_with_findings, findings_table


@dataclass(frozen=True, kw_only=True)
class Drawer:
    """An analysis under the label of its findings."""

    label: str
    analysis: Analysis | None
    """None: it cannot be had"""
    reason: str = ""
    """why it cannot be had"""
    builtin: bool = False
    """whether it is part of fedbench"""
    source: str = ""
    """name and package"""

    @property
    def place(self) -> str:
        """Where in a section it belongs: with the attacks or with the costs."""
        if self.analysis is None:
            return "attacks"
        return self.analysis.place

    def at_work(self) -> AbstractContextManager[None]:
        """Limit what another package's code may take."""
        return at_work(self.source, None if self.builtin else long_plugin_limits())


def drawers(wanted: Sequence[Any] | None, sections: Sequence[BoardSection]) -> list[Drawer]:
    """Return the analyses that the results name (a name, or name, label and params); where they
    name none (None), the built-in ones and every other one with findings in a record.
    """
    registry = Registry.discover()
    builtin = [component.name for component in registry.own("analysis")]
    if wanted is None:
        with_findings = set[str]().union(*map(analyses_with_findings, sections))
        wanted = [*builtin, *sorted(with_findings - set(builtin))]
    entries = [entry if isinstance(entry, dict) else {"name": str(entry)} for entry in wanted]
    names = {entry.get("name") for entry in entries}
    rest = [_drawer({"name": name}, registry) for name in builtin if name not in names]
    every_board = [d for d in rest if d.analysis is not None and d.analysis.every_board]
    return [*(_drawer(entry, registry) for entry in entries), *every_board]


def _drawer(entry: dict[str, Any], registry: Registry) -> Drawer:
    name = str(entry.get("name"))
    label = str(entry.get("label") or name)
    try:
        component = registry.get("analysis", name)
        cls = component.load()
        with at_work(str(component), plugin_limits()):
            analysis = cls(**(entry.get("params") or {}))
    except BaseException as error:  # the constructor of another package may raise anything
        pass_on_interrupt(error)
        reason = str(error) if isinstance(error, UserError) else error_text(error)
        return Drawer(label=label, analysis=None, reason=reason)
    builtin = component in registry.own("analysis")
    return Drawer(label=label, analysis=analysis, builtin=builtin, source=str(component))


def drawn(drawer: Drawer, section: BoardSection, plots: bool) -> list[Block]:
    """Return its tables and, with ``plots``, images; the generic table of its findings, and why,
    where it cannot be drawn.
    """
    reason = drawer.reason
    if drawer.analysis is not None:
        try:
            with drawer.at_work():
                blocks = drawer.analysis.draw(section, drawer.label)
                return _finished(blocks, drawer, section, plots)
        except BaseException as error:  # the code of another package may raise anything
            pass_on_interrupt(error)
            reason = error_text(error)
    findings = findings_table(section, drawer.label)
    if drawer.analysis is None and not findings:
        return []
    failed = Words(" could not be drawn, so its bare numbers are shown: ")
    return [Note((Words("The analysis "), drawer.label, failed, reason)), *findings]


def drawn_on_board(
    drawer: Drawer,
    sections: Sequence[BoardSection],
    published: Sequence[dict[str, Any]],
    plots: bool,
) -> list[Block]:
    """Return the analysis's blocks about the whole board, with ``plots`` its figures, too; or a
    note of why there are none.
    """
    if drawer.analysis is None:
        return []
    try:
        with drawer.at_work():
            blocks = drawer.analysis.draw_board(sections, published)
            return _finished(blocks, drawer, None, plots)
    except BaseException as error:  # the code of another package may raise anything
        pass_on_interrupt(error)
        failed = Words(" could not be drawn for the board: ")
        return [Note((Words("The analysis "), drawer.label, failed, error_text(error)))]


def _finished(
    blocks: Iterable[Block], drawer: Drawer, section: BoardSection | None, plots: bool
) -> list[Block]:
    """Replace numbers of a section by tables and figures by images.

    Raises:
        TypeError, ValueError: for what a board cannot show.
    """
    finished: list[Block] = []
    for block in blocks:
        if isinstance(block, Numbers) and section is not None:
            finished += findings_table(section, block.label)
        elif isinstance(block, Figure):
            if not drawer.builtin:  # no other figure's file
                block = replace(block, kind=f"{drawer.label}-{block.kind}")
            if plots:
                finished.append(image_of(block, section))
        elif isinstance(block, Fold):
            inner = _finished(block.blocks, drawer, section, plots)
            finished.append(Fold(block.summary, tuple(inner)))
        elif isinstance(block, Image):
            raise TypeError("it drew an Image, not a Figure")
        else:
            paragraphs(block)
            finished.append(block)
    return finished
