"""Find plugins: every entry point of the group ``fedbench`` is loaded on its own, so that a broken
one breaks no other.

Built-in plugins are loaded in this process, those of other packages in a separate one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import Distribution, EntryPoint, distribution, distributions
from itertools import chain
from pathlib import PurePath
from typing import Any

import pluggy

from fedbench.core.contract.hooks import DISTRIBUTION, PROJECT, Component, Hooks
from fedbench.core.process.ask import ask_each, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.component import RegisteredComponent, describe
from fedbench.core.registry.kinds import EVENTS, HOOKS
from fedbench.core.words import did_you_mean, explain, one_line

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
Announced = tuple[list[tuple[str, dict[str, Any]]], str, bool]
"""([(kind, fields of a Component)], mistakes, whether it takes events)"""


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """An entry point: the components that it announced, and the ``reason`` why it is not ok."""

    entry_point: str
    distribution: str
    version: str
    ok: bool
    reason: str
    components: tuple[RegisteredComponent, ...]
    listener: EntryPoint | None = None
    """where a plugin that takes events is loaded from"""

    def __str__(self) -> str:
        return f"'{self.entry_point}' ({self.distribution} {self.version})"


def discover_plugins() -> list[PluginStatus]:
    """Load every entry point of the group, in the order of package and entry point."""
    plugin_limits()  # raises for an invalid time limit, which is not a plugin's fault
    plugins = {}
    for dist in distributions():
        entries = list(dict.fromkeys(_entries(dist)))
        if not entries:
            continue
        name, version = _name_and_version(dist)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in plugins:  # Python imports the first copy on sys.path
            answers = zip(entries, _answers(entries, name), strict=True)
            plugins[key] = [_status(entry, answer, name, version) for entry, answer in answers]
    return sorted(chain(*plugins.values()), key=lambda p: (p.distribution, p.entry_point))


def _entries(dist: Distribution) -> list[EntryPoint | Exception]:
    """Return the group's entry points; an unreadable ``entry_points.txt`` that mentions the group
    is one failure.
    """
    try:
        return [e for e in dist.entry_points if e.group == PROJECT]
    except Exception as error:
        return [error] if f"[{PROJECT}]" in (dist.read_text("entry_points.txt") or "") else []


def _name_and_version(dist: Distribution) -> tuple[str, str]:
    """Return name and version, also of a distribution with damaged metadata."""
    try:
        name = dist.metadata["Name"]
        version = dist.metadata["Version"]
    # a missing METADATA file gives None or an exception, depending on the version of Python
    except Exception:
        name = ""
        version = ""
    if not name:
        name = PurePath(str(getattr(dist, "_path", "unknown"))).name.removesuffix(".dist-info")
    return one_line(str(name), 200), one_line(str(version or "?"), 100)


def _answers(entries: list[EntryPoint | Exception], distribution: str) -> Iterator[Announced]:
    if distribution == DISTRIBUTION:
        yield from map(_announced, entries)
        return
    for answer in ask_each(entries, _announced, quiet=True):
        yield answer.get() if answer.error is None else ([], str(answer.error), False)


def _status(
    entry: EntryPoint | Exception, answer: Announced, distribution: str, version: str
) -> PluginStatus:
    components, reason, listens = answer
    name = "?"
    listener = None
    if isinstance(entry, EntryPoint):
        name = one_line(entry.name, 200)
        listener = entry if listens else None
    return PluginStatus(
        entry_point=name,
        distribution=distribution,
        version=version,
        ok=not reason,
        reason=one_line(reason, 2000),
        components=tuple(
            RegisteredComponent(Component(**fields), distribution, version, kind)
            for kind, fields in components
        ),
        listener=listener,
    )


def of_leaderboard(name: str) -> Any:
    """Return a function that the leaderboard announces: core imports nothing of it."""
    return distribution(DISTRIBUTION).entry_points.select(group="fedbench.results")[name].load()


def own_components() -> list[tuple[str, Component]]:
    """Return (kind, component) of everything that fedbench itself announces."""
    entries = distribution(DISTRIBUTION).entry_points.select(group=PROJECT)
    return list(chain.from_iterable(announced(entry.load())[0] for entry in entries))


# --- one entry point ------------------------------------------------------------------------------


def _announced(entry: EntryPoint | Exception) -> Announced:
    """Load an entry point and call its hooks."""
    if isinstance(entry, Exception):
        return [], f"its entry_points.txt cannot be read: {explain(entry)}", False
    step = f"cannot import '{one_line(entry.value, 200)}'"
    try:
        with at_work(step, plugin_limits()):
            plugin = entry.load()
        step = "what it announces cannot be read"
        with at_work(step, plugin_limits()):
            components, mistakes = announced(plugin)
            records = [(kind, _fields(component)) for kind, component in components]
    except BaseException as error:
        pass_on_interrupt(error)
        return [], f"{step}: {explain(error)}", False
    return records, "; ".join(mistakes), not mistakes and hasattr(plugin, EVENTS)


def _fields(component: Component) -> dict[str, Any]:
    return {field.name: getattr(component, field.name) for field in fields(Component)}


def announced(plugin: Any) -> tuple[list[tuple[str, Component]], list[str]]:
    """Return ([(kind, component)] of all hooks, mistakes) of a loaded plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name="plugin")
    except BaseException as error:
        pass_on_interrupt(error)
        return [], [_invalid_hook(error)]
    implemented = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    mistakes = _unknown_hooks(plugin, implemented)
    components = []
    for kind, hook in HOOKS.items():
        if hook not in implemented:
            continue
        try:
            with at_work(hook, plugin_limits()):
                records = _records(getattr(manager.hook, hook))
        except BaseException as error:
            pass_on_interrupt(error)
            mistakes.append(f"{hook} failed: {explain(error)}")
            continue
        for record in records:
            if mistake := _mistake(record):
                mistakes.append(f"{hook}: {mistake}")
            else:
                components.append((kind, record))
    return components, mistakes


def _unknown_hooks(plugin: Any, implemented: list[str]) -> list[str]:
    """Return the mistakes in the names and marks of a plugin's hooks."""
    hooks = (*HOOKS.values(), EVENTS)
    mistakes = [
        f"unknown hook '{name}'{did_you_mean(name, hooks)}"
        for name in implemented
        if name not in hooks
    ]
    prefixed = {name for name in dir(plugin) if name.startswith(f"{PROJECT}_")}
    mistakes += [
        f"the function '{name}' is not marked @hookimpl, so it announces nothing"
        for name in sorted(prefixed.difference(implemented))
        if callable(getattr(plugin, name))
    ]
    if not implemented and not mistakes:
        mistakes.append(
            f"announces nothing: no function is marked @hookimpl; the hooks are {', '.join(hooks)}"
        )
    return mistakes


def _records(call: Callable[[], list[Any]]) -> list[Any]:
    """Return the announcements of a hook; pluggy gives a list of one iterable, an empty one for a
    hook that returned None.
    """
    (result,) = call() or [None]
    if result is None or isinstance(result, str | Component):
        raise TypeError(
            f"it returned {describe(result)}, expected an iterable of Component (use yield)"
        )
    return list(result)


def _invalid_hook(error: BaseException) -> str:
    """Return pluggy's message about a hook's signature on one line."""
    if not isinstance(error, pluggy.PluginValidationError):
        return f"cannot be registered: {explain(error)}"
    definition = re.search(r"hookimpl definition: (.*)", str(error))
    hook = definition[1] if definition else error
    takes = f"the hooks of fedbench take no arguments; {EVENTS} takes 'event'"
    return f"{hook}: wrong signature, {takes}"


def _mistake(record: Any) -> str:
    """Say what is wrong with an announcement; empty if nothing is."""
    if not isinstance(record, Component):
        return f"yielded {describe(record)}, expected fedbench.core.Component"
    name = record.name
    target = record.target
    for field in ("name", "target", "summary", "paper"):
        text = getattr(record, field)
        if not isinstance(text, str) or not text.isprintable():
            problem = f"is {describe(text)}, expected printable text on one line"
            return f"the {field} of {name!r} {problem}"
    if not _KEBAB.fullmatch(name):
        rule = "lower-case letters, digits and single dashes"
        return f"the name {name!r} is not kebab-case ({rule})"
    if not _TARGET.fullmatch(target):
        return f"the target {target!r} of '{name}' has not the form 'package.module:Class'"
    if not record.summary.strip() or type(record.floor) is not bool:
        return f"the summary of '{name}' must not be empty, its floor must be True or False"
    return ""
