"""From the names in a suite to components with all their parameters, and back to a file that states
them all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import ask_apart, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.spec import messages
from fedbench.core.spec.base import MethodUse, Point, Use
from fedbench.core.spec.document import Document, Loc, Problem
from fedbench.core.spec.load import (
    METHODS,
    LoadedSuite,
    items_of,
    open_document,
    valid,
    valid_items,
    validate,
)
from fedbench.core.spec.setting import Coalition, Setting
from fedbench.core.words import did_you_mean, explain

Params = tuple[dict[str, Any] | None, list[tuple[Loc, str, bool]]]
"""all parameters, or None where there are mistakes; the fields of these"""


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting with its components."""

    spec: Setting
    dataset: ComponentUse
    model: ComponentUse
    coalitions: tuple[Coalition, ...]
    """its own or the suite's"""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A suite with its components; grids are expanded, one use a row."""

    settings: tuple[ResolvedSetting, ...]
    defenses: tuple[ComponentUse, ...]
    attacks: tuple[ComponentUse, ...]
    analyses: tuple[ComponentUse, ...]
    positions: Mapping[tuple[str, str], tuple[int, int]]
    """kind, label -> line and column in the file"""
    floors: frozenset[str] = frozenset()
    """labels of the ``defenses`` that are floors"""
    signals: Mapping[str, ComponentUse] = field(default_factory=dict)
    """signals that the suite gives parameters, by name"""


def load_and_check(
    ref: str | Path, registry: Registry, overrides: Sequence[str] = ()
) -> tuple[LoadedSuite, Resolved]:
    """Return the suite, and its components with validated parameters.

    Raises:
        UserError: with every mistake of both.
    """
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    resolver = _Resolver(document, registry)
    resolver.resolve()
    if spec is None or problems or resolver.problems:
        raise document.error(problems + resolver.problems)
    loaded = LoadedSuite(spec, document, tuple(overrides))
    return loaded, _assemble(loaded, resolver)


def _assemble(loaded: LoadedSuite, resolver: _Resolver) -> Resolved:
    settings = []
    for i, setting in enumerate(loaded.spec.settings):
        (dataset,) = resolver.uses["settings", i, "dataset"]
        (model,) = resolver.uses["settings", i, "model"]
        coalitions = tuple(loaded.spec.coalitions_of(setting))
        settings.append(ResolvedSetting(setting, dataset, model, coalitions))
    defenses = resolver.rows("defenses")
    labels = {use.label for use in defenses}
    floors = [use for use in resolver.rows("floors") if use.label not in labels]
    return Resolved(
        settings=tuple(settings),
        defenses=(*defenses, *floors),
        attacks=(*resolver.rows("attacks"), *resolver.rows("adaptive")),
        analyses=tuple(resolver.rows("analyses")),
        positions=resolver.positions,
        floors=frozenset(use.label for use in floors),
        signals={use.name: use for use in resolver.rows("signals")},
    )


class _Resolver:
    """Resolve the uses of a document that are valid by themselves."""

    def __init__(self, document: Document, registry: Registry) -> None:
        self.uses: dict[Loc, list[ComponentUse]] = {}
        """place in the file -> its rows"""
        self.positions: dict[tuple[str, str], tuple[int, int]] = {}
        """kind, label -> line, column"""
        self.problems: list[Problem] = []
        self._document = document
        self._data = document.data
        self._registry = registry
        self._make_use = UseMaker()

    def rows(self, key: str) -> list[ComponentUse]:
        """Return the uses of every row of a list of the suite."""
        rows = []
        for loc, uses in self.uses.items():
            if loc[0] == key and len(loc) == 2:
                rows += uses
        return rows

    def resolve(self) -> None:
        """Resolve everything that the suite names, and its defaults."""
        for kind in METHODS:
            for loc, use in valid_items(self._data, PLURAL[kind], MethodUse):
                self._add(kind, loc, use)
                self._add_then(kind, loc, use)
        self._add_floors(self._data.get("floors"))
        if self._data.get("adaptive") is True:
            self._add_adaptive()
        if self._data.get("analyses") is None:
            analyses = [a.name for a in self._registry.own("analysis") if a.load().by_default]
            for i, name in enumerate(analyses):
                self._add("analysis", ("analyses", i), Use(name=name))
        for loc, signal in valid_items(self._data, "signals", Use):
            self._add("signal", loc, signal)
        for i, setting in enumerate(items_of(self._data, "settings")):
            if isinstance(setting, dict):
                self._add_parts(("settings", i), setting)

    def _add(self, kind: str, loc: Loc, use: Use) -> None:
        """Resolve the rows of one use."""
        points = list(use.points())
        try:
            registered = self._registry.get(kind, use.name)
            answers = _validate(registered, loc, points)
        except UserError as error:
            self.problems += [Problem(loc, message) for message in error.messages]
            return
        self.uses[loc] = []
        for point, (params, problems) in zip(points, answers, strict=True):
            self.problems += [Problem(tuple(problem[0]), *problem[1:]) for problem in problems]
            if params is not None:
                self.uses[loc].append(self._make_use(registered, params, point.label))
                if len(loc) == 2:
                    self.positions.setdefault((kind, point.label), self._document.position(loc))

    def _add_then(self, kind: str, loc: Loc, use: MethodUse) -> None:
        """Resolve the defenses that follow one."""
        if use.then and kind != "defense":
            text = "only defenses can be applied one after the other"
            self.problems.append(Problem((*loc, "then"), text))
            return
        parts = []
        for j, part in enumerate(use.then):
            place = (*loc, "then", j)
            self._add(kind, place, part)
            parts += self.uses.get(place, [])
        then = {"then": tuple(parts)}
        self.uses[loc] = [row.model_copy(update=then) for row in self.uses.get(loc, [])]

    def _add_parts(self, loc: Loc, setting: dict[str, Any]) -> None:
        """Resolve the dataset and the model of a setting, by default the dataset's own."""
        for kind in ("dataset", "model"):
            if (use := valid(setting.get(kind), Use)) is not None:
                self._add(kind, (*loc, kind), use)
        if setting.get("model") is None:
            for dataset in self.uses.get((*loc, "dataset"), []):
                model = ask_apart(
                    f"dataset {dataset}",
                    [dataset.distribution],
                    partial(_default_model, dataset),
                )
                self._add("model", (*loc, "model"), Use.model_construct(name=model, params={}))

    def _add_adaptive(self) -> None:
        """Resolve fedbench's attacks that know a defense of the suite and that it does not name."""
        defenses = {part.name for use in self.rows("defenses") for part in use.chain}
        attacks = self.rows("attacks")
        named = {use.name for use in attacks} | {use.label for use in attacks}
        for i, attack in enumerate(self._registry.own("attack")):
            if attack.name not in named and defenses.intersection(attack.load().against):
                self._add("attack", ("adaptive", i), Use(name=attack.name))

    def _add_floors(self, names: object) -> None:
        """Resolve the floors that a suite names, by default all."""
        floors = [component.name for component in self._registry.floors()]
        if names is None:
            names = floors
        for i, name in enumerate(names if isinstance(names, list) else []):
            if name in floors:
                self._add("defense", ("floors", i), Use(name=name))
            elif isinstance(name, str):
                text = (
                    f"'{name}' is not a floor{did_you_mean(name, floors)}; the floors are "
                    f"{', '.join(floors)}: list other defenses under defenses"
                )
                self.problems.append(Problem(("floors", i), text))


def _validate(
    registered: RegisteredComponent, loc: Loc, points: Sequence[Point]
) -> Sequence[Params]:
    """Return the parameters of each point.

    Raises:
        UserError: where the component's class cannot be loaded.
    """

    def question() -> list[Params]:
        component = registered.load()
        return [_params(registered, component, loc, point) for point in points]

    answers: Sequence[Params] = ask_apart(str(registered), [registered.distribution], question)
    return answers


def _params(registered: RegisteredComponent, component: Any, loc: Loc, point: Point) -> Params:
    """Validate parameters as JSON is: a list may become a tuple, but text never a number."""
    model = component.Params
    try:
        text = json.dumps(point.params, default=str)
        with at_work(f"{registered}: its Params", plugin_limits()):
            values = model.model_validate_json(text, strict=True)
            if registered.kind == "signal" and not values.model_dump(exclude_defaults=True):
                return {}, []  # the identity of a signal that the suite does not name
            return values.model_dump(mode="json"), []
    except ValidationError as error:
        problems = messages.problems(error, model, point.params)
        return None, [(_place(loc, point, p.loc), p.text, p.at_key) for p in problems]
    except BaseException as error:
        pass_on_interrupt(error)
        raised = f"the Params of '{component.__name__}' raised {explain(error)}"
        return None, [((*loc, "params"), raised, False)]


def _place(loc: Loc, point: Point, inner: Loc) -> Loc:
    """Return where a parameter stands in the file: in the params, or as a value of the grid."""
    if inner and inner[0] in point.grid_index:
        return (*loc, "grid", inner[0], point.grid_index[str(inner[0])], *inner[1:])
    return (*loc, "params", *inner)


# --- written out ----------------------------------------------------------------------------------


_HEAD = (
    "# As it was resolved: changes of the command line, recipes and every default are written out."
)


def written_out(loaded: LoadedSuite, resolved: Resolved) -> str:
    """Return the suite as YAML with all values: later defaults do not change its keys."""
    spec = loaded.spec
    analyses = spec.analyses
    if analyses is None:
        analyses = [MethodUse(name=use.name) for use in resolved.analyses]
    settings = [
        r.spec.model_copy(update={"dataset": _used(r.dataset), "model": _used(r.model)})
        for r in resolved.settings
    ]
    floors = [use.name for use in resolved.defenses if use.label in resolved.floors]
    attacks = iter(resolved.attacks)
    named = list(_methods(spec.attacks, attacks))
    adaptive = [MethodUse(name=use.name, params=use.params) for use in attacks]  # they come last
    values = {
        "settings": settings,
        "defenses": list(_methods(spec.defenses, resolved.defenses)),
        "floors": floors,
        "attacks": [*named, *adaptive],
        "adaptive": False,
        "analyses": list(_methods(analyses, resolved.analyses)),
        "signals": [_used(resolved.signals[use.name]) for use in spec.signals],
    }
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 120
    full_spec = spec.model_copy(update=values)
    yaml.dump(full_spec.model_dump(mode="json", by_alias=True, exclude_none=True), out)
    return f"{_HEAD}\n{out.getvalue()}"


def _used(use: ComponentUse) -> Use:
    return Use(name=use.name, params=use.params)


def _methods(uses: Iterable[MethodUse], rows: Iterable[ComponentUse]) -> Iterator[MethodUse]:
    """Yield each use as the file has it, with every parameter that all of its rows share."""
    rows = iter(rows)
    for use in uses:
        first, *more_rows = islice(rows, use.n_rows)
        shared = first.params
        for row in more_rows:
            shared = {name: v for name, v in shared.items() if row.params.get(name) == v}
        params = {name: v for name, v in (use.params | shared).items() if name not in use.grid}
        then = [_used(part) for part in first.then]
        yield use.model_copy(update={"params": params, "then": then})


def _default_model(dataset: ComponentUse) -> str:
    """Return the name of the model that a data set suggests."""
    return str(dataset.load().default_model)
