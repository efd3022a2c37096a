"""Candidates for shell completion."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from fedbench.core.registry.components import Registry

MARKER = "fedbench.json"  # as in store/results.py, which imports numpy
_MOST = 500  # candidates


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped suites and the YAML files here; the shell's own files where none matches."""
    from fedbench.suites import shipped_suites

    here = (
        (p.name for p in sorted(Path().iterdir()) if p.suffix in (".yaml", ".yml"))
        if "/" not in incomplete
        else ()
    )
    return _beginning(incomplete, [*shipped_suites(), *here]) or [
        CompletionItem(incomplete, type="file")
    ]


def results(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Results folders here and in ``results``; the shell's own folders where none matches."""
    found = [
        p.parent.as_posix()
        for pattern in ("*", "results/*")
        for p in sorted(Path().glob(f"{pattern}/{MARKER}"))
    ]
    return _beginning(incomplete, found) or [CompletionItem(incomplete, type="dir")]


def cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the records in the results folder that was given."""
    given = ctx.params.get("results")
    return (
        _beginning(incomplete, sorted(p.stem for p in Path(given).glob("records/*.json")))
        if given
        else []
    )


def reports(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of reports."""
    return _of_kinds(("report",), incomplete)


def components(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of components of any kind, each with its summary."""
    from fedbench.core.registry.kinds import KINDS

    return _of_kinds(KINDS, incomplete)


def _of_kinds(kinds: Iterable[str], incomplete: str) -> list[CompletionItem]:
    found = {c.name: c.component.summary for kind in kinds for c in _registry().components(kind)}
    return _beginning(incomplete, found, found)


@cache
def _registry() -> Registry:
    from fedbench.core.registry.components import Registry

    return Registry.discover()


def _beginning(
    incomplete: str, names: Iterable[str], helps: dict[str, str] | None = None
) -> list[CompletionItem]:
    matching = [name for name in names if name.startswith(incomplete) and name.isprintable()][
        :_MOST
    ]
    return [CompletionItem(name, help=(helps or {}).get(name)) for name in matching]
