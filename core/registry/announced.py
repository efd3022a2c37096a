"""What a loaded plugin announces through its hooks, and every mistake in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pluggy

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.hooks import PROJECT, Component, Hooks
from fedbench.core.registry.ask import patience
from fedbench.core.registry.facts import describe
from fedbench.core.registry.kinds import HOOKS
from fedbench.core.words.explain import explain
from fedbench.core.words.nearest import did_you_mean

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def announced(plugin: Any) -> tuple[list[tuple[str, Component]], list[str]]:
    """What a loaded plugin announces, hook by hook, as (kind, component), and what is wrong. A manager of its own keeps its
    mistakes to itself."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name="plugin")
    except BaseException as exc:
        pass_on_interrupt(exc)
        return [], [_invalid_hook(exc)]
    implemented = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    problems = [*_misspelt(implemented), *_unmarked(plugin, implemented)]
    if not implemented and not problems:
        hooks = ", ".join(HOOKS.values())
        problems.append(f"announces nothing: no function is marked @hookimpl; the hooks are {hooks}")
    components: list[tuple[str, Component]] = []
    for kind, hook in HOOKS.items():
        if hook in implemented:
            try:
                with at_work(hook, patience()):
                    records = _records(getattr(manager.hook, hook), hook)
            except _Bad as bad:
                problems.append(str(bad))
                continue
            for record in records:
                mistake = _mistake(record)
                if mistake:
                    problems.append(f"{hook}: {mistake}")
                else:
                    components.append((kind, record))
    return components, problems


class _Bad(Exception):
    """A hook that yields nothing usable."""


def _records(call: Callable[[], list[Any]], hook: str) -> list[Any]:
    """Run a hook to its end; pluggy gives a list of one iterable, an empty one for a hook that returned None."""
    try:
        results = call() or [None]
        if results[0] is not None and not isinstance(results[0], str | Component):
            return list(results[0])
    except BaseException as exc:
        pass_on_interrupt(exc)
        raise _Bad(f"{hook} failed: {explain(exc)}") from exc
    raise _Bad(f"{hook} returned {describe(results[0])}, expected an iterable of Component (use yield)")


def _invalid_hook(exc: BaseException) -> str:
    """pluggy's complaint about a hook's signature, on one line and with the way out."""
    if isinstance(exc, pluggy.PluginValidationError):
        found = re.search(r"hookimpl definition: (.*)", str(exc))
        return f"{found.group(1) if found else exc}: wrong signature, the hooks of fedbench take no arguments"
    return f"cannot be registered: {explain(exc)}"


def _misspelt(implemented: list[str]) -> Iterator[str]:
    for name in implemented:
        if name not in HOOKS.values():
            yield f"unknown hook '{name}'{did_you_mean(name, HOOKS.values())}"


def _unmarked(plugin: Any, implemented: list[str]) -> Iterator[str]:
    for name in dir(plugin):
        if name.startswith(f"{PROJECT}_") and name not in implemented and callable(getattr(plugin, name, None)):
            yield f"the function '{name}' is not marked @hookimpl, so it announces nothing"


def _mistake(record: Any) -> str:
    """What is wrong with one announcement, or nothing."""
    if not isinstance(record, Component):
        return f"yielded {describe(record)}, expected fedbench.core.Component"
    for field in ("name", "target", "summary", "paper"):
        if not isinstance(getattr(record, field), str):
            return f"the {field} of {record.name!r} is {describe(getattr(record, field))}, expected text"
    if not _KEBAB.fullmatch(record.name):
        return f"the name {record.name!r} is not kebab-case (lower-case letters, digits and single dashes)"
    if not _TARGET.fullmatch(record.target):
        return f"the target {record.target!r} of '{record.name}' has not the form 'package.module:Class'"
    if not record.summary.strip() or "\n" in record.summary:
        return f"the summary of '{record.name}' must be one non-empty line"
    for field in ("summary", "paper"):
        if not getattr(record, field).isprintable():
            return f"the {field} of '{record.name}' holds characters that cannot be printed: {getattr(record, field)!a:.80}"
    if type(record.floor) is not bool:
        return f"the floor of '{record.name}' is {describe(record.floor)}, expected True or False"
    return ""
