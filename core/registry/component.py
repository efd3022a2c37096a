"""An announced component and its class, which is imported on demand and validated."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import Component
from fedbench.core.process.ask import plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.kinds import BASES
from fedbench.core.words import did_you_mean, explain


@dataclass(frozen=True)
class RegisteredComponent:
    """A component and the package that announced it. ``load`` imports its class."""

    component: Component
    distribution: str
    version: str
    kind: str

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' ({self.distribution} {self.version})"

    def load(self) -> Any:
        """The class; raises ``UserError`` when it cannot be imported or is not what its kind
        demands.
        """
        base_module, base_name = BASES[self.kind]
        # not within the package's time limit
        base: type = getattr(import_module(base_module), base_name)
        with at_work(str(self), plugin_limits()), settled():
            try:
                found = self._imported()
                self._check_class(found, base)
            except UserError:
                raise
            except BaseException as exc:  # a class can fail at being looked at
                pass_on_interrupt(exc)
                raise UserError(f"{self}: {explain(exc)}") from exc
        return found

    def _imported(self) -> Any:
        module_name, _, attribute = self.component.target.partition(":")
        try:
            module = import_module(module_name)
        except BaseException as exc:
            pass_on_interrupt(exc)
            raise UserError(f"{self}: cannot import '{module_name}': {explain(exc)}") from exc
        try:
            return getattr(module, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, vars(module))
            raise UserError(
                f"{self}: the module '{module_name}' has no '{attribute}'{hint}"
            ) from None

    def _check_class(self, found: Any, base: type) -> None:
        if not (isinstance(found, type) and issubclass(found, base)):
            expected = f"expected a subclass of fedbench.core.{base.__name__}"
            raise UserError(f"{self}: '{self.component.target}' is {describe(found)}, {expected}")
        from fedbench.core.contract.components import Params

        params = getattr(found, "Params", None)
        if not (isinstance(params, type) and issubclass(params, Params)):
            raise UserError(
                f"{self}: its Params is {describe(params)}, expected a subclass of "
                "fedbench.core.Params"
            )
        if mistake := _facts_mistake(self.kind, found):
            raise UserError(f"{self}: {mistake}")


# --- facts of a class -----------------------------------------------------------------------------

_TEXTS = {
    "default_model": "the name of a model",
    "licence": "text",
    "citation": "text",
    "home": "text, a URL",
}


def _facts_mistake(kind: str, cls: Any) -> str:
    """What is wrong with the class attributes of a data set, or nothing."""
    if kind != "dataset":
        return ""
    for name, expected in _TEXTS.items():
        found = getattr(cls, name)
        if not isinstance(found, str) or not (found or name in ("citation", "home")):
            return f"its {name} is {describe(found)}, expected {expected}"
    size = cls.size_mb
    if size is not None and not (isinstance(size, int | float) and 0 <= size < math.inf):
        return f"its size_mb is {describe(size)}, expected a number of megabytes >= 0, or None"
    return ""


def is_here(cls: Any, who: str) -> bool | str:
    """Whether a data set is on this machine, or in which form. Raises ``UserError`` naming ``who``
    for an invalid answer.
    """
    with at_work(who, plugin_limits()):
        try:
            found = cls.here()
        except BaseException as error:
            pass_on_interrupt(error)
            raise UserError(f"{who}: here() failed: {explain(error)}") from error
    if not isinstance(found, bool | str):
        raise UserError(
            f"{who}: here() returned {describe(found)}, expected True, False or a text that says "
            "in which form"
        )
    return found


def describe(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, type):
        return f"the class {value.__name__}({', '.join(b.__name__ for b in value.__bases__)})"
    if callable(value) and (name := getattr(value, "__name__", None)):
        return f"the function {name}"
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


@contextmanager
def settled() -> Iterator[None]:
    """Restore the process's global state afterwards; does nothing where torch has not been
    imported.
    """
    if "torch" not in sys.modules:
        yield
        return
    from fedbench.core.process.library_state import kept

    with kept():
        yield
