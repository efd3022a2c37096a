"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from typing import Any

import click

from fedbench.core.words.frames import DEBUG

suite_argument = click.argument("suite", metavar="SUITE")
suites_argument = click.argument("suites", metavar="SUITE...", nargs=-1, required=True)

overrides_option = click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE",
    help="Change one field of the suite: a dotted path, list elements by index or name, the value in YAML. "
    "May be given several times.",
)  # fmt: skip

def _debug(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """For as long as the command runs: the processes that it starts are told by the environment."""
    if wanted:
        before = os.environ.get(DEBUG)
        os.environ[DEBUG] = "1"
        ctx.call_on_close(lambda: os.environ.pop(DEBUG) if before is None else os.environ.update({DEBUG: before}))


def debug_option(command: Any) -> Any:
    """``--debug``: whole tracebacks of what plugins raise."""
    return click.option(
        "--debug", is_flag=True, is_eager=True, expose_value=False, callback=_debug,
        help="Show the whole traceback of what a plugin raises, on standard error and in the run's log.",
    )(command)  # fmt: skip


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def examples(*lines: str) -> str:
    """An epilog that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
