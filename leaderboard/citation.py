"""The identifier of a board: a short hash of the records that it shows and of the rules that make numbers of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import fedbench.core
from fedbench.core.store.canonical import key_of
from fedbench.core.store.reading import LoadedRecord

CITATION = "board-id.json"
_LENGTH = 12  # hex digits: two of a million boards have the same with a chance below one in 500


@cache
def rules_digest() -> str:
    """Hex sha256 over the files that turn records into the numbers of a board, the papers' claims among them; line
    ends do not count."""
    here, core = Path(__file__).parent, Path(fedbench.core.__path__[0])
    h = hashlib.sha256()
    for folder in (core / "metrics", here / "claims", here / "statistics", here / "tables"):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.yaml")]):
            content = path.read_bytes().replace(b"\r\n", b"\n")
            h.update(f"{folder.name}/{path.name}:{len(content)};".encode() + content)
    return h.hexdigest()


def board_id(records: Iterable[LoadedRecord]) -> str:
    """``fb-`` and hex digits: another one exactly when a record, the number of them, or a rule is another."""
    return f"fb-{key_of({'rules': rules_digest(), 'records': _digests(records)})[:_LENGTH]}"


def citation(records: Iterable[LoadedRecord]) -> bytes:
    """The identifier and the digests that it is made of, as JSON."""
    shown = list(records)
    content = {"board": board_id(shown), "rules": rules_digest(), "records": _digests(shown)}
    return json.dumps(content, indent=1).encode() + b"\n"


def _digests(records: Iterable[LoadedRecord]) -> list[str]:
    """In an order that does not depend on the names of files."""
    return sorted(loaded.record.digest for loaded in records)
