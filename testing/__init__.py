"""Checks that a component keeps the contract, for whoever writes one: in pytest, from Python, or as ``fedbench check NAME``.

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
    from fedbench.testing.apart import check_component
    from fedbench.testing.parametrize import ConformanceWarning, parametrize_with_checks
    from fedbench.testing.results import Report, Result

_HOME = {
    "check_component": "apart", "ConformanceWarning": "parametrize", "parametrize_with_checks": "parametrize",
    "Report": "results", "Result": "results",
}  # fmt: skip
__all__ = ["ConformanceWarning", "Report", "Result", "check_component", "parametrize_with_checks"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: `fedbench --help` looks in here, and torch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedbench.testing' has no attribute {name!r}")
    return getattr(import_module(f"fedbench.testing.{_HOME[name]}"), name)
