"""`fedbench validate` and `schema`: check suites, and their JSON schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import (
    ONLY,
    debug_and_quiet,
    examples,
    json_option,
    overrides_option,
    parse_only,
    suites_argument,
)
from fedbench.core.cli.output import say, say_json
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import Ended, ask_apart, plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.component import is_here
from fedbench.core.words import explain

if TYPE_CHECKING:
    from fedbench.core.registry.components import RegisteredComponent, Registry
    from fedbench.core.registry.use import ComponentUse
    from fedbench.core.spec.load import LoadedSuite
    from fedbench.core.spec.resolve import Resolved, ResolvedSetting


@click.command(
    epilog=examples(
        "fedbench validate my_suite.yaml",
        "fedbench validate suites/*.yaml",
        "fedbench validate partial_defense --set settings.0.federation.rounds=5",
        "fedbench validate papers/fedmia_table1 --only setting=cifar100-alexnet",
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
@click.option(
    "--only",
    multiple=True,
    metavar="KIND=NAME,...",
    help="Load no data but that of settings with such a part, as `fedbench run --only` would: "
    f"{', '.join(ONLY)}.",
)
@json_option
@debug_and_quiet
def validate(
    suites: tuple[str, ...],
    overrides: tuple[str, ...],
    data: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check suites without running them.

    SUITE is a file or the name of a shipped suite. It checks the fields of the file, names of
    components and their parameters, coalitions, and then what needs the data, for every setting
    with data on this machine. All mistakes are printed at once, one a line, with the place.
    """
    from fedbench.core.process.ask import ask_each
    from fedbench.core.registry.components import Registry

    parts = parse_only(only)
    registry = Registry.discover()
    if data:
        import fedbench.core.run.expand  # noqa: F401 - imported once, not in every process
    found: list[dict[str, Any]] = []
    # In a process of their own: plugins may print, hang or leave, and only what they were asked for
    # comes back.
    answers = ask_each(suites, lambda suite: _facts(suite, registry, overrides, data, parts))
    for suite, answer in zip(suites, answers, strict=True):
        try:
            found.append(answer.get() | {"mistakes": []})
            if not as_json:
                say(_line(found[-1]))
        except Ended as exc:
            mine = [m if m.startswith(f"{suite}:") else f"{suite}: {m}" for m in exc.messages]
            found.append({"suite": suite, "mistakes": mine})
        except UserError as exc:
            found.append({"suite": suite, "mistakes": list(exc.messages)})
    if as_json:
        say_json(found)
    if mistakes := [mistake for one in found for mistake in one["mistakes"]]:
        raise UserError(*mistakes)


def _facts(
    suite: str,
    registry: Registry,
    overrides: tuple[str, ...],
    data: bool,
    only: Mapping[str, set[str]],
) -> dict[str, Any]:
    """What is known of a suite without a mistake, as JSON values."""
    loaded, resolved, notes = check(suite, registry, overrides, data, only)
    return {
        "suite": str(loaded.path),
        "settings": len(loaded.spec.settings),
        "defenses": len(resolved.defenses),
        "attacks": len(resolved.attacks),
        "seeds": len(loaded.spec.all_seeds),
        "most_cells": loaded.spec.n_cells(len(resolved.floors)),
        "notes": [*_groups(resolved), *notes],
    }


_COUNTED = ("settings", "defenses", "attacks", "seeds")


def _line(facts: Mapping[str, Any]) -> str:
    """What is printed of a suite without a mistake."""
    counts = [f"{facts[what]:,} {what[:-1] if facts[what] == 1 else what}" for what in _COUNTED]
    return "; ".join(
        [
            f"{facts['suite']}: ok: {', '.join(counts)}, up to {facts['most_cells']:,} cells",
            *facts["notes"],
        ]
    )


def check(
    suite: str,
    registry: Registry,
    overrides: tuple[str, ...] = (),
    data: bool = True,
    only: Mapping[str, set[str]] | None = None,
) -> tuple[LoadedSuite, Resolved, list[str]]:
    """The suite, its components, and notes on its data; raises ``UserError`` with every mistake,
    with ``data`` those of the plan too, of the settings in which something of ``only`` (kind ->
    names) runs.
    """
    from fedbench.core.run.declarations import misspelt_in
    from fedbench.core.spec.resolve import load_and_check

    loaded, resolved = load_and_check(suite, registry, overrides)
    mistakes: list[str] = []
    notes = misspelt_in(resolved)
    if data:
        from fedbench.core.run.expand import make_plan
        from fedbench.core.run.plan import settings_of_parts

        asked = settings_of_parts(resolved, only or {})
        settings = [s for s in resolved.settings if asked is None or s.spec.name in asked]
        absent = _absent(loaded, settings)
        here = {s.spec.name for s in settings if s.dataset.name not in absent}
        try:
            notes += (
                make_plan(loaded, resolved, registry, Path(), "cpu", here).notes if here else []
            )
        except UserError as exc:
            mistakes += exc.messages
        notes += [f"data not checked: {', '.join(absent)} not on this machine"] if absent else []
    if mistakes:
        raise UserError(*mistakes)
    return loaded, resolved, list(dict.fromkeys(notes))


def _absent(loaded: LoadedSuite, settings: Iterable[ResolvedSetting]) -> list[str]:
    """The settings' datasets that are not on this machine: validating downloads nothing."""
    uses = {s.dataset.name: s.dataset for s in settings}
    try:
        return [name for name, use in uses.items() if _is_here(use) is False]
    except UserError as exc:
        raise UserError(*(f"{loaded.path}: {message}" for message in exc.messages)) from exc


def _is_here(use: ComponentUse) -> bool | str:
    party = f"dataset {use}"
    answer: bool | str = ask_apart(party, [use.distribution], lambda: is_here(use.load(), party))
    return answer


def _groups(resolved: Resolved) -> Iterable[str]:
    """The members of each group, of coalitions with several groups."""
    from fedbench.core.spec.setting import groups_of

    several = (
        coalition
        for setting in resolved.settings
        for coalition in setting.coalitions
        if coalition.groups
    )
    return dict.fromkeys(
        f"coalition '{c.name}': {' and '.join(str(list(group)) for group in groups_of(c))}"
        for c in several
    )


# -- schema ----------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "fedbench schema                              of everything that is installed",
        "fedbench schema --output suite.schema.json   beside your suites; their first line:",
        "  # yaml-language-server: $schema=suite.schema.json",
    )
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead."
)
@click.option("--built-in", is_flag=True, help="Without what other packages provide.")
def schema(output: Path | None, built_in: bool) -> None:
    """Print the JSON schema (draft 2020-12) of suites, with the parameters of every installed
    component.

    An editor that knows it completes names and parameters, shows ranges and defaults, and
    underlines mistakes. It is no substitute for `fedbench validate`, which also knows what fields
    have to do with each other, and the data.
    """
    from fedbench.core.registry.components import Registry
    from fedbench.core.store.files import write_atomically

    text = schema_text(Registry.discover(), built_in)
    if output is None:
        say(text.rstrip())
        return
    write_atomically(output.absolute(), text.encode())
    say(f"wrote {output}")


def schema_text(registry: Registry, built_in: bool) -> str:
    """The schema as JSON. Components with parameters that cannot be described are named on stderr,
    and not checked.
    """
    from fedbench.core.process.ask import ask_each
    from fedbench.core.spec.schema import KINDS, suite_schema
    from fedbench.core.spec.suite import SuiteSpec

    described: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {kind: {} for kind in KINDS}
    wanted = [
        c
        for kind in KINDS
        for c in registry.components(kind)
        if c.distribution == DISTRIBUTION or not built_in
    ]
    for found, answer in zip(wanted, ask_each(wanted, _params), strict=True):
        if answer.error is not None:
            say(f"{answer.error}: any parameters will do", err=True)
        described[found.kind][found.name] = (
            found.component.summary,
            json.loads(answer.value or "{}"),
        )
    return json.dumps(suite_schema(SuiteSpec, described), indent=1) + "\n"


def _params(found: RegisteredComponent) -> str:
    """The schema of a component's parameters as JSON. Raises ``UserError`` that names it."""
    from fedbench.core.spec.schema import schema_of

    params = found.load().Params
    with at_work(f"{found}: its Params", plugin_limits()):
        try:
            return json.dumps(schema_of(params))
        except Exception as error:
            raise UserError(f"{found}: its Params have no schema: {explain(error)}") from error
