"""The place in a plugin where an error was raised, and tracebacks of bounded length.

A plugin's frames are those of its top-level package: the first on the way in that is neither the engine's, nor Python's, nor of
a library that the engine itself calls.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FrameType

from fedbench.core.words.printable import one_line, printable_lines

DEBUG = "FEDBENCH_DEBUG"
"""environment variable: whole tracebacks, in logs and on standard error"""

_OURS = "fedbench"
# built-in plugins
_PLUGINS = (f"{_OURS}.plugins", f"{_OURS}.leaderboard", f"{_OURS}.core.models", f"{_OURS}.core.signals.logits")
_CALLED = frozenset({  # what the engine calls that may call a plugin back
    "torch", "torchvision", "numpy", "scipy", "sklearn", "pluggy", "pydantic", "pydantic_core", "click", "rich",
})  # fmt: skip
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_SITES = ("site-packages", "dist-packages")
_MOST_LINES, _LONGEST_LINE, _LONGEST_PLACE = 120, 500, 200


def debugging() -> bool:
    """Whether the user asked for whole tracebacks."""
    return os.environ.get(DEBUG) == "1"


def place(error: BaseException) -> str:
    """`` (my_package/defense.py:42 in protect)``, the innermost frame of the plugin that raised; empty where none did."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return one_line(f" ({PurePath(error.filename).name}:{error.lineno})", _LONGEST_PLACE)
    found = ""
    for frame, line in _own([(frame, line or frame.f_lineno) for frame, line in traceback.walk_tb(error.__traceback__)]):
        name = frame.f_code.co_name
        inside = "" if name == "<module>" else f" in {name}"
        found = f" ({_file(frame)}:{line}{inside})"
    return " " + one_line(found, _LONGEST_PLACE) if found else ""


def whole(error: BaseException) -> str:
    """The traceback, of many lines the first and the last ones, in printable characters."""
    try:
        lines = "".join(traceback.format_exception(error)).splitlines()
    except Exception:  # an exception of a plugin that fails at being shown
        lines = [f"a {type(error).__name__} that cannot be shown"]
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"  [{len(lines) - 2 * half:,} lines left out]", *lines[-half:]]
    return "".join(f"{printable_lines(line)[:_LONGEST_LINE]}\n" for line in lines)


def _own(frames: list[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    packages = [_package(frame) for frame, _ in frames]
    mine = next((p for p in packages if p), "")
    yield from (found for found, package in zip(frames, packages, strict=True) if mine and package == mine)


def _package(frame: FrameType) -> str:
    """The plugin package that a frame belongs to; empty for the engine, Python and libraries."""
    module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if module.partition(".")[0] == _OURS:
        return next((p for p in _PLUGINS if module == p or module.startswith(f"{p}.")), "")
    python = file.startswith(_PYTHON) and not any(site in file for site in _SITES)
    top = module.partition(".")[0]
    return "" if python or top in _CALLED or file.startswith("<frozen") else top or file


def _file(frame: FrameType) -> str:
    """As people write it: the module's path from its package on, where it is a module's own code."""
    code: CodeType = frame.f_code
    name = PurePath(code.co_filename).name
    parts = str(frame.f_globals.get("__name__", "")).split(".")
    if name == "__init__.py":
        return "/".join([*parts, name])
    return "/".join([*parts[:-1], name]) if name == f"{parts[-1]}.py" else name
