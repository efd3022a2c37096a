"""What strangers' packages announced, remembered between commands: by version, and by the state of every file of theirs."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

from fedbench.core.contract.hooks import PROJECT
from fedbench.core.registry.files import files_of, folder_of
from fedbench.core.registry.kinds import KINDS
from fedbench.core.registry.notes import Notes, cache_folder

_SCHEMA = 2
_here: dict[str, Any] = {}  # of this process: location -> [state, what each entry point said]


def cache_file() -> Path:
    """``plugins.json`` in the user's cache folder; safe to delete at any time."""
    return cache_folder() / "plugins.json"


class Remembered:
    """Location of a distribution -> its state then, and what it said. A file that is missing, damaged or cannot be written
    costs asking again, nothing else. ``fresh``: forget what was said."""

    def __init__(self, fresh: bool) -> None:
        self._fresh, self._new = fresh, dict[str, Any]()
        self._on_disk: dict[str, Any] | None = None
        self._common = ""

    def state(self, dist: Distribution) -> str:
        """Everything that can change what a distribution announces: itself, Python, this harness, what is installed beside."""
        own = [f"{name}:{_stat(path)}" for name, path in sorted(files_of(dist).items())]
        words = [_where(dist), str(dist.metadata["Version"] if dist.metadata else ""), *own, self._surroundings()]
        return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()

    def recall(self, dist: Distribution, state: str, n: int) -> list[Any]:
        """What each of its ``n`` entry points said in this state; None for one of which that is not known."""
        for known in () if self._fresh else (_here, self._disk()):
            entry = known.get(_where(dist))
            if isinstance(entry, list) and len(entry) == 2 and entry[0] == state and _are_said(entry[1], n):
                return list(entry[1])
        return [None] * n

    def keep(self, dist: Distribution, state: str, told: list[Any]) -> None:
        """Remember it for this process, and for later commands what they need not wait for again: a plugin that failed
        quickly is asked again, since what it missed may be there by then."""
        _here[_where(dist)] = [state, list(told)]
        self._new[_where(dist)] = [state, [said if said["stopped"] or not said["reason"] else None for said in told]]

    def save(self) -> None:
        """Write what is new; packages that are gone are forgotten."""
        if self._new:
            _notes().add(self._new, keep=lambda where: Path(where).exists())

    def _disk(self) -> dict[str, Any]:
        if self._on_disk is None:
            self._on_disk = _notes().read()
        return self._on_disk

    def _surroundings(self) -> str:
        if not self._common:
            folders = sorted({str(folder_of(d)) for d in distributions()})
            room = Path(__file__).parent
            ours = [room / name for name in ("announced.py", "discovery.py", "kinds.py", "../contract/hooks.py")]
            facts = [sys.version, sys.prefix, version(PROJECT), *(line for f in folders for line in _entries(Path(f)))]
            self._common = "\n".join([*facts, *(_stat(p) for p in ours)])
        return self._common


def _where(dist: Distribution) -> str:
    return str(getattr(dist, "_path", "?"))


def _stat(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{path}:{found.st_size if path.is_file() else 0}:{found.st_mtime_ns}"


def _entries(folder: Path) -> list[str]:
    """What lies in a folder of packages, and since when each is described there. Not the folder's own time: Python's bytecode
    changes that with the first import."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.name != "__pycache__")
    except OSError:
        return [f"{folder}:-"]
    return [_stat(folder / name) if name.endswith((".dist-info", ".egg-info")) else f"{folder}/{name}" for name in found]


def _notes() -> Notes:
    return Notes(cache_file(), _SCHEMA)


def _are_said(told: Any, n: int) -> bool:
    """Whether what was read has the form of what discovery keeps."""
    return isinstance(told, list) and len(told) == n and all(
        said is None or (
            isinstance(said, dict) and said.keys() == {"components", "reason", "stopped"} and isinstance(said["reason"], str)
            and isinstance(said["components"], list) and all(map(_is_component, said["components"]))
        )
        for said in told
    )  # fmt: skip


def _is_component(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and pair[0] in KINDS and isinstance(pair[1], dict)):
        return False
    texts = [pair[1].get(name) for name in ("name", "target", "summary", "paper")]
    return pair[1].keys() == {"name", "target", "summary", "paper", "floor"} and all(isinstance(t, str) for t in texts)
