"""A record's JSON member by member, as fedbench writes it: what many records have in common is parsed once.

``integrity.sealed`` begins every member of the file, and of its identity, on a line of its own. No string of JSON holds a line
break, and each piece between two such lines must be a whole value by itself, so the pieces are the members that a parser finds.
A file that is written in another way is left to the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.core.store.canonical import canonical, joined
from fedbench.core.store.json_file import plain_values
from fedbench.core.store.record import Identity, Record
from fedbench.core.store.shared import Part, Shared

# Fields in which most records of a folder are equal to many others: validated and kept once.
COMMON = ("described", "provenance", "defense", "attack", "components", "history", "members", "facts", "analyses")
_FIELDS = {name.encode(): name for name in Record.model_fields}
_OF_IDENTITY = {name.encode(): name for name in Identity.model_fields}


@dataclass(frozen=True, slots=True)
class Members:
    """``values``: all of the file; ``common`` and, of its ``identity``, the parts that other records have, too."""

    values: dict[str, Any]
    common: dict[str, Part]
    identity: dict[str, Part]

    def texts(self) -> dict[str, str]:
        """The canonical JSON of each."""
        known = {name: part.text for name, part in self.common.items()}
        known["identity"] = joined({name: part.text for name, part in self.identity.items()})
        return {name: known.get(name) or canonical(value) for name, value in self.values.items()}


def members_of(given: bytes, shared: Shared, known: bool = False) -> Members | None:
    """None for what is not a record just as fedbench writes it, or needs a closer look, or is none. ``known``: it passed all
    checks before, as have all of which something is in ``shared``."""
    found = _split(given, b'{\n "', b',\n "', b"\n}\n", _FIELDS)
    inner = _split(found.pop("identity", b""), b'{\n  "', b',\n  "', b"\n }", _OF_IDENTITY) if found else None
    if not found or not inner:
        return None
    try:
        common = {name: shared.part(found.pop(name), known) for name in COMMON if name in found}
        identity = {name: shared.part(one, known) for name, one in inner.items()}
        values = dict(zip(found, plain_values(list(found.values()), known), strict=True))
    except ValueError:
        return None
    values |= {name: part.value for name, part in common.items()}
    values["identity"] = {name: part.value for name, part in identity.items()}
    return Members(values, common, identity)


def known_values(given: bytes, names: Sequence[str]) -> dict[str, Any] | None:
    """Some members of a record that passed all checks before; None for one that is not written as fedbench does."""
    found = _split(given, b'{\n "', b',\n "', b"\n}\n", _FIELDS)
    if found is None:
        return None
    there = [name for name in names if name in found]
    try:
        return dict(zip(there, plain_values([found[name] for name in there], known=True), strict=True))
    except ValueError:
        return None


def _split(given: bytes, start: bytes, between: bytes, end: bytes, names: dict[bytes, str]) -> dict[str, bytes] | None:
    """Name -> JSON of a member; None where one has no name of these, or another has it, too."""
    if not given.startswith(start) or not given.endswith(end):
        return None
    pieces = [piece.partition(b'": ') for piece in given[len(start) : -len(end)].split(between)]
    if any(name not in names for name, _, _ in pieces):
        return None
    found = {names[name]: value for name, _, value in pieces}
    return found if len(found) == len(pieces) else None
