"""All components of all installed packages, by kind and name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry.discovery import (
    PluginStatus,
    RegisteredComponent,
    discover_plugins,
)
from fedbench.core.registry.kinds import KINDS, PLURAL
from fedbench.core.words import by_nearness, did_you_mean


@dataclass(frozen=True)
class Clash:
    """Several announcements of one name; an error only where a suite uses the name."""

    kind: str
    name: str
    claimants: tuple[RegisteredComponent, ...]

    def __str__(self) -> str:
        claims = " and ".join(
            f"{c.distribution} {c.version} ({c.component.target})" for c in self.claimants
        )
        remedy = "the package must rename one of them"
        if len({(c.distribution, c.version) for c in self.claimants}) > 1:
            remedy = "uninstall one of them"
        return f"{self.kind} '{self.name}' is claimed by {claims}: {remedy}"


class Registry:
    """All plugins and their components. ``plugins``: every entry point with its status.

    No component's class is imported before ``get(kind, name).load()``.
    """

    def __init__(self, plugins: Sequence[PluginStatus]) -> None:
        self.plugins = list(plugins)
        self._claims: dict[str, dict[str, list[RegisteredComponent]]] = {
            kind: defaultdict(list) for kind in KINDS
        }
        for plugin in self.plugins:
            for component in plugin.components:
                claims = self._claims[component.kind][component.name]
                # the same announcement twice, through two entry points of one package
                if component not in claims:
                    claims.append(component)

    @classmethod
    def discover(cls) -> Registry:
        """Load every entry point of the group ``fedbench`` on its own; a broken plugin never raises
        an error.
        """
        return cls(discover_plugins())

    @property
    def broken(self) -> list[PluginStatus]:
        """The plugins with something wrong."""
        return [p for p in self.plugins if not p.ok]

    @property
    def listeners(self) -> list[PluginStatus]:
        """The plugins that take events."""
        return [p for p in self.plugins if p.listener is not None]

    @property
    def clashes(self) -> list[Clash]:
        """Names claimed more than once, by kind and name."""
        clashes = []
        for kind, by_name in self._claims.items():
            for name, claims in sorted(by_name.items()):
                if len(claims) > 1:
                    clashes.append(Clash(kind, name, tuple(claims)))
        return clashes

    def claimants(self, kind: str, name: str) -> list[RegisteredComponent]:
        """Return all components of this kind and name."""
        return self._claims[kind].get(name, [])

    def components(self, kind: str) -> list[RegisteredComponent]:
        """Return the usable components of a kind (claimed once), by name."""
        return [claims[0] for _, claims in sorted(self._claims[kind].items()) if len(claims) == 1]

    def own(self, kind: str) -> list[RegisteredComponent]:
        """Return the components that come with fedbench: a suite has them without naming them."""
        return [c for c in self.components(kind) if c.distribution == DISTRIBUTION]

    def floors(self) -> list[RegisteredComponent]:
        """Return fedbench's defenses that every board has as rows."""
        return [c for c in self.own("defense") if c.component.floor]

    def get(self, kind: str, name: str) -> RegisteredComponent:
        """Return the component; raises ``UserError`` for an unknown name (with the nearest) and for
        one claimed twice.
        """
        claims = self.claimants(kind, name)
        if len(claims) > 1:
            raise UserError(str(Clash(kind, name, tuple(claims))))
        if not claims:
            raise UserError(self._unknown(kind, name))
        return claims[0]

    def _unknown(self, kind: str, name: str) -> str:
        names = [c.name for c in self.components(kind)]
        hint = did_you_mean(name, names)
        for namesake in KINDS:
            if namesake != kind and name in self._claims[namesake]:
                hint = f" (there is a {namesake} of this name)"
                break
        choices = ", ".join(by_nearness(name, names)) or "(none)"
        text = f"unknown {kind} '{name}'{hint}; the {PLURAL[kind]} are {choices}"
        if self.broken:
            reasons = "; ".join(f"{p}: {p.reason}" for p in self.broken)
            text += f"; a broken plugin may have provided it: {reasons}"
        return text
