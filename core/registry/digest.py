"""Hashes of source code, so that a result names the code that made it."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.files import files_of

_PROJECT = "fedbench"
_MAX_BYTES = 32 * 2**20  # of one foreign package; beyond it, only what the module imports is hashed
# Every room whose code decides a result: whole folders, so that no file can be forgotten. `tests/test_house.py` follows
# the imports of these rooms and refuses one that leads into a file which is neither in them nor known to decide nothing.
ROOMS = ("contract", "numerics", "population", "models", "federation", "signals", "metrics", "experiment")


def source_digest(module_name: str, package: str = "") -> str:
    """Hex sha256 over the files that make up a component's module; nothing of it is imported.

    A module of fedbench: its own file and, transitively, those it imports from its own part of fedbench (all of
    ``fedbench.plugins``, or the same folder of ``fedbench.core``), so that adding one method leaves the others' keys
    alone. Any other: every file, data too, of the installed ``package`` that announced it (see ``files.py``) and, where the
    module is not among these or no package is named, every ``.py`` file around it. Raises ``UserError`` when there is no
    such file.
    """
    if module_name.split(".")[0] == _PROJECT:
        return _closure_digest(module_name, _part(module_name))
    files = _installed(package) if package else {}
    if not files:
        return _around(module_name)
    own, found = _hash(files.items()), _locate(module_name)
    among = found is not None and any(_same(found, path) for path in files.values() if path.name == found.name)
    return own if among else hashlib.sha256(f"{own} {_around(module_name)}".encode()).hexdigest()


def _installed(package: str) -> dict[str, Path]:
    """The files of a distribution; none where there is no such distribution (its metadata are damaged)."""
    try:
        return files_of(distribution(package))
    except (PackageNotFoundError, ValueError):
        return {}


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _around(module_name: str) -> str:
    package, folder = _regular_package(module_name)
    if folder is None:
        return _closure_digest(module_name, module_name)
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*.py")}
    if sum(p.stat().st_size for p in files.values()) > _MAX_BYTES:
        return _closure_digest(module_name, package)
    return _hash(files.items())


def engine_digest() -> str:
    """Hex sha256 over the harness's own code that can change a score."""
    core = Path(__file__).parents[1]
    files = [p for room in ROOMS for p in (core / room).rglob("*.py")]
    return _hash((p.relative_to(core).as_posix(), p) for p in files)


def core_digest() -> str:
    """Hex sha256 over all of the harness: two processes of one digest understand each other."""
    core = Path(__file__).parents[1]
    return _hash((p.relative_to(core).as_posix(), p) for p in core.rglob("*.py"))


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    """Over names and contents in the order of names; lengths keep neighbours apart, line ends of code do not count."""
    h = hashlib.sha256()
    for name, path in sorted(files):
        content = path.read_bytes()
        if path.suffix == ".py":
            content = content.replace(b"\r\n", b"\n")
        h.update(f"{name}:{len(content)};".encode(errors="surrogateescape"))
        h.update(content)
    return h.hexdigest()


def _part(module_name: str) -> str:
    """``fedbench.plugins`` for every plugin module, the folder for a module of the harness."""
    parts = module_name.split(".")
    return ".".join(parts[:2]) if parts[:2] == [_PROJECT, "plugins"] else ".".join(parts[:-1])


def _closure_digest(module_name: str, within: str) -> str:
    if _locate(module_name) is None:
        raise UserError(f"no source file of the module '{module_name}' was found")
    files: dict[str, Path] = {}
    pending = [module_name]
    while pending:
        name = pending.pop()
        path = _locate(name)
        if path is not None and name not in files:
            files[name] = path
            pending += [m for m in _imports(path, name) if f"{m}.".startswith(f"{within}.")]
    return _hash(files.items())


def _imports(path: Path, module_name: str) -> Iterator[str]:
    """Modules that the file imports, wherever in it; a name taken from a package may itself be a module."""
    if path.suffix != ".py":
        return
    package = module_name.split(".") if path.name == "__init__.py" else module_name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if _locate(inner) is not None else source


def _roots(top: str) -> tuple[Path | None, list[Path]]:
    """File and folders of a module that has no parent to import: a top-level one, or a direct child of fedbench."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None, []
    if spec is None:
        return None, []
    file = Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    return file, [Path(p) for p in spec.submodule_search_locations or ()]


def _locate(module_name: str) -> Path | None:
    """The file of a module, found by walking folders; None when there is none (or it is a folder without one)."""
    parts = module_name.split(".")
    start = 2 if parts[0] == _PROJECT else 1
    file, folders = _roots(".".join(parts[:start]))
    for part in parts[start:]:
        file, folders = _step(folders, part)
    return file


def _step(folders: list[Path], part: str) -> tuple[Path | None, list[Path]]:
    for folder in folders:
        package = folder / part
        if (package / "__init__.py").is_file():
            return package / "__init__.py", [package]
        for suffix in (".py", *EXTENSION_SUFFIXES):
            if (folder / f"{part}{suffix}").is_file():
                return folder / f"{part}{suffix}", []
    return None, [f / part for f in folders if (f / part).is_dir()]


def _regular_package(module_name: str) -> tuple[str, Path | None]:
    """The outermost package with an ``__init__.py`` around a module: below a namespace others' code lies beside it."""
    parts = module_name.split(".")
    for n in range(1, len(parts) + 1):
        name = ".".join(parts[:n])
        file = _locate(name)
        if file is not None:
            return name, file.parent if file.name == "__init__.py" else None
    raise UserError(f"no source file of the module '{module_name}' was found")
