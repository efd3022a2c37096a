"""Installed packages without pip: a module and a .dist-info on a path."""

from __future__ import annotations

import textwrap
from pathlib import Path


def install(folder: Path, package: str, source: str, version: str = "1.0", entry: str | None = None) -> Path:
    """Write ``package``.py and its .dist-info with one fedbench entry point into ``folder``; put that on sys.path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{package}.py").write_text(textwrap.dedent(source))
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[fedbench]\n{entry or package} = {package}\n")
    return folder
