"""Plain data remembered between commands, in files of the user's cache folder that may be deleted at any time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**24


def cache_folder() -> Path:
    """``fedbench`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedbench"


class Notes:
    """Name -> JSON values, in the file at ``path``, which holds their sha256. One that is missing, damaged, of another
    ``schema`` or cannot be written costs asking again and nothing else. It is read as JSON: nothing in it is ever executed."""

    def __init__(self, path: Path, schema: int) -> None:
        self._path, self._schema = path, schema

    def read(self) -> dict[str, Any]:
        """All notes; none where the file is not whole."""
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                return {}
            content = json.loads(self._path.read_bytes())
            whole = isinstance(content, dict) and content.get("schema") == self._schema
            notes = content.get("notes") if whole else None
            return notes if isinstance(notes, dict) and content.get("sha256") == _digest(notes) else {}
        except (OSError, ValueError, RecursionError):
            return {}

    def add(self, new: dict[str, Any], keep: Callable[[str], bool] = lambda name: True) -> None:
        """Write these beside those that other commands wrote meanwhile, whole or not at all; of the earlier ones, those to
        ``keep``."""
        notes = {name: value for name, value in self.read().items() if keep(name)} | new
        content = {"schema": self._schema, "sha256": _digest(notes), "notes": notes}
        with contextlib.suppress(OSError):  # a folder that cannot be written: the next command asks again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{self._path.stem}-", dir=self._path.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as f:
                    json.dump(content, f)
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)
                raise


def _digest(notes: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(notes, sort_keys=True).encode()).hexdigest()
