"""From a file, or the name of a shipped suite, to a checked suite."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.spec import messages
from fedbench.core.spec.checks import cross_checks
from fedbench.core.spec.document import Document, Loc, Problem, override, read
from fedbench.core.spec.shipped import SUFFIXES, shipped_suites
from fedbench.core.spec.suite import SCHEMA, SuiteSpec
from fedbench.core.words.nearest import by_nearness, did_you_mean


@dataclass(frozen=True)
class LoadedSuite:
    """A valid suite and the file it came from; ``document`` knows where in it everything is. ``overrides``: the changes of the
    command line, ``path=value``, in their order."""

    spec: SuiteSpec
    document: Document
    overrides: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @property
    def text(self) -> str:
        """The file's text, without the changes made on the command line."""
        return self.document.text

    def position(self, loc: Loc) -> tuple[int, int]:
        """(line, column), from 1, of e.g. ``("attacks", 2, "params", "stride")`` or its nearest ancestor."""
        return self.document.position(loc)

    def error(self, problems: Sequence[Problem]) -> UserError:
        """One error of problems found later (a dataset's, a plan's), in the form of all others."""
        return self.document.error(problems)


def find_suite(ref: str | Path) -> Path:
    """The file behind a path or a shipped suite's name; raises ``UserError`` that lists the shipped ones."""
    shipped = shipped_suites()
    path = Path(ref)
    if path.suffix in SUFFIXES:
        bare = path.with_suffix("").as_posix()
        if not os.path.exists(path) and bare in shipped:
            raise UserError(f"{ref}: no such file - did you mean the shipped suite '{bare}'?")
        return path
    if str(ref) in shipped:
        return shipped[str(ref)]
    if os.path.exists(path):
        return path
    listed = ", ".join(by_nearness(str(ref), shipped)) or "(none)"
    raise UserError(f"unknown suite '{ref}'{did_you_mean(str(ref), shipped)}; the shipped suites are {listed}")


def load_suite(ref: str | Path, overrides: Sequence[str] = ()) -> LoadedSuite:
    """The suite at a path or of a shipped name, with ``key=value`` overrides applied.

    Raises ``UserError`` with every mistake, a line each: ``suite.yaml:14:7: attacks[2].params.strid: ...``.
    Components are not looked up here; see ``resolve.load_and_check``.
    """
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    if spec is None or problems:
        raise document.error(problems)
    return LoadedSuite(spec, document, tuple(overrides))


def open_document(ref: str | Path, overrides: Sequence[str] = ()) -> Document:
    """The file as data, overrides applied; raises ``UserError`` for what cannot be a suite at all."""
    document = read(find_suite(ref))
    if not isinstance(document.data, dict):
        needed = ", ".join(info.alias or name for name, info in SuiteSpec.model_fields.items() if info.is_required())
        what = messages.found(document.data)
        raise document.error([Problem((), f"expected a mapping with {needed}, found {what}")])
    schema = document.data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        text = f"made for a newer fedbench (schema {schema}, this one reads {SCHEMA}): upgrade fedbench"
        raise document.error([Problem(("schema",), text)])
    return override(document, overrides)


def validate(document: Document) -> tuple[SuiteSpec | None, list[Problem]]:
    """The spec (None where the file does not give one) and all that is wrong with the document."""
    problems = cross_checks(document)
    try:
        return SuiteSpec.model_validate(document.data), problems
    except ValidationError as exc:
        return None, messages.problems(exc, SuiteSpec, document.data) + problems
