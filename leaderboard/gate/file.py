"""A baseline file: JSON of one line a part and a cell, sorted, so that a change of one cell is a change of one line in git."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbench.core import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import digest_of
from fedbench.core.store.json_file import parse_json
from fedbench.core.words import one_line
from fedbench.leaderboard.gate.identity import Identity, changes, merged, parts_of
from fedbench.leaderboard.gate.measures import MEASURES, Value
from fedbench.leaderboard.gate.snapshot import Cell, Key, Snapshot

SCHEMA = 1
KIND = "fedbench baseline"
MAX_BYTES = 4 << 20
ANEW = "make it anew: `fedbench baseline RESULTS -o FILE --force`"

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
    parts: list[str]
    seeds: dict[str, str]
    """seed -> the part that it decides"""
    values: dict[str, dict[str, tuple[list[Number], Number | None]]]
    """measure -> seed -> (a value a target, the standard error of their mean)"""


class _File(_Part):
    kind: Literal["fedbench baseline"]
    schema_: int = Field(alias="schema")
    digest: str
    suite: str
    made: dict[str, list[str]]
    definitions: dict[str, str]
    parts: dict[str, dict[str, Any]]
    cells: list[_Cell]


def write_baseline(path: Path, snapshot: Snapshot, force: bool = False) -> None:
    """Write the file in one step. ``UserError`` where there is one already, unless ``force``."""
    if path.exists() and not force:
        raise UserError(f"{path}: exists already; nothing was written - give --force to replace it, or another name")
    content = content_of(snapshot)
    text = _lines({**content, "digest": digest_of(content)}).encode()
    if len(text) > MAX_BYTES:
        raise UserError(f"{path}: would have {len(text):,} bytes, more than the {MAX_BYTES:,} of a baseline; gate fewer cells")
    write_atomically(path.absolute(), text)


def content_of(snapshot: Snapshot) -> dict[str, Any]:
    """The file without its digest."""
    parts: dict[str, Identity] = {}
    cells = [_stored(cell, parts) for _, cell in sorted(snapshot.cells.items())]
    return {
        "kind": KIND, "schema": SCHEMA, "suite": snapshot.suite, "made": {k: list(v) for k, v in snapshot.made.items()},
        "definitions": dict(snapshot.definitions), "parts": parts, "cells": cells,
    }  # fmt: skip


def _stored(cell: Cell, parts: dict[str, Identity]) -> dict[str, Any]:
    names: list[str] = []
    seeds: dict[str, str] = {}
    for seed, identity in sorted(cell.identities.items()):
        for name, piece in parts_of(identity, cell.key.setting, cell.key.coalition):
            stored = _named(name, piece, parts)
            if "seed" in piece.get("run", {}):
                seeds[str(seed)] = stored
            elif stored not in names:
                names.append(stored)
    values = {
        measure: {str(seed): [list(v.parts), v.error] for seed, v in sorted(found.items())}
        for measure, found in cell.values.items()
    }
    return {**cell.key._asdict(), "parts": names, "seeds": seeds, "values": values}


def _named(name: str, piece: Identity, parts: dict[str, Identity]) -> str:
    """The name it is stored under: of several pieces of one name, the later ones are numbered."""
    tried, n = name, 1
    while parts.setdefault(tried, piece) != piece:
        n += 1
        tried = f"{name} ({n})"
    return tried


def _lines(content: Mapping[str, Any]) -> str:
    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    head = [f"{line(name)}: {line(content[name])}" for name in ("kind", "schema", "digest", "suite")]
    for name in ("made", "definitions", "parts"):
        own = [f"{line(key)}: {line(value)}" for key, value in sorted(content[name].items())]
        head.append(f"{line(name)}: {{\n" + ",\n".join(own) + "\n}")
    cells = ",\n".join(line(cell) for cell in content["cells"])
    return "{\n" + ",\n".join(head) + ',\n"cells": [\n' + cells + "\n]\n}\n"


# -- reading -----------------------------------------------------------------------------------------------------------


def read_baseline(path: Path) -> Snapshot:
    """The snapshot in a file. ``UserError`` with the file, the place, the reason and the remedy for one that is of no use."""
    if not path.exists():
        raise UserError(f"{path}: no such file; `fedbench baseline RESULTS -o FILE` writes one")
    content = parse_json(path, MAX_BYTES, ANEW)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UserError(f"{path}: not a baseline of fedbench; `fedbench baseline RESULTS -o FILE` writes one")
    version = content.get("schema")
    if type(version) is not int or version != SCHEMA:
        newer = type(version) is int and version > SCHEMA
        remedy = "upgrade fedbench" if newer else ANEW
        raise UserError(f"{path}: a baseline of schema {one_line(repr(version), 40)}, this fedbench reads {SCHEMA}; {remedy}")
    if content.get("digest") != digest_of(content):
        why = "its content is not the one its digest was made of"
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({why}); {ANEW}")
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, what = one_line(".".join(map(str, first["loc"])), 120), one_line(first["msg"], 120)
        raise UserError(f"{path}: not a valid baseline ({where}: {what}); {ANEW}") from error
    return _snapshot(file, path)


def _snapshot(file: _File, path: Path) -> Snapshot:
    if not file.cells:
        raise UserError(f"{path}: holds no cell, so there is nothing to compare with; {ANEW}")
    cells: dict[Key, Cell] = {}
    for i, stored in enumerate(file.cells, 1):
        try:
            cell = _cell(stored, file.parts)
        except _Wrong as error:
            where, what = one_line(str(_key(stored)), 120), one_line(str(error), 200)
            raise UserError(f"{path}: cell {i} ({where}): {what}; {ANEW}") from error
        if cell.key in cells:
            raise UserError(f"{path}: cell {i}: {one_line(str(cell.key), 120)} stands there twice; {ANEW}")
        cells[cell.key] = cell
    return Snapshot(suite=file.suite, made=file.made, definitions=file.definitions, cells=cells)


class _Wrong(Exception):
    """What is wrong with a cell."""


def _key(stored: _Cell) -> Key:
    return Key(*(getattr(stored, name) for name in Key._fields))


def _cell(stored: _Cell, parts: Mapping[str, Identity]) -> Cell:
    if unknown := [name for name in (*stored.parts, *stored.seeds.values()) if name not in parts]:
        raise _Wrong(f"its part '{unknown[0]}' is not in the file")
    common = [parts[name] for name in stored.parts]
    identities = {_seed(seed): merged([*common, parts[part]]) for seed, part in stored.seeds.items()}
    for seed, identity in identities.items():
        _require_whole(seed, identity)
    values = {}
    for name, found in stored.values.items():
        if name not in MEASURES:
            raise _Wrong(f"the measure '{name}' is unknown to this fedbench, which has {', '.join(MEASURES)}")
        values[name] = {_seed(seed): _value(name, *value) for seed, value in found.items()}
        if not values[name].keys() <= identities.keys():
            raise _Wrong(f"'{name}' has a seed that the cell has not")
    return Cell(_key(stored), identities, values)


def _require_whole(seed: int, identity: Identity) -> None:
    try:
        changes(identity, identity, same_seed=False)
    except (KeyError, TypeError, AttributeError) as error:
        raise _Wrong(f"its parts are not what a cell is made of ({error!r})") from error
    if identity["run"]["seed"] != seed:
        raise _Wrong(f"its seed {seed} is made of the part of another seed")


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or str(int(text[:20])) != text:
        raise _Wrong(f"'{text}' is no seed")
    return int(text)


def _value(name: str, parts: list[float], error: float | None) -> Value:
    m = MEASURES[name]
    if not parts or not all(m.low <= p <= m.high for p in parts):
        raise _Wrong(f"'{name}' has a value that is not between {m.low:g} and {m.high:g}, or none")
    if error is not None and not 0 <= error <= m.high - m.low:
        raise _Wrong(f"'{name}' has an error that is not between 0 and {m.high - m.low:g}")
    return Value(tuple(parts), error)
