"""Digests of source code: of a component's package, and of the engine."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION, PROJECT

# Folders and files of core that decide results. `tests/test_house.py` refuses an import from them
# into any other file that is not known to decide nothing. The folder `recorded` decides results of
# recorded federations alone, and is in the digest of their data set.
ENGINE = (
    "contract",
    "numerics",
    "population",
    "models",
    "federation",
    "signals",
    "metrics",
    "run/analyse.py",
    "run/job.py",
    "run/measurements.py",
    "run/needs.py",
    "run/observations.py",
    "run/pretraining.py",
    "run/process.py",
    "run/scene.py",
    "run/scoring.py",
    "run/shadow_models.py",
    "run/train.py",
    "run/trained_run.py",
    "run/verdict.py",
)
# a folder with such a file is a results folder or an environment
_NO_PART = ("fedbench.json", "pyvenv.cfg")


# --- the harness ----------------------------------------------------------------------------------


def engine_digest() -> str:
    """Return the hex SHA-256 over the code of the harness that can change a score."""
    core = _core()
    return _hash(_named(engine_files(core), core))


def engine_files(core: Path) -> list[Path]:
    """Return the files of the harness that can change a score."""
    files: list[Path] = []
    for path in (core / name for name in ENGINE):
        files += path.rglob("*.py") if path.is_dir() else [path]
    return files


def core_digest() -> str:
    """Return the hex SHA-256 over the whole harness: with equal ones processes are compatible."""
    core = _core()
    return _hash(_named(core.rglob("*.py"), core))


def _core() -> Path:
    return Path(__file__).parents[1]


def _named(files: Iterable[Path], folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in files}


def _hash(files: dict[str, Path]) -> str:
    """Hash names, lengths and contents in the order of names; line ends of Python code are
    normalised.
    """
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        if path.suffix == ".py":
            content = content.replace(b"\r\n", b"\n")
        digest.update(f"{name}:{len(content)};".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


# --- a component ----------------------------------------------------------------------------------


def source_digest(module_name: str, package: str = "") -> str:
    """Return the hex SHA-256 over the files of a component's module; imports nothing of it.

    A module of fedbench: its own file and, transitively, those it imports from the same part of
    fedbench, so that a new method leaves the others' keys unchanged. Any other: every file, data
    included, of the top-level packages of the distribution ``package`` that announced it, and of
    the module's. Raises ``UserError`` if there is no such file.
    """
    top = module_name.partition(".")[0]
    files = _closure(module_name) if top == PROJECT else _located({*_top_levels(package), top})
    if not files:
        raise UserError(f"no source file of the module '{module_name}' was found")
    return _hash(files)


def requirements_of(package: str) -> dict[str, str]:
    """Return name -> installed version of every package that a distribution other than fedbench
    requires, without its extras.
    """
    versions: dict[str, str] = {}
    if package == DISTRIBUTION:
        return versions
    try:
        declared = distribution(package).requires or []
    except (PackageNotFoundError, ValueError):
        return versions
    for text in declared:
        match = re.match(r"[\w.-]+", text)
        if match is None or "extra ==" in text:
            continue
        name = match[0]
        try:
            if name.replace("_", "-").lower() != DISTRIBUTION:
                versions[name] = distribution(name).version
        except PackageNotFoundError:  # under a marker that does not hold here
            continue
    return versions


def _top_levels(package: str) -> set[str]:
    """Return the names of the top-level packages and modules of a distribution, however it was
    installed: those of ``top_level.txt``, of RECORD and of its entry points.
    """
    try:
        dist = distribution(package)
        modules = [entry.value.partition(":")[0] for entry in dist.entry_points]
    except (PackageNotFoundError, ValueError):
        return set()
    modules += (dist.read_text("top_level.txt") or "").split()
    modules += [file.parts[0] for file in dist.files or ()]
    names = {module.partition(".")[0] for module in modules}
    return {name for name in names if name.isidentifier() and not name.startswith("__")}


def _located(names: Iterable[str]) -> dict[str, Path]:
    """Return name -> file of all files of these top-level packages and modules."""
    files = {}
    for name in names:
        spec = find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            if spec.origin:
                files[Path(spec.origin).name] = Path(spec.origin)
            continue
        for folder in map(Path, spec.submodule_search_locations):
            by_path = _named(_walk(folder), folder)
            files |= {f"{name}/{path}": file for path, file in by_path.items()}
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder without bytecode, hidden files, results folders and
    environments.
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _is_part(Path(parent, name))]
        for name in files:
            if not name.startswith(".") and not name.endswith(".pyc"):
                yield Path(parent, name)


def _is_part(folder: Path) -> bool:
    return folder.name[0] not in "._" and not any((folder / name).exists() for name in _NO_PART)


# --- modules of fedbench --------------------------------------------------------------------------


def _closure(module_name: str) -> dict[str, Path]:
    """Return name -> file of a module and of the modules that it imports of all plugins, or of its
    folder of the harness.
    """
    prefix = f"{PROJECT}.plugins."
    if not module_name.startswith(prefix):
        prefix = module_name.rpartition(".")[0] + "."
    files = {}
    pending = [module_name]
    while pending:
        name = pending.pop()
        path = _locate(name)
        if path is not None and name not in files:
            files[name] = path
            imports = _imports(path, name, path.stat().st_mtime_ns)
            pending += [m for m in imports if f"{m}.".startswith(prefix)]
    return files


@cache
def _imports(path: Path, module_name: str, changed_ns: int) -> list[str]:
    """Return the modules that the file, last changed then, imports wherever in it.

    A name taken from a package may itself be a module.
    """
    modules = []
    package = module_name.split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join(filter(None, [*base, node.module]))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                modules.append(source if _locate(inner) is None else inner)
    return modules


def _locate(module_name: str) -> Path | None:
    """Return the file of a module of fedbench, or None."""
    parts = module_name.split(".")
    if parts[0] != PROJECT or len(parts) < 2:
        return None
    folder = _folder(".".join(parts[:2]))
    if folder is None:
        return None
    path = folder.joinpath(*parts[2:])
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    return None


@cache
def _folder(part: str) -> Path | None:
    """Return the folder of ``fedbench.core`` or another part."""
    locations = getattr(find_spec(part), "submodule_search_locations", None)
    return next(map(Path, locations or ()), None)
