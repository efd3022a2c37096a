"""A component as a run uses it: with every parameter resolved, and with digests of its code."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedbench.core.process.ask import plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.component import RegisteredComponent, settled
from fedbench.core.registry.digest import requirements_of, source_digest
from fedbench.core.registry.kinds import kind_of


class ComponentUse(BaseModel):
    """A component that a suite names, resolved; a run carries it and its records store it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """as `fedbench list` shows it"""
    label: str
    """name in tables: the name, or the suite's own label where a suite lists one component several
    times
    """
    params: dict[str, Any]
    """every parameter, defaults included, as JSON values"""
    target: str = ""
    """``"package.module:Class"``"""
    distribution: str
    """package and version, e.g. ``fedbench-privacy 0.2.0``"""
    digest: str
    """sha256 over the source files of the component"""
    requires: dict[str, str] = Field(default={})
    """version of each package that the distribution requires; those of fedbench itself are part of
    the run's provenance
    """
    then: tuple[ComponentUse, ...] = Field(default=())
    """defenses applied after this one"""

    def identity(self) -> dict[str, Any]:
        """Return the fields that can change a result: all but the label.

        Several components may share one file: the target says which of them a name means.
        """
        identity = self.model_dump(exclude={"label", "requires", "then"})
        if self.requires:
            identity["requires"] = self.requires
        if self.then:
            identity["then"] = [part.identity() for part in self.then]
        return identity

    @property
    def chain(self) -> tuple[ComponentUse, ...]:
        """This component and those applied after it."""
        return (self.model_copy(update={"then": ()}), *self.then)

    @property
    def distributions(self) -> list[str]:
        """The distributions of this component and of those applied after it."""
        return [part.distribution for part in self.chain]

    @property
    def full_name(self) -> str:
        """``a`` or, where others follow, ``a+b``."""
        return "+".join(part.name for part in (self, *self.then))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.distribution})"

    def load(self) -> Any:
        """Return the component's class, which was checked when the suite was resolved."""
        module, _, name = self.target.partition(":")
        with at_work(str(self), plugin_limits()), settled():
            return getattr(import_module(module), name)

    def make(self) -> list[Any]:
        """Return an instance of this component and of each that follows."""
        instances = []
        for part in self.chain:
            cls = part.load()
            with at_work(f"{kind_of(cls)} {part}", plugin_limits()), settled():
                instances.append(cls(**part.params))
        return instances


class UseMaker:
    """Makes uses of registered components; the files of a package are hashed once."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}

    def __call__(
        self, component: RegisteredComponent, params: dict[str, Any], label: str
    ) -> ComponentUse:
        """Return the use of a component with these resolved parameters."""
        target = component.component.target
        package = component.distribution
        source = (target.partition(":")[0], package)
        if source not in self._sources:
            self._sources[source] = source_digest(*source), requirements_of(package)
        digest, requires = self._sources[source]
        return ComponentUse(
            name=component.name,
            label=label,
            params=params,
            target=target,
            distribution=f"{package} {component.version}",
            digest=digest,
            requires=requires,
        )
