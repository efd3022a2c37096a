"""Checks between the fields of a suite, run on every part that is valid by itself: one mistake hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedbench.core.registry.kinds import PLURAL
from fedbench.core.spec import most
from fedbench.core.spec.coalition import Coalition, coalition_problem
from fedbench.core.spec.component import MethodUse, Use, expand
from fedbench.core.spec.document import Document, Loc, Problem
from fedbench.core.spec.suite import Setting

Model = TypeVar("Model", bound=BaseModel)
METHODS = ("defense", "attack", "analysis")  # what a suite lists rows of
_SHOWN = 8  # ids of a group in a message
_LONGEST = {
    "settings": most.SETTINGS, "seeds": most.SEEDS, "tuning_seeds": most.SEEDS, "coalitions": most.COALITIONS,
    **{PLURAL[kind]: most.USES for kind in (*METHODS, "signal")},
}  # fmt: skip


def cross_checks(document: Document) -> list[Problem]:
    """Everything that no single field can know: unique names and labels, client ids, audited rounds, coalitions."""
    settings = list(valid_items(document.data, "settings", Setting))
    return [
        *_seeds_differ(document),
        *_names_differ(document, "name", _setting_names(document)),
        *_names_differ(document, "signal", ((loc, use.name) for loc, use in valid_items(document.data, "signals", Use))),
        *_labels_differ(document),
        *(problem for loc, setting in settings for problem in _audit_fits(loc, setting)),
        *(problem for loc, setting in settings for problem in _adversary_fits(loc, setting)),
        *_coalitions_fit(document, settings),
    ]


def items_of(data: Any, key: str) -> list[Any]:
    """The elements of the list ``data[key]`` of a suite, as many as it may have: the types refuse it with more."""
    items = data.get(key) if isinstance(data, dict) else None
    return items[: _LONGEST[key]] if isinstance(items, list) else []


def uses_of(data: Any, kind: str) -> list[tuple[Loc, MethodUse]]:
    """The valid uses of a kind; none where all grids together make more rows than a list may have."""
    uses = list(valid_items(data, PLURAL[kind], MethodUse))
    return [] if _rows(uses) > most.ROWS_OF_LIST else uses


def _rows(uses: Iterable[tuple[Loc, MethodUse]]) -> int:
    return sum(use.n_rows for _, use in uses)


def valid_items(data: Any, key: str, model: type[Model]) -> Iterator[tuple[Loc, Model]]:
    """(place, element) of the elements of the list ``data[key]`` that are valid by themselves."""
    for i, item in enumerate(items_of(data, key)):
        element = valid(item, model)
        if element is not None:
            yield (key, i), element


def valid(value: Any, model: type[Model]) -> Model | None:
    """The value as ``model``, or None where it is no valid one."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _differ(document: Document, named: Any, words: Callable[[Any, int], str]) -> Iterator[Problem]:
    first: dict[Any, int] = {}
    for loc, name in named:
        if name in first:
            yield Problem(loc, words(name, first[name]))
        first.setdefault(name, document.position(loc)[0])


def _names_differ(document: Document, what: str, named: Any) -> Iterator[Problem]:
    return _differ(document, named, lambda name, line: f"the {what} '{name}' is already taken in line {line}")


def _setting_names(document: Document) -> Iterator[tuple[Loc, str]]:
    for i, setting in enumerate(items_of(document.data, "settings")):
        if isinstance(setting, dict) and isinstance(setting.get("name"), str):
            yield ("settings", i, "name"), setting["name"]


def _seeds_differ(document: Document) -> Iterator[Problem]:
    kinds = ("seeds", "tuning_seeds")
    named = [((kind, i), s) for kind in kinds for i, s in enumerate(items_of(document.data, kind)) if type(s) is int]
    return _differ(
        document, named, lambda seed, line: f"the seed {seed} is already given in line {line}: name every seed once, those of "
        "tuning apart from those that are reported"
    )  # fmt: skip


def _labels_differ(document: Document) -> Iterator[Problem]:
    for kind in METHODS:
        rows = _rows(valid_items(document.data, PLURAL[kind], MethodUse))
        if rows > most.ROWS_OF_LIST:
            text = f"{rows:,} rows with all grids, at most {most.ROWS_OF_LIST:,} can be planned: split the suite"
            yield Problem((PLURAL[kind],), text)
        named = [(loc, point.label) for loc, use in uses_of(document.data, kind) for point in expand(use)]
        yield from _differ(
            document, named, lambda label, line: f"the label '{label}' is already taken in line {line}: add a label"
        )


def _audit_fits(at: Loc, setting: Setting) -> Iterator[Problem]:
    audit, federation = setting.audit, setting.federation
    if audit.every > federation.rounds:
        text = f"expected an integer <= {federation.rounds} (federation.rounds), found {audit.every}"
        yield Problem((*at, "audit", "every"), text)
    seen: set[int] = set()
    for i, target in enumerate([] if isinstance(audit.targets, str) else audit.targets):
        if target >= federation.clients:
            text = f"there is no client {target}, federation.clients is {federation.clients} (ids count from 0)"
            yield Problem((*at, "audit", "targets", i), text)
        elif target in seen:
            yield Problem((*at, "audit", "targets", i), f"the client {target} is given twice")
        seen.add(target)


def _adversary_fits(at: Loc, setting: Setting) -> Iterator[Problem]:
    if setting.adversary is None:
        return
    clients = setting.federation.clients
    malicious = setting.adversary.malicious(clients)
    if malicious >= clients:
        text = f"{malicious} malicious clients of {clients} leave nobody to attack: use fewer, or more federation.clients"
        yield Problem((*at, "adversary", "clients"), text)
    if setting.adversary.start_round > setting.federation.rounds:
        text = f"expected an integer <= {setting.federation.rounds} (federation.rounds), found {setting.adversary.start_round}"
        yield Problem((*at, "adversary", "start_round"), text)
    for i, target in enumerate([] if isinstance(setting.audit.targets, str) else setting.audit.targets):
        if clients - malicious <= target < clients:
            yield Problem((*at, "audit", "targets", i), f"the client {target} is malicious (the last {malicious} are)")


def _coalitions_fit(document: Document, settings: list[tuple[Loc, Setting]]) -> Iterator[Problem]:
    shared = list(valid_items(document.data, "coalitions", Coalition))
    yield from _coalitions_differ(document, shared)
    for loc, setting in settings:
        own = [((*loc, "coalitions", i), c) for i, c in enumerate(setting.coalitions or [])]
        yield from _coalitions_differ(document, own)
        if not own and document.data.get("coalitions") is None:
            yield Problem(loc, "no coalitions: give the suite or this setting a list, such as coalitions: [pair, half]")
        for place, coalition in own or shared:
            text = coalition_problem(coalition, setting.federation.clients)
            if text:
                yield Problem(place, text if own else f"{text} (setting '{setting.name}')")


def _coalitions_differ(document: Document, coalitions: list[tuple[Loc, Coalition]]) -> Iterator[Problem]:
    yield from _names_differ(document, "coalition", ((loc, c.name) for loc, c in coalitions))
    for loc, coalition in coalitions:
        seen: set[int] = set()
        for i, client in enumerate(coalition.clients or []):
            if client in seen:
                yield Problem((*loc, "clients", i), f"the client {client} is given twice")
            seen.add(client)
        yield from _groups_differ(loc, coalition.groups or [])


def _groups_differ(at: Loc, groups: list[list[int]]) -> Iterator[Problem]:
    """A client that two groups name, or one group twice."""
    found: dict[int, int] = {}
    for g, group in enumerate(groups):
        for i, client in enumerate(group):
            if (first := found.setdefault(client, g)) != g:
                both = f"group {first + 1} {_shown(groups[first])} and to group {g + 1} {_shown(group)}"
                text = f"the client {client} belongs to {both}: coalitions do not overlap; leave it in one of them"
                yield Problem((*at, "groups", g, i), text)
            elif client in group[:i]:
                yield Problem((*at, "groups", g, i), f"the client {client} is given twice")


def _shown(group: list[int]) -> str:
    """A few ids in full, of more the first."""
    return f"[{', '.join(map(str, group[:_SHOWN]))}{', ...' if len(group) > _SHOWN else ''}]"
