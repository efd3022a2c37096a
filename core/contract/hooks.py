"""Hooks announce components; classes do the work. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pluggy

from fedbench.core.contract.events import Event

PROJECT = "fedbench"  # what is imported and typed, and the group of entry points
# what pip installs: `fedbench` on the package index is another project's
DISTRIBUTION = "fedbench-privacy"
CONTRACT_VERSION = 5  # raised when a plugin written for an older contract could give another answer

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Component:
    """Announcement of a component and of where its class lives."""

    name: str
    """kebab-case, unique over all installed packages"""
    target: str
    """``"package.module:Class"``"""
    summary: str
    """one line"""
    paper: str = ""
    """short citation (authors, venue, year)"""
    floor: bool = False
    """built-in defense that every board has as a row without being named"""


class Hooks(Protocol):
    """Hooks of an entry point of the group ``fedbench``: those that announce yield
    :class:`Component` records.
    """

    @hookspec
    def fedbench_defenses(self) -> Iterable[Component]:
        """Yield the defenses this package provides."""

    @hookspec
    def fedbench_attacks(self) -> Iterable[Component]:
        """Yield the attacks this package provides."""

    @hookspec
    def fedbench_datasets(self) -> Iterable[Component]:
        """Yield the datasets this package provides."""

    @hookspec
    def fedbench_models(self) -> Iterable[Component]:
        """Yield the model architectures this package provides."""

    @hookspec
    def fedbench_signals(self) -> Iterable[Component]:
        """Yield the per-sample signals this package can measure."""

    @hookspec
    def fedbench_analyses(self) -> Iterable[Component]:
        """Yield the analyses of finished runs this package provides."""

    @hookspec
    def fedbench_reports(self) -> Iterable[Component]:
        """Yield the reports this package can make of a results folder."""

    @hookspec
    def fedbench_events(self, event: Event) -> None:
        """Take an event of `fedbench run`: of a run, a round, a cell or a board."""
