"""Reports are found by entry point (group ``fedbench.reports``): the harness writes records and knows no renderer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from fedbench.core.contract.errors import UserError


def report(name: str) -> Callable[..., Any]:
    """The renderer ``name``; raises ``UserError`` when no installed package provides it."""
    for entry in entry_points(group="fedbench.reports"):
        if entry.name == name:
            return entry.load()
    raise UserError(f"no report '{name}' is installed; install fedbench again (`pip install fedbench`)")
