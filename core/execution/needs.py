"""The signals that a suite's attacks and analyses need: whether there are such, and with which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE
from fedbench.core.words.explain import explain


class Signals:
    """``uses``: every installed signal that a plugin measures, by name, with the suite's parameters where it gives some.

    Those of the gradient are not among them: they are the engine's own code, which is part of every run's key.
    """

    def __init__(self, registry: Registry, named: Mapping[str, ComponentUse]) -> None:
        use = UseMaker()
        found = {c.name: use(c, {}, c.name) for c in registry.components("signal")} | dict(named)
        self.uses = {name: made for name, made in found.items() if name not in GRADIENT_SIGNALS}
        self._registry = registry
        self._sound: set[str] = set()

    def require(self, who: str, names: Iterable[str]) -> None:
        """Raise ``UserError`` for a signal that nobody announces, or that cannot be made with its parameters."""
        problems: list[str] = []
        for name in sorted({*names} - self._sound):
            try:
                self._check(name)
                self._sound.add(name)
            except UserError as error:
                problems += [f"{who}: its needs: {message}" for message in error.messages]
        if problems:
            raise UserError(*problems)

    def _check(self, name: str) -> None:
        own = name.removesuffix(PRE_DEFENSE)
        self._registry.get("signal", own)
        if own not in self.uses:
            if own != name:
                raise UserError(f"'{name}': signals of the gradient are measured of what was uploaded alone; write '{own}'")
            return
        try:
            vector = self.uses[own].make()[0].vector
        except BaseException as error:  # somebody's constructor
            pass_on_interrupt(error)
            remedy = "a suite sets its parameters under `signals:`"
            raise UserError(f"signal {self.uses[own]} cannot be made: {explain(error)}; {remedy}") from error
        if type(vector) is not bool:
            raise UserError(f"signal {self.uses[own]}: its vector is {vector!r:.60}, expected True or False")
