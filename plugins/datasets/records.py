"""Text records of 0s and 1s -> packed bits, every line checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from fedbench.core import UserError

_DIGIT, _COMMA = ord("0"), ord(",")
_BIT = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
_LABEL_BYTES = 16
_MOST_FIELD_BYTES = 8  # of a feature with its comma


@dataclass(frozen=True)
class Shape:
    """What a whole file holds: ``rows`` of ``features`` values 0 or 1, and labels 1..``classes``."""

    rows: int
    features: int
    classes: int


def most_bytes(shape: Shape) -> int:
    """Of all files of a set together, with every line as long as it may be."""
    return shape.rows * (_LABEL_BYTES + _MOST_FIELD_BYTES * shape.features)


def read_features(file: IO[bytes], where: str, shape: Shape) -> np.ndarray:
    """[rows, ceil(features / 8)] uint8, as ``np.packbits`` packs, of comma-separated lines.

    ``where`` names the file. Raises ``UserError`` naming file and line for another number of values, a value that is
    neither 0 nor 1, and another number of lines.
    """
    packed = _room(shape)
    for row, line in _lines(file, where, shape, _MOST_FIELD_BYTES * shape.features):
        packed[row] = np.packbits(_bits(line, f"{where}:{row + 1}", shape.features))
    return packed


def read_labels(file: IO[bytes], where: str, shape: Shape) -> np.ndarray:
    """[rows] int64 classes 0..C-1 of lines 1..C. Raises ``UserError`` naming file and line."""
    y = np.empty(shape.rows, np.int64)
    for row, line in _lines(file, where, shape, _LABEL_BYTES):
        y[row] = _label(line, f"{where}:{row + 1}", shape.classes)
    return y


def read_labelled(file: IO[bytes], where: str, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Packed features and labels of lines that start with the label, in quotes or not. Raises as the two others do."""
    packed, y = _room(shape), np.empty(shape.rows, np.int64)
    for row, line in _lines(file, where, shape, _LABEL_BYTES + _MOST_FIELD_BYTES * shape.features):
        label, _, rest = line.partition(b",")
        y[row] = _label(label, f"{where}:{row + 1}", shape.classes)
        packed[row] = np.packbits(_bits(rest, f"{where}:{row + 1}", shape.features))
    return packed, y


def _room(shape: Shape) -> np.ndarray:
    return np.empty((shape.rows, -(-shape.features // 8)), np.uint8)


def _lines(file: IO[bytes], where: str, shape: Shape, limit: int) -> Iterator[tuple[int, bytes]]:
    """Position and stripped text of exactly ``shape.rows`` lines of at most ``limit`` bytes."""
    row = 0
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise UserError(f"{where}:{row + 1}: more than {limit:,} bytes in a line: not this data set; delete it and run again")
        if row == shape.rows:
            raise UserError(f"{where}:{row + 1}: more than the {shape.rows:,} lines expected; delete it and run again")
        yield row, line.strip()
        row += 1
    if row < shape.rows:
        raise UserError(f"{where}:{row}: the file ends here, {shape.rows:,} lines expected: truncated; delete it and run again")


def _bits(text: bytes, where: str, features: int) -> np.ndarray:
    """[features] uint8 of "0,1,1": at once where every value is one digit, else value by value."""
    raw = np.frombuffer(text, np.uint8)
    values = raw[::2] - _DIGIT
    if len(raw) == 2 * features - 1 and (values <= 1).all() and (raw[1::2] == _COMMA).all():
        return values
    fields = text.split(b",")
    if len(fields) != features:
        raise UserError(
            f"{where}: {len(fields):,} features, {features:,} expected: truncated or another file; delete it and run again"
        )
    bits = [_BIT.get(field.strip()) for field in fields]
    if None in bits:
        wrong = bits.index(None)
        found = fields[wrong][:_LABEL_BYTES].decode(errors="replace")
        raise UserError(f"{where}: feature {wrong + 1} is '{found}', neither 0 nor 1; mend the file, or delete it and run again")
    return np.array(bits, np.uint8)


def _label(text: bytes, where: str, classes: int) -> int:
    plain = text.strip().strip(b'"')
    if not plain.isdigit() or not 1 <= int(plain) <= classes:
        found = text[:_LABEL_BYTES].decode(errors="replace")
        raise UserError(f"{where}: the label is '{found}', not 1..{classes}; mend the file, or delete it and run again")
    return int(plain) - 1
