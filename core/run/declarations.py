"""Declarations of components: the facts that their classes state, known without their code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, get_args

from pydantic import TypeAdapter

from fedbench.core.contract.analysis import PLACES, Analysis
from fedbench.core.contract.attack import LEVELS, ActiveAttack, Attack, View
from fedbench.core.contract.defense import Defense, needs_coalition
from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import ask_apart, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.hooks_of import unknown_methods
from fedbench.core.registry.kinds import kind_of
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import SignalRequest
from fedbench.core.spec.resolve import Resolved
from fedbench.core.words import explain

Rule = tuple[str, Callable[[Any], bool], str]
"""(attribute, whether a value is valid, the expected values in words)"""

_VIEWS: tuple[str, ...] = get_args(View)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _all_text(names: Any) -> bool:
    collection = isinstance(names, frozenset | set | tuple | list)
    return collection and all(isinstance(name, str) for name in names)


def _all_views(names: Any) -> bool:
    return _all_text(names) and {*names} <= {*_VIEWS}


def _finite_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


_OF_CLASS: dict[type, tuple[Rule, ...]] = {
    Defense: (
        ("n_models", _whole(0), "an integer >= 1, or 0 for one a client"),
        ("root_samples", _whole(0), "an integer >= 0"),
        ("least_members", _whole(1), "an integer >= 1"),
    ),
    Attack: (
        ("needs", _all_text, "a frozenset of names of signals"),
        ("view", _VIEWS.__contains__, f"one of {', '.join(_VIEWS)}"),
        ("colluders", _whole(0), "an integer >= 0"),
        ("against", _all_text, "a frozenset of names of defenses"),
        ("knows_half", _is_bool, "True or False"),
        ("threshold", _finite_or_none, "a finite number or None"),
    ),
    ActiveAttack: (("knowledge", LEVELS.__contains__, f"one of {', '.join(LEVELS)}"),),
    Analysis: (
        ("needs", _all_text, "a frozenset of names of signals"),
        ("view", _VIEWS.__contains__, f"one of {', '.join(_VIEWS)}"),
        ("also", _all_views, f"a frozenset of {', '.join(_VIEWS)}"),
        ("place", PLACES.__contains__, f"one of {', '.join(PLACES)}"),
        ("needs_tuning_seeds", _is_bool, "True or False"),
    ),
}


def declaration_mistake(component: Any) -> str:
    """Return what is wrong with the facts that a component states about itself, or nothing."""
    for base, rules in _OF_CLASS.items():
        for name, is_valid, expected in rules if isinstance(component, base) else ():
            value = getattr(component, name)
            if not is_valid(value):
                return f"{name} is {value!r}, expected {expected}"
    if isinstance(component, Attack) and component.knows_half:
        if component.colluders:
            return (
                f"knows_half with colluders = {component.colluders}: an attack learns from one of "
                "the two; expected colluders = 0"
            )
        if component.threshold is not None:
            return (
                f"knows_half with threshold = {component.threshold!r:.60}: its scores are ranks "
                "within each half, where a threshold means nothing; expected None"
            )
    return ""


_NO_REQUEST = SignalRequest(needs=frozenset(), view="server")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Facts that a component states about itself."""

    root_samples: int = 0
    least_members: int = 1
    in_coalition: bool = False
    """whether clients act in a defense"""
    request: SignalRequest = _NO_REQUEST
    """of an attack or an analysis"""
    active: bool = False
    """whether an attack takes part in training"""
    tuning: bool = False
    """whether an analysis reads the runs of tuning seeds"""
    computes: bool = False
    """whether an analysis analyses runs"""


_DECLARED = TypeAdapter(Declared)


def declared(kind: str, use: ComponentUse) -> Declared:
    """Return the declaration of a component. Raises ``UserError`` for an invalid one."""
    question = ask_apart(f"{kind} {use}", use.distributions, lambda: _declaration(kind, use))
    return _DECLARED.validate_python(question)


def _declaration(kind: str, use: ComponentUse) -> Any:
    from fedbench.core.run.scene import defense_of  # imports torch

    component = defense_of(use) if kind == "defense" else use.make()[0]
    if mistake := declaration_mistake(component):
        raise UserError(f"{kind} '{use.name}': {mistake}")
    if isinstance(component, Defense):
        declaration = Declared(
            root_samples=component.root_samples,
            least_members=component.least_members,
            in_coalition=needs_coalition(component),
        )
    else:
        analysis = isinstance(component, Analysis)
        declaration = Declared(
            request=SignalRequest.of(component),
            active=isinstance(component, ActiveAttack),
            tuning=getattr(component, "needs_tuning_seeds", False),
            computes=analysis and type(component).analyse is not Analysis.analyse,
        )
    return _DECLARED.dump_python(declaration, mode="json")


# --- public methods that are no hooks -------------------------------------------------------------


class Misspelt:
    """Notes on public methods that are no hooks; each class is looked at once."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], list[str]] = {}

    def of(self, uses: Iterable[ComponentUse]) -> list[str]:
        """Return the notes on these components and those that follow them, none twice."""
        notes: dict[str, None] = {}
        for part in chain.from_iterable(use.chain for use in uses):
            place = (part.target, part.name)
            if place not in self._notes:
                question = partial(_misspelt, part)
                self._notes[place] = ask_apart(str(part), [part.distribution], question)
            notes |= dict.fromkeys(self._notes[place])
        return list(notes)


def _misspelt(part: ComponentUse) -> list[str]:
    cls = part.load()
    party = f"{kind_of(cls)} {part}"
    try:
        with at_work(party, plugin_limits()):
            return [f"{party}: {text}" for text in unknown_methods(cls)]
    except BaseException as error:  # a class can fail at being looked at
        pass_on_interrupt(error)
        return [f"{party}: its methods cannot be looked at: {explain(error)}"]


def misspelt_in(resolved: Resolved) -> list[str]:
    """Return the notes on all components that a suite names."""
    uses = [use for setting in resolved.settings for use in (setting.dataset, setting.model)]
    uses += [*resolved.defenses, *resolved.attacks, *resolved.analyses, *resolved.signals.values()]
    return Misspelt().of(uses)
