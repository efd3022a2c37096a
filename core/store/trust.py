"""Whom a results folder has its records from: notes of this machine, beside the records and never inside them.

A record without a note was measured here. ``import`` and ``reproduce`` write notes; a bundle cannot carry any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import digest_mistake, sealed
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.marker import MARKER, TRUST, read_marker
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import SCHEMA_VERSION

# `claimed`: somebody else's, whose numbers its scores give; `reproduced`: run again here, within tolerance;
# `not reproduced`: run again here, with another outcome. Whatever has no note is `measured here`.
Level = Literal["measured here", "claimed", "reproduced", "not reproduced"]
MEASURED_HERE: Level = "measured here"
_MAX_BYTES = 64 << 20
_REMEDY = "delete it, and every record that came from elsewhere counts as claimed"


@dataclass(frozen=True, kw_only=True)
class Noted:
    """Of one record, told by its ``digest``. ``bundle``: name and sha256 of where it came from; ``how``: what reproducing it
    gave, and where."""

    level: Level
    digest: str
    bundle: str = ""
    how: str = ""


@dataclass(frozen=True)
class Trust:
    """``notes`` by stem; ``imported``: the folder began as a bundle, so that a record without notes at all is claimed."""

    notes: Mapping[str, Noted] = field(default_factory=dict)
    imported: bool = False

    def of(self, loaded: LoadedRecord) -> Noted:
        """What is known of a record. One that was computed anew here since has no note any more."""
        digest = loaded.record.digest
        noted = self.notes.get(loaded.stem)
        if noted is not None and noted.digest == digest:
            return noted
        return Noted(level="claimed" if self.imported and not self.notes else MEASURED_HERE, digest=digest)


def read_trust(root: Path) -> Trust:
    """The folder's notes. Raises ``UserError`` for a file that fedbench did not write."""
    imported = bool(read_marker(root).get("imported")) if (root / MARKER).is_file() else False
    path = root / TRUST
    if not path.exists():
        return Trust({}, imported)
    content = parse_json(path, _MAX_BYTES, _REMEDY)
    if not isinstance(content, dict) or type(content.get("schema_version")) is not int or digest_mistake(content) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it; {_REMEDY}")
    try:
        notes = {stem: Noted(**note) for stem, note in content["records"].items()}
        known = all(note.level in get_args(Level) for note in notes.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not fedbench's notes ({type(error).__name__}); {_REMEDY}") from error
    if not known:
        raise UserError(f"{path}: it has a level that fedbench does not know; {_REMEDY}")
    return Trust(notes, imported)


def note(root: Path, notes: Mapping[str, Noted]) -> None:
    """Add notes, by stem, in place of earlier ones of the same records. Raises ``OSError``."""
    write_trust(root, {**read_trust(root).notes, **notes})


def write_trust(root: Path, notes: Mapping[str, Noted]) -> None:
    """The folder's notes, whole."""
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "records": {stem: asdict(notes[stem]) for stem in sorted(notes)}}
    write_atomically(root / TRUST, sealed(content))


def claimed(records: Iterable[LoadedRecord], bundle: str) -> dict[str, Noted]:
    """Notes of records that came in a bundle."""
    return {r.stem: Noted(level="claimed", digest=r.record.digest, bundle=bundle) for r in records}
