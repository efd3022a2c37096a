"""Which code is the component's own, told from the stack."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, ModuleType

_OURS = ("fedbench.plugins", "fedbench.core.models", "fedbench.core.signals", "fedbench.leaderboard")
_IMPORTING = ("importlib", "_frozen_importlib")


class Own:
    """The package of a class: of somebody's distribution, its top package."""

    def __init__(self, cls: type) -> None:
        module = cls.__module__
        self.package = next((p for p in _OURS if module == p or module.startswith(f"{p}.")), module.partition(".")[0])

    def has(self, module: str) -> bool:
        """Whether a module is of this package."""
        return module == self.package or module.startswith(f"{self.package}.")

    def modules(self) -> list[ModuleType]:
        """Those that are imported."""
        return [m for name, m in list(sys.modules.items()) if self.has(name) and isinstance(m, ModuleType)]

    def frame(self) -> FrameType | None:
        """The innermost frame of its code; None where none is at work, or where it only imports something."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if self.has(name):
                return frame
            if name.startswith(_IMPORTING):
                return None
            frame = frame.f_back
        return None


def place(frame: FrameType) -> str:
    """File and line."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
