"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from fedbench.core.cli import complete
from fedbench.core.contract.errors import UserError
from fedbench.core.words import DEBUG

ONLY = ("setting", "coalition", "defense", "attack", "seed")

suite_argument = click.argument("suite", metavar="SUITE", shell_complete=complete.suites)
suites_argument = click.argument("suites", metavar="SUITE...", nargs=-1, required=True, shell_complete=complete.suites)
results_argument = click.argument("results", type=click.Path(path_type=Path), shell_complete=complete.results)

overrides_option = click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE",
    help="Change one field of the suite: a dotted path, list elements by index or name, the value in YAML. "
    "May be given several times.",
)  # fmt: skip

def _debug(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Set the environment variable for the time of the command: the processes that it starts read it."""
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


def parse_only(only: tuple[str, ...]) -> dict[str, set[str]]:
    """``KIND=NAME,KIND=NAME`` as kind -> names; raises ``UserError`` for another form and for an unknown kind."""
    wanted: dict[str, set[str]] = {}
    between = re.compile(rf",(?=(?:{'|'.join(ONLY)})=)")  # a label may hold commas of its own
    for part in (p for text in only for p in between.split(text)):
        kind, equals, name = part.partition("=")
        if not equals or kind not in ONLY:
            raise UserError(f"--only {part}: expected KIND=NAME with a kind among {', '.join(ONLY)}")
        wanted.setdefault(kind, set()).add(name)
    return wanted
