"""Digests of source code: of a component's package, and of the engine."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION, PROJECT

# Folders and files of core that decide results. `tests/test_house.py` refuses an import from them
# into any other file that is not known to decide nothing.
ENGINE = (
    "contract",
    "numerics",
    "population",
    "models",
    "federation",
    "signals",
    "metrics",
    *(
        f"run/{name}.py"
        for name in (
            "analyse",
            "job",
            "known_half",
            "needs",
            "process",
            "scene",
            "scoring",
            "shadow_models",
            "train",
            "trained_run",
            "verdict",
        )
    ),
)
# a folder with such a file is a results folder or an environment
_NO_PART = ("fedbench.json", "pyvenv.cfg")


def source_digest(module_name: str, package: str = "") -> str:
    """Hex SHA-256 over the files of a component's module; imports nothing of it.

    A module of fedbench: its own file and, transitively, those it imports from the same part of
    fedbench, so that a new method leaves the others' keys unchanged. Any other: every file, data
    included, of the distribution ``package`` that announced it and of the module's top-level
    package. Raises ``UserError`` if there is no such file.
    """
    top = module_name.partition(".")[0]
    if top == PROJECT:
        return _closure_digest(module_name)
    files = _files_of(package) if package else {}
    if not any(name.partition("/")[0] in (top, f"{top}.py") for name in files):
        files |= _located([top])
    if not files:
        raise UserError(f"no source file of the module '{module_name}' was found")
    return _hash(files.items())


def requirements_of(package: str) -> dict[str, str]:
    """Name -> installed version of every package that a distribution other than fedbench requires,
    without its extras.
    """
    found: dict[str, str] = {}
    try:
        declared = [] if package == DISTRIBUTION else distribution(package).requires or []
    except (PackageNotFoundError, ValueError):
        return {}
    for text in declared:
        name = re.match(r"[\w.-]+", text)
        if name and name[0].replace("_", "-").lower() != DISTRIBUTION and "extra ==" not in text:
            try:
                found[name[0]] = distribution(name[0]).version
            except PackageNotFoundError:  # under a marker that does not hold here
                continue
    return found


def engine_digest() -> str:
    """Hex SHA-256 over the code of the harness that can change a score."""
    core = Path(__file__).parents[1]
    return _hash((p.relative_to(core).as_posix(), p) for p in engine_files(core))


def engine_files(core: Path) -> list[Path]:
    """The files of the harness that can change a score."""
    return [
        p
        for name in ENGINE
        for p in ([core / name] if name.endswith(".py") else (core / name).rglob("*.py"))
    ]


def core_digest() -> str:
    """Hex SHA-256 over the whole harness: two processes with equal digests are compatible."""
    core = Path(__file__).parents[1]
    return _hash((p.relative_to(core).as_posix(), p) for p in core.rglob("*.py"))


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    """Over names, lengths and contents in the order of names; line ends of Python code are
    normalised.
    """
    h = hashlib.sha256()
    for name, path in sorted(files):
        content = path.read_bytes()
        if path.suffix == ".py":
            content = content.replace(b"\r\n", b"\n")
        h.update(f"{name}:{len(content)};".encode(errors="surrogateescape"))
        h.update(content)
    return h.hexdigest()


# --- installed packages ---------------------------------------------------------------------------


def _files_of(package: str) -> dict[str, Path]:
    """Name -> file of a distribution: those of its RECORD or, of an editable install, those of its
    top-level packages.
    """
    try:
        dist = distribution(package)
        entries = [entry.value.partition(":")[0].partition(".")[0] for entry in dist.entry_points]
    except (PackageNotFoundError, ValueError):
        return {}
    found = {name: path for name, path in _recorded(dist) if path.is_file()}
    return found or _located([*(dist.read_text("top_level.txt") or "").split(), *entries])


def _recorded(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """What the RECORD lists, without bytecode, scripts, metadata, and links to an editable install."""
    for entry in dist.files or ():
        top = entry.parts[0]
        link = len(entry.parts) == 1 and (entry.suffix == ".pth" or top.startswith("__editable__"))
        if entry.suffix != ".pyc" and top != ".." and not top.endswith(".dist-info") and not link:
            yield PurePosixPath(entry).as_posix(), Path(str(dist.locate_file(entry)))


def _located(names: Iterable[str]) -> dict[str, Path]:
    """Name -> file of all files of these top-level packages and modules."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(names):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is None and spec.origin:
            found[Path(spec.origin).name] = Path(spec.origin)
        for folder in spec.submodule_search_locations or () if spec else ():
            found |= {
                f"{name}/{path.relative_to(folder).as_posix()}": path
                for path in _walk(Path(folder))
            }
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder without bytecode, hidden files, results folders and environments."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            f
            for f in folders
            if f[0] not in "._" and not any(Path(here, f, mark).exists() for mark in _NO_PART)
        ]
        yield from (
            Path(here, file)
            for file in files
            if not file.startswith(".") and not file.endswith(".pyc")
        )


# --- modules of fedbench --------------------------------------------------------------------------


def _closure_digest(module_name: str) -> str:
    """Over a module and what it imports of all plugins, or of its folder of the harness."""
    parts = module_name.split(".")
    within = ".".join(parts[:2] if parts[1] == "plugins" else parts[:-1])
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
    """Modules that the file imports, wherever in it; a name taken from a package may itself be a
    module.
    """
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


def _locate(module_name: str) -> Path | None:
    """The file of a module of fedbench, or None."""
    part, inner = module_name.split(".")[:2], module_name.split(".")[2:]
    if part[0] != PROJECT or len(part) < 2 or (root := _folder(".".join(part))) is None:
        return None
    path = root.joinpath(*inner)
    found = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    return found if found.is_file() else None


def _folder(part: str) -> Path | None:
    """The folder of ``fedbench.core`` or another part."""
    spec = find_spec(part)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None
