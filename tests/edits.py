"""Changes of JSON content by path, for tables of mistakes."""

from __future__ import annotations

from fedbench.core.store.record import CELL_FIELDS


def put(content, path, value):
    """Set the item at ``path`` ("targets/0/groups") in place; ``...`` removes it."""
    way, _, last = path.rpartition("/")
    content = at(content, way) if way else content
    key = int(last) if isinstance(content, list) else last
    if value is ...:
        del content[key]
    else:
        content[key] = value


def at(content, path):
    """Return the item at ``path``. Raises ``KeyError`` where there is none."""
    for part in path.split("/"):
        content = content[int(part) if isinstance(content, list) else part]
    return content


_OF_CELL = (*CELL_FIELDS, "identity/attack", "identity/signals", "identity/analyses")
_OF_FILE = ("schema_version", "digest", "arrays", "cells", "run")


def in_run(path, cell=0):
    """Where the field of a record stands in the file of its run; ``cell``: the record's place
    there.
    """
    if any(path == name or path.startswith(f"{name}/") for name in _OF_FILE):
        return path
    if any(path == name or path.startswith(f"{name}/") for name in _OF_CELL):
        return f"cells/{cell}/{path}"
    return f"run/{path.replace('identity/run', 'identity')}"
