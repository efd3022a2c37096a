"""JSON made by anybody: bounded, complete, without what no arithmetic survives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import bytes_of
from fedbench.core.words.explain import one_line

MAX_DEPTH = 40
LARGEST = 2**64  # seeds and sizes are below
_UNUSUAL = object()
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBERS = (b"0" * 19, b"0e000")  # with digits alike; nothing shorter is out of range


def parse_json(path: Path, most: int, remedy: str) -> Any:
    """What a JSON file of at most ``most`` bytes holds. UserError for anything that is not one, FIFOs included."""
    return parse_bytes(read_file(path, most, remedy), str(path), remedy)


def read_file(path: Path, most: int, remedy: str) -> bytes:
    """The bytes of a regular file of at most so many. UserError for anything else."""
    try:
        if (found := bytes_of(path, most)) is None:
            raise UserError(f"{path}: not a regular file; {remedy}")
    except OverflowError:
        raise UserError(f"{path}: larger than {most >> 20} MiB, which no file of fedbench is; {remedy}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: not a regular file; {remedy}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    return found


def parse_bytes(given: bytes, name: str, remedy: str) -> Any:
    """What JSON holds no deeper and with no larger numbers than anything of fedbench; ``name`` leads the error."""
    content = _quickly(given)
    if content is not _UNUSUAL:
        return content
    try:  # rare: what is wrong, if anything, is looked for one by one
        content = json.loads(given.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once)
        _refuse_deep(content)
        _refuse_extreme(content if isinstance(content, dict | list) else [content])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: unreadable, not a complete JSON file ({one_line(str(error), 120)}); {remedy}") from error
    return content


def plain_values(given: Sequence[bytes], known: bool = False) -> list[Any]:
    """What parts of a file hold, each a JSON value of its own; ``known``: of a file that passed all checks before. Raises
    ``ValueError`` where one is none, or needs the closer look that the whole file gets."""
    content = [from_json(part, allow_inf_nan=False, cache_strings="all") for part in given]
    if not known and not _plain(b",".join(given), content):
        raise ValueError("not plain JSON")
    return content


def _quickly(given: bytes) -> Any:
    """The same as of ``json``, with one object for equal short texts of all files; ``_UNUSUAL`` where a closer look is needed."""
    try:
        content = from_json(given, allow_inf_nan=False, cache_strings="all")
    except ValueError:
        return _UNUSUAL
    return content if _plain(given, content) else _UNUSUAL


def _plain(given: bytes, content: Any) -> bool:
    """Whether nothing of the JSON needs a closer look: no great depth and, outside of strings, as many colons as there are names
    (none twice) and no number with so many digits that it could be out of range."""
    names, level, depth = 0, [content], 0
    while level and depth < MAX_DEPTH:
        objects = [box for box in level if type(box) is dict]
        names += sum(map(len, objects))
        inner = chain(*(box.values() for box in objects), *(box for box in level if type(box) is list))
        level = [item for item in inner if type(item) is dict or type(item) is list]
        depth += 1
    bare = _STRINGS.sub(b"", given).translate(_DIGITS_ALIKE, b"+")
    return depth < MAX_DEPTH and bare.count(b":") == names and not any(long in bare for long in _LONG_NUMBERS)


def _refuse_deep(content: Any) -> None:
    """Nothing that fedbench writes is nested deeper; what reads it may recurse."""
    level = [content]
    for _ in range(MAX_DEPTH):
        boxes = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [inner for box in boxes for inner in box]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _refuse_extreme(content: Any) -> None:
    """Numbers that no arithmetic of a board survives: JSON's 1e999 is infinite, and its integers have no end."""
    level = [content]
    while level:
        inner = [item for box in level for item in (box.values() if isinstance(box, dict) else box)]
        for item in inner:
            if (isinstance(item, float) and not math.isfinite(item)) or (type(item) is int and abs(item) > LARGEST):
                raise ValueError(f"the number {item!r:.40} is out of range")
        level = [item for item in inner if isinstance(item, dict | list)]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a name that stands there twice, some readers take the first and some the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands there twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")
