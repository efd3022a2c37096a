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
