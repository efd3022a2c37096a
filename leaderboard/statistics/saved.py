"""What was worked out of a contest, kept between boards: one of which no record and no rule changed is not worked out again.

A file a contest, in the user's cache folder and never in a results folder, which may be anybody's; named by the digest of the
records, the rules and the libraries, and led by the sha256 of its content. One that is damaged, or cannot be written, costs
working out again and nothing else. Safe to delete at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedbench.core.metrics import Interval
from fedbench.core.store.canonical import key_of
from fedbench.core.store.files import write_if_room
from fedbench.core.store.proven import notes_folder
from fedbench.leaderboard.statistics.chosen import Choice
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.rivals import Difference
from fedbench.leaderboard.statistics.rules import rules_digest
from fedbench.leaderboard.statistics.worst import Worst, WorstRate

MOST_FILES = 4096
_MOST_BYTES = 64 << 20
_CLASSES = {cls.__name__: cls for cls in (Interval, Choice, Worst, WorstRate, Difference)}
_MEMORY = ("_", "_of")  # how ``once`` calls what it remembers
_PLAIN = (bool, int, float, str)
_WITH = ("numpy", "scipy")


def contests_folder() -> Path:
    """``contests/`` in the user's cache folder."""
    return notes_folder().parent / "contests"


class Saved:
    """What is known of a contest and of those on its clean and mislabelled candidates."""

    def __init__(self, contest: Contest) -> None:
        found: dict[str, Contest] = {one.only: one for one in (contest, *contest.by_kind)}
        self._contests = found
        self._path = _path_of(contest)
        self._before = 0
        if self._path is not None:
            for only, memory in _read(self._path).items():
                found[only].__dict__.update(memory)
            self._before = self._size()

    def save(self) -> None:
        """Keep what was worked out since."""
        if self._path is None or self._size() == self._before:
            return
        content = json.dumps({only: _packed(_memory(contest)) for only, contest in self._contests.items()}).encode()
        write_if_room(self._path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def _size(self) -> int:
        return sum(len(known) for contest in self._contests.values() for known in _memory(contest).values())


def drop_oldest() -> None:
    """Files beyond ``MOST_FILES`` go, the oldest first."""
    with contextlib.suppress(OSError):  # no such folder, or another process drops some, too
        for path in sorted(contests_folder().iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-MOST_FILES]:
            path.unlink()


def _path_of(contest: Contest) -> Path | None:
    """None for records that have no digest: those of earlier schemas."""
    records = [
        [row.label, row.name, attack, seed, loaded.record.digest]
        for row in contest.rows for attack, entry in row.entries.items() for seed, loaded in sorted(entry.records.items())
    ]  # fmt: skip
    if not all(record[-1] for record in records):
        return None
    with_what = {name: version(name) for name in _WITH}
    made_of = [records, contest.attacks, contest.units, rules_digest(), with_what]
    return contests_folder() / key_of(made_of)


def _memory(contest: Contest) -> dict[str, dict[Any, Any]]:
    start, end = _MEMORY
    return {name: value for name, value in contest.__dict__.items() if name.startswith(start) and name.endswith(end)}


def _read(path: Path) -> dict[str, dict[str, dict[Any, Any]]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return {}
    return {only: _unpacked(memory) for only, memory in json.loads(content).items()}


def _packed(value: Any) -> Any:
    """As JSON: what has several forms in it carries the name of its own."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        return {"dict": [[_packed(name), _packed(one)] for name, one in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(one) for one in value]}
    if isinstance(value, list):
        return {"list": [_packed(one) for one in value]}
    if type(value) in _CLASSES.values():
        return {type(value).__name__: [_packed(getattr(value, f.name)) for f in dataclasses.fields(value)]}
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise TypeError(f"a contest worked out a {type(value).__name__}, which is not kept")


def _unpacked(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((form, inside),) = value.items()
    if form == "dict":
        return {_unpacked(name): _unpacked(one) for name, one in inside}
    parts = [_unpacked(one) for one in inside]
    if form in _CLASSES:
        names = (f.name for f in dataclasses.fields(_CLASSES[form]))
        return _CLASSES[form](**dict(zip(names, parts, strict=True)))
    return tuple(parts) if form == "tuple" else parts
