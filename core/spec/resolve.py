"""From the names in a suite to components with all their parameters, and back to a file that states
them all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from fedbench.core.spec.base import MethodUse, Point, Use, expand
from fedbench.core.spec.document import Document, Loc, Problem
from fedbench.core.spec.load import (
    METHODS,
    LoadedSuite,
    items_of,
    open_document,
    uses_of,
    valid,
    valid_items,
    validate,
)
from fedbench.core.spec.setting import Coalition, Setting
from fedbench.core.spec.suite import SuiteSpec
from fedbench.core.words import did_you_mean, explain


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting with its components and its coalitions (its own or the suite's)."""

    spec: Setting
    dataset: ComponentUse
    model: ComponentUse
    coalitions: tuple[Coalition, ...]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A suite with its components; grids are expanded, one use a row. ``positions``: (kind, label)
    of a defense, an attack or an analysis -> its line and column in the file. ``floors``: labels of
    the ``defenses`` that are floors.
    """

    settings: tuple[ResolvedSetting, ...]
    defenses: tuple[ComponentUse, ...]
    attacks: tuple[ComponentUse, ...]
    analyses: tuple[ComponentUse, ...]
    positions: Mapping[tuple[str, str], tuple[int, int]]
    floors: frozenset[str] = frozenset()
    signals: Mapping[str, ComponentUse] = field(default_factory=dict)
    """those that the suite gives parameters, by name"""


def load_and_check(
    ref: str | Path, registry: Registry, overrides: Sequence[str] = ()
) -> tuple[LoadedSuite, Resolved]:
    """The suite, and its components with validated parameters. Raises ``UserError`` with every
    mistake of both.
    """
    document = open_document(ref, overrides)
    spec, problems = validate(document)
    resolver = _Resolver(document, registry)
    resolver.resolve()
    if spec is None or problems or resolver.problems:
        raise document.error(problems + resolver.problems)
    loaded = LoadedSuite(spec, document, tuple(overrides))
    return loaded, _assemble(loaded, resolver.uses)


def _assemble(loaded: LoadedSuite, uses: dict[Loc, list[ComponentUse]]) -> Resolved:
    settings = tuple(
        ResolvedSetting(
            setting,
            uses["settings", i, "dataset"][0],
            uses["settings", i, "model"][0],
            tuple(loaded.spec.coalitions_of(setting)),
        )
        for i, setting in enumerate(loaded.spec.settings)
    )

    def rows(key: str) -> list[tuple[Loc, ComponentUse]]:
        return [
            (loc, use)
            for loc in sorted(loc for loc in uses if loc[0] == key and len(loc) == 2)
            for use in uses[loc]
        ]

    listed = {kind: rows(PLURAL[kind]) for kind in METHODS}
    named = {use.label for _, use in listed["defense"]}
    floors = [(loc, use) for loc, use in rows("floors") if use.label not in named]
    listed["defense"] += floors
    found = {kind: tuple(use for _, use in pairs) for kind, pairs in listed.items()}
    return Resolved(
        settings=settings,
        defenses=found["defense"],
        attacks=found["attack"],
        analyses=found["analysis"],
        positions={
            (kind, use.label): loaded.position(loc)
            for kind, pairs in listed.items()
            for loc, use in pairs
        },
        floors=frozenset(use.label for _, use in floors),
        signals={use.name: use for _, use in rows("signals")},
    )


class _Resolver:
    """``uses``: place in the file -> its rows, of every use that is valid; ``problems``: what is
    wrong with the others.
    """

    def __init__(self, document: Document, registry: Registry) -> None:
        self.uses: dict[Loc, list[ComponentUse]] = {}
        self.problems: list[Problem] = []
        self._data, self._registry, self._use = document.data, registry, UseMaker()

    def resolve(self) -> None:
        """Resolve everything that the suite names, and its defaults."""
        for kind in METHODS:
            for loc, use in uses_of(self._data, kind):
                self._add(kind, loc, use.name, list(expand(use)))
                self._follow(kind, loc, use)
        self._add_floors(self._data.get("floors"))
        if self._data.get("analyses") is None:
            own = [
                found.name for found in self._registry.own("analysis") if found.load().by_default
            ]
            for i, name in enumerate(own):
                self._add("analysis", ("analyses", i), name)
        for loc, signal in valid_items(self._data, "signals", Use):
            self._add_signal(loc, signal)
        for i, setting in enumerate(items_of(self._data, "settings")):
            if isinstance(setting, dict):
                self._add_parts(("settings", i), setting)

    def _add(self, kind: str, loc: Loc, name: str, points: Sequence[Point] | None = None) -> None:
        """Resolve the rows of one use, by default one with default parameters."""
        try:
            registered = self._registry.get(kind, name)
            rows = self._validated(registered, loc, points or [Point(name, {}, {})])
        except UserError as error:
            place = (*loc, "name") if isinstance(_at(self._data, loc), dict) else loc
            self.problems += [Problem(place, message) for message in error.messages]
            return
        self.uses[loc] = [self._use(registered, params, label) for label, params in rows]

    def _validated(
        self, registered: RegisteredComponent, loc: Loc, points: Sequence[Point]
    ) -> list[tuple[str, dict[str, Any]]]:
        """(label, all parameters) of each point without a mistake. Raises ``UserError`` where its
        class cannot be loaded.
        """

        def question() -> list[Any]:
            component = registered.load()
            return [_params(registered, component, loc, point) for point in points]

        rows = []
        answers = ask_apart(str(registered), [registered.distribution], question)
        for point, (params, problems) in zip(points, answers, strict=True):
            self.problems += [
                Problem(tuple(place), text, at_key) for place, text, at_key in problems
            ]
            if params is not None:
                rows.append((point.label, params))
        return rows

    def _follow(self, kind: str, loc: Loc, use: MethodUse) -> None:
        """Resolve the defenses that follow one."""
        if use.then and kind != "defense":
            self.problems.append(
                Problem((*loc, "then"), "only defenses can be applied one after the other")
            )
            return
        for j, part in enumerate(use.then):
            self._add(kind, (*loc, "then", j), part.name, [Point(part.name, part.params, {})])
        parts = tuple(
            row for j in range(len(use.then)) for row in self.uses.get((*loc, "then", j), [])
        )
        self.uses[loc] = [row.model_copy(update={"then": parts}) for row in self.uses.get(loc, [])]

    def _add_parts(self, loc: Loc, setting: dict[str, Any]) -> None:
        """The dataset and the model of a setting, by default the dataset's own."""
        for kind in ("dataset", "model"):
            if (use := valid(setting.get(kind), Use)) is not None:
                self._add(kind, (*loc, kind), use.name, [Point(use.name, use.params, {})])
        for dataset in self.uses.get((*loc, "dataset"), []) if setting.get("model") is None else ():
            before = len(self.problems)
            party = f"dataset {dataset}"
            model = ask_apart(party, [dataset.distribution], partial(_default_model, dataset))
            self._add("model", (*loc, "model"), model)
            text = f"the default model of '{dataset.name}': "
            self.problems[before:] = [
                Problem((*loc, "dataset"), text + p.text) for p in self.problems[before:]
            ]

    def _add_floors(self, named: object) -> None:
        """The floors that a suite names, by default all."""
        names = [c.name for c in self._registry.floors()]
        for i, name in enumerate(
            names if named is None else named if isinstance(named, list) else []
        ):
            if name in names:
                self._add("defense", ("floors", i), name)
            elif isinstance(name, str):
                text = f"'{name}' is not a floor{did_you_mean(name, names)}; the floors are {', '.join(names)}"
                self.problems.append(
                    Problem(("floors", i), f"{text}: list other defenses under defenses")
                )

    def _add_signal(self, loc: Loc, use: Use) -> None:
        """A signal with parameters. With its defaults it has the identity of a signal that the
        suite does not name.
        """
        self._add("signal", loc, use.name, [Point(use.name, use.params, {})])
        problems, given = len(self.problems), self.uses.get(loc)
        if given:
            registered = self._registry.get("signal", use.name)
            if self._validated(registered, loc, [Point(use.name, {}, {})]) == [
                (use.name, given[0].params)
            ]:
                self.uses[loc] = [self._use(registered, {}, use.name)]
        del self.problems[problems:]  # a signal may have required parameters


def _default_model(dataset: ComponentUse) -> str:
    return str(dataset.load().default_model)


def _params(
    registered: RegisteredComponent, component: Any, loc: Loc, point: Point
) -> tuple[Any, list[Any]]:
    """(all parameters, or None where there are mistakes; the fields of these). Validated as JSON
    is: a list may become a tuple, but text never becomes a number.
    """
    model = component.Params
    try:
        text = json.dumps(point.params, default=str)
        with at_work(f"{registered}: its Params", plugin_limits()):
            return model.model_validate_json(text, strict=True).model_dump(mode="json"), []
    except ValidationError as error:
        found = messages.problems(error, model, point.params)
        return None, [
            (_place(loc, point, problem.loc), problem.text, problem.at_key) for problem in found
        ]
    except BaseException as error:
        pass_on_interrupt(error)
        raised = f"the Params of '{component.__name__}' raised {explain(error)}"
        return None, [((*loc, "params"), raised, False)]


def _place(loc: Loc, point: Point, inner: Loc) -> Loc:
    """Where a parameter stands in the file: among the params, or as one value of the grid."""
    if inner and inner[0] in point.grid_index:
        return (*loc, "grid", inner[0], point.grid_index[str(inner[0])], *inner[1:])
    return (*loc, "params", *inner)


def _at(data: Any, loc: Loc) -> Any:
    for step in loc:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


# --- written out ----------------------------------------------------------------------------------


_HEAD = "# As it was resolved: changes of the command line, recipes and every default are written out.\n"


def written_out(loaded: LoadedSuite, resolved: Resolved) -> str:
    """The suite as a YAML text with all values written out: it gives the same keys under other
    defaults of a later version.
    """
    spec = loaded.spec
    content = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for shown, setting in zip(content["settings"], resolved.settings, strict=True):
        shown["dataset"], shown["model"] = _used(setting.dataset), _used(setting.model)
    floors = [use for use in resolved.defenses if use.label in resolved.floors]
    rows = resolved.defenses[: len(resolved.defenses) - len(floors)]
    content["defenses"] = list(_methods(spec.defenses, rows))
    content["floors"] = [use.name for use in floors]
    content["attacks"] = list(_methods(spec.attacks, resolved.attacks))
    own = [MethodUse(name=use.name) for use in resolved.analyses]
    content["analyses"] = list(
        _methods(own if spec.analyses is None else spec.analyses, resolved.analyses)
    )
    content["signals"] = [_used(resolved.signals[use.name]) for use in spec.signals]
    order = [info.alias or name for name, info in SuiteSpec.model_fields.items()]
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.dump({name: content[name] for name in order if name in content}, out)
    return _HEAD + out.getvalue()


def _used(use: ComponentUse) -> dict[str, Any]:
    return {"name": use.name, "params": use.params}


def _methods(uses: Sequence[MethodUse], rows: Sequence[ComponentUse]) -> Iterator[dict[str, Any]]:
    """Each use as the file has it, with every parameter that all of its rows share."""
    at = 0
    for use in uses:
        mine = rows[at : at + use.n_rows]
        at += len(mine)
        shared = {
            name: value
            for name, value in mine[0].params.items()
            if all(row.params.get(name) == value for row in mine)
        }
        given = {name: value for name, value in use.params.items() if name not in shared}
        params = {name: value for name, value in shared.items() if name not in use.grid} | given
        yield {"name": use.name, "params": params} | {
            name: value
            for name, value in (
                ("label", use.label),
                ("grid", use.grid),
                ("then", [_used(part) for part in mine[0].then]),
            )
            if value
        }
