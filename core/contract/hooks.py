"""Hooks announce components; classes do the work. Nothing here imports torch, so `fedbench list`
stays quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pluggy

PROJECT = "fedbench"  # what is imported and typed, and the group of entry points
# what pip installs: `fedbench` on the package index is another project's
DISTRIBUTION = "fedbench-privacy"
CONTRACT_VERSION = 5  # raised when a plugin written for an older contract could give another answer

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Component:
    """An announcement: what a plugin provides and where its class lives.

    ``name`` is kebab-case and unique over all installed packages; ``target`` is
    ``"package.module:Class"``; ``summary`` is one line; ``paper`` is a short citation (authors,
    venue, year), empty where there is none. ``floor``: a defense that every board has as a row
    without being named; of the built-in ones alone.
    """

    name: str
    target: str
    summary: str
    paper: str = ""
    floor: bool = False


class Hooks:
    """What an entry point of the group ``fedbench`` may implement; each hook yields
    :class:`Component` records.
    """

    @hookspec
    def fedbench_defenses(self) -> Iterable[Component]:
        """Yield the defenses this package provides."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_attacks(self) -> Iterable[Component]:
        """Yield the attacks this package provides."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_datasets(self) -> Iterable[Component]:
        """Yield the datasets this package provides."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_models(self) -> Iterable[Component]:
        """Yield the model architectures this package provides."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_signals(self) -> Iterable[Component]:
        """Yield the per-sample signals this package can measure."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_analyses(self) -> Iterable[Component]:
        """Yield the analyses of finished runs this package provides."""
        raise AssertionError("a hook specification is never called")

    @hookspec
    def fedbench_reports(self) -> Iterable[Component]:
        """Yield the reports this package can make of a results folder."""
        raise AssertionError("a hook specification is never called")
