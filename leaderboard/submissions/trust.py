"""Levels of trust of records and rows: measured here, claimed, reproduced or not; and whether their code is installed here.

The level follows from where a record lies: those in ``imported/`` are claimed, and reproduced where ``reproduced/`` has a record
of the same key that agrees. Those measured here are not repeatable where `fedbench run --verify` put one there that does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from fedbench.core import UserError
from fedbench.core.contract.board import Quote, Text, Words
from fedbench.core.contract.hooks import CONTRACT_VERSION, DISTRIBUTION, PROJECT
from fedbench.core.registry.digest import engine_digest, source_digest
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.submissions.comparing import judged, reproductions
from fedbench.leaderboard.tables.common import joined

Level = Literal["measured here", "not repeatable", "claimed", "reproduced", "not reproduced"]
_MOST_REASONS = 4
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", re.ASCII)
_Use = Mapping[str, Any]


class Marks:
    """Level and staleness of the records of one results folder. Raises ``UserError`` for reproductions that cannot be used."""

    def __init__(self, root: Path) -> None:
        self._again = reproductions(root)
        self._levels: dict[Path, dict[str, Level]] = {}
        self._stale: dict[str, tuple[str, ...]] = {}

    def level(self, loaded: LoadedRecord) -> Level:
        """The level of one record."""
        known = self._levels.setdefault(loaded.path, {})
        if (key := loaded.record.key) not in known:
            again = self._again.get(key)
            said = None if again is None else judged(loaded, again).verdict
            good: tuple[Level, Level] = ("claimed", "reproduced") if loaded.bundle else ("measured here", "measured here")
            known[key] = said if said in ("not reproduced", "not repeatable") else good[said is not None]
        return known[key]

    def refuted(self, loaded: LoadedRecord) -> bool:
        """Whether it was run again here and not reproduced."""
        return self.level(loaded) == "not reproduced"

    def stale(self, loaded: LoadedRecord) -> tuple[str, ...]:
        """See :func:`why_stale`."""
        if (key := loaded.record.key) not in self._stale:
            self._stale[key] = why_stale(loaded.record)
        return self._stale[key]

    def of_row(self, row: Row) -> Words:
        """The row in a few words: ``claimed``, ``claimed, 3 of 30 reproduced``, ``refuted: 2 of 3 cells not reproduced`` (of
        those run again), ``stale``, ..."""
        levels = Counter(map(self.level, row.records))
        if wrong := levels["not reproduced"]:
            words = [f"refuted: {wrong} of {wrong + levels['reproduced']} cells not reproduced"]
        elif levels["claimed"]:
            words = ["claimed", *([f"{levels['reproduced']} of {len(row.records)} reproduced"] if levels["reproduced"] else [])]
        elif wrong := levels["not repeatable"]:
            twice = sum(r.record.key in self._again for r in row.records)
            words = [f"not repeatable: {wrong} of {twice} cells run twice"]
        else:
            words = [level for level in ("reproduced", "measured here") if levels[level]]
        return Words(", ".join([*words, *(["stale"] if any(map(self.stale, row.records)) else [])]))

    def lines(self, records: Sequence[LoadedRecord]) -> list[Text]:
        """For a board's provenance: the number of records of each level, and why some are stale."""
        levels = Counter(map(self.level, records))
        lines: list[Text] = [Words("trust: " + ", ".join(f"{n} {level}" for level, n in sorted(levels.items())))]
        if reasons := Counter(text for r in records for text in self.stale(r)):
            n = sum(bool(self.stale(r)) for r in records)
            shown = joined([Quote(f"{text} ({of})", 160) for text, of in reasons.most_common(_MOST_REASONS)], "; ")
            more = f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
            lines.append((Words(f"stale, made by other code than is installed here: {n}: "), *shown, Words(more)))
        return lines


# -- code that is installed here: read from files and metadata, nothing is imported -------------------------------------------


def why_stale(record: Record) -> tuple[str, ...]:
    """What changed since the record was made: engine, torch, the code of a component. A package that is not installed is not
    compared: see :func:`missing`."""
    found = [*_versions(record.identity.run)]
    found += [text for kind, use in _uses_of(record) if (text := _changed(kind, use)) is not None]
    return tuple(dict.fromkeys(found))


def missing(record: Record) -> dict[str, str]:
    """Packages that the record was made with and that are not installed here: name -> version."""
    named = (_package_of(use) for _, use in _uses_of(record))
    return {name: version for name, version in named if _installed(name) is None}


def pip_command(packages: Mapping[str, str]) -> str:
    """What installs them; a name or a version that pip would not take is left out, since the record may have any origin."""
    good = [f"'{n}=={v}'" for n, v in sorted(packages.items()) if _PACKAGE.fullmatch(n) and _VERSION.fullmatch(v)]
    return f"pip install {' '.join(good)}"


def _uses_of(record: Record) -> Iterator[tuple[str, _Use]]:
    """(kind, component) of everything that took part, those that follow a defense included."""
    i = record.identity
    uses = [(kind, i.run[kind]) for kind in ("dataset", "model", "defense")] + [("attack", i.attack)]
    uses += [("signal", use) for use in i.signals.values()] + [("analysis", use) for use in i.analyses.values()]
    for kind, use in uses:
        yield kind, use
        yield from ((kind, part) for part in use.get("then", ()))


def _package_of(use: _Use) -> tuple[str, str]:
    name, _, version = str(use["distribution"]).rpartition(" ")
    return DISTRIBUTION if name == PROJECT else name, version  # records from before the distribution had a name of its own


def _versions(run: Mapping[str, Any]) -> Iterator[str]:
    if run["digests"].get("engine") != _engine():
        yield "the engine's code changed"
    if (torch := run["provenance"]["torch"]) != _installed("torch"):
        yield f"torch {torch}, here {_installed('torch')}"
    if run["contract"] != CONTRACT_VERSION:
        yield f"contract {run['contract']}, here {CONTRACT_VERSION}"


def _changed(kind: str, use: _Use) -> str | None:
    name, version = _package_of(use)
    here = _installed(name)
    if here is None:
        return None
    if here != version:
        return f"{kind} '{use['name']}' is of {name} {version}, here {here}"
    if _digest(str(use["target"]), name) != use["digest"]:
        return f"the code of {kind} '{use['name']}' changed ({name} {version})"
    return None


_engine = cache(engine_digest)


@cache
def _installed(package: str) -> str | None:
    try:
        return metadata.version(package) if _PACKAGE.fullmatch(package) else None
    except metadata.PackageNotFoundError:
        return None


@cache
def _digest(target: str, package: str) -> str | None:
    """None where the code is not here."""
    if not _TARGET.fullmatch(target):
        return None
    try:
        return source_digest(target.partition(":")[0], package)
    except (UserError, OSError, SyntaxError):
        return None
