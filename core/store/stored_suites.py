"""The suites of a results folder: as given, as resolved, and the packages that were installed.

``suites/ID.yaml`` (resolved; runs again), ``ID.given.yaml`` and ``ID.json``, where ID is a hash of
the three: no plan ever replaces another one. The folder's marker names the last plan and all before
it.
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
    """A suite as a results folder keeps it."""

    suite: str
    file: str
    """its file name"""
    given: str
    """the text of the file"""
    resolved: str
    """the suite with ``overrides``, recipes and defaults written out"""
    overrides: tuple[str, ...] = ()
    """``--set``"""
    only: tuple[str, ...] = ()
    """``--only``: the parts that were run"""
    device: str = "cpu"
    packages: dict[str, str]
    """name -> version of everything installed"""

    def facts(self) -> dict[str, Any]:
        """The content of ``ID.json``: all but the texts, and hashes of these."""
        own = asdict(self)
        texts = {name: hashlib.sha256(own.pop(name).encode()).hexdigest() for name in _TEXTS}
        return {"schema_version": SCHEMA_VERSION, **own, "sha256": texts}

    @property
    def id(self) -> str:
        """Short hash of all of it."""
        return key_of(self.facts())[:16]


def keep_suite(root: Path, suite: StoredSuite) -> str:
    """Store a plan, whole, and give its id; the same plan again changes nothing. Raises
    ``OSError``.
    """
    facts = json.dumps(suite.facts(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    texts = {".given.yaml": suite.given, ".yaml": suite.resolved, ".json": facts}
    contents = {suffix: text.encode() for suffix, text in texts.items()}
    for suffix, content in contents.items():
        path = root / SUITES / f"{suite.id}{suffix}"
        if not (path.is_file() and path.read_bytes() == content):
            write_atomically(path, content)
    return suite.id


def suite_files(root: Path, plan: str) -> list[Path]:
    """The three files of a plan."""
    return [root / SUITES / f"{plan}{suffix}" for suffix in (".given.yaml", ".json", ".yaml")]


def stored_ids(root: Path) -> list[str]:
    """The ids of all plans that are wholly there, by name."""
    found = sorted(path.stem for path in (root / SUITES).glob("*.json") if ID.fullmatch(path.stem))
    return [plan for plan in found if all(path.is_file() for path in suite_files(root, plan))]


def read_suite(root: Path, plan: str) -> StoredSuite:
    """One plan. Raises ``UserError`` for files that are not what ``keep_suite`` wrote: their hash is
    the plan's id.
    """
    given, path, resolved = suite_files(root, plan)
    facts = parse_json(path, _MAX_FACTS_BYTES, _REMEDY)
    texts = (read_file(text, MAX_SUITE_BYTES, _REMEDY) for text in (given, resolved))
    try:
        own = {
            name: value for name, value in facts.items() if name not in ("schema_version", "sha256")
        }
        lists = {name: tuple(own[name]) for name in ("overrides", "only")}
        decoded = {name: text.decode() for name, text in zip(_TEXTS, texts, strict=True)}
        suite = TypeAdapter(StoredSuite).validate_python(own | lists | decoded)
        whole = suite.id == plan
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path}: not the facts of a plan ({type(error).__name__}); {_REMEDY}"
        ) from error
    if not whole:
        raise UserError(
            f"{path}: it is not the plan that its name says, or a suite beside it was changed; "
            f"{_REMEDY}"
        )
    return suite


def only_of(suite: str | Path) -> tuple[str, ...]:
    """The parts (``--only``) that a plan was run in, of which ``suite`` is the resolved file; none
    of any other file.

    Raises ``UserError`` as :func:`read_suite`.
    """
    path = Path(suite).absolute()
    root, plan = path.parents[1] if len(path.parents) > 1 else path, path.stem
    if (
        path != root / SUITES / f"{plan}.yaml"
        or not ID.fullmatch(plan)
        or not all(p.is_file() for p in suite_files(root, plan))
    ):
        return ()
    return read_suite(root, plan).only
