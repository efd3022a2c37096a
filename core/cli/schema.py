"""fedbench schema: the form of a suite, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.process.ask import plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.words import explain

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
    """The schema as JSON. Components with parameters that cannot be described are named on stderr, and not checked."""
    from fedbench.core.process.ask import ask_each
    from fedbench.core.spec.schema import KINDS, suite_schema
    from fedbench.core.spec.suite import SuiteSpec

    described: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {kind: {} for kind in KINDS}
    wanted = [c for kind in KINDS for c in registry.components(kind) if c.distribution == PROJECT or not built_in]
    for found, answer in zip(wanted, ask_each(wanted, _params), strict=True):
        if answer.error is not None:
            say(f"{answer.error}: any parameters will do", err=True)
        described[found.kind][found.name] = found.component.summary, json.loads(answer.value or "{}")
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
