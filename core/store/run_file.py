"""The files of a run: a JSON record with its cells, and an ``.npz`` with their arrays.

What all cells of a run share is written once in the record. An array that is equal in all cells is
written once as ``NAME``, one of a single cell as ``KEY/NAME`` with the first letters of the cell's
key. The ``.npz`` has a digest of its content in its name, and the record names it: a kill at any
time leaves the files from before or the new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.store.files import npz_bytes, write_atomically
from fedbench.core.store.integrity import sealed
from fedbench.core.store.record import SCHEMA_VERSION, Record

_OF_CELL = (
    "key",
    "outcome",
    "reason",
    "by_adversary",
    "attack",
    "view",
    "targets",
    "pooled",
    "analyses",
    "notes",
    "complaints",
    "measured",
)
_OF_TARGET = ("scores", "kind", "ids", "canary", "in_mix")
_OF_MAXIMUM = ("null_auc", "null_advantage")
OPTIONAL = ("assignment",)
OPTIONAL_OF_TARGET = ("owner",)


@dataclass(frozen=True)
class CellResult:
    """The record of one cell and its arrays by name; none where it has no scores."""

    record: Record
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def array_names(record: Record) -> list[str]:
    """The arrays that a record with outcome ``ok`` must have."""
    names = ["test_correct"]
    for t in record.targets:
        parts = (*_OF_TARGET, *(_OF_MAXIMUM if t.maximum is not None else ()))
        names += [f"t{t.target}_{part}" for part in parts]
    return names + [
        f"{label}:{name}" for label, found in record.analyses.items() for name in found.arrays
    ]


def optional_names(record: Record) -> list[str]:
    """The arrays that it may have besides."""
    return [
        *OPTIONAL,
        *(f"t{t.target}_{part}" for t in record.targets for part in OPTIONAL_OF_TARGET),
    ]


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Hex sha256 over names, types, shapes and values of the arrays of one cell."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        a = arrays[name]
        found.update(
            f"{name} {a.dtype.str} {a.shape};".encode() + np.ascontiguousarray(a).tobytes()
        )
    return found.hexdigest()


def member(key: str, name: str) -> str:
    """The name of an array of a single cell in the ``.npz``."""
    return f"{key[:12]}/{name}"


def write_run(records: Path, stem: str, cells: Sequence[CellResult]) -> None:
    """Write the files of a run with these cells in place of earlier ones. Raises ``OSError``."""
    arrays, name = _packed({cell.record.key: cell.arrays for cell in cells if cell.arrays}), ""
    if arrays:
        content = npz_bytes(arrays)
        name = f"{stem}--{hashlib.sha256(content).hexdigest()[:12]}.npz"
        write_atomically(records / name, content)
    write_atomically(
        records / f"{stem}.json", sealed(_content([cell.record for cell in cells], name))
    )
    for path in records.glob(f"{stem}--*.npz"):
        if path.name != name:
            path.unlink(missing_ok=True)


def cells_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of each cell's record from the content of a run's file.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for content of another form.
    """
    run = content["run"]
    return [
        {
            **run,
            **own,
            "identity": {**own["identity"], "run": run["identity"]},
            "digests": {**run["digests"], **own["digests"]},
        }
        for own in content["cells"]
    ]


def _content(records: Sequence[Record], arrays: str) -> dict[str, Any]:
    """Fields of the run as the first record has them; a cell with other values keeps its own."""
    parts = [_parted(record.model_dump(mode="json")) for record in records]
    run = parts[0][0]
    cells = [
        {**own, **{name: value for name, value in of_run.items() if value != run[name]}}
        for of_run, own in parts
    ]
    return {"schema_version": SCHEMA_VERSION, "arrays": arrays, "run": run, "cells": cells}


def _parted(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of the run, fields of the cell)."""
    identity, digests = record["identity"], record["digests"]
    run = {name: value for name, value in record.items() if name not in _OF_CELL}
    run |= {"identity": identity["run"], "digests": _without(digests, "scores")}
    cell = {name: record[name] for name in _OF_CELL}
    scores = {"scores": digests["scores"]} if "scores" in digests else {}
    return run, cell | {"identity": _without(identity, "run"), "digests": scores}


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n != name}


def _packed(by_key: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name in sorted({name for arrays in by_key.values() for name in arrays}):
        having = {key: arrays[name] for key, arrays in by_key.items() if name in arrays}
        if _equal(having.values()):
            found[name] = next(iter(having.values()))
        else:
            found |= {member(key, name): a for key, a in having.items()}
    return found


def _equal(arrays: Iterable[np.ndarray]) -> bool:
    first, *others = arrays
    return all(
        a.dtype == first.dtype and a.shape == first.shape and a.tobytes() == first.tobytes()
        for a in others
    )
