"""The files that a distribution consists of, data files included, as they are installed or as they lie in a tree under work."""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse
from urllib.request import url2pathname

_BYTECODE = (".pyc", ".pyo")
_NO_CODE = {"build", "dist", "docs", "doc", "tests", "test", "node_modules"}  # beside the packages of a tree, none of them
_NO_MODULE = {"setup.py", "conftest.py", "noxfile.py"}
_RESULTS = "fedbench.json"  # a results folder has it


def folder_of(dist: Distribution) -> Path:
    """Where a distribution is installed."""
    return Path(str(dist.locate_file("")))


def files_of(dist: Distribution) -> dict[str, Path]:
    """Name -> file, of all that a distribution brings; names do not depend on the machine.

    Installed: what its RECORD lists, without bytecode, scripts and the description of the package itself. In a tree under
    work (an editable install): the packages and modules beside each other, without what is no part of them. Without a
    RECORD: the modules of its entry points and of its ``top_level.txt``.
    """
    info = Path(str(getattr(dist, "_path", "")))
    recorded = _recorded(dist, info)
    roots, mapped = _tree(dist, info, recorded)
    top = _top_levels(dist)
    found = {name: path for name, path in recorded.items() if not _is_link(name)}
    if not found and not roots and not mapped:
        mapped = dict(_located(top))
    for name, path in mapped.items():
        found |= _walked(path, PurePosixPath(name))
    for root in roots:
        found |= _beside_each_other(root, top)
    if (info / "entry_points.txt").is_file():
        found["entry_points.txt"] = info / "entry_points.txt"
    return found


def _recorded(dist: Distribution, info: Path) -> dict[str, Path]:
    try:
        listed = dist.files if (info / "RECORD").is_file() or (info / "installed-files.txt").is_file() else None
    except Exception:  # a damaged RECORD lists nothing
        return {}
    found = {}
    for entry in listed or []:
        outside = entry.parts[:1] == ("..",)
        if entry.suffix in _BYTECODE or entry.parts[0] == info.name or (outside and entry.parent.name in ("bin", "Scripts")):
            continue
        path = Path(str(dist.locate_file(entry)))
        if path.is_file():
            found[PurePosixPath(entry).as_posix()] = path
    return found


def _is_link(name: str) -> bool:
    """Whether a file only says where the code lies: an absolute path, another on every machine."""
    return "/" not in name and (name.endswith((".pth", ".egg-link")) or name.startswith("__editable__"))


def _tree(dist: Distribution, info: Path, recorded: dict[str, Path]) -> tuple[list[Path], dict[str, Path]]:
    """The folders whose content an editable install puts on the path, and the modules that it maps to files elsewhere."""
    roots: list[Path] = []
    mapped: dict[str, Path] = {}
    for name, path in recorded.items():
        if name.endswith(".pth") and "/" not in name:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            roots += [folder for line in lines if line.startswith(("/", *_DRIVES)) and (folder := Path(line.strip())).is_dir()]
        elif name.startswith("__editable__") and name.endswith("_finder.py"):
            mapped |= _mapping(path)
    if info.suffix == ".egg-info" and not recorded and (info / "SOURCES.txt").is_file():
        roots.append(info.parent)
    if not roots and not mapped and (project := _project(dist)):
        roots.append(project / "src" if (project / "src").is_dir() else project)
    return list(dict.fromkeys(roots)), mapped


_DRIVES = tuple(f"{letter}:" for letter in "CDEFGcdefg")


def _project(dist: Distribution) -> Path | None:
    """Where an editable install says that the project lies."""
    with contextlib.suppress(ValueError, AttributeError, TypeError, OSError):
        said = json.loads(dist.read_text("direct_url.json") or "{}")
        if said.get("dir_info", {}).get("editable") and (folder := Path(url2pathname(urlparse(said["url"]).path))).is_dir():
            return folder
    return None


def _mapping(finder: Path) -> dict[str, Path]:
    """Module -> folder or file, as setuptools writes it into the finder of an editable install. Read, never executed."""
    found: dict[str, Path] = {}
    with contextlib.suppress(SyntaxError, ValueError, OSError):
        for node in ast.parse(finder.read_bytes()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if names & {"MAPPING", "NAMESPACES"} and (value := getattr(node, "value", None)) is not None:
                for name, where in ast.literal_eval(value).items():
                    for path in map(Path, [where] if isinstance(where, str) else where):
                        whole = path if path.exists() else Path(f"{path}.py")
                        found[name.replace(".", "/") + (".py" if whole.is_file() else "")] = whole
    return found


def _top_levels(dist: Distribution) -> list[str]:
    """The names of the modules and packages that a distribution is known to bring."""
    names = (dist.read_text("top_level.txt") or "").split()
    with contextlib.suppress(Exception):  # an unreadable entry_points.txt is told where plugins are looked for
        names += [entry.value.partition(":")[0].partition(".")[0] for entry in dist.entry_points]
    return [name for name in dict.fromkeys(names) if name.isidentifier()]


def _located(names: list[str]) -> Iterator[tuple[str, Path]]:
    """The folder of a regular package or the file of a module; of a namespace, which others share, nothing."""
    for name in names:
        with contextlib.suppress(ImportError, ValueError):
            spec = find_spec(name)
            if spec is not None and spec.origin and Path(spec.origin).is_file():
                file = Path(spec.origin)
                yield (name, file.parent) if file.name == "__init__.py" else (file.name, file)


def _beside_each_other(root: Path, top: list[str]) -> dict[str, Path]:
    """The packages and modules of a tree: folders with an ``__init__.py`` and those known by name, whole, and the modules
    between them. Where the folder holds nothing but code (``src``), its other files too."""
    found: dict[str, Path] = {}
    only_code = not any((root / name).exists() for name in ("pyproject.toml", "setup.py", "setup.cfg", ".git"))
    for path in sorted(root.iterdir()):
        if path.is_dir():
            known = path.name in top or (path / "__init__.py").is_file() or only_code
            if known and (path.name in top or path.name not in _NO_CODE) and _is_part(path, top=path.name in top):
                found |= _walked(path, PurePosixPath(path.name))
        elif _counts(path) and (only_code or (path.suffix == ".py" and path.name not in _NO_MODULE)):
            found[path.name] = path
    return found


def _walked(path: Path, name: PurePosixPath) -> dict[str, Path]:
    """Every file below a folder that can be part of a package."""
    if path.is_file():
        return {name.as_posix(): path}
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for folder, inner, files in os.walk(path, followlinks=True):
        here = Path(folder)
        if (real := os.path.realpath(folder)) in seen or not _is_part(here, top=here == path):
            inner.clear()
            continue
        seen.add(real)
        for file in files:
            if _counts(here / file):
                found[(name / (here / file).relative_to(path).as_posix()).as_posix()] = here / file
    return found


def _is_part(folder: Path, top: bool) -> bool:
    name = folder.name
    if top:
        return True
    if name.startswith(".") or name == "__pycache__" or name.endswith((".egg-info", ".dist-info")):
        return False
    return not any((folder / mark).exists() for mark in (_RESULTS, "pyvenv.cfg"))


def _counts(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix not in _BYTECODE and path.is_file()
