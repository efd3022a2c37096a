"""Baseline files: JSON with one line a cell, sorted, so that a change of one cell is a change of
one line in git.

Parts of identities that several cells share are written once, under their hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbench.core import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import digest_mistake, digest_of, key_of
from fedbench.core.store.json_file import parse_json
from fedbench.core.words import one_line
from fedbench.leaderboard.gate.measures import MEASURES, Value
from fedbench.leaderboard.gate.snapshot import Cell, Identity, Key, Snapshot

SCHEMA = 4
KIND = "fedbench baseline"
MAX_BYTES = 4 << 20
ANEW = "make it anew: `fedbench baseline RESULTS -o FILE --force`"
_BESIDE_RUN = ("attack", "signals")

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Cell(_Part):
    setting: str
    coalition: str
    defense: str
    attack: str
    view: str
    adversary: str
    seeds: dict[int, list[str]]
    """seed -> hashes of its run and, where there is an attack, of attack and signals"""
    digests: dict[int, str]
    """seed -> digest of what the values are of"""
    values: dict[str, dict[int, tuple[Annotated[list[Number], Field(min_length=1)], Number | None]]]
    """measure -> seed -> (a value a target, the standard error of their mean)"""


class _File(_Part):
    kind: Literal["fedbench baseline"]
    schema_: int = Field(alias="schema")
    digest: str
    suite: str
    made: dict[str, list[str]]
    parts: dict[str, Any]
    runs: dict[str, dict[str, str]]
    """hash of a run -> name of each field of its identity -> hash of its value"""
    cells: list[_Cell]


def write_baseline(path: Path, snapshot: Snapshot, force: bool = False) -> None:
    """Write the file in one step. ``UserError`` where there is one already, unless ``force``."""
    if path.exists() and not force:
        raise UserError(
            f"{path}: exists already; nothing was written - give --force to replace it, or another "
            "name"
        )
    content = _content(snapshot)
    text = _lines({**content, "digest": digest_of(content)}).encode()
    if len(text) > MAX_BYTES:
        raise UserError(
            f"{path}: would have {len(text):,} bytes, more than the {MAX_BYTES:,} of a baseline; "
            "gate fewer cells"
        )
    write_atomically(path.absolute(), text)


def _content(snapshot: Snapshot) -> dict[str, Any]:
    """The file without its digest."""
    parts: dict[str, Any] = {}
    runs: dict[str, dict[str, str]] = {}

    def stored(value: Any, table: dict[str, Any]) -> str:
        name = key_of(value)[:12]
        table[name] = value
        return name

    def identity(of: Identity) -> list[str]:
        run = stored({name: stored(value, parts) for name, value in of["run"].items()}, runs)
        return [run, *(stored(of[name], parts) for name in _BESIDE_RUN if name in of)]

    cells = [
        {
            **cell.key._asdict(),
            "seeds": {str(seed): identity(of) for seed, of in sorted(cell.identities.items())},
            "digests": {str(seed): digest for seed, digest in sorted(cell.digests.items())},
            "values": {
                measure: {str(seed): [list(v.parts), v.error] for seed, v in sorted(found.items())}
                for measure, found in cell.values.items()
            },
        }
        for _, cell in sorted(snapshot.cells.items())
    ]
    made = {name: list(values) for name, values in snapshot.made.items()}
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "suite": snapshot.suite,
        "made": made,
        "parts": parts,
        "runs": runs,
        "cells": cells,
    }


def _lines(content: Mapping[str, Any]) -> str:
    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    head = [
        f"{line(name)}: {line(content[name])}" for name in ("kind", "schema", "digest", "suite")
    ]
    for name in ("made", "parts", "runs"):
        own = [f"{line(key)}: {line(value)}" for key, value in sorted(content[name].items())]
        head.append(f"{line(name)}: {{\n" + ",\n".join(own) + "\n}")
    cells = ",\n".join(line(cell) for cell in content["cells"])
    return "{\n" + ",\n".join(head) + ',\n"cells": [\n' + cells + "\n]\n}\n"


def read_baseline(path: Path) -> Snapshot:
    """The snapshot in a file. ``UserError`` with the file, the place, the reason and the remedy for
    one that cannot be used.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file; `fedbench baseline RESULTS -o FILE` writes one")
    content = parse_json(path, MAX_BYTES, ANEW)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UserError(
            f"{path}: not a baseline of fedbench; `fedbench baseline RESULTS -o FILE` writes one"
        )
    version = content.get("schema")
    if type(version) is not int or version != SCHEMA:
        remedy = "upgrade fedbench" if type(version) is int and version > SCHEMA else ANEW
        raise UserError(
            f"{path}: a baseline of schema {one_line(repr(version), 40)}, this fedbench reads "
            f"{SCHEMA}; {remedy}"
        )
    if (what := digest_mistake(content)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {ANEW}")
    try:
        return _snapshot(_File.model_validate(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, what = one_line(".".join(map(str, first["loc"])), 120), one_line(first["msg"], 120)
        raise UserError(f"{path}: not a valid baseline ({where}: {what}); {ANEW}") from error
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path}: not a valid baseline (a part is missing: {one_line(str(error), 120)}); {ANEW}"
        ) from error


def _snapshot(file: _File) -> Snapshot:
    def identity(run: str, *beside: str) -> Identity:
        fields = {name: file.parts[part] for name, part in file.runs[run].items()}
        return {"run": fields} | dict(
            zip(_BESIDE_RUN, (file.parts[part] for part in beside), strict=len(beside) > 0)
        )

    cells = {}
    for cell in file.cells:
        key = Key(*(getattr(cell, name) for name in Key._fields))
        identities = {seed: identity(*names) for seed, names in cell.seeds.items()}
        values = {
            name: {seed: Value(tuple(parts), error) for seed, (parts, error) in found.items()}
            for name, found in cell.values.items()
            if name in MEASURES
        }
        cells[key] = Cell(key, identities, cell.digests, values)
    return Snapshot(suite=file.suite, made=file.made, cells=cells)
