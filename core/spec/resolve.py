"""From the names in a suite to components with all their parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.ask import patience
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.spec import messages, most
from fedbench.core.spec.checks import METHODS, items_of, uses_of, valid
from fedbench.core.spec.coalition import Coalition
from fedbench.core.spec.component import MethodUse, Point, Use, expand
from fedbench.core.spec.document import Document, Loc, Problem
from fedbench.core.spec.load import LoadedSuite, open_document, validate
from fedbench.core.spec.suite import Setting
from fedbench.core.words.explain import explain
from fedbench.core.words.nearest import did_you_mean


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting with its components and its coalitions (its own or the suite's)."""

    spec: Setting
    dataset: ComponentUse
    model: ComponentUse
    coalitions: tuple[Coalition, ...]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A suite with every component found; grids are expanded, one use a row. ``positions``: (kind, label) of a defense, an
    attack or an analysis -> its line and column in the file. ``floors``: labels of those ``defenses`` that are there for
    comparison alone."""

    settings: tuple[ResolvedSetting, ...]
    defenses: tuple[ComponentUse, ...]
    attacks: tuple[ComponentUse, ...]
    analyses: tuple[ComponentUse, ...]
    positions: Mapping[tuple[str, str], tuple[int, int]]
    floors: frozenset[str] = frozenset()
    signals: Mapping[str, ComponentUse] = field(default_factory=dict)
    """those that the suite gives parameters, by name"""


def load_and_check(ref: str | Path, registry: Registry, overrides: Sequence[str] = ()) -> tuple[LoadedSuite, Resolved]:
    """The suite, and its components found with their parameters validated; every mistake of both in one ``UserError``: also
    unknown names and classes that cannot be imported."""
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    uses, more = _resolve(document, registry)
    if spec is None or problems or more:
        raise document.error(problems + more)
    loaded = LoadedSuite(spec, document, tuple(overrides))
    return loaded, _assemble(loaded, uses)


def _assemble(loaded: LoadedSuite, uses: dict[Loc, list[ComponentUse]]) -> Resolved:
    spec = loaded.spec
    settings = tuple(
        ResolvedSetting(
            setting, uses["settings", i, "dataset"][0], uses["settings", i, "model"][0],
            tuple(spec.coalitions_of(setting)),
        )
        for i, setting in enumerate(spec.settings)
    )  # fmt: skip
    rows: dict[str, tuple[ComponentUse, ...]] = {}
    positions: dict[tuple[str, str], tuple[int, int]] = {}
    for kind in METHODS:
        found = {loc: made for loc, made in uses.items() if loc[0] == PLURAL[kind] and len(loc) == 2}
        rows[kind] = tuple(use for loc in sorted(found) for use in found[loc])
        positions |= {(kind, use.label): loaded.position(loc) for loc in found for use in found[loc]}
    named = {use.label for use in rows["defense"]}
    floors = [(use, loc) for loc, made in sorted(uses.items()) if loc[0] == "floors" for use in made if use.label not in named]
    positions |= {("defense", use.label): loaded.position(loc) for use, loc in floors}
    return Resolved(
        settings=settings, defenses=(*rows["defense"], *(use for use, _ in floors)), attacks=rows["attack"],
        analyses=rows["analysis"], positions=positions, floors=frozenset(use.label for use, _ in floors),
        signals={use.name: use for loc, made in uses.items() if loc[0] == "signals" for use in made},
    )  # fmt: skip


def _resolve(document: Document, registry: Registry) -> tuple[dict[Loc, list[ComponentUse]], list[Problem]]:
    """Place -> resolved rows, of every use that is valid by itself; and what is wrong with the rest."""
    resolver = _Resolver(document, registry)
    for kind in METHODS:
        for loc, use in uses_of(document.data, kind):
            resolver.add(kind, loc, use, list(expand(use)))
            resolver.follow(kind, loc, use)
    resolver.add_floors(document.data.get("floors"))
    if document.data.get("analyses") is None:
        resolver.add_own_analyses()
    for i, item in enumerate(items_of(document.data, "signals")):
        resolver.add_signal(("signals", i), valid(item, Use))
    for loc, setting in _mappings(document.data, "settings"):
        for kind in ("dataset", "model"):
            named = valid(setting.get(kind), Use)
            if named is not None:
                resolver.add(kind, (*loc, kind), named, [Point(named.name, named.params, {})])
        if setting.get("model") is None:
            resolver.add_default_model(loc)
    return resolver.uses, resolver.problems


def _mappings(data: dict[str, Any], key: str) -> Iterator[tuple[Loc, dict[str, Any]]]:
    for i, item in enumerate(items_of(data, key)):
        if isinstance(item, dict):
            yield (key, i), item


class _Resolver:
    """Gathers resolved uses and problems; each component is looked up and imported once a use."""

    def __init__(self, document: Document, registry: Registry) -> None:
        self.uses: dict[Loc, list[ComponentUse]] = {}
        self.problems: list[Problem] = []
        self._document = document
        self._registry = registry
        self._use = UseMaker()

    def add(self, kind: str, loc: Loc, use: Use, points: list[Point]) -> None:
        """Resolve the rows of one use."""
        try:
            registered = self._registry.get(kind, use.name)
            component = registered.load()
        except UserError as exc:
            named = (*loc, "name") if isinstance(_at(self._document.data, loc), dict) else loc
            self.problems += [Problem(named, message) for message in exc.messages]
            return
        made = ((point.label, self._params(registered, component, loc, point)) for point in points)
        self.uses[loc] = [self._use(registered, params, label) for label, params in made if params is not None]

    def follow(self, kind: str, loc: Loc, use: MethodUse) -> None:
        """Resolve the defenses that follow one; attacks do not compose."""
        if use.then and kind != "defense":
            self.problems.append(Problem((*loc, "then"), "only defenses can be applied one after the other"))
        if not use.then or kind != "defense":
            return
        for j, part in enumerate(use.then):
            self.add(kind, (*loc, "then", j), part, [Point(part.name, part.params, {})])
        parts = tuple(row for j in range(len(use.then)) for row in self.uses.get((*loc, "then", j), []))
        self.uses[loc] = [row.model_copy(update={"then": parts}) for row in self.uses.get(loc, [])]

    def add_default_model(self, loc: Loc) -> None:
        """The model of a setting that names none: its dataset's own."""
        for dataset in self.uses.get((*loc, "dataset"), []):
            name = dataset.load().default_model
            before = len(self.problems)
            self.add("model", (*loc, "model"), Use(name=name), [Point(name, {}, {})])
            self.problems[before:] = [
                Problem((*loc, "dataset"), f"the default model of '{dataset.name}': {p.text}")
                for p in self.problems[before:]
            ]

    def add_floors(self, named: object) -> None:
        """The floors that a suite names, or all where it says nothing of them; another defense is none."""
        names = [c.name for c in self._registry.floors()]
        for i, name in enumerate(names if named is None else named[: most.USES] if isinstance(named, list) else []):
            if name in names:
                self.add("defense", ("floors", i), Use(name=name), [Point(name, {}, {})])
            elif isinstance(name, str):
                text = f"'{name}' is no floor{did_you_mean(name, names)}; they are {', '.join(names)}: list others under defenses"
                self.problems.append(Problem(("floors", i), text))

    def add_signal(self, loc: Loc, use: Use | None) -> None:
        """Resolve a signal that the suite names; one with its defaults is the one that nobody names."""
        if use is None:
            return
        self.add("signal", loc, use, [Point(use.name, use.params, {})])
        before = len(self.problems)
        for made in self.uses.get(loc, []):
            registered = self._registry.get("signal", use.name)
            if made.params == self._params(registered, registered.load(), loc, Point(use.name, {}, {})):
                self.uses[loc] = [self._use(registered, {}, use.name)]
        del self.problems[before:]  # of the defaults: a signal may have none

    def add_own_analyses(self) -> None:
        """The analyses of a suite that names none: those that come with the harness, but for what waits to be named."""
        for i, found in enumerate(c for c in self._registry.own("analysis") if c.load().by_default):
            self.add("analysis", ("analyses", i), Use(name=found.name), [Point(found.name, {}, {})])

    def _params(self, registered: RegisteredComponent, component: Any, loc: Loc, point: Point) -> dict[str, Any] | None:
        """Validated as JSON is: a list may become a tuple, but text is never taken for a number."""
        model = component.Params
        try:
            text = json.dumps(point.params, default=str)
            with at_work(f"{registered}: its Params", patience()):
                return model.model_validate_json(text, strict=True).model_dump(mode="json")
        except ValidationError as exc:
            for problem in messages.problems(exc, model, point.params):
                self.problems.append(Problem(self._place(loc, point, problem.loc), problem.text, problem.at_key))
        except BaseException as exc:  # a validator of somebody's code
            pass_on_interrupt(exc)
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
