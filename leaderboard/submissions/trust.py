"""Levels of trust of records and rows: measured here, claimed, reproduced or not; and whether their
code is installed here.

The level follows from where a record lies: those in ``imported/`` are claimed, and reproduced where
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
from fedbench.core.contract.hooks import CONTRACT_VERSION, DISTRIBUTION, PROJECT
from fedbench.core.registry.digest import engine_digest, source_digest
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.submissions.comparing import judged, reproductions
from fedbench.leaderboard.tables.common import joined

Level = Literal[
    "measured here", "not repeatable", "claimed", "reproduced", "within tolerance", "not reproduced"
]
_AGREEING: tuple[Level, ...] = ("reproduced", "within tolerance")
_MOST_REASONS = 4
_LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", re.ASCII)
_Use = Mapping[str, Any]


class Marks:
    """Level and staleness of the records of one results folder. Raises ``UserError`` for
    reproductions that cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._again = reproductions(root)
        self._levels: dict[Path, dict[str, Level]] = {}
        self._stale: dict[str, tuple[str, ...]] = {}

    def level(self, loaded: LoadedRecord) -> Level:
        """The level of one record."""
        known = self._levels.setdefault(loaded.path, {})
        if (key := loaded.record.key) not in known:
            known[key] = self._judged(loaded, self._again.get(key))
        return known[key]

    def _judged(self, loaded: LoadedRecord, again: LoadedRecord | None) -> Level:
        verdict = None if again is None else judged(loaded, again).verdict
        if not loaded.bundle:
            return "not repeatable" if verdict == "not repeatable" else "measured here"
        if verdict is None:
            return "claimed"
        return "reproduced" if verdict == "bit for bit" else verdict

    def refuted(self, loaded: LoadedRecord) -> bool:
        """Whether it was run again here and not reproduced."""
        return self.level(loaded) == "not reproduced"

    def stale(self, loaded: LoadedRecord) -> tuple[str, ...]:
        """See :func:`why_stale`."""
        if (key := loaded.record.key) not in self._stale:
            self._stale[key] = why_stale(loaded.record)
        return self._stale[key]

    def of_row(self, row: Row) -> Words:
        """The row in a few words: ``claimed``, ``claimed, 3 of 30 reproduced``, ``refuted: 2 of 3
        cells not reproduced`` (of those run again), ``stale``, ...
        """
        levels = Counter(map(self.level, row.records))
        if wrong := levels["not reproduced"]:
            tried = wrong + sum(levels[level] for level in _AGREEING)
            words = [f"refuted: {wrong} of {tried} cells not reproduced"]
        elif levels["claimed"]:
            words = [
                "claimed",
                *(
                    f"{levels[level]} of {len(row.records)} {level}"
                    for level in _AGREEING
                    if levels[level]
                ),
            ]
        elif wrong := levels["not repeatable"]:
            twice = sum(r.record.key in self._again for r in row.records)
            words = [f"not repeatable: {wrong} of {twice} cells run twice"]
        else:
            words = [level for level in (*_AGREEING, "measured here") if levels[level]]
        return Words(", ".join([*words, *(["stale"] if any(map(self.stale, row.records)) else [])]))

    def lines(self, records: Sequence[LoadedRecord]) -> list[Text]:
        """For a board's provenance: the number of records of each level, and why some are stale."""
        levels = Counter(map(self.level, records))
        lines: list[Text] = [
            Words("trust: " + ", ".join(f"{n} {level}" for level, n in sorted(levels.items())))
        ]
        if reasons := Counter(text for r in records for text in self.stale(r)):
            n = sum(bool(self.stale(r)) for r in records)
            shown = joined(
                [Quote(f"{text} ({of})", 160) for text, of in reasons.most_common(_MOST_REASONS)],
                "; ",
            )
            more = (
                f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
            )
            lines.append(
                (
                    Words(f"stale, made by other code than is installed here: {n}: "),
                    *shown,
                    Words(more),
                )
            )
        return lines


# -- code that is installed here: read from files and metadata, nothing is imported ----------------


def why_stale(record: Record) -> tuple[str, ...]:
    """What changed since the record was made: engine, torch, the code of a component. A package
    that is not installed is not compared: see :func:`missing`.
    """
    found = [*_versions(record.identity.run)]
    found += [text for kind, use in _uses_of(record) if (text := _changed(kind, use)) is not None]
    return tuple(dict.fromkeys(found))


def missing(record: Record) -> dict[str, str]:
    """Packages that the record was made with and that are not installed here: name -> version."""
    named = (_package_of(use) for _, use in _uses_of(record))
    return {name: version for name, version in named if _installed(name) is None}


def pip_command(packages: Mapping[str, str]) -> str:
    """What installs them; a name or a version that pip would not take is left out, since the record
    may have any origin.
    """
    good = [
        f"'{n}=={v}'"
        for n, v in sorted(packages.items())
        if _PACKAGE.fullmatch(n) and _VERSION.fullmatch(v)
    ]
    return f"pip install {' '.join(good)}"


def _uses_of(record: Record) -> Iterator[tuple[str, _Use]]:
    """(kind, component) of everything that took part, those that follow a defense included."""
    i = record.identity
    uses = [(kind, i.run[kind]) for kind in ("dataset", "model", "defense")] + [
        ("attack", i.attack)
    ]
    uses += [("signal", use) for use in i.signals.values()] + [
        ("analysis", use) for use in i.analyses.values()
    ]
    for kind, use in uses:
        yield kind, use
        yield from ((kind, part) for part in use.get("then", ()))


def _package_of(use: _Use) -> tuple[str, str]:
    name, _, version = str(use["distribution"]).rpartition(" ")
    # records from before the distribution had a name of its own
    return DISTRIBUTION if name == PROJECT else name, version


def _versions(run: Mapping[str, Any]) -> Iterator[str]:
    if run["digests"].get("engine") != _engine():
        yield "the engine's code changed"
    for name, version in other_versions(run).items():
        yield f"{name} {version}, here {_installed(name)}"
    if run["contract"] != CONTRACT_VERSION:
        yield f"contract {run['contract']}, here {CONTRACT_VERSION}"


def other_versions(run: Mapping[str, Any]) -> dict[str, str]:
    """Libraries of a run's key of which another version is installed here: name -> version of the
    run.
    """
    versions = {name.replace("_", "-"): str(version) for name, version in run["provenance"].items()}
    return {
        name: version
        for name, version in versions.items()
        if name in _LIBRARIES and version != _installed(name)
    }


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
