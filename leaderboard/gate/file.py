"""Baseline files: JSON with one line a cell, sorted, so that a change of one cell is a change of
one line in git.

Parts of identities that several cells share are written once, under their hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbench.core import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import digest_of, key_of
from fedbench.core.store.json_file import identified, parse_json, require_digest
from fedbench.core.store.validity import first_mistake
from fedbench.core.words import one_line
from fedbench.leaderboard.comparison.cells import Cell, Identity, Key, Snapshot, snapshot_of
from fedbench.leaderboard.comparison.measures import MEASURES, Value
from fedbench.leaderboard.document import source_of

SCHEMA = 4
KIND = "fedbench baseline"
MAX_BYTES = 4 << 20
ANEW = "make it anew: `fedbench baseline RESULTS -o FILE --force`"
_BESIDE_RUN = ("attack", "signals")

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BaselineCell(_Part):
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


class BaselineFile(_Part):
    kind: Literal["fedbench baseline"]
    schema_: int = Field(alias="schema")
    digest: str
    suite: str
    made: dict[str, list[str]]
    parts: dict[str, Any]
    runs: dict[str, dict[str, str]]
    """hash of a run -> name of each field of its identity -> hash of its value"""
    cells: list[BaselineCell]


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of a baseline file."""
    return identified("baseline", SCHEMA, BaselineFile.model_json_schema())


def snapshot_in(results: Path) -> Snapshot:
    """Return the cells of the folder's last plan. Raises ``UserError`` for records that cannot be
    used, or of several suites.
    """
    records = source_of(results).newest[0]
    suites = sorted({r.record.suite for r in records})
    if len(suites) > 1:
        raise UserError(
            f"{results}: holds records of the suites {', '.join(suites)}; a baseline is of one"
        )
    return snapshot_of(records)


# -- writing ---------------------------------------------------------------------------------------


def write_baseline(path: Path, snapshot: Snapshot, force: bool = False) -> None:
    """Write the file in one step. Raises ``UserError`` where there is one, unless ``force``."""
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


@dataclass
class _Shared:
    """Parts of identities under their hashes."""

    parts: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)

    def names_of(self, identity: Identity) -> list[str]:
        """Store an identity; return the hashes of its run, attack and signals."""
        run = {name: _stored(value, self.parts) for name, value in identity["run"].items()}
        beside = [_stored(identity[n], self.parts) for n in _BESIDE_RUN if n in identity]
        return [_stored(run, self.runs), *beside]


def _stored(value: Any, table: dict[str, Any]) -> str:
    name = key_of(value)[:12]
    table[name] = value
    return name


def _content(snapshot: Snapshot) -> dict[str, Any]:
    """Return the file without its digest."""
    shared = _Shared()
    cells = [_cell(cell, shared) for _, cell in sorted(snapshot.cells.items())]
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "suite": snapshot.suite,
        "made": {name: list(values) for name, values in snapshot.made.items()},
        "parts": shared.parts,
        "runs": shared.runs,
        "cells": cells,
    }


def _cell(cell: Cell, shared: _Shared) -> dict[str, Any]:
    seeds = {str(s): shared.names_of(i) for s, i in sorted(cell.identities.items())}
    digests = {str(s): digest for s, digest in sorted(cell.digests.items())}
    values: dict[str, dict[str, Any]] = {}
    for measure, by_seed in cell.values.items():
        values[measure] = {}
        for seed, value in sorted(by_seed.items()):
            values[measure][str(seed)] = [list(value.parts), value.error]
    return {**cell.key._asdict(), "seeds": seeds, "digests": digests, "values": values}


def _lines(content: Mapping[str, Any]) -> str:
    fields = [f'"{name}": {_json(content[name])}' for name in ("kind", "schema", "digest", "suite")]
    for name in ("made", "parts", "runs"):
        lines = [f"{_json(key)}: {_json(value)}" for key, value in sorted(content[name].items())]
        fields.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    fields.append('"cells": [\n' + ",\n".join(map(_json, content["cells"])) + "\n]")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# -- reading ---------------------------------------------------------------------------------------


def read_baseline(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises ``UserError`` with the file, the place, the reason and
    the remedy for one that cannot be used.
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
        newer = type(version) is int and version > SCHEMA
        raise UserError(
            f"{path}: a baseline of schema {one_line(repr(version), 40)}, this fedbench reads "
            f"{SCHEMA}; {'upgrade fedbench' if newer else ANEW}"
        )
    require_digest(content, path, ANEW)
    try:
        return _snapshot(BaselineFile.model_validate(content))
    except ValidationError as error:
        mistake = first_mistake(error)
    except (KeyError, ValueError) as error:
        mistake = f"a part is missing: {one_line(str(error), 120)}"
    raise UserError(f"{path}: not a valid baseline ({mistake}); {ANEW}")


def _snapshot(file: BaselineFile) -> Snapshot:
    cells = {}
    for cell in file.cells:
        key = Key(*(getattr(cell, name) for name in Key._fields))
        identities = {seed: _identity(file, *names) for seed, names in cell.seeds.items()}
        values = {}
        for name in MEASURES.keys() & cell.values.keys():
            by_seed = cell.values[name].items()
            values[name] = {seed: Value(tuple(parts), error) for seed, (parts, error) in by_seed}
        cells[key] = Cell(key, identities, cell.digests, values)
    return Snapshot(suite=file.suite, made=file.made, cells=cells)


def _identity(file: BaselineFile, run: str, *beside: str) -> Identity:
    identity: Identity = {"run": {n: file.parts[part] for n, part in file.runs[run].items()}}
    if beside:
        identity |= zip(_BESIDE_RUN, (file.parts[part] for part in beside), strict=True)
    return identity
