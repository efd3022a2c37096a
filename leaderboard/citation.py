"""The identifier of a board: a short hash of the records that it shows and of the rules that make numbers of them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fedbench.core.store.canonical import key_of
from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.statistics.rules import rules_digest

CITATION = "board-id.json"
_LENGTH = 12  # hex digits: two of a million boards are alike with a chance below one in 500


def board_id(records: Iterable[LoadedRecord]) -> str:
    """``fb-`` and hex digits: another one exactly when a record, the number of them, or a rule is another."""
    return f"fb-{key_of({'rules': rules_digest(), 'records': _digests(records)})[:_LENGTH]}"


def citation(records: Iterable[LoadedRecord]) -> bytes:
    """What the identifier is made of, for whoever wants to make it again, as JSON."""
    shown = list(records)
    content = {"board": board_id(shown), "rules": rules_digest(), "records": _digests(shown)}
    return json.dumps(content, indent=1).encode() + b"\n"


def _digests(records: Iterable[LoadedRecord]) -> list[str]:
    """In an order that does not depend on the names of files."""
    return sorted(loaded.record.digest for loaded in records)
