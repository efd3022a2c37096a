"""Names that installed packages have already."""

from __future__ import annotations

import re

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.scaffold.names import Names


def refuse_taken(names: Names, registry: Registry) -> None:
    """Raises ``UserError`` where an installed package announces a component of this name, of whatever kind, so that
    `fedbench check NAME` means one thing; or has the name of the new package."""
    for plugin in registry.plugins:
        for found in plugin.components:
            if found.name == names.name:
                raise UserError(f"the name '{names.name}' is taken: there is the {found}; choose another")
        if re.sub(r"[-_.]+", "-", plugin.distribution).lower() == names.distribution:
            package = f"a package '{plugin.distribution}' {plugin.version} is installed already"
            raise UserError(f"{package}; choose another name, or `pip uninstall` it")
