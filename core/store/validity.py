"""Consistency checks for run records: schema, digest and fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.store.json_file import require_digest
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.run_file import cells_of
from fedbench.core.words import one_line

RERUN = "delete it and run its suite again to compute the run anew"
_OF_RUN = ("defense", "history", "provenance")  # models that the cells of a run share
_KEY_IN_NAME = re.compile(r"--([0-9a-f]{12})$")


def validated(content: Any, path: Path) -> list[Record]:
    """Return the records of the cells of a run, given the JSON content of its file ``path``.

    Raises ``UserError`` with file, reason and remedy.
    """
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UserError(
            f"{path}: not a fedbench record (it has no schema_version); move it out of the results "
            "folder"
        )
    _require_schema(content["schema_version"], path)
    require_digest(content, path, RERUN)
    try:
        records = _records(cells_of(content))
        mistake = next(_mistakes(records), None)
    except ValidationError as error:
        mistake = first_mistake(error)
    except (KeyError, TypeError, AttributeError) as error:
        mistake = one_line(repr(error), 120)
    if mistake is not None:
        raise UserError(f"{path}: not a valid record ({mistake}); {RERUN}")
    key = _KEY_IN_NAME.search(path.stem)
    if key and not records[0].run_key.startswith(key[1]):
        raise UserError(
            f"{path}: holds another run's record (key {records[0].run_key[:12]}): it was renamed; "
            f"{RERUN}"
        )
    return records


def _records(cells: Sequence[dict[str, Any]]) -> list[Record]:
    """Validate the fields of the cells of a run; what all share is validated once, and one object
    in memory.
    """
    records: list[Record] = []
    for fields in cells:
        shared = {}
        for name in _OF_RUN:
            if records and fields.get(name) == cells[0].get(name):
                shared[name] = getattr(records[0], name)
        records.append(Record.model_validate({**fields, **shared}))
    return records


def first_mistake(error: ValidationError) -> str:
    """Return the place and the message of the first mistake that pydantic found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{one_line(place, 120)}: {one_line(first['msg'], 120)}"


def _require_schema(version: Any, path: Path) -> None:
    if type(version) is int and version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: made by a newer fedbench (record schema {version}; this one reads "
            f"{SCHEMA_VERSION}); upgrade fedbench"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: record schema {one_line(repr(version), 120)}, expected {SCHEMA_VERSION}; "
            f"{RERUN}"
        )


def _mistakes(records: Sequence[Record]) -> Iterator[str]:
    """Yield contradictions in the cells of one run and between them."""
    if not records:
        yield "it has no cells"
    if len({record.key for record in records}) < len(records):
        yield "two of its cells have one key"
    for record in records:
        yield from _contradictions(record)


def _contradictions(record: Record) -> Iterator[str]:
    scored = record.outcome == "ok"
    if scored and (record.utility is None or not record.targets):
        yield "outcome is 'ok' without utility and targets"
    if not scored and (record.targets or record.pooled):
        yield f"outcome is '{record.outcome}', but it has scores"
    if scored and "scores" not in record.digests:
        yield "digests.scores is missing"
    if scored and [t.target for t in record.targets] != record.identity.run["targets"]:
        yield "targets are not those of its identity"
    attacked = record.outcome == "diverged" and record.described.get("adversary")
    if record.by_adversary and not attacked:
        yield "by_adversary, but it did not diverge with an adversary inside"
    last = [row.accuracy for row in record.history[-1:]]
    if record.utility is not None and last != [record.utility.accuracy]:
        yield "utility.accuracy is not that of the last round in history"
