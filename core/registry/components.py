"""All components of all installed packages, by kind and name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry.discovery import PluginStatus, RegisteredComponent, discover_plugins
from fedbench.core.registry.kinds import KINDS, PLURAL
from fedbench.core.words import by_nearness, did_you_mean


@dataclass(frozen=True)
class Clash:
    """Several announcements of one name; an error only where a suite uses the name."""

    kind: str
    name: str
    claimants: tuple[RegisteredComponent, ...]

    def __str__(self) -> str:
        packages = [f"{c.distribution} {c.version}" for c in self.claimants]
        who = " and ".join(
            f"{p} ({c.component.target})" for p, c in zip(packages, self.claimants, strict=True)
        )
        way_out = (
            "uninstall one of them"
            if len(set(packages)) > 1
            else "the package must rename one of them"
        )
        return f"{self.kind} '{self.name}' is claimed by {who}: {way_out}"


class Registry:
    """``plugins``: every entry point with its status; ``clashes``: names claimed more than once.

    Nothing here imports a component's class; ``get(kind, name).load()`` does.
    """

    def __init__(self, plugins: Sequence[PluginStatus]) -> None:
        self.plugins = list(plugins)
        self._claims: dict[str, dict[str, list[RegisteredComponent]]] = {
            kind: defaultdict(list) for kind in KINDS
        }
        for plugin in self.plugins:
            for found in plugin.components:
                claims = self._claims[found.kind][found.name]
                # the same announcement twice, through two entry points of one package
                if found not in claims:
                    claims.append(found)

    @classmethod
    def discover(cls) -> Registry:
        """Every entry point of the group ``fedbench``, each loaded on its own; never raises for a
        broken plugin.
        """
        return cls(discover_plugins())

    @property
    def broken(self) -> list[PluginStatus]:
        """The plugins with something wrong."""
        return [p for p in self.plugins if not p.ok]

    @property
    def clashes(self) -> list[Clash]:
        """Names claimed more than once, by kind and name."""
        return [
            Clash(kind, name, tuple(claims))
            for kind in KINDS
            for name, claims in sorted(self._claims[kind].items())
            if len(claims) > 1
        ]

    def claimants(self, kind: str, name: str) -> list[RegisteredComponent]:
        """All components of this kind and name."""
        return self._claims[kind].get(name, [])

    def components(self, kind: str) -> list[RegisteredComponent]:
        """The usable components of a kind (claimed once), by name."""
        return [claims[0] for _, claims in sorted(self._claims[kind].items()) if len(claims) == 1]

    def own(self, kind: str) -> list[RegisteredComponent]:
        """Those that come with the harness: what a suite has without naming it."""
        return [c for c in self.components(kind) if c.distribution == DISTRIBUTION]

    def floors(self) -> list[RegisteredComponent]:
        """The defenses that every board has as rows: nothing but what comes with the harness."""
        return [c for c in self.own("defense") if c.component.floor]

    def get(self, kind: str, name: str) -> RegisteredComponent:
        """The component; raises ``UserError`` for an unknown name (with the nearest) and for one
        claimed twice.
        """
        claims = self.claimants(kind, name)
        if len(claims) > 1:
            raise UserError(str(Clash(kind, name, tuple(claims))))
        if not claims:
            raise UserError(self._unknown(kind, name))
        return claims[0]

    def _unknown(self, kind: str, name: str) -> str:
        names = [c.name for c in self.components(kind)]
        other = [k for k in KINDS if k != kind and name in self._claims[k]]
        hint = f" (there is a {other[0]} of this name)" if other else did_you_mean(name, names)
        text = f"unknown {kind} '{name}'{hint}; the {PLURAL[kind]} are {', '.join(by_nearness(name, names)) or '(none)'}"
        if self.broken:
            text += "; a broken plugin may have provided it: " + "; ".join(
                f"{p}: {p.reason}" for p in self.broken
            )
        return text
