"""What the figures of a report folder were drawn from: one whose records and whose code are the same is not drawn again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.store.canonical import key_of
from fedbench.core.store.integrity import broken_seal, content_digest, sealed
from fedbench.core.store.json_file import parse_json
from fedbench.leaderboard.statistics.rules import rules_digest
from fedbench.leaderboard.statistics.section import Section

FIGURES = "figures.json"
_SCHEMA = 4  # of a sealed file: what ``integrity`` protects
_MAX_BYTES = 64 << 20
_DRAW_WITH = ("matplotlib", "numpy", "scipy")


class Earlier:
    """``folder``: of a report that was written before; None: there is none. What is damaged counts as not there."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known = _read(folder / FIGURES) if folder is not None else {}
        self._now: dict[str, dict[str, str]] = {}

    def files(self, name: str, made_of: str) -> dict[str, bytes] | None:
        """The files of a figure by their suffixes, where they are those that were drawn from just this."""
        known = self._known.get(name)
        if self._folder is None or known is None or known.get("made_of") != made_of:
            return None
        found = {}
        for suffix in sorted(known.keys() - {"made_of"}):
            path = self._folder / f"{name}.{suffix}"
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != known[suffix]:
                return None
            found[suffix] = content
        self._now[name] = known
        return found

    def note(self, name: str, made_of: str, files: Mapping[str, bytes]) -> None:
        """A figure that was drawn now."""
        self._now[name] = {"made_of": made_of, **{suffix: hashlib.sha256(c).hexdigest() for suffix, c in files.items()}}

    def content(self) -> bytes:
        """The file for the next time: the figures that were asked for now."""
        return sealed({"schema_version": _SCHEMA, "figures": dict(sorted(self._now.items()))})


def made_of(section: Section, kind: str, title: str, drawer: str) -> str:
    """A digest of all that a figure is drawn from. ``drawer``: what is known of the code of an analysis that draws it."""
    records = [*section.records, *(section.tuning.records if section.tuning is not None else ())]
    digests = sorted(content_digest(loaded.record) for loaded in records)
    return key_of({"records": digests, "kind": kind, "title": title, "drawer": drawer, "code": _code()})


@cache
def _code() -> dict[str, str]:
    """The rules that make numbers of records, the files here, and the libraries that draw."""
    here = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        here.update(f"{path.name};".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return {"rules": rules_digest(), "figures": here.hexdigest(), **{name: version(name) for name in _DRAW_WITH}}


def _read(path: Path) -> dict[str, dict[str, str]]:
    if not path.is_file():
        return {}
    try:
        content = parse_json(path, _MAX_BYTES, "delete it")
    except UserError:  # all are drawn again
        return {}
    whole = isinstance(content, dict) and content.get("schema_version") == _SCHEMA and broken_seal(content) is None
    return content["figures"] if whole else {}
