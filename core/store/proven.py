"""Which records of a folder were checked before, told by their content: what did not change need not be proven again.

A note is the sha256 of the check's own code and of the bytes of a record and of its scores. Notes lie in the user's cache folder
and never in a results folder, which may be anybody's. The file ends with its own sha256; one that is damaged, or cannot be
written, costs checking again and nothing else. What is added while a plan is run lies beside it, each note with its own sha256,
until the next command that reads the folder. Safe to delete at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Literal

import fedbench.core
from fedbench.core.store.files import sha256_of_file, write_if_room

Check = Literal["read", "recounted"]
"""that the record is whole and agrees with itself and its scores' file; that its numbers are those of its scores"""
_SIZE = hashlib.sha256().digest_size
MOST_NOTES = 1 << 19  # of a folder: 16 MB
MOST_FOLDERS = 64
_ROOMS = ("contract", "metrics", "store")


def notes_folder() -> Path:
    """``checked/`` in the user's cache folder, a file a results folder."""
    cache_root = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_root) if cache_root else Path.home() / ".cache") / "fedbench" / "checked"


class Proven:
    """The notes of the results folder ``root``; None: nothing is remembered."""

    def __init__(self, root: Path | None = None) -> None:
        name = None if root is None else hashlib.sha256(str(root.absolute()).encode(errors="surrogatepass")).hexdigest()[:32]
        self._path = None if name is None else notes_folder() / name
        self._known = _read(self._path) if self._path is not None else set()
        beside, self._beside = _read_beside(self._path) if self._path is not None else (set(), 0)
        self._known |= beside
        self._asked: set[bytes] = set()
        self._added: list[bytes] = []

    def holds(self, check: Check, content: str) -> bool:
        """Whether this ``content`` (a digest) passed the check."""
        at = _note(check, content)
        self._asked.add(at)
        return at in self._known

    def add(self, check: Check, content: str) -> None:
        """It passed now."""
        at = _note(check, content)
        self._asked.add(at)
        self._known.add(at)
        self._added.append(at)

    def append(self) -> None:
        """Keep what is new at once, whatever other processes add at the same time and however this one ends."""
        notes = b"".join(at + hashlib.sha256(at).digest() for at in self._added)
        if self._path is None or not notes:
            return
        with contextlib.suppress(OSError):  # costs checking again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _beside(self._path).open("ab", buffering=0) as f:
                f.write(notes)
        self._added.clear()

    def save(self) -> None:
        """Keep what is new for later commands; of too many notes, those that nobody asked for now are dropped."""
        if self._path is None or not (self._added or self._beside):
            return
        kept = self._known if len(self._known) <= MOST_NOTES else self._known & self._asked
        notes = b"".join(sorted(kept)[:MOST_NOTES])
        written = write_if_room(self._path, notes + hashlib.sha256(notes).digest())
        self._added.clear()
        with contextlib.suppress(OSError):
            if written and _beside(self._path).stat().st_size == self._beside:  # nobody added some meanwhile
                _beside(self._path).unlink()
        with contextlib.suppress(OSError):  # another process drops some, too
            by_age = sorted(self._path.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            for path in by_age[:-MOST_FOLDERS]:
                path.unlink()


def content_of(record: bytes, scores: Path) -> str:
    """Hex sha256 over a record's file and the one beside it (which need not be there)."""
    return content_with(record, sha256_of_file(scores))


def content_with(record: bytes, scores: str) -> str:
    """The same, of the hex sha256 of the file beside the record; "": there is none."""
    return hashlib.sha256(hashlib.sha256(record).digest() + bytes.fromhex(scores)).hexdigest()


def _note(check: Check, content: str) -> bytes:
    return hashlib.sha256(f"{check}:{_code()}:{content}".encode()).digest()


@cache
def _code() -> str:
    """Hex sha256 over the code that decides what passes."""
    found = hashlib.sha256()
    root = Path(fedbench.core.__path__[0])
    for path in (path for room in _ROOMS for path in sorted((root / room).glob("*.py"))):
        found.update(f"{path.parent.name}/{path.name};".encode() + path.read_bytes())
    return found.hexdigest()


def _read(path: Path) -> set[bytes]:
    try:
        if path.stat().st_size > (MOST_NOTES + 1) * _SIZE:
            return set()
        content = path.read_bytes()
    except OSError:
        return set()
    notes, end = content[:-_SIZE], content[-_SIZE:]
    if len(content) % _SIZE or hashlib.sha256(notes).digest() != end:
        return set()
    return {notes[i : i + _SIZE] for i in range(0, len(notes), _SIZE)}


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.added")


def _read_beside(path: Path) -> tuple[set[bytes], int]:
    """(the notes that were added since the file was written, the size of theirs)."""
    try:
        content = _beside(path).read_bytes()[: 2 * MOST_NOTES * _SIZE]
    except OSError:
        return set(), 0
    pairs = ((content[i : i + _SIZE], content[i + _SIZE : i + 2 * _SIZE]) for i in range(0, len(content), 2 * _SIZE))
    return {note for note, digest in pairs if hashlib.sha256(note).digest() == digest}, len(content)
