"""What a bundle says of itself: its version, its suites and packages, and every file with its size and digest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbench.core.spec.suite import PublishedNumbers
from fedbench.core.store.integrity import digest_mistake, sealed
from fedbench.core.store.record import SCHEMA_VERSION
from fedbench.core.words import one_line, printable
from fedbench.leaderboard.submissions.archive import MAX_ENTRIES, Refused

BUNDLE_VERSION = 1
_HEX = r"^[0-9a-f]{64}$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class File(_Part):
    """One file of the bundle."""

    path: str = Field(max_length=260)
    size: int = Field(ge=0)
    sha256: str = Field(pattern=_HEX)


class Manifest(_Part):
    """``manifest.json``. Of the folder that was exported: its ``suite``, ``title``, the ``cells`` that its last plan asks for,
    ``published`` numbers, ``analyses`` and ``plans``; of the machine: ``fedbench`` and all ``packages``."""

    bundle: int
    schema_version: int
    digest: str = ""
    fedbench: str
    suite: str = Field(max_length=300)
    title: str = Field(max_length=1_000)
    cells: list[str] = Field(max_length=MAX_ENTRIES)
    published: list[dict[str, Any]] = Field(max_length=1_000)
    analyses: list[dict[str, Any]] | None = Field(max_length=1_000)
    plans: list[str] = Field(max_length=1_000)
    packages: dict[str, str] = Field(max_length=10_000)
    files: list[File] = Field(min_length=1, max_length=MAX_ENTRIES)

    def bytes(self) -> bytes:
        """The file, with its digest."""
        return sealed(self.model_dump(mode="json", exclude={"digest"}))


def manifest_of(content: Any) -> Manifest:
    """The manifest in the JSON content of its file. Raises :class:`Refused`."""
    version = content.get("bundle") if isinstance(content, dict) else None
    if type(version) is not int:
        raise Refused("its manifest is not one of fedbench (it has no bundle version)")
    if version != BUNDLE_VERSION:
        way_out = "upgrade fedbench" if version > BUNDLE_VERSION else "export it again with a newer fedbench"
        raise Refused(f"bundle version {version}, this fedbench reads {BUNDLE_VERSION}: {way_out}")
    schema = content.get("schema_version")
    if type(schema) is not int or not 0 < schema <= SCHEMA_VERSION:
        raise Refused(f"record schema {one_line(repr(schema), 40)}, this fedbench reads up to {SCHEMA_VERSION}: upgrade fedbench")
    if (what := digest_mistake(content)) is not None:
        raise Refused(f"its manifest was changed ({what})")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"its manifest is none ({one_line(where, 120)}: {one_line(first['msg'], 120)})") from error
    for entry in manifest.published:
        try:
            PublishedNumbers.model_validate(entry)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)
            raise Refused(f"its manifest has published numbers that no suite has ({what})") from error
    for name, text in texts_of(manifest.model_dump(mode="json", exclude={"files"})):
        require_shown(f"its manifest: {name}", text)
    return manifest


def require_shown(where: str, text: str) -> None:
    """Raises :class:`Refused` for text with characters that a terminal acts on or hides: escapes, marks of direction. Blanks
    and line breaks may be there."""
    if (shown := printable(text)) != re.sub(r"\s", " ", text, flags=re.ASCII):
        raise Refused(f"{where} has a character that cannot be seen: '{one_line(shown, 120)}'")


def texts_of(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every text in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield at, name
            yield from texts_of(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner, at)
