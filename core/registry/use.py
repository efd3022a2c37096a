"""A component as a run uses it: found, with every parameter resolved, and the code that runs."""

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
    """What a suite names, resolved; a run carries it and its records store it."""

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
    """package and version, e.g. ``fedbench-privacy 0.1.0``"""
    digest: str
    """sha256 over the source files of the component"""
    requires: dict[str, str] = Field(default={})
    """version of each package that the distribution requires; those of fedbench itself are part of
    the run's provenance
    """
    then: tuple[ComponentUse, ...] = Field(default=())
    """defenses applied after this one"""

    def identity(self) -> dict[str, Any]:
        """What can change the answer: not the label. The target too: several components may share
        one file, and which of them a name announces stands in another, which the digest does not
        cover.
        """
        own = {
            name: getattr(self, name)
            for name in ("name", "params", "target", "distribution", "digest")
        }
        own |= {"requires": self.requires} if self.requires else {}
        return own | ({"then": [part.identity() for part in self.then]} if self.then else {})

    @property
    def chain(self) -> tuple[ComponentUse, ...]:
        """This one and those applied after it."""
        return (self.model_copy(update={"then": ()}), *self.then)

    @property
    def distributions(self) -> list[str]:
        """The distributions of this one and of those applied after it."""
        return [part.distribution for part in self.chain]

    @property
    def full_name(self) -> str:
        """``a`` or, where others follow, ``a+b``."""
        return "+".join(part.name for part in (self, *self.then))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.distribution})"

    def load(self) -> Any:
        """The component's class; it has been found and checked when the suite was resolved."""
        module, _, name = self.target.partition(":")
        with at_work(str(self), plugin_limits()), settled():
            return getattr(import_module(module), name)

    def make(self) -> list[Any]:
        """An instance of this one and of each that follows."""
        made = []
        for part in self.chain:
            cls = part.load()
            with at_work(f"{kind_of(cls)} {part}", plugin_limits()), settled():
                made.append(cls(**part.params))
        return made


class UseMaker:
    """Makes uses of registered components; the files of a package are hashed once, not once a use."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}

    def __call__(
        self, found: RegisteredComponent, params: dict[str, Any], label: str
    ) -> ComponentUse:
        """The use of a component with these resolved parameters."""
        module = found.component.target.partition(":")[0]
        at = (module, found.distribution)
        if at not in self._files:
            self._files[at] = source_digest(*at), requirements_of(found.distribution)
        digest, requires = self._files[at]
        return ComponentUse(
            name=found.name,
            label=label,
            params=params,
            target=found.component.target,
            distribution=f"{found.distribution} {found.version}",
            digest=digest,
            requires=requires,
        )
