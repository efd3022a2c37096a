"""What `fedbench check` does, with the progress that a terminal shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.words.explain import one_line
from fedbench.testing.apart import results
from fedbench.testing.results import Report
from fedbench.testing.subject import Subject, subject_of
from fedbench.testing.table import CHECKS, kinds_words


def values(params: Sequence[str]) -> dict[str, Any]:
    """``key=value`` as parameters, each value in YAML. Raises ``UserError`` for what is none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    found = {}
    for text in params:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--param {one_line(text, 80)}: expected KEY=VALUE")
        try:
            found[key.strip()] = YAML(typ="safe").load(value)
        except YAMLError as error:
            raise UserError(f"--param {one_line(text, 80)}: the value is no YAML: {one_line(str(error), 200)}") from error
    return found


def report_of(names: Sequence[str], kind: str | None, params: dict[str, Any]) -> list[Report]:
    """A report a component; all names are looked up before anything runs."""
    registry = Registry.discover()
    subjects = [subject_of(name, kind, params, registry) for name in names]
    reports = []
    for subject in subjects:
        reports.append(Report(str(subject), tuple(results(subject, partial(_says, subject)))))
        _progress("")
    return reports


def _says(subject: Subject, check: str) -> None:
    _progress(f"{subject}: {check}")


def _progress(text: str) -> None:
    """One line that is written over, on a terminal alone."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{one_line(text, 100)}", nl=False, err=True)


def listed() -> str:
    """The checks, a line each."""
    return "\n".join(f"{c.name}\n    {c.doc} ({kinds_words(c)})" for c in CHECKS)
