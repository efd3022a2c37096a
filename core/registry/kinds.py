"""The kinds of component: everything that is said of a kind by name. Imports nothing, so that help
stays quick.
"""

from __future__ import annotations

import sys

# kind -> where its base class lives
BASES = {
    "defense": ("fedbench.core.contract.defense", "Defense"),
    "attack": ("fedbench.core.contract.attack", "Attack"),
    "analysis": ("fedbench.core.contract.analysis", "Analysis"),
    "dataset": ("fedbench.core.contract.components", "Dataset"),
    "model": ("fedbench.core.contract.components", "Model"),
    "signal": ("fedbench.core.contract.components", "Signal"),
    "report": ("fedbench.core.contract.components", "Report"),
}
KINDS = tuple(BASES)
PLURAL = {kind: "analyses" if kind == "analysis" else f"{kind}s" for kind in KINDS}
HOOKS = {kind: f"fedbench_{plural}" for kind, plural in PLURAL.items()}


def kind_of(cls: type) -> str:
    """The kind of a class that has been imported; ``component`` for one of none."""
    bases = (
        (kind, getattr(sys.modules.get(module), name, None))
        for kind, (module, name) in BASES.items()
    )
    return next(
        (kind for kind, base in bases if isinstance(base, type) and issubclass(cls, base)),
        "component",
    )
