"""The rules that make numbers of records, as one digest."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import fedbench.core


@cache
def rules_digest() -> str:
    """Hex sha256 over the files that turn records into the numbers of a board, the papers' claims among them; line ends do not
    count."""
    here, core = Path(__file__).parent.parent, Path(fedbench.core.__path__[0])
    h = hashlib.sha256()
    for folder in (core / "metrics", here / "claims", here / "statistics", here / "tables"):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.yaml")]):
            content = path.read_bytes().replace(b"\r\n", b"\n")
            h.update(f"{folder.name}/{path.name}:{len(content)};".encode())
            h.update(content)
    return h.hexdigest()
