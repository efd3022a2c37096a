"""From a file, or the name of a shipped suite, to a checked suite: types first, then checks between
the fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.spec import bounds, messages
from fedbench.core.spec.base import MethodUse, Use, expand
from fedbench.core.spec.document import Document, Loc, Problem, override, read
from fedbench.core.spec.setting import Coalition, Setting, coalition_problem
from fedbench.core.spec.suite import SCHEMA, SuiteSpec
from fedbench.core.words import by_nearness, did_you_mean
from fedbench.suites import SUFFIXES, shipped_suites

Model = TypeVar("Model", bound=BaseModel)
METHODS = ("defense", "attack", "analysis")  # kinds that a suite lists as rows
_SEEDS = ("seeds", "tuning_seeds")


def cross_checks(document: Document) -> list[Problem]:
    """Mistakes that no single field shows: repeated names, labels, seeds and clients; client ids;
    rounds; coalitions.
    """
    data = document.data
    settings = list(valid_items(data, "settings", Setting))
    seeds = [
        ((key, i), s) for key in _SEEDS for i, s in enumerate(items_of(data, key)) if type(s) is int
    ]
    return [
        *_repeated(
            document,
            seeds,
            "the seed {} is already given in line {}: name every seed once, those of tuning apart "
            "from "
            "those that are reported",
        ),
        *_names(document, "setting", (((*loc, "name"), setting.name) for loc, setting in settings)),
        *_names(
            document, "signal", ((loc, use.name) for loc, use in valid_items(data, "signals", Use))
        ),
        *_labels(document),
        *(
            problem
            for loc, setting in settings
            for problem in (*_audit(loc, setting), *_adversary(loc, setting))
        ),
        *_coalitions(document, settings),
    ]


def items_of(data: Any, key: str) -> list[Any]:
    """The elements of the list ``data[key]`` of a suite."""
    items = data.get(key) if isinstance(data, dict) else None
    return items if isinstance(items, list) else []


def uses_of(data: Any, kind: str) -> list[tuple[Loc, MethodUse]]:
    """The valid uses of a kind; none where their grids make more rows than a list may have."""
    uses = list(valid_items(data, PLURAL[kind], MethodUse))
    return [] if sum(use.n_rows for _, use in uses) > bounds.ROWS_OF_LIST else uses


def valid_items(data: Any, key: str, model: type[Model]) -> Iterator[tuple[Loc, Model]]:
    """(place, element) of the elements of the list ``data[key]`` that are valid by themselves."""
    for i, item in enumerate(items_of(data, key)):
        if (element := valid(item, model)) is not None:
            yield (key, i), element


def valid(value: Any, model: type[Model]) -> Model | None:
    """The value as ``model``, or None where it is not valid."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _repeated(document: Document, named: Iterable[tuple[Loc, Any]], text: str) -> Iterator[Problem]:
    """A problem per repeated value. ``text``: with places for the value and its first line."""
    first: dict[Any, Loc] = {}
    for loc, name in named:
        if name in first:
            yield Problem(loc, text.format(name, document.position(first[name])[0]))
        first.setdefault(name, loc)


def _names(document: Document, what: str, named: Iterable[tuple[Loc, str]]) -> Iterator[Problem]:
    return _repeated(document, named, f"the {what} '{{}}' is already taken in line {{}}")


def _labels(document: Document) -> Iterator[Problem]:
    for kind in METHODS:
        rows = sum(use.n_rows for _, use in valid_items(document.data, PLURAL[kind], MethodUse))
        if rows > bounds.ROWS_OF_LIST:
            text = f"{rows:,} rows with all grids, at most {bounds.ROWS_OF_LIST:,} can be planned: split the suite"
            yield Problem((PLURAL[kind],), text)
        labels = [
            (loc, point.label) for loc, use in uses_of(document.data, kind) for point in expand(use)
        ]
        yield from _repeated(
            document, labels, "the label '{}' is already taken in line {}: add a label"
        )


def _clients(loc: Loc, ids: Iterable[int]) -> Iterator[Problem]:
    """Clients that a list names twice."""
    seen: set[int] = set()
    for i, client in enumerate(ids):
        if client in seen:
            yield Problem((*loc, i), f"the client {client} is given twice")
        seen.add(client)


def _audit(at: Loc, setting: Setting) -> Iterator[Problem]:
    audit, federation = setting.audit, setting.federation
    if audit.every > federation.rounds:
        text = (
            f"expected an integer <= {federation.rounds} (federation.rounds), found {audit.every}"
        )
        yield Problem((*at, "audit", "every"), text)
    targets = [] if isinstance(audit.targets, str) else audit.targets
    malicious = 0 if setting.adversary is None else setting.adversary.malicious(federation.clients)
    yield from _clients((*at, "audit", "targets"), targets)
    for i, target in enumerate(targets):
        if target >= federation.clients:
            text = f"there is no client {target}, federation.clients is {federation.clients} (ids count from 0)"
            yield Problem((*at, "audit", "targets", i), text)
        elif target >= federation.clients - malicious:
            yield Problem(
                (*at, "audit", "targets", i),
                f"the client {target} is malicious (the last {malicious} are)",
            )


def _adversary(at: Loc, setting: Setting) -> Iterator[Problem]:
    adversary, federation = setting.adversary, setting.federation
    if adversary is None:
        return
    malicious = adversary.malicious(federation.clients)
    if malicious >= federation.clients:
        text = f"{malicious} malicious clients of {federation.clients} leave no target: use fewer, or more federation.clients"
        yield Problem((*at, "adversary", "clients"), text)
    if adversary.start_round > federation.rounds:
        text = f"expected an integer <= {federation.rounds} (federation.rounds), found {adversary.start_round}"
        yield Problem((*at, "adversary", "start_round"), text)


def _coalitions(document: Document, settings: list[tuple[Loc, Setting]]) -> Iterator[Problem]:
    shared = list(valid_items(document.data, "coalitions", Coalition))
    yield from _coalition_lists(document, shared)
    for loc, setting in settings:
        own = [((*loc, "coalitions", i), c) for i, c in enumerate(setting.coalitions or [])]
        yield from _coalition_lists(document, own)
        if not own and document.data.get("coalitions") is None:
            yield Problem(
                loc,
                "no coalitions: give the suite or this setting a list, such as coalitions: [pair, "
                "half]",
            )
        for place, coalition in own or shared:
            if text := coalition_problem(coalition, setting.federation.clients):
                yield Problem(place, text if own else f"{text} (setting '{setting.name}')")


def _coalition_lists(
    document: Document, coalitions: list[tuple[Loc, Coalition]]
) -> Iterator[Problem]:
    """Names and clients that are given twice; clients of two groups."""
    yield from _names(document, "coalition", ((loc, c.name) for loc, c in coalitions))
    for loc, coalition in coalitions:
        yield from _clients((*loc, "clients"), coalition.clients or [])
        first: dict[int, int] = {}
        for g, group in enumerate(coalition.groups or []):
            yield from _clients((*loc, "groups", g), group)
            for i, client in enumerate(group):
                if first.setdefault(client, g) != g:
                    text = f"the client {client} belongs to group {first[client] + 1}, too: coalitions do not overlap"
                    yield Problem((*loc, "groups", g, i), text)


# --- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedSuite:
    """A valid suite and the file it came from; ``document`` knows where in it everything is.
    ``overrides``: the changes of the command line, ``path=value``, in their order.
    """

    spec: SuiteSpec
    document: Document
    overrides: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @property
    def text(self) -> str:
        """The file's text, without the changes made on the command line."""
        return self.document.text

    def position(self, loc: Loc) -> tuple[int, int]:
        """(line, column), from 1, of e.g. ``("attacks", 2, "params", "stride")`` or its nearest
        ancestor.
        """
        return self.document.position(loc)


def find_suite(ref: str | Path) -> Path:
    """The file behind a path or a shipped suite's name; raises ``UserError`` that lists the shipped
    ones.
    """
    shipped = shipped_suites()
    path = Path(ref)
    if path.suffix in SUFFIXES:
        bare = path.with_suffix("").as_posix()
        if not os.path.exists(path) and bare in shipped:
            raise UserError(f"{ref}: no such file - did you mean the shipped suite '{bare}'?")
        return path
    if str(ref) in shipped:
        return shipped[str(ref)]
    if os.path.exists(path):
        return path
    listed = ", ".join(by_nearness(str(ref), shipped)) or "(none)"
    raise UserError(
        f"unknown suite '{ref}'{did_you_mean(str(ref), shipped)}; the shipped suites are {listed}"
    )


def open_document(ref: str | Path, overrides: Sequence[str] = ()) -> Document:
    """The file as data, overrides applied; raises ``UserError`` for what cannot be a suite at all."""
    document = read(find_suite(ref))
    if not isinstance(document.data, dict):
        needed = ", ".join(
            info.alias or name
            for name, info in SuiteSpec.model_fields.items()
            if info.is_required()
        )
        what = messages.found(document.data)
        raise document.error([Problem((), f"expected a mapping with {needed}, found {what}")])
    schema = document.data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        text = f"made for a newer fedbench (schema {schema}, this one reads {SCHEMA}): upgrade fedbench"
        raise document.error([Problem(("schema",), text)])
    return override(document, overrides)


def validate(document: Document) -> tuple[SuiteSpec | None, list[Problem]]:
    """The spec (None where the file does not give one) and all that is wrong with the document."""
    problems = cross_checks(document)
    try:
        return SuiteSpec.model_validate(document.data), problems
    except ValidationError as exc:
        return None, messages.problems(exc, SuiteSpec, document.data) + problems
