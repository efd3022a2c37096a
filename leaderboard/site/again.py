"""How a cell is computed again: one command, quoted for a shell, or nothing where its names hold what no command line
takes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.cli.options import ONLY, parse_only
from fedbench.core.store.plans import ID, Asked, read_plan
from fedbench.core.words import printable
from fedbench.suites import shipped_suites

_START = ("fedbench", "run")


def command_of(results: Path, plan: str | None, suites: Collection[str]) -> str:
    """``fedbench run SUITE``, with the changes that the plan was made with, of a suite that fedbench ships as it was
    given; of another one the file that the folder stores. Of records from before plans were stored, the shipped suite
    of their name. "" where there is none of these, and of several suites."""
    if len(suites) != 1:
        return ""
    asked = _asked(results, plan)
    shipped = {path.stem: (name, path) for name, path in shipped_suites().items()}
    if asked is None:
        names = [shipped[suite][0] for suite in suites if suite in shipped] if plan is None else []
        return shlex.join([*_START, *names]) if names else ""
    name, path = shipped.get(asked.suite, ("", None))
    if path is None or path.read_text(encoding="utf-8") != asked.given:
        return f"{shlex.join(_START)} RESULTS/suites/{plan}.yaml"
    changes = [part for change in asked.overrides for part in ("--set", change)]
    return safe(shlex.join([*_START, name, *changes]))


def _asked(results: Path, plan: str | None) -> Asked | None:
    """A suite that is not there, or not as it was stored, is none to run again."""
    try:
        return read_plan(results, plan) if plan is not None and ID.fullmatch(plan) else None
    except UserError:
        return None


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
    """Whether a document's command is one of ``command_of``: it may have any origin, and people paste it into a
    shell."""
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
