"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedbench.core.cli.output import QUIET
from fedbench.core.contract.errors import UserError
from fedbench.core.words import DEBUG
from fedbench.suites import shipped_suites

LOCAL = "local"
"""the executor of this machine"""
ONLY = ("setting", "coalition", "defense", "attack", "seed")


def _complete_suite(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return names of shipped suites; the shell completes files where none matches."""
    names = [name for name in shipped_suites() if name.startswith(incomplete)]
    return list(map(CompletionItem, names)) or [CompletionItem(incomplete, type="file")]


suite_argument = click.argument("suite", metavar="SUITE", shell_complete=_complete_suite)
suites_argument = click.argument(
    "suites", metavar="SUITE...", nargs=-1, required=True, shell_complete=_complete_suite
)
results_argument = click.argument("results", type=click.Path(path_type=Path))
overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change one field of the suite: a dotted path, list elements by index or name, the value "
    "in YAML. May be given several times.",
)
rerun_option = click.option(
    "--rerun",
    type=click.Choice(["missing", "failed", "always", "never"]),
    default="missing",
    show_default=True,
    help="Which cells to compute: those without a record, also failed ones, all of them again, or "
    "none.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)


def _debug(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Set an environment variable for the processes that the command starts."""
    if wanted:
        os.environ[DEBUG] = "1"
        ctx.call_on_close(lambda: os.environ.pop(DEBUG, None))


def _quiet(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    ctx.meta[QUIET] = wanted


def debug_and_quiet(command: Any) -> Any:
    """Add ``--debug``, whole tracebacks of plugins, and ``--quiet``, which prints only failures."""
    flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    quiet = click.option("--quiet", callback=_quiet, help="Print only what failed.", **flag)
    debug = click.option(
        "--debug",
        callback=_debug,
        help="Show the whole traceback of what a plugin raises, on standard error and in the run's "
        "log; fail a defense that writes to what it was handed.",
        **flag,
    )
    return debug(quiet(command))


def examples(*lines: str) -> str:
    """Return an epilog that click does not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def parse_only(only: tuple[str, ...]) -> dict[str, set[str]]:
    """Read ``KIND=NAME,KIND=NAME`` as kind -> names.

    Raises:
        UserError: for another form or an unknown kind.
    """
    wanted: dict[str, set[str]] = {}
    separator = re.compile(rf",(?=(?:{'|'.join(ONLY)})=)")  # a label may hold commas of its own
    for text in only:
        for part in separator.split(text):
            kind, equals, name = part.partition("=")
            if not equals or kind not in ONLY:
                raise UserError(
                    f"--only {part}: expected KIND=NAME with a kind among {', '.join(ONLY)}"
                )
            wanted.setdefault(kind, set()).add(name)
    return wanted


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Read ``I/N`` as numbers.

    Raises:
        UserError: for another form, and for a part that there is not.
    """
    if text is None:
        return None
    numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if numbers is None:
        raise UserError(f"--part {text}: expected I/N, for example 2/8: the second of eight parts")
    i = int(numbers[1])
    n = int(numbers[2])
    if not 1 <= i <= n:
        raise UserError(f"--part {text}: there is no such part; I goes from 1 to N")
    return i, n
