"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from fedbench.core.cli import complete
from fedbench.core.cli.output import QUIET
from fedbench.core.contract.errors import UserError
from fedbench.core.words import DEBUG, did_you_mean

ONLY = ("setting", "coalition", "defense", "attack", "seed")

suite_argument = click.argument("suite", metavar="SUITE", shell_complete=complete.suites)
suites_argument = click.argument(
    "suites", metavar="SUITE...", nargs=-1, required=True, shell_complete=complete.suites
)
results_argument = click.argument(
    "results", type=click.Path(path_type=Path), shell_complete=complete.results
)

overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change one field of the suite: a dotted path, list elements by index or name, the value "
    "in YAML. "
    "May be given several times.",
)


def _debug(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Set the environment variable for the time of the command: the processes that it starts read
    it.
    """
    if wanted:
        before = os.environ.get(DEBUG)
        os.environ[DEBUG] = "1"
        ctx.call_on_close(
            lambda: os.environ.pop(DEBUG) if before is None else os.environ.update({DEBUG: before})
        )


def _quiet(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    ctx.meta[QUIET] = wanted


def debug_and_quiet(command: Any) -> Any:
    """``--debug``: whole tracebacks of what plugins raise. ``--quiet``: print only what failed."""
    shared: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    debug = (
        "Show the whole traceback of what a plugin raises, on standard error and in the run's log; "
        "fail a defense that writes to what it was handed."
    )
    command = click.option("--quiet", callback=_quiet, help="Print only what failed.", **shared)(
        command
    )
    return click.option("--debug", callback=_debug, help=debug, **shared)(command)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)


class NearChoice(click.Choice):  # type: ignore[type-arg]
    """A choice that suggests the nearest good name."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """As click's, with a suggestion."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + (
            did_you_mean(str(value), self.choices) or "."
        )


def examples(*lines: str) -> str:
    """An epilog that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def parse_only(only: tuple[str, ...]) -> dict[str, set[str]]:
    """``KIND=NAME,KIND=NAME`` as kind -> names; raises ``UserError`` for another form and for an
    unknown kind.
    """
    wanted: dict[str, set[str]] = {}
    between = re.compile(rf",(?=(?:{'|'.join(ONLY)})=)")  # a label may hold commas of its own
    for part in (p for text in only for p in between.split(text)):
        kind, equals, name = part.partition("=")
        if not equals or kind not in ONLY:
            raise UserError(
                f"--only {part}: expected KIND=NAME with a kind among {', '.join(ONLY)}"
            )
        wanted.setdefault(kind, set()).add(name)
    return wanted
