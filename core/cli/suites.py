"""`fedbench validate` and `schema`: check suites; JSON schemas of suites and of written files."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import (
    debug_and_quiet,
    examples,
    json_option,
    overrides_option,
    suites_argument,
)
from fedbench.core.cli.output import say, say_json
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import ask_apart, ask_each, plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.component import RegisteredComponent, is_here
from fedbench.core.registry.components import Registry
from fedbench.core.words import explain

if TYPE_CHECKING:
    from fedbench.core.registry.use import ComponentUse
    from fedbench.core.spec.load import LoadedSuite
    from fedbench.core.spec.resolve import Resolved

WRITTEN = ("record", "board", "baseline")
"""files with a schema of their own, each made by an entry point of that name"""


@click.command(
    epilog=examples(
        "fedbench validate my_suite.yaml",
        "fedbench validate suites/*.yaml",
        "fedbench validate partial_defense --set settings.0.federation.rounds=5",
    )
)
@suites_argument
@overrides_option
@click.option(
    "--data/--no-data",
    default=True,
    show_default=True,
    help="Also load the data: partitions, audit sets, whether the model fits. All that `run` would "
    "refuse.",
)
@json_option
@debug_and_quiet
def validate(
    suites: tuple[str, ...],
    overrides: tuple[str, ...],
    data: bool,
    as_json: bool,
) -> None:
    """Check suites without running them.

    SUITE is a file or the name of a shipped suite. It checks the fields of the file, names of
    components and their parameters, coalitions, and then what needs the data, for every setting
    with data on this machine. All mistakes are printed at once, one a line, with the place.
    """
    registry = Registry.discover()
    if data:
        import fedbench.core.run.expand  # noqa: F401 - imported once, not in every process

    def check(suite: str) -> dict[str, Any]:
        return _facts(suite, registry, overrides, data)

    reports = []
    mistakes: list[str] = []
    # in a separate process: plugins may print, hang or leave
    for suite, answer in zip(suites, ask_each(suites, check), strict=True):
        if isinstance(answer.error, UserError):
            reports.append({"suite": suite, "mistakes": list(answer.error.messages)})
            mistakes += answer.error.messages
            continue
        facts = answer.get()
        reports.append(facts | {"mistakes": []})
        if not as_json:
            counts = [
                f"{facts[name]:,} {name[:-1] if facts[name] == 1 else name}"
                for name in ("settings", "defenses", "attacks", "seeds")
            ]
            ok = f"{facts['suite']}: ok: {', '.join(counts)}, up to {facts['most_cells']:,} cells"
            say("; ".join([ok, *facts["notes"]]))
    if as_json:
        say_json(reports)
    if mistakes:
        raise UserError(*mistakes)


def _facts(
    suite: str, registry: Registry, overrides: tuple[str, ...], data: bool
) -> dict[str, Any]:
    """Check a suite; return its facts as JSON values.

    Args:
        data: also make its plan.

    Raises:
        UserError: with every mistake.
    """
    from fedbench.core.run.declarations import misspelt_in
    from fedbench.core.spec.resolve import load_and_check

    loaded, resolved = load_and_check(suite, registry, overrides)
    notes = misspelt_in(resolved)
    if data:
        notes += _plan_notes(loaded, resolved, registry)
    return {
        "suite": str(loaded.path),
        "settings": len(loaded.spec.settings),
        "defenses": len(resolved.defenses),
        "attacks": len(resolved.attacks),
        "seeds": len(loaded.spec.all_seeds),
        "most_cells": loaded.spec.n_cells(len(resolved.floors)),
        "notes": list(dict.fromkeys(notes)),
    }


def _plan_notes(loaded: LoadedSuite, resolved: Resolved, registry: Registry) -> list[str]:
    """Plan the settings with data on this machine, and return notes; nothing is downloaded."""
    from fedbench.core.run.expand import Expansion

    settings = resolved.settings
    present = {setting.spec.name for setting in settings if _is_here(setting.dataset)}
    notes: list[str] = []
    if present:
        notes += Expansion(loaded, resolved, registry, Path(), "cpu").plan(present).notes
    absent = {s.dataset.name: None for s in settings if s.spec.name not in present}
    if absent:
        notes.append(f"data not checked: {', '.join(absent)} not on this machine")
    return notes


def _is_here(dataset: ComponentUse) -> bool:
    party = f"dataset {dataset}"
    return bool(ask_apart(party, [dataset.distribution], lambda: is_here(dataset.load(), party)))


# -- schema ----------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "fedbench schema                              of everything that is installed",
        "fedbench schema --output suite.schema.json   beside your suites; their first line:",
        "  # yaml-language-server: $schema=suite.schema.json",
        "fedbench schema board                        of a board.json that fedbench wrote",
    )
)
@click.argument("file", type=click.Choice(("suite", *WRITTEN)), default="suite")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead."
)
@click.option("--built-in", is_flag=True, help="A suite's without what other packages provide.")
def schema(file: str, output: Path | None, built_in: bool) -> None:
    """Print the JSON schema (draft 2020-12) of suites, with the parameters of every installed
    component, or of a file that fedbench writes.

    An editor that knows it completes names and parameters, shows ranges and defaults, and
    underlines mistakes. It is no substitute for `fedbench validate`, which also knows what fields
    have to do with each other, and the data.
    """
    from fedbench.core.store.files import write_atomically

    if file == "suite":
        text = schema_text(Registry.discover(), built_in)
    else:
        text = written_schema_text(file)
    if output is None:
        say(text.rstrip())
        return
    write_atomically(output.absolute(), text.encode())
    say(f"wrote {output}")


def schema_text(registry: Registry, built_in: bool) -> str:
    """Return the schema as JSON.

    Components with parameters that cannot be described are named on standard error, and not
    checked.
    """
    from fedbench.core.spec.schema import KINDS, suite_schema
    from fedbench.core.spec.suite import SuiteSpec

    described: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for kind in KINDS:
        described[kind] = {}
        components = registry.own(kind) if built_in else registry.components(kind)
        for component, answer in zip(components, ask_each(components, _params), strict=True):
            if answer.error is not None:
                say(f"{answer.error}: any parameters will do", err=True)
            parameters = json.loads(answer.value or "{}")
            described[kind][component.name] = component.component.summary, parameters
    return json.dumps(suite_schema(SuiteSpec, described), indent=1) + "\n"


def written_schema_text(file: str) -> str:
    """Return the schema of a file of :data:`WRITTEN` as JSON."""
    announced = distribution(DISTRIBUTION).entry_points.select(group="fedbench.schemas")
    return json.dumps(announced[file].load()(), indent=1) + "\n"


def _params(registered: RegisteredComponent) -> str:
    """Return the schema of a component's parameters as JSON.

    Raises:
        UserError: naming the component.
    """
    from fedbench.core.spec.schema import schema_of

    params = registered.load().Params
    with at_work(f"{registered}: its Params", plugin_limits()):
        try:
            return json.dumps(schema_of(params))
        except Exception as error:
            raise UserError(f"{registered}: its Params have no schema: {explain(error)}") from error
