"""Levels of trust of records and rows: measured here, claimed, reproduced or not; and whether their
code is installed here.

The level follows from where a record lies: those in ``imported/`` are claimed, as are those of a
federation that was trained elsewhere, and reproduced where
``reproduced/`` has a record of the same key with the same bits, or within tolerance of it. Those
measured here are not repeatable where `fedbench run --verify` put one there that does not agree.
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
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.registry.digest import engine_digest, source_digest
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.integrity import RECORDED
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.submissions.comparing import judged, reproductions
from fedbench.leaderboard.tables.common import joined
from fedbench.leaderboard.tables.provenance import uses_of

Level = Literal[
    "measured here", "not repeatable", "claimed", "reproduced", "within tolerance", "not reproduced"
]
_AGREEING: tuple[Level, ...] = ("reproduced", "within tolerance")
_MOST_REASONS = 4
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", re.ASCII)


class Marks:
    """Level and staleness of the records of one results folder. Raises ``UserError`` for
    reproductions that cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._again = reproductions(root)
        self._levels: dict[tuple[Path, str], Level] = {}
        self._stale: dict[str, tuple[str, ...]] = {}

    def level(self, loaded: LoadedRecord) -> Level:
        """Return the level of one record."""
        place = loaded.path, loaded.record.key
        if place not in self._levels:
            self._levels[place] = self._level(loaded)
        return self._levels[place]

    def _level(self, loaded: LoadedRecord) -> Level:
        again = self._again.get(loaded.record.key)
        verdict = None if again is None else judged(loaded, again).verdict
        if not loaded.bundle and loaded.record.described.get("source") != RECORDED:
            return "not repeatable" if verdict == "not repeatable" else "measured here"
        if verdict is None:
            return "claimed"
        return "reproduced" if verdict == "bit for bit" else verdict

    def refuted(self, loaded: LoadedRecord) -> bool:
        """Return whether it was run again here and not reproduced."""
        return self.level(loaded) == "not reproduced"

    def stale(self, loaded: LoadedRecord) -> tuple[str, ...]:
        """Return :func:`why_stale`."""
        key = loaded.record.key
        if key not in self._stale:
            self._stale[key] = why_stale(loaded.record)
        return self._stale[key]

    def of_row(self, row: DefenseRow) -> Words:
        """Return the mark of a row: ``claimed``, ``claimed, 3 of 30 reproduced``, ``refuted: 2 of 3
        cells not reproduced`` (of those run again), ``stale``, ...
        """
        levels = Counter(map(self.level, row.records))
        agreeing = [level for level in _AGREEING if levels[level]]
        refuted, unequal = levels["not reproduced"], levels["not repeatable"]
        if refuted:
            tried = refuted + sum(levels[level] for level in agreeing)
            words = [f"refuted: {refuted} of {tried} cells not reproduced"]
        elif levels["claimed"]:
            n = len(row.records)
            words = ["claimed", *(f"{levels[level]} of {n} {level}" for level in agreeing)]
        elif unequal:
            twice = sum(r.record.key in self._again for r in row.records)
            words = [f"not repeatable: {unequal} of {twice} cells run twice"]
        else:
            words = [*agreeing, *(["measured here"] * bool(levels["measured here"]))]
        if any(map(self.stale, row.records)):
            words.append("stale")
        return Words(", ".join(words))

    def lines(self, records: Sequence[LoadedRecord]) -> list[Text]:
        """Return the number of records of each level, and why some are stale."""
        levels = Counter(map(self.level, records))
        counts = ", ".join(f"{n} {level}" for level, n in sorted(levels.items()))
        lines: list[Text] = [Words(f"trust: {counts}")]
        reasons = Counter(text for r in records for text in self.stale(r))
        if reasons:
            n = sum(bool(self.stale(r)) for r in records)
            start = Words(f"stale, made by other code than is installed here: {n}: ")
            texts = [Quote(f"{text} ({k})", 160) for text, k in reasons.most_common(_MOST_REASONS)]
            lines.append((start, *joined(texts, "; ")))
        return lines


# -- code that is installed here: read from files and metadata, nothing is imported ----------------


def why_stale(record: Record) -> tuple[str, ...]:
    """Return what changed since the record was made: engine, libraries, the code of a component. A
    package that is not installed is not compared: see :func:`missing`.
    """
    reasons = list(_versions(record.identity.run))
    for kind, use in uses_of(record):
        reasons += _changed(kind, use)
    return tuple(dict.fromkeys(reasons))


def missing(record: Record) -> dict[str, str]:
    """Return packages that the record was made with and that are not installed here: name ->
    version.
    """
    packages = dict(_package_of(use) for _, use in uses_of(record))
    return {name: version for name, version in packages.items() if _installed(name) is None}


def pip_command(packages: Mapping[str, str]) -> str:
    """Return what installs them; a name or a version that pip would not take is left out, since the
    record may have any origin.
    """
    good = [
        f"'{n}=={v}'"
        for n, v in sorted(packages.items())
        if _PACKAGE.fullmatch(n) and _VERSION.fullmatch(v)
    ]
    return f"pip install {' '.join(good)}"


def _package_of(use: ComponentUse) -> tuple[str, str]:
    name, _, version = use.distribution.rpartition(" ")
    return name, version


def _versions(run: Mapping[str, Any]) -> Iterator[str]:
    if run["digests"].get("engine") != _engine():
        yield "the engine's code changed"
    for name, version in other_versions(run).items():
        yield f"{name} {version}, here {_installed(name)}"
    if run["contract"] != CONTRACT_VERSION:
        yield f"contract {run['contract']}, here {CONTRACT_VERSION}"


def other_versions(run: Mapping[str, Any]) -> dict[str, str]:
    """Return libraries of a run's key of which another version is installed here: name -> version
    of the run.
    """
    versions = {name: str(run["provenance"].get(name.replace("-", "_"))) for name in _LIBRARIES}
    return {name: version for name, version in versions.items() if version != _installed(name)}


def _changed(kind: str, use: ComponentUse) -> Iterator[str]:
    name, version = _package_of(use)
    installed = _installed(name)
    if installed is None:
        return
    if installed != version:
        yield f"{kind} '{use.name}' is of {name} {version}, here {installed}"
    elif _digest(use.target, name) != use.digest:
        yield f"the code of {kind} '{use.name}' changed ({name} {version})"


_engine = cache(engine_digest)


@cache
def _installed(package: str) -> str | None:
    try:
        return metadata.version(package) if _PACKAGE.fullmatch(package) else None
    except metadata.PackageNotFoundError:
        return None


@cache
def _digest(target: str, package: str) -> str | None:
    """Return None where the code is not here."""
    if not _TARGET.fullmatch(target):
        return None
    try:
        return source_digest(target.partition(":")[0], package)
    except (UserError, OSError, SyntaxError):
        return None
