"""How a cell is computed again: one command, quoted for a shell, or nothing where its names hold what no command line takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.cli.options import ONLY, parse_only
from fedbench.core.store.plans import ID, Asked, read_plan
from fedbench.core.words.printable import printable

_START = ("fedbench", "run")


def command_of(results: Path, plan: str | None) -> str:
    """``fedbench run SUITE`` with the changes that the plan was made with; the suite that the folder stores, where what was
    given is no suite that fedbench ships; "" without a stored plan."""
    if plan is None or not ID.fullmatch(plan):
        return ""
    try:
        asked = read_plan(results, plan)
    except UserError:  # a suite that is not there, or not as it was stored, is none to run again
        return ""
    if not _shipped(asked):
        return f"{shlex.join(_START)} RESULTS/suites/{plan}.yaml"
    changes = [part for change in asked.overrides for part in ("--set", change)]
    return safe(shlex.join([*_START, asked.suite, *changes]))


def _shipped(asked: Asked) -> bool:
    """Whether the suite of that name is the one that was given."""
    found = files("fedbench.suites") / f"{asked.suite}.yaml"
    return "/" not in asked.suite and found.is_file() and found.read_text(encoding="utf-8") == asked.given


def only_of(wanted: Mapping[str, str]) -> str:
    """``setting=digits,coalition=pair``, quoted; "" where the command line would read something else."""
    said = ",".join(f"{kind}={name}" for kind, name in wanted.items())
    return safe(shlex.quote(said)) if _read_as(said, wanted) else ""


def _read_as(said: str, wanted: Mapping[str, str]) -> bool:
    return parse_only((said,)) == {kind: {name} for kind, name in wanted.items()}


def safe(quoted: str) -> str:
    """The same; "" where it holds what a terminal acts on or hides."""
    return quoted if printable(quoted) == quoted and "\n" not in quoted and len(quoted) <= 2_000 else ""


def is_command(given: str) -> bool:
    """Whether a document's command is one of ``command_of``: it may come from anybody, and people paste it into a shell."""
    words = _words(given)
    changes = words[3:]
    return given == "" or (
        tuple(words[:2]) == _START and len(words) > 2 and not words[2].startswith("-") and len(changes) % 2 == 0
        and all(option == "--set" for option in changes[::2])
    )  # fmt: skip


def is_only(given: str) -> bool:
    """Whether a document's part of a command is one of ``only_of``."""
    words = _words(given)
    return given == "" or (len(words) == 1 and words[0].partition("=")[0] in ONLY)


def _words(given: str) -> list[str]:
    """The words that a shell would see; none of a text that it would act on."""
    try:
        words = shlex.split(given)
    except ValueError:
        return []
    return words if shlex.join(words) == given and safe(given) else []
