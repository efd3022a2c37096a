"""Load a suite from a file or by its shipped name: types first, then checks between the fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.spec import messages
from fedbench.core.spec.base import MethodUse, Use
from fedbench.core.spec.document import Document, Loc, Problem, override, read
from fedbench.core.spec.setting import Coalition, Setting, coalition_problem, no_client
from fedbench.core.spec.suite import SuiteSpec
from fedbench.core.words import by_nearness, did_you_mean
from fedbench.suites import SUFFIXES, shipped_suites

Model = TypeVar("Model", bound=BaseModel)
METHODS = ("defense", "attack", "analysis")  # kinds that a suite lists as rows


def cross_checks(document: Document) -> list[Problem]:
    """Return mistakes that no single field shows, of the parts that are valid by themselves.

    They are repeated names, labels and seeds; client ids, rounds and coalitions.
    """
    data = document.data
    settings = list(valid_items(data, "settings", Setting))
    seeds = [*_placed(("seeds",), items_of(data, "seeds"))]
    seeds += _placed(("tuning_seeds",), items_of(data, "tuning_seeds"))
    signals = valid_items(data, "signals", Use)
    problems = [
        *_repeated(document, [(loc, seed) for loc, seed in seeds if type(seed) is int]),
        *_repeated(document, [((*loc, "name"), setting.name) for loc, setting in settings]),
        *_repeated(document, [(loc, signal.name) for loc, signal in signals]),
    ]
    for kind in METHODS:
        labels = []
        for loc, use in valid_items(data, PLURAL[kind], MethodUse):
            labels += [(loc, point.label) for point in use.points()]
        problems += _repeated(document, labels, ": add a label")
    for loc, setting in settings:
        problems += _audit(loc, setting)
        problems += _adversary(loc, setting)
    return [*problems, *_coalitions(document, settings)]


def items_of(data: Any, key: str) -> list[Any]:
    """Return the elements of the list ``data[key]`` of a suite."""
    items = data.get(key) if isinstance(data, dict) else None
    return items if isinstance(items, list) else []


def valid_items(data: Any, key: str, model: type[Model]) -> Iterator[tuple[Loc, Model]]:
    """Yield place and value of the elements of ``data[key]`` that are valid by themselves."""
    for loc, item in _placed((key,), items_of(data, key)):
        if (element := valid(item, model)) is not None:
            yield loc, element


def valid(value: Any, model: type[Model]) -> Model | None:
    """Return the value as ``model``, or None where it is not valid."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _placed(loc: Loc, items: Iterable[Any]) -> Iterator[tuple[Loc, Any]]:
    for i, item in enumerate(items):
        yield (*loc, i), item


def _repeated(
    document: Document, values: Iterable[tuple[Loc, Any]], remedy: str = ""
) -> Iterator[Problem]:
    """Yield a problem per repeated value."""
    first: dict[Any, Loc] = {}
    for loc, value in values:
        if value in first:
            line, _ = document.position(first[value])
            yield Problem(loc, f"'{value}' is already given in line {line}{remedy}")
        first.setdefault(value, loc)


def _audit(place: Loc, setting: Setting) -> Iterator[Problem]:
    audit = setting.audit
    federation = setting.federation
    if audit.every > federation.rounds:
        yield _too_late((*place, "audit", "every"), audit.every, setting)
    if isinstance(audit.targets, str):
        return
    n_malicious = 0
    if setting.adversary is not None:
        n_malicious = setting.adversary.malicious(federation.clients)
    for loc, target in _placed((*place, "audit", "targets"), audit.targets):
        if target >= federation.clients:
            yield Problem(loc, no_client(target, federation.clients))
        elif target >= federation.clients - n_malicious:
            yield Problem(loc, f"the client {target} is malicious (the last {n_malicious} are)")


def _adversary(place: Loc, setting: Setting) -> Iterator[Problem]:
    adversary = setting.adversary
    n_clients = setting.federation.clients
    if adversary is None:
        return
    n_malicious = adversary.malicious(n_clients)
    if n_malicious >= n_clients:
        yield Problem(
            (*place, "adversary", "clients"),
            f"{n_malicious} malicious clients of {n_clients} leave no target: use fewer, or more "
            "federation.clients",
        )
    if adversary.start_round > setting.federation.rounds:
        yield _too_late((*place, "adversary", "start_round"), adversary.start_round, setting)


def _too_late(loc: Loc, round: int, setting: Setting) -> Problem:
    rounds = setting.federation.rounds
    return Problem(loc, f"expected an integer <= {rounds} (federation.rounds), found {round}")


def _coalitions(document: Document, settings: list[tuple[Loc, Setting]]) -> Iterator[Problem]:
    shared = list(valid_items(document.data, "coalitions", Coalition))
    yield from _repeated(document, [(loc, c.name) for loc, c in shared])
    for loc, setting in settings:
        listed = list(_placed((*loc, "coalitions"), setting.coalitions or []))
        yield from _repeated(document, [(place, c.name) for place, c in listed])
        if not listed and document.data.get("coalitions") is None:
            yield Problem(
                loc,
                "no coalitions: give the suite or this setting a list, such as coalitions: [pair, "
                "half]",
            )
        suffix = "" if listed else f" (setting '{setting.name}')"
        for place, coalition in listed or shared:
            if text := coalition_problem(coalition, setting.federation.clients):
                yield Problem(place, text + suffix)


# --- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedSuite:
    """A valid suite and the file it came from."""

    spec: SuiteSpec
    document: Document
    overrides: tuple[str, ...] = ()
    """changes of the command line, ``path=value``, in their order"""

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @property
    def text(self) -> str:
        """The file's text, without the changes made on the command line."""
        return self.document.text

    def position(self, loc: Loc) -> tuple[int, int]:
        """Return line and column, from 1, of a place or its nearest ancestor in the file."""
        return self.document.position(loc)


def find_suite(ref: str | Path) -> Path:
    """Return the file behind a path or a shipped suite's name.

    Raises:
        UserError: that lists the shipped suites.
    """
    shipped = shipped_suites()
    path = Path(ref)
    if str(ref) in shipped:
        return shipped[str(ref)]
    if path.suffix in SUFFIXES or path.exists():
        return path
    listed = ", ".join(by_nearness(str(ref), shipped)) or "(none)"
    raise UserError(
        f"unknown suite '{ref}'{did_you_mean(str(ref), shipped)}; the shipped suites are {listed}"
    )


def open_document(ref: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Return the file as data, overrides applied.

    Raises:
        UserError: for what cannot be a suite at all.
    """
    document = read(find_suite(ref))
    if not isinstance(document.data, dict):
        fields = SuiteSpec.model_fields.items()
        needed = ", ".join(info.alias or name for name, info in fields if info.is_required())
        value = messages.found(document.data)
        raise document.error([Problem((), f"expected a mapping with {needed}, found {value}")])
    return override(document, overrides)


def validate(document: Document) -> tuple[SuiteSpec | None, list[Problem]]:
    """Return the spec (None where the file does not give one) and all that is wrong."""
    problems = cross_checks(document)
    try:
        return SuiteSpec.model_validate(document.data), problems
    except ValidationError as error:
        return None, messages.problems(error, SuiteSpec, document.data) + problems
