"""What the interpreter itself reports while a component's code runs: files, pickles, processes, looks into others' frames."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedbench.testing.watch.generators import replaced
from fedbench.testing.watch.own import Own, place

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
_PROCESSES = ("subprocess.Popen", "os.system", "os.fork", "os.exec", "os.posix_spawn", "socket.connect", "os.kill")
_LOOKS = ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames")
_INSIDE = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")  # ways from an error or a generator to others' variables

_listeners: list[Events] = []
_installed = False


class Events:
    """What one component's own code did. Each list holds sentences with the place in the plugin.

    ``may_write``: below these folders it may write files.
    """

    def __init__(self, own: Own, may_write: tuple[Path, ...] = ()) -> None:
        self._own, self._may_write, self._busy = own, tuple(str(p.resolve()) for p in may_write), False
        self.pickles, self.writes, self.looks = dict[str, None](), dict[str, None](), dict[str, None]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the component is at work."""
        _install()
        _listeners.append(self)
        try:
            with replaced(self._pickling(), self._own):
                yield
        finally:
            _listeners.remove(self)

    def _pickling(self) -> list[tuple[Any, str, Any]]:
        found: list[tuple[Any, str, Any]] = [(pickle, n, self._noted(pickle, n)) for n in ("dump", "dumps", "load", "loads")]
        found += [(pickle, n, self._class(getattr(pickle, n), f"pickle.{n}")) for n in ("Pickler", "Unpickler")]
        return [*found, (torch, "save", self._noted(torch, "save")), (torch, "load", self._load())]

    def _noted(self, home: Any, name: str) -> Callable[..., Any]:
        original = getattr(home, name)

        def stand_in(*args: Any, **more: Any) -> Any:
            self._note(self.pickles, f"{home.__name__}.{name}")
            return original(*args, **more)

        return stand_in

    def _class(self, cls: type, what: str) -> type:
        def noted(made: Any, *args: Any, **more: Any) -> None:
            self._note(self.pickles, what)
            cls.__init__(made, *args, **more)  # type: ignore[misc]

        return type(cls.__name__, (cls,), {"__init__": noted, "__module__": cls.__module__})  # torch builds its own upon it

    def _load(self) -> Callable[..., Any]:
        original = torch.load

        def stand_in(*args: Any, **more: Any) -> Any:
            if more.get("weights_only", True) is False:
                self._note(self.pickles, "torch.load(weights_only=False)")
            return original(*args, **more)

        return stand_in

    def _note(self, to: dict[str, None], what: str) -> None:
        if frame := self._own.frame():
            to.setdefault(f"{what} [{place(frame)}]")

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of the interpreter; whatever happens in here is not one."""
        if self._busy:
            return
        self._busy = True
        try:
            if event == "pickle.find_class":
                self._note(self.pickles, "it unpickled an object")
            elif event == "open":
                self._opened(*args)
            elif event in _CHANGES:
                self._changed(event, args)
            elif event in _PROCESSES:
                self._note(self.writes, f"{event}{args[:2]!r:.80}")
            elif event in _LOOKS:
                self._note(self.looks, event)
            elif event == "sys._getframe" or (event == "object.__getattr__" and args[1] in _INSIDE):
                self._looked(event, args)
        finally:
            self._busy = False

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        writing = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(isinstance(flags, int) and flags & _WRITES)
        if writing and isinstance(path, str | bytes | os.PathLike) and not self._allowed(path):
            self._note(self.writes, f"it opened {os.fsdecode(path)!r:.120} to write")

    def _changed(self, event: str, args: tuple[Any, ...]) -> None:
        if not all(self._allowed(a) for a in args if isinstance(a, str | bytes | os.PathLike)):
            self._note(self.writes, f"{event}({args[0]!r:.120})")

    def _allowed(self, path: Any) -> bool:
        text = os.path.realpath(os.fsdecode(path))
        return "__pycache__" in text or text == os.devnull or any(text.startswith(f) for f in self._may_write)

    def _looked(self, event: str, args: tuple[Any, ...]) -> None:
        """Only where it asks itself: libraries look at frames for warnings and names."""
        frame = sys._getframe(3)  # past this function, `heard` and `_hook`
        while frame is not None and frame.f_globals.get("__name__") == inspect.__name__:
            if frame.f_back is None:
                return
            frame = frame.f_back
        if frame is not None and self._own.has(str(frame.f_globals.get("__name__", ""))):
            what = event if event == "sys._getframe" else args[1]
            self.looks.setdefault(f"{what} [{place(frame)}]")


def _install() -> None:
    """An audit hook cannot be taken away again: it listens for nobody, most of the time."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for listener in _listeners:
        listener.heard(event, args)
