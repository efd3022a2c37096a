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
        """Return the class; raises ``UserError`` when it cannot be imported or is not what its kind
        demands.
        """
        base_module, base_name = BASES[self.kind]
        # not within the package's time limit
        base: type = getattr(import_module(base_module), base_name)
        with at_work(str(self), plugin_limits()), settled():
            try:
                cls = self._imported()
                if mistake := self._mistake(cls, base):
                    raise UserError(f"{self}: {mistake}")
            except UserError:
                raise
            except BaseException as error:  # a class can fail at being looked at
                pass_on_interrupt(error)
                raise UserError(f"{self}: {explain(error)}") from error
        return cls

    def _imported(self) -> Any:
        module_name, _, attribute = self.component.target.partition(":")
        try:
            module = import_module(module_name)
        except BaseException as error:
            pass_on_interrupt(error)
            raise UserError(f"{self}: cannot import '{module_name}': {explain(error)}") from error
        try:
            return getattr(module, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, vars(module))
            raise UserError(
                f"{self}: the module '{module_name}' has no '{attribute}'{hint}"
            ) from None

    def _mistake(self, cls: Any, base: type) -> str:
        """Say why the class cannot be used; empty where it can."""
        from fedbench.core.contract.components import Params

        if not (isinstance(cls, type) and issubclass(cls, base)):
            expected = f"expected a subclass of fedbench.core.{base.__name__}"
            return f"'{self.component.target}' is {describe(cls)}, {expected}"
        params = getattr(cls, "Params", None)
        if not (isinstance(params, type) and issubclass(params, Params)):
            return f"its Params is {describe(params)}, expected a subclass of fedbench.core.Params"
        return _facts_mistake(cls) if self.kind == "dataset" else ""


# --- facts of a class -----------------------------------------------------------------------------

_TEXTS = {
    "default_model": "the name of a model",
    "licence": "text",
    "citation": "text",
    "home": "text, a URL",
}


def _facts_mistake(cls: Any) -> str:
    """Say what is wrong with the class attributes of a data set; empty if nothing is."""
    for name, expected in _TEXTS.items():
        text = getattr(cls, name)
        if not isinstance(text, str) or not (text or name in ("citation", "home")):
            return f"its {name} is {describe(text)}, expected {expected}"
    size = cls.size_mb
    if size is not None and not (isinstance(size, int | float) and 0 <= size < math.inf):
        return f"its size_mb is {describe(size)}, expected a number of megabytes >= 0, or None"
    return ""


def is_here(cls: Any, party: str) -> bool | str:
    """Return whether a data set is on this machine, or in which form. Raises ``UserError`` naming
    ``party`` for an invalid answer.
    """
    with at_work(party, plugin_limits()):
        try:
            answer = cls.here()
        except BaseException as error:
            pass_on_interrupt(error)
            raise UserError(f"{party}: here() failed: {explain(error)}") from error
    if not isinstance(answer, bool | str):
        raise UserError(
            f"{party}: here() returned {describe(answer)}, expected True, False or a text that "
            "says in which form"
        )
    return answer


def describe(value: Any) -> str:
    """Return a value in a few words, for messages."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}({', '.join(b.__name__ for b in value.__bases__)})"
    if callable(value) and (name := getattr(value, "__name__", None)):
        return f"the function {name}"
    return f"{type(value).__name__} {value!r:.60}"


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
