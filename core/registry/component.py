"""A component that somebody announced, and its class: imported when it is asked for, and looked at before it is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import Component
from fedbench.core.registry.ask import patience
from fedbench.core.registry.facts import describe, facts_mistake
from fedbench.core.registry.kinds import BASES
from fedbench.core.registry.settled import settled
from fedbench.core.words.explain import explain
from fedbench.core.words.nearest import did_you_mean


@dataclass(frozen=True)
class RegisteredComponent:
    """A component and the package that announced it. ``load`` imports its class; until then nothing is imported."""

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
        """The class; raises ``UserError`` when it cannot be imported or is not what its kind demands."""
        base_module, base_name = BASES[self.kind]
        base: type = getattr(import_module(base_module), base_name)  # ours: not in the time that its package may take
        with at_work(str(self), patience()), settled():
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
            raise UserError(f"{self}: the module '{module_name}' has no '{attribute}'{hint}") from None

    def _check_class(self, found: Any, base: type) -> None:
        if not (isinstance(found, type) and issubclass(found, base)):
            expected = f"expected a subclass of fedbench.core.{base.__name__}"
            raise UserError(f"{self}: '{self.component.target}' is {describe(found)}, {expected}")
        from fedbench.core.contract.params import Params

        params = getattr(found, "Params", None)
        if not (isinstance(params, type) and issubclass(params, Params)):
            raise UserError(f"{self}: its Params is {describe(params)}, expected a subclass of fedbench.core.Params")
        if mistake := facts_mistake(self.kind, found):
            raise UserError(f"{self}: {mistake}")
