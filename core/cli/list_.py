"""fedbench list: what there is to benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import examples, json_option
from fedbench.core.cli.say import say
from fedbench.core.cli.table import show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.kinds import PLURAL

if TYPE_CHECKING:
    from fedbench.core.registry.components import RegisteredComponent, Registry

_KINDS = {plural: kind for kind, plural in PLURAL.items()}
_PARAM_COLUMNS = ("name", "type", "default", "range", "description")


@click.command(epilog=examples(
    "fedbench list",
    "fedbench list defenses --params",
    "fedbench list suites",
    "fedbench list attacks --json",
))  # fmt: skip
@click.argument("what", required=False, type=click.Choice([*_KINDS, "suites"]))
@click.option("--params", is_flag=True, help="Also their parameters; this imports them.")
@json_option
def command(what: str | None, params: bool, as_json: bool) -> None:
    """List the installed defenses, attacks, analyses, datasets, models, signals and reports, and the shipped suites."""
    if what == "suites" and params:
        raise click.UsageError("suites have no parameters: leave out --params")
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    sections = [what] if what else [*_KINDS, *([] if params else ["suites"])]
    if as_json:
        found = {name: list(_entries(registry, name, params, what == "datasets")) for name in sections}
        say(json.dumps(found, indent=2, default=str))
        return
    for i, name in enumerate(sections):
        if i:
            say("")
        _show(name, list(_entries(registry, name, params, what == "datasets")), params, title=name if len(sections) > 1 else "")
    if registry.broken:
        say(f"{len(registry.broken)} broken plugin(s): see `fedbench plugins`", err=True)


def _entries(registry: Registry, section: str, params: bool, facts: bool) -> Iterator[dict[str, Any]]:
    """One entry a component; ``facts``: also what only the class of a dataset knows, which imports it."""
    if section == "suites":
        yield from _suites()
        return
    for found in registry.components(_KINDS[section]):
        component = found.component
        entry: dict[str, Any] = {
            "name": component.name, "summary": component.summary, "paper": component.paper,
            "package": found.distribution, "version": found.version, "target": component.target,
        }  # fmt: skip
        entry |= _facts(found) if facts else {}
        yield entry | (_params(found) if params else {})


def _facts(found: RegisteredComponent) -> dict[str, Any]:
    """Licence, source and size of a dataset, and whether it is on this machine; why not, where it cannot be imported."""
    try:
        dataset = found.load()
        here = dataset.here()
    except Exception as exc:  # somebody's code: a list must not break on it
        return {"licence": "?", "citation": "", "home": "", "size_mb": None, "here": False, "error": str(exc)}
    return {
        "licence": dataset.licence, "citation": dataset.citation, "home": dataset.home, "size_mb": dataset.size_mb, "here": here,
    }  # fmt: skip


def _params(found: RegisteredComponent) -> dict[str, Any]:
    """The rows of a component's parameters, or why it cannot be imported."""
    from fedbench.core.spec import schema

    try:
        fields = schema.fields(found.load().Params)
    except UserError as exc:
        return {"params": [], "error": str(exc)}
    rows: list[tuple[str, ...]] = [
        (name, schema.short_type(f.annotation), schema.default_words(f), schema.range_words(f), f.description or "")
        for name, f in fields.items()
    ]
    return {"params": [dict(zip(_PARAM_COLUMNS, row, strict=True)) for row in rows]}


def _suites() -> Iterator[dict[str, Any]]:
    from fedbench.core.registry.components import Registry
    from fedbench.core.spec.load import load_suite, shipped_suites

    floors = len(Registry.discover().floors())
    for name, path in shipped_suites().items():
        try:
            spec = load_suite(path).spec
            cells = spec.n_cells(floors if spec.floors is None else len(spec.floors))
            yield {"name": name, "title": spec.title, "cells": cells, "path": str(path)}
        except UserError as exc:
            yield {"name": name, "title": "", "cells": None, "path": str(path), "error": exc.messages[0]}


def _show(section: str, entries: list[dict[str, Any]], params: bool, title: str) -> None:
    if section == "suites":
        suites = [(e["name"], "?" if e["cells"] is None else e["cells"], e.get("error", e["title"])) for e in entries]
        show_table(("suite", "cells (at most)", "title"), suites, title)
    elif params:
        show_table((_KINDS[section], *_PARAM_COLUMNS), _param_rows(entries), title)
    elif entries and "licence" in entries[0]:
        columns = ("dataset", "summary", "licence", "download", "here", "citation")
        show_table(columns, [(e["name"], e["summary"], e["licence"], _size(e), _here(e), e["citation"]) for e in entries], title)
    else:
        rows = [(e["name"], e["summary"], e["paper"], f"{e['package']} {e['version']}") for e in entries]
        show_table((_KINDS[section], "summary", "paper", "package"), rows, title)


def _size(entry: dict[str, Any]) -> str:
    size = entry["size_mb"]
    return "yours" if size is None else "-" if size == 0 else f"{size:,.0f} MB"


def _here(entry: dict[str, Any]) -> str:
    here = entry["here"]
    return here if isinstance(here, str) else "yes" if here else "no"


def _param_rows(entries: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        for row in entry["params"]:
            yield (entry["name"], *(row[column] for column in _PARAM_COLUMNS))
        if not entry["params"]:
            yield (entry["name"], "-", "", "", "", entry.get("error", "no parameters"))
