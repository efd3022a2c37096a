"""Suites shipped with fedbench. Imports neither pydantic nor a YAML parser: help, lists and
completion stay fast.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

SUFFIXES = (".yaml", ".yml")


def shipped_suites() -> dict[str, Path]:
    """Name -> file; those in a folder are named ``folder/name``."""
    root = Path(str(files("fedbench.suites")))
    found = (p for p in root.rglob("*") if p.suffix in SUFFIXES)
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(found)}


def title_of(path: Path) -> str:
    """The title of a shipped suite, which stands on a line of its own."""
    line = re.search(r"^title: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return line[1].strip().strip('"') if line else ""
