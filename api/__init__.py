"""The Python API of fedbench. Names are loaded on first use, so that `import fedbench` imports
nothing else.

::

    import fedbench

    results = fedbench.run("partial_defense", set=["seeds=[0]"], only=["coalition=pair"])
    results.cells  # a score a row
    results.rows  # a defense a row, ranked as on the board
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.core.api import Results, audit, load, plan, run

    __version__: str

__all__ = ["Results", "__version__", "audit", "load", "plan", "run"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedbench-privacy")
    if name not in __all__:
        raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
    from fedbench.core import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
