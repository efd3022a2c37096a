"""The kinds of component: name, plural, hook and base class. Imports nothing, so that help stays
quick.
"""

from __future__ import annotations

import sys

# kind -> module and name of its base class
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
PLURAL = {kind: f"{kind}s" for kind in KINDS} | {"analysis": "analyses"}
HOOKS = {kind: f"fedbench_{plural}" for kind, plural in PLURAL.items()}
EVENTS = "fedbench_events"
"""the hook that announces nothing: it takes events"""


def kind_of(cls: type) -> str:
    """Return the kind of a class that has been imported; ``component`` for one of none."""
    for kind, (module, name) in BASES.items():
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and issubclass(cls, base):
            return kind
    return "component"
