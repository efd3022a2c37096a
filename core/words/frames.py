"""Which frames of a traceback are a plugin's own: where in it something went wrong, and a traceback of nothing else.

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
# of ours, what is a plugin like anybody's
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
    """`` (my_package/defense.py:42 in protect)``, the innermost frame of the plugin that raised; empty where nobody's did."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return one_line(f" ({PurePath(error.filename).name}:{error.lineno})", _LONGEST_PLACE)
    found = ""
    for frame, line in _own(_frames(error)):
        name = frame.f_code.co_name
        inside = "" if name == "<module>" else f" in {name}"
        found = f" ({_file(frame)}:{line}{inside})"
    return " " + one_line(found, _LONGEST_PLACE) if found else ""


def trimmed(error: BaseException) -> str:
    """The traceback with the frames of the plugin's own alone, and how many were left out; empty where there are none."""
    told = _told(error)
    counts = [0, 0]  # kept, left out
    _cut(told, error, counts)
    while told.__cause__ is not None and error.__cause__ is not None and not told.stack:
        told, error = told.__cause__, error.__cause__  # the engine's words around it
    kept, left = counts
    if not kept:
        return ""
    return _bounded(told) + f"({left} frames of fedbench and of libraries left out; `--debug` keeps them)\n"


def whole(error: BaseException) -> str:
    """The traceback with all frames."""
    return _bounded(_told(error))


def logged(error: BaseException) -> str:
    """What a log has of a failure: the plugin's own frames; all of them where the user asked for it or nobody's are there."""
    return whole(error) if debugging() else trimmed(error) or whole(error)


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return [(frame, line or frame.f_lineno) for frame, line in traceback.walk_tb(error.__traceback__)]


def _own(frames: list[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    packages = [_package(frame) for frame, _ in frames]
    mine = next((p for p in packages if p), "")
    yield from (found for found, package in zip(frames, packages, strict=True) if mine and package == mine)


def _package(frame: FrameType) -> str:
    """Whose package a frame is of; empty where it can be no plugin's."""
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


def _told(error: BaseException) -> traceback.TracebackException:
    try:
        return traceback.TracebackException.from_exception(error)
    except Exception:  # an exception of somebody's making that fails at being looked at
        return traceback.TracebackException(RuntimeError, RuntimeError(f"a {type(error).__name__} that cannot be shown"), None)


def _cut(told: traceback.TracebackException, error: BaseException, counts: list[int]) -> None:
    """Leave a plugin's own frames in ``told``, and in whatever led to it."""
    frames = _frames(error)
    own = {id(frame) for frame, _ in _own(frames)}
    before = len(told.stack)
    shown = zip(told.stack, frames, strict=False)
    told.stack = traceback.StackSummary.from_list([s for s, (frame, _) in shown if id(frame) in own])
    counts[0] += len(told.stack)
    counts[1] += before - len(told.stack)
    for inner, cause in ((told.__cause__, error.__cause__), (told.__context__, error.__context__)):
        if inner is not None and cause is not None:
            _cut(inner, cause, counts)
    if isinstance(error, BaseExceptionGroup):
        for inner, cause in zip(told.exceptions or (), error.exceptions, strict=False):
            _cut(inner, cause, counts)


def _bounded(told: traceback.TracebackException) -> str:
    lines = "".join(told.format()).splitlines()
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"  [{len(lines) - 2 * half:,} lines left out]", *lines[-half:]]
    return "".join(f"{printable_lines(line)[:_LONGEST_LINE]}\n" for line in lines)
