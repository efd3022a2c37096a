"""What a class states about itself: of the right kind before anybody relies on it."""

from __future__ import annotations

import math
from typing import Any

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.ask import patience
from fedbench.core.words.explain import explain

_TEXTS = {"default_model": "the name of a model", "licence": "text", "citation": "text", "home": "text, a URL"}


def facts_mistake(kind: str, cls: type) -> str:
    """What is wrong with the class attributes that a data set is shown and resolved by, or nothing. What only an instance
    knows is asked where one is made."""
    if kind != "dataset":
        return ""
    for name, expected in _TEXTS.items():
        found = getattr(cls, name)
        if not isinstance(found, str) or not (found or name in ("citation", "home")):
            return f"its {name} is {describe(found)}, expected {expected}"
    size: Any = cls.size_mb  # type: ignore[attr-defined]
    if size is not None and not (isinstance(size, int | float) and not isinstance(size, bool) and 0 <= size < math.inf):
        return f"its size_mb is {describe(size)}, expected a number of megabytes >= 0, or None"
    return ""


def is_here(cls: Any, who: str) -> bool | str:
    """A data set's answer to whether it is on this machine; ``UserError`` that names ``who`` where it has no proper one."""
    with at_work(who, patience()):
        try:
            found = cls.here()
        except BaseException as exc:
            pass_on_interrupt(exc)
            raise UserError(f"{who}: here() failed: {explain(exc)}") from exc
    if not isinstance(found, bool | str):
        raise UserError(f"{who}: here() returned {describe(found)}, expected True, False or a text that says in which form")
    return found


def describe(value: Any) -> str:
    """A value of somebody's making, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, type):
        bases = ", ".join(b.__name__ for b in value.__bases__)
        return f"the class {value.__name__}({bases})"
    name = getattr(value, "__name__", None)
    if callable(value) and name:
        return f"the function {name}"
    return f"{type(value).__name__} {value!r:.60}"
