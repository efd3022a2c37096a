"""Conformance checks for plugins: in pytest, from Python, or as ``fedbench check NAME``.

::

    from fedbench.testing import parametrize_with_checks

    @parametrize_with_checks("update-noise")
    def test_conformance(check):
        check()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.testing.run import (
        ConformanceWarning,
        Report,
        Result,
        check_component,
        parametrize_with_checks,
    )

__all__ = ["ConformanceWarning", "Report", "Result", "check_component", "parametrize_with_checks"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `fedbench --help` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fedbench.testing' has no attribute {name!r}")
    return getattr(import_module("fedbench.testing.run"), name)


def __dir__() -> list[str]:
    return __all__
