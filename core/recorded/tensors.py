"""Read safetensors files: the length of a JSON header, the header, then raw tensors.

The format's own library would be a further binary dependency for forty lines, and trusts sizes that
a header states; here all are checked before anything is allocated.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedbench.core.contract.errors import UserError
from fedbench.core.store.json_file import parse_bytes

_MOST_HEADER = 32 << 20  # bytes; a tensor takes about a hundred
_REMEDY = "write it with safetensors.torch.save_file"
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Entry(NamedTuple):
    """Place of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """of its bytes in the file"""
    size: int
    """number of its bytes"""


def entries(path: Path) -> dict[str, Entry]:
    """Return the tensors of a file by name, without their values. Raises ``UserError``."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if length > _MOST_HEADER:
                raise UserError(f"{path}: not a safetensors file (its header is long); {_REMEDY}")
            if end <= 8 or 8 + length > end:
                raise UserError(f"{path}: cut off in its header; record the round again")
            header = parse_bytes(file.read(length), str(path), _REMEDY)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(header, dict):
        raise UserError(f"{path}: not a safetensors file; {_REMEDY}")
    header.pop("__metadata__", None)
    places = {name: _entry(path, name, value, 8 + length, end) for name, value in header.items()}
    if sum(entry.size for entry in places.values()) > end - 8 - length:
        raise UserError(f"{path}: its tensors overlap; {_REMEDY}")
    return places


def _entry(
    path: Path,
    name: str,
    value: Any,
    start: int,
    end: int,
) -> Entry:
    """Return the place that a header states; ``start`` and ``end`` of all values in the file."""
    try:
        dtype = _TYPES[value["dtype"]]
        shape = tuple(value["shape"])
        first, last = value["data_offsets"]
        negative = min((first, *shape)) < 0
        fits = last - first == prod(shape) * dtype.itemsize and start + last <= end
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: the tensor '{name:.80}' has no type of {', '.join(_TYPES)}, shape and place; "
            f"{_REMEDY}"
        ) from None
    if negative or not fits:
        raise UserError(f"{path}: the tensor '{name:.80}' is cut off; record the round again")
    return Entry(dtype, shape, start + first, last - first)


def tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Raises ``UserError``."""
    values = {}
    places = entries(path)
    with path.open("rb") as file:
        for name, entry in places.items():
            file.seek(entry.start)
            content = bytearray(file.read(entry.size))
            flat = torch.zeros(0, dtype=entry.dtype)
            if content:
                flat = torch.frombuffer(content, dtype=entry.dtype)
            values[name] = flat.reshape(entry.shape)
    return values
