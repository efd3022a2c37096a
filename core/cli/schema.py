"""fedbench schema: the form of a suite, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbench.core.apart.channel import at_work
from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.words.explain import explain

if TYPE_CHECKING:
    from fedbench.core.registry.components import RegisteredComponent, Registry


@click.command(epilog=examples(
    "fedbench schema                              of everything that is installed",
    "fedbench schema --output suite.schema.json   beside your suites; their first line:",
    "  # yaml-language-server: $schema=suite.schema.json",
))  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead.")
@click.option("--built-in", is_flag=True, help="Without what other packages provide.")
def command(output: Path | None, built_in: bool) -> None:
    """Print the JSON schema (draft 2020-12) of suites, with the parameters of every installed component.

    An editor that knows it completes names and parameters, shows ranges and defaults, and underlines mistakes. It is no
    substitute for `fedbench validate`, which also knows what fields have to do with each other, and the data.
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
    """The schema as JSON. A component whose parameters cannot be had is named on stderr, and may have any."""
    from fedbench.core.registry.ask import ask_each
    from fedbench.core.spec.json_schema import KINDS, Described, suite_schema

    wanted = [c for kind in KINDS for c in registry.components(kind) if c.distribution == PROJECT or not built_in]
    strangers = [c for c in wanted if c.distribution != PROJECT]
    known: dict[tuple[str, str], str | None] = {(c.kind, c.name): _params(c) for c in wanted if c.distribution == PROJECT}
    for package in dict.fromkeys(c.distribution for c in strangers):
        theirs = [c for c in strangers if c.distribution == package]
        for found, answer in zip(theirs, ask_each(theirs, _params), strict=True):
            known[found.kind, found.name] = answer.value
            if answer.error is not None:
                say(f"{answer.error}: any parameters will do", err=True)
    described: dict[str, list[Described]] = {kind: [] for kind in KINDS}
    for c in wanted:
        said = known[c.kind, c.name]
        described[c.kind].append(Described(c.name, c.component.summary, None if said is None else json.loads(said)))
    return json.dumps(suite_schema(described, [c.name for c in registry.floors()]), indent=1) + "\n"


def _params(found: RegisteredComponent) -> str:
    """The schema of a component's parameters; raises ``UserError`` that names it."""
    from fedbench.core.registry.ask import patience
    from fedbench.core.spec.json_schema import params_schema

    params = found.load().Params
    with at_work(f"{found}: its Params", patience()):
        try:
            return params_schema(params, f"{found.kind}.{found.name}")
        except Exception as error:  # a type of somebody's that describes itself wrongly
            raise UserError(f"{found}: its Params have no schema: {explain(error)}") from error
