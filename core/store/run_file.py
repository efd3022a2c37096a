"""The files of a run: a JSON record with its cells, and an ``.npz`` with their arrays.

What all cells of a run share is written once in the record, and what follows from an identity not
at all. An array that is equal in all cells is written once as ``NAME``, one of a single cell as
``KEY/NAME`` with the first letters of the cell's key. The ``.npz`` has a digest of its content in
its name, and the record names it: a kill at any time leaves the files from before or the new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.store.files import npz_bytes, write_atomically
from fedbench.core.store.integrity import (
    DERIVED,
    PARTLY,
    derived_fields,
    derived_of_run,
    sealed,
    with_derived,
    without_derived,
)
from fedbench.core.store.json_file import identified
from fedbench.core.store.record import CELL_FIELDS, SCHEMA_VERSION, Record

_OF_TARGET = ("scores", "kind", "ids", "canary", "in_mix")
_OF_MAXIMUM = ("null_auc", "null_advantage")


@dataclass(frozen=True)
class CellResult:
    """The record of one cell and its arrays by name; none where it has no scores."""

    record: Record
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


# -- arrays ----------------------------------------------------------------------------------------


def array_names(record: Record) -> list[str]:
    """Return the names of the arrays that a record with outcome ``ok`` must have."""
    names = ["test_correct"]
    for target in record.targets:
        parts = _OF_TARGET if target.maximum is None else (*_OF_TARGET, *_OF_MAXIMUM)
        names += [f"t{target.target}_{part}" for part in parts]
    for label, findings in record.analyses.items():
        names += [f"{label}:{name}" for name in findings.arrays]
    return names


def optional_names(record: Record) -> list[str]:
    """Return the names of the arrays that a record may have besides."""
    return ["assignment", *(f"t{target.target}_owner" for target in record.targets)]


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the hex sha256 over names, types, shapes and values of the arrays of one cell."""
    digest = hashlib.sha256()
    for name, a in sorted(arrays.items()):
        digest.update(f"{name} {a.dtype.str} {a.shape};".encode())
        digest.update(np.ascontiguousarray(a).tobytes())
    return digest.hexdigest()


def member(key: str, name: str) -> str:
    """Return the name in the ``.npz`` of an array of a single cell."""
    return f"{key[:12]}/{name}"


def _packed(cells: Sequence[CellResult]) -> dict[str, np.ndarray]:
    """Return the arrays of all cells by their names in the ``.npz``."""
    packed = {}
    for name in sorted(set().union(*(cell.arrays for cell in cells))):
        of_cells = {c.record.key: c.arrays[name] for c in cells if name in c.arrays}
        first, *rest = of_cells.values()
        if all(_same_bytes(first, a) for a in rest):
            packed[name] = first
        else:
            packed |= {member(key, name): a for key, a in of_cells.items()}
    return packed


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


# -- both files ------------------------------------------------------------------------------------


def write_run(records: Path, stem: str, cells: Sequence[CellResult]) -> None:
    """Write the files of a run with these cells in place of earlier ones. Raises ``OSError``."""
    name = ""
    if arrays := _packed(cells):
        content = npz_bytes(arrays)
        name = f"{stem}--{hashlib.sha256(content).hexdigest()[:12]}.npz"
        write_atomically(records / name, content)
    record = _content([cell.record for cell in cells], name)
    write_atomically(records / f"{stem}.json", sealed(record))
    for path in records.glob(f"{stem}--*.npz"):
        if path.name != name:
            path.unlink(missing_ok=True)


def _content(records: Sequence[Record], arrays: str) -> dict[str, Any]:
    """Return the content of a record file, given the name of the file with its arrays.

    Fields of the run are those of the first cell; a cell with other values keeps its own.
    """
    run: dict[str, Any] = {}
    cells = []
    for record in records:
        fields = record.model_dump(mode="json")
        identity = fields["identity"]
        fields = without_derived(fields, derived_fields(identity, record.coalition))
        cell = {name: fields.pop(name) for name in CELL_FIELDS if name in fields}
        fields["identity"] = identity.pop("run")
        run = run or fields
        others = {name: value for name, value in fields.items() if value != run.get(name)}
        cells.append({**cell, "identity": identity, **others})
    return {"schema_version": SCHEMA_VERSION, "arrays": arrays, "run": run, "cells": cells}


def cells_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each cell's record, given the content of the file of its run.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for content of another form.
    """
    run = content["run"]
    of_run = derived_of_run(run["identity"], run["coalition"])
    cells = []
    for cell in content["cells"]:
        stored = {**run, **cell, "identity": {**cell["identity"], "run": run["identity"]}}
        same = stored["coalition"] == run["coalition"]
        derived = derived_fields(stored["identity"], stored["coalition"], of_run if same else None)
        cells.append(with_derived(stored, derived))
    return cells


# -- the schema of a record file -------------------------------------------------------------------


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of the record file of a run."""
    schema = Record.model_json_schema()
    defs = schema["$defs"]
    required = {"identity", *schema["required"]}.difference(PARTLY)
    of_cell = _stored_fields(schema["properties"], defs)
    of_run = {name: value for name, value in of_cell.items() if name not in CELL_FIELDS}
    identity = defs.pop("Identity")["properties"]
    of_run["identity"] = identity.pop("run")
    of_cell["identity"] = _object(identity, identity)
    cell = _object(of_cell, required.intersection(["identity", *CELL_FIELDS]))
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "digest": {"type": "string"},
        "arrays": {"type": "string"},
        "run": _object(of_run, required),
        "cells": {"type": "array", "items": cell},
    }
    file = _object(properties, properties)
    return identified("record", SCHEMA_VERSION, {"title": "Record", "$defs": defs, **file})


def _stored_fields(fields: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of a record's fields as a file has them: what follows from the identity
    is missing, of some fields in part.
    """
    stored = {name: schema for name, schema in fields.items() if name not in DERIVED}
    for name in stored.keys() & set(PARTLY):
        model = stored[name].get("$ref", "").rpartition("/")[2]
        stored[name] = defs.get(model, stored[name]) | {"required": []}
    return stored


def _object(properties: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """Return the schema of an object that has these fields alone."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": sorted(properties.keys() & set(required)),
        "additionalProperties": False,
    }
