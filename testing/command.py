"""fedbench check: run the conformance checks."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from fedbench.core.cli.options import debug_and_quiet, examples, json_option
from fedbench.core.cli.output import say, say_json
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.kinds import KINDS
from fedbench.core.words import one_line


@click.command(
    epilog=examples(
        "fedbench check update-noise",
        "fedbench check my-attack my-signal > report.md",
        "fedbench check grad-noise --param sigma=0.5",
        "fedbench check --list",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option(
    "--kind", type=click.Choice(KINDS), help="The kind of component, where several have the name."
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter's value, in YAML; may be given several times.",
)
@click.option(
    "--list",
    "list_",
    is_flag=True,
    help="List the checks and the kinds of component they apply to; run nothing.",
)
@json_option
@debug_and_quiet
def command(
    names: tuple[str, ...],
    kind: str | None,
    params: tuple[str, ...],
    list_: bool,
    as_json: bool,
) -> None:
    """Check that components meet the plugin contract.

    NAME is a component of an installed package. The checks run in separate processes. Each report
    is Markdown, and is printed as it ends. Exit status 1 if a check failed.
    """
    from fedbench.core.process.ask import ask
    from fedbench.core.registry.components import Registry
    from fedbench.testing.run import results
    from fedbench.testing.subject import Report, subject_of
    from fedbench.testing.table import CHECKS

    if list_:
        say("\n".join(ask(lambda: [f"{c.name}\n    {c.doc} ({c.kinds_text})" for c in CHECKS])))
        return
    if not names:
        raise click.UsageError("name a component to check, or use --list")
    registry = Registry.discover()
    values = _values(params)
    subjects = [subject_of(name, kind, values, registry) for name in names]
    reports: list[Report] = []
    for subject in subjects:
        report = Report(str(subject), tuple(results(subject, _progress)))
        _progress("")
        if not as_json:
            text = report.markdown().rstrip("\n")
            say(f"\n{text}" if reports else text, failure=not report.ok)
        reports.append(report)
    if as_json:
        say_json([asdict(report) | {"ok": report.ok} for report in reports])
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(1)


def _values(params: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` options; values are YAML. Raises ``UserError`` for malformed ones."""
    from fedbench.core.spec.document import parse_value

    values = {}
    for text in params:
        key, equals, value = text.partition("=")
        option = f"--param {one_line(text, 80)}"
        if not equals or not key.strip():
            raise UserError(f"{option}: expected KEY=VALUE")
        values[key.strip()] = parse_value(value, f"{option}: value")
    return values


def _progress(text: str) -> None:
    """Overwrite the progress line of a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{one_line(text, 100)}", nl=False, err=True)
