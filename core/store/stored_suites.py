"""The suites of a results folder: as given, as resolved, and the packages that were installed.

``suites/ID.yaml`` (resolved; runs again), ``ID.given.yaml`` and ``ID.json``, where ID is a hash of
the three: no suite ever replaces another one. The folder's marker names the last and all before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import key_of
from fedbench.core.store.json_file import parse_json, read_file
from fedbench.core.store.record import SCHEMA_VERSION

SUITES = "suites"
ID = re.compile(r"[0-9a-f]{16}")
MAX_SUITE_BYTES = 8 << 20
_MAX_FACTS_BYTES = 1 << 20
_TEXTS = ("given", "resolved")
_REMEDY = "run the suite again to store it anew"


@dataclass(frozen=True, kw_only=True)
class StoredSuite:
    """A suite as a plan was made of it."""

    suite: str
    """the suite's name"""
    file: str
    """the name of its file"""
    given: str
    """the file's text"""
    resolved: str
    """the text with ``overrides``, recipes and defaults written out"""
    overrides: tuple[str, ...] = ()
    """changes on the command line (``--set``)"""
    only: tuple[str, ...] = ()
    """the parts that were run (``--only``)"""
    device: str = "cpu"
    packages: dict[str, str]
    """name -> version of every installed package"""

    def facts(self) -> dict[str, Any]:
        """Return the content of ``ID.json``: all but the texts, and hashes of these."""
        facts = asdict(self)
        hashes = {name: hashlib.sha256(facts.pop(name).encode()).hexdigest() for name in _TEXTS}
        return {"schema_version": SCHEMA_VERSION, **facts, "sha256": hashes}

    @property
    def id(self) -> str:
        """Short hash of all fields."""
        return key_of(self.facts())[:16]


def keep_suite(root: Path, stored: StoredSuite) -> str:
    """Store the suite of a plan and return its id; a suite that is there stays unchanged.

    Raises ``OSError``.
    """
    facts = json.dumps(stored.facts(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    texts = (stored.given, facts, stored.resolved)
    for path, text in zip(suite_files(root, stored.id), texts, strict=True):
        content = text.encode()
        if not (path.is_file() and path.read_bytes() == content):
            write_atomically(path, content)
    return stored.id


def suite_files(root: Path, plan: str) -> list[Path]:
    """Return the three files of a plan: as given, facts, as resolved."""
    return [root / SUITES / f"{plan}{suffix}" for suffix in (".given.yaml", ".json", ".yaml")]


def read_suite(root: Path, plan: str) -> StoredSuite:
    """Return the suite of one plan. Raises ``UserError`` unless the files have the hash that is
    their id.
    """
    given, path, resolved = suite_files(root, plan)
    facts = parse_json(path, _MAX_FACTS_BYTES, _REMEDY)
    texts = [read_file(text, MAX_SUITE_BYTES, _REMEDY) for text in (given, resolved)]
    try:
        fields = {n: v for n, v in facts.items() if n not in ("schema_version", "sha256")}
        fields |= {name: text.decode() for name, text in zip(_TEXTS, texts, strict=True)}
        stored = TypeAdapter(StoredSuite).validate_python(fields)
    except (TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path}: not the facts of a plan ({type(error).__name__}); {_REMEDY}"
        ) from error
    if stored.id != plan:
        raise UserError(
            f"{path}: it is not the plan that its name says, or a suite beside it was changed; "
            f"{_REMEDY}"
        )
    return stored


def only_of(suite: str | Path) -> tuple[str, ...]:
    """Return the parts (``--only``) in which a plan was run, given the path of its resolved suite;
    none for any other file.

    Raises ``UserError`` as :func:`read_suite`.
    """
    path = Path(suite).absolute()
    if path.parent.name != SUITES or not ID.fullmatch(path.stem) or path.suffix != ".yaml":
        return ()
    root = path.parents[1]
    if not all(file.is_file() for file in suite_files(root, path.stem)):
        return ()
    return read_suite(root, path.stem).only
