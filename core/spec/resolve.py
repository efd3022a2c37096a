"""From the names in a suite to components with all their parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import RegisteredComponent, Registry
from fedbench.core.spec import messages
from fedbench.core.spec.checks import valid, valid_items
from fedbench.core.spec.coalition import Coalition
from fedbench.core.spec.component import MethodUse, Point, Use, expand
from fedbench.core.spec.document import Document, Loc, Problem
from fedbench.core.spec.load import LoadedSuite, open_document, validate
from fedbench.core.spec.suite import Setting
from fedbench.core.words.explain import explain


@dataclass(frozen=True)
class ResolvedUse:
    """A component as a suite uses it; ``params`` holds every parameter, defaults included, as JSON values."""

    name: str
    label: str
    params: dict[str, Any]
    registered: RegisteredComponent
    position: tuple[int, int]
    then: tuple[ResolvedUse, ...] = ()
    """defenses applied after this one"""

    def build(self) -> Any:
        """An instance with these parameters; with what follows it, one that applies all in order."""
        made = self.registered.load()(**self.params)
        if not self.then:
            return made
        from fedbench.core.federation.compose import Composite

        return Composite([made, *(part.build() for part in self.then)])


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting with its components and its coalitions (its own or the suite's)."""

    spec: Setting
    dataset: ResolvedUse
    model: ResolvedUse
    coalitions: tuple[Coalition, ...]


@dataclass(frozen=True)
class Resolved:
    """A suite with every component found; grids are expanded, one use a row."""

    settings: tuple[ResolvedSetting, ...]
    defenses: tuple[ResolvedUse, ...]
    attacks: tuple[ResolvedUse, ...]


def check_components(loaded: LoadedSuite, registry: Registry) -> Resolved:
    """Find every component the suite names and validate its parameters.

    Raises ``UserError`` with every mistake: unknown names, classes that cannot be imported, bad parameters.
    """
    uses, problems = _resolve(loaded.document, registry)
    if problems:
        raise loaded.document.error(problems)
    return _assemble(loaded, uses)


def load_and_check(ref: str | Path, registry: Registry, overrides: Sequence[str] = ()) -> tuple[LoadedSuite, Resolved]:
    """``load_suite`` and ``check_components`` with the mistakes of both in one ``UserError``."""
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    uses, more = _resolve(document, registry)
    if spec is None or problems or more:
        raise document.error(problems + more)
    loaded = LoadedSuite(spec, document)
    return loaded, _assemble(loaded, uses)


def _assemble(loaded: LoadedSuite, uses: dict[Loc, list[ResolvedUse]]) -> Resolved:
    spec = loaded.spec
    settings = tuple(
        ResolvedSetting(
            setting, uses["settings", i, "dataset"][0], uses["settings", i, "model"][0],
            tuple(spec.coalitions_of(setting)),
        )
        for i, setting in enumerate(spec.settings)
    )  # fmt: skip
    defenses = tuple(use for i in range(len(spec.defenses)) for use in uses["defenses", i])
    attacks = tuple(use for i in range(len(spec.attacks)) for use in uses["attacks", i])
    return Resolved(settings, defenses, attacks)


def _resolve(document: Document, registry: Registry) -> tuple[dict[Loc, list[ResolvedUse]], list[Problem]]:
    """Place -> resolved rows, of every use that is valid by itself; and what is wrong with the rest."""
    resolver = _Resolver(document, registry)
    for kind in ("defense", "attack"):
        for loc, use in valid_items(document.data, f"{kind}s", MethodUse):
            resolver.add(kind, loc, use, list(expand(use)))
            resolver.follow(kind, loc, use)
    for loc, setting in _mappings(document.data, "settings"):
        for kind in ("dataset", "model"):
            named = valid(setting.get(kind), Use)
            if named is not None:
                resolver.add(kind, (*loc, kind), named, [Point(named.name, named.params, {})])
        if setting.get("model") is None:
            resolver.add_default_model(loc)
    return resolver.uses, resolver.problems


def _mappings(data: dict[str, Any], key: str) -> Iterator[tuple[Loc, dict[str, Any]]]:
    items = data.get(key)
    for i, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, dict):
            yield (key, i), item


class _Resolver:
    """Gathers resolved uses and problems; each component is looked up and imported once a use."""

    def __init__(self, document: Document, registry: Registry) -> None:
        self.uses: dict[Loc, list[ResolvedUse]] = {}
        self.problems: list[Problem] = []
        self._document = document
        self._registry = registry

    def add(self, kind: str, loc: Loc, use: Use, points: list[Point]) -> None:
        """Resolve the rows of one use."""
        try:
            registered = self._registry.get(kind, use.name)
            component = registered.load()
        except UserError as exc:
            named = (*loc, "name") if isinstance(_at(self._document.data, loc), dict) else loc
            self.problems += [Problem(named, message) for message in exc.messages]
            return
        position = self._document.position(loc)
        rows = []
        for point in points:
            params = self._params(component, loc, point)
            if params is not None:
                rows.append(ResolvedUse(use.name, point.label, params, registered, position))
        self.uses[loc] = rows

    def follow(self, kind: str, loc: Loc, use: MethodUse) -> None:
        """Resolve the defenses that follow one; attacks do not compose."""
        if use.then and kind != "defense":
            self.problems.append(Problem((*loc, "then"), "only defenses can be applied one after the other"))
            return
        for j, part in enumerate(use.then):
            self.add(kind, (*loc, "then", j), part, [Point(part.name, part.params, {})])
        parts = tuple(row for j in range(len(use.then)) for row in self.uses.get((*loc, "then", j), []))
        self.uses[loc] = [replace(row, then=parts) for row in self.uses.get(loc, [])]

    def add_default_model(self, loc: Loc) -> None:
        """The model of a setting that names none: its dataset's own."""
        for dataset in self.uses.get((*loc, "dataset"), []):
            name = dataset.registered.load().default_model
            before = len(self.problems)
            self.add("model", (*loc, "model"), Use(name=name), [Point(name, {}, {})])
            self.problems[before:] = [
                Problem((*loc, "dataset"), f"the default model of '{dataset.name}': {p.text}")
                for p in self.problems[before:]
            ]

    def _params(self, component: Any, loc: Loc, point: Point) -> dict[str, Any] | None:
        """Validated as JSON is: a list may become a tuple, but text is never taken for a number."""
        model = component.Params
        try:
            text = json.dumps(point.params, default=str)
            return model.model_validate_json(text, strict=True).model_dump(mode="json")
        except ValidationError as exc:
            for problem in messages.problems(exc, model, point.params):
                self.problems.append(Problem(self._place(loc, point, problem.loc), problem.text, problem.at_key))
        except Exception as exc:  # a validator of somebody's code
            text = f"the Params of '{component.__name__}' raised {explain(exc)}"
            self.problems.append(Problem((*loc, "params"), text))
        return None

    @staticmethod
    def _place(loc: Loc, point: Point, inner: Loc) -> Loc:
        """Where a parameter stands in the file: among the params, or as one value of the grid."""
        if inner and inner[0] in point.grid_index:
            return (*loc, "grid", inner[0], point.grid_index[str(inner[0])], *inner[1:])
        return (*loc, "params", *inner)


def _at(data: Any, loc: Loc) -> Any:
    for segment in loc:
        try:
            data = data[segment]
        except (KeyError, IndexError, TypeError):
            return None
    return data
