"""JSON files of unknown origin: bounded in size, depth and numbers; no name occurs twice in an
object.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import bytes_of
from fedbench.core.store.integrity import digest_mistake
from fedbench.core.words import one_line

MAX_DEPTH = 40
LARGEST = 2**64  # seeds and sizes are below


def identified(kind: str, version: int, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a kind of file, with the ``$id`` of its version: a name, no address."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://github.com/fedbench/fedbench/schemas/{kind}-{version}.json",
        **schema,
    }


def parse_json(path: Path, most: int, remedy: str) -> Any:
    """Return the content of a JSON file. Raises ``UserError`` as :func:`read_file` and
    :func:`parse_bytes`.
    """
    return parse_bytes(read_file(path, most, remedy), str(path), remedy)


def read_file(path: Path, most: int, remedy: str) -> bytes:
    """Return the bytes of a regular file of at most ``most`` bytes. Raises ``UserError``."""
    try:
        content = bytes_of(path, most)
    except OverflowError:
        raise UserError(
            f"{path}: larger than {most >> 20} MiB, which no file of fedbench is; {remedy}"
        ) from None
    except FileNotFoundError:
        content = None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    if content is None:
        raise UserError(f"{path}: not a regular file; {remedy}")
    return content


def parse_bytes(text: bytes, name: str, remedy: str) -> Any:
    """Return the JSON value of these bytes. Raises ``UserError``, which begins with ``name``, for
    JSON that fedbench would not have written.
    """
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once)
        _refuse_extremes(content)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{name}: unreadable, not a complete JSON file ({one_line(str(error), 120)}); {remedy}"
        ) from error
    return content


def require_digest(content: dict[str, Any], path: Path, remedy: str) -> None:
    """Raise ``UserError`` unless the content of a file is the one that its digest was made of."""
    if mistake := digest_mistake(content):
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({mistake}); {remedy}")


def _refuse_extremes(content: Any) -> None:
    """Refuse values nested deeper than :data:`MAX_DEPTH` and numbers out of range: JSON has 1e999
    and unbounded integers.
    """
    level = [content]
    for _ in range(MAX_DEPTH):
        inner = []
        for item in level:
            kind = type(item)
            if kind is dict:
                inner += item.values()
            elif kind is list:
                inner += item
            elif (kind is float and not math.isfinite(item)) or (
                kind is int and abs(item) > LARGEST
            ):
                raise ValueError(f"the number {item!r:.40} is out of range")
        if not inner:
            return
        level = inner
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without duplicate names, which readers of JSON resolve differently."""
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in counts if counts[name] > 1)
        raise ValueError(f"'{twice}' is a duplicate name")
    return content


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")
