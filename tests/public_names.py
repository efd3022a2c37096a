"""What other people's packages may import: the public names of fedbench, and the libraries that it
brings.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import fedbench.core
import fedbench.core.metrics
import fedbench.core.report
import fedbench.core.toolkit
import fedbench.testing

LIBRARIES = {"numpy", "torch", "pydantic", "pytest"}
PUBLIC = {
    module.__name__: module.__all__
    for module in (
        fedbench.core,
        fedbench.core.toolkit,
        fedbench.core.report,
        fedbench.core.metrics,
        fedbench.testing,
    )
}


def private_imports(text: str, own: str) -> set[str]:
    """Imports of a module's text that neither ``own`` package nor fedbench's public names nor its
    libraries answer for.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
    return {f"{module}.{name}" for module, name in found if not _allowed(module, name, own)}


def _allowed(module: str, name: str, own: str) -> bool:
    top = module.partition(".")[0]
    return (
        name in PUBLIC.get(module, ())
        if top == "fedbench"
        else top in {*sys.stdlib_module_names, *LIBRARIES, own}
    )


def sources(folder: Path) -> dict[str, str]:
    """Relative path -> text of the modules below a folder."""
    return {
        str(p.relative_to(folder)): p.read_text(encoding="utf-8")
        for p in sorted(folder.rglob("*.py"))
    }
