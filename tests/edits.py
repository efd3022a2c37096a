"""Changes of JSON content by path, for tables of mistakes."""

from __future__ import annotations


def put(content, path, value):
    """Set the item at ``path`` ("targets/0/groups") in place; ``...`` removes it."""
    *way, last = path.split("/")
    for part in way:
        content = content[int(part) if isinstance(content, list) else part]
    key = int(last) if isinstance(content, list) else last
    if value is ...:
        del content[key]
    else:
        content[key] = value


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
    "identity/attack",
    "identity/signals",
    "identity/analyses",
    "digests/scores",
)
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
