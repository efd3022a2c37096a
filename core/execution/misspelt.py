"""What is said of public methods that no hook calls, for the notes of a plan and of its records."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.registry.ask import patience
from fedbench.core.registry.hooks_of import unknown_methods
from fedbench.core.registry.kinds import kind_of
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.resolve import Resolved
from fedbench.core.words.explain import explain


class Misspelt:
    """Asks each class once."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], list[str]] = {}

    def of(self, uses: Iterable[ComponentUse]) -> list[str]:
        """The notes on these components and those that follow them, none twice."""
        parts = [part for use in uses for part in use.chain]
        return list(dict.fromkeys(note for part in parts for note in self._of(part)))

    def _of(self, part: ComponentUse) -> list[str]:
        at = (part.target, part.name)
        if at not in self._said:
            cls = part.load()
            who = f"{kind_of(cls)} {part}"
            try:
                with at_work(who, patience()):
                    self._said[at] = [f"{who}: {text}" for text in unknown_methods(cls)]
            except BaseException as error:  # a class can fail at being looked at
                pass_on_interrupt(error)
                self._said[at] = [f"{who}: its methods cannot be looked at: {explain(error)}"]
        return self._said[at]


def misspelt_in(resolved: Resolved) -> list[str]:
    """The notes on all components that a suite names."""
    named = [use for setting in resolved.settings for use in (setting.dataset, setting.model)]
    return Misspelt().of([*named, *resolved.defenses, *resolved.attacks, *resolved.analyses, *resolved.signals.values()])
