"""Methods of a defense that look like a phase and are none: the engine never calls them."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core.contract.defense import Defense
from fedbench.core.contract.phases import PHASES
from fedbench.core.registry.use import ComponentUse
from fedbench.core.words.nearest import nearest


def misspelt_phases(use: ComponentUse, made: Defense) -> Iterator[str]:
    """A note on each public method that nobody knows and that is called nearly as a phase is."""
    for part, defense in zip(use.chain, made.parts or (made,), strict=False):
        own = (name for cls in type(defense).__mro__ if not issubclass(Defense, cls) for name, value in vars(cls).items()
               if callable(value) or isinstance(value, staticmethod | classmethod))  # fmt: skip
        for name in dict.fromkeys(own):
            near = None if name.startswith("_") or hasattr(Defense, name) else nearest(name, PHASES)
            if near:
                yield (
                    f"defense {part}: its method '{name}' is no phase and is never called - did you mean '{near}'? "
                    "A helper's name begins with an underscore"
                )
