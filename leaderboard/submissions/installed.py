"""What a record was made by, against what is installed here: told from files and metadata, without importing anybody's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from fedbench.core import UserError
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.registry.digest import engine_digest, source_digest
from fedbench.core.store.record import Record

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", re.ASCII)
Use = Mapping[str, Any]


def why_stale(record: Record) -> tuple[str, ...]:
    """What is another now than when the record was made: engine, torch, the code of a component; () where nothing is.

    A package that is not installed here says nothing: see ``missing``.
    """
    found = [*_versions(record.identity.run)]
    found += [text for kind, use in uses_of(record) if (text := _changed(kind, use)) is not None]
    return tuple(dict.fromkeys(found))


def missing(record: Record) -> dict[str, str]:
    """Packages that the record was made with and that are not installed here: name -> version."""
    named = (package_of(use) for _, use in uses_of(record))
    return {name: version for name, version in named if _installed(name) is None}


def uses_of(record: Record) -> Iterator[tuple[str, Use]]:
    """(kind, component) of everything that took part, those that follow a defense included."""
    run = record.identity.run
    for kind in ("dataset", "model", "defense"):
        yield from _chain(kind, run[kind])
    yield from _chain("attack", record.identity.attack)
    for kind, uses in (("signal", record.identity.signals), ("analysis", record.identity.analyses)):
        for use in uses.values():
            yield from _chain(kind, use)


def package_of(use: Use) -> tuple[str, str]:
    """(package, version) of a component."""
    name, _, version = str(use["distribution"]).rpartition(" ")
    return name, version


def pip_command(packages: Mapping[str, str]) -> str:
    """What installs them; a name or a version that pip would not take is left out, since it is somebody else's text."""
    good = [f"'{n}=={v}'" for n, v in sorted(packages.items()) if _PACKAGE.fullmatch(n) and _VERSION.fullmatch(v)]
    return " ".join(["pip install", *good])


def _chain(kind: str, use: Use) -> Iterator[tuple[str, Use]]:
    yield kind, use
    yield from ((kind, part) for part in use.get("then", ()))


def _versions(run: Mapping[str, Any]) -> Iterator[str]:
    if run["digests"].get("engine") != _engine():
        yield "the engine's code changed"
    if (torch := run["provenance"]["torch"]) != _installed("torch"):
        yield f"torch {torch}, here {_installed('torch')}"
    if run["contract"] != CONTRACT_VERSION:
        yield f"contract {run['contract']}, here {CONTRACT_VERSION}"


def _changed(kind: str, use: Use) -> str | None:
    name, version = package_of(use)
    here = _installed(name)
    if here is None:
        return None
    if here != version:
        return f"{kind} '{use['name']}' is of {name} {version}, here {here}"
    if _digest(str(use["target"]), name) != use["digest"]:
        return f"the code of {kind} '{use['name']}' changed ({name} {version})"
    return None


@cache
def _engine() -> str:
    return engine_digest()


@cache
def _installed(package: str) -> str | None:
    try:
        return metadata.version(package) if _PACKAGE.fullmatch(package) else None
    except metadata.PackageNotFoundError:
        return None


@cache
def _digest(target: str, package: str) -> str | None:
    """None where there is no such code here: it is not what made the record."""
    if not _TARGET.fullmatch(target):
        return None
    try:
        return source_digest(target.partition(":")[0], package)
    except (UserError, OSError, SyntaxError):
        return None
