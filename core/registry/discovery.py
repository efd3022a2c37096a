"""Find plugins: every entry point of the group ``fedbench`` is loaded on its own, so that a broken
one breaks nothing else.

Built-in plugins are loaded in this process, those of other packages in a separate one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import Distribution, EntryPoint, distribution, distributions
from typing import Any

import pluggy

from fedbench.core.contract.hooks import DISTRIBUTION, PROJECT, Component, Hooks
from fedbench.core.process.ask import ask_each, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.component import RegisteredComponent, describe
from fedbench.core.registry.kinds import HOOKS
from fedbench.core.words import did_you_mean, explain, one_line

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
Announced = tuple[list[tuple[str, dict[str, Any]]], str]
"""([(kind, fields of a Component)], what is wrong)"""


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """One entry point: what it announced (``components``), and what is wrong with it (``reason``,
    empty when ok).
    """

    entry_point: str
    distribution: str
    version: str
    ok: bool
    reason: str
    components: tuple[RegisteredComponent, ...]

    def __str__(self) -> str:
        return f"'{self.entry_point}' ({self.distribution} {self.version})"


def discover_plugins() -> list[PluginStatus]:
    """Load every entry point of the group, in the order of package and entry point."""
    plugin_limits()  # raises for an invalid time limit, which is not a plugin's fault
    found: dict[str, list[PluginStatus]] = {}
    for dist in distributions():
        if not (entries := list(dict.fromkeys(_entries(dist)))):
            continue
        name, version = _identity(dist)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in found:  # Python imports the first copy on sys.path
            found[key] = [
                _status(e, said, name, version)
                for e, said in zip(entries, _ask(entries, name), strict=True)
            ]
    return sorted(
        (p for plugins in found.values() for p in plugins),
        key=lambda p: (p.distribution, p.entry_point),
    )


def _identity(dist: Distribution) -> tuple[str, str]:
    """Name and version, also of a distribution with damaged metadata."""
    stem = (
        str(getattr(dist, "_path", "unknown"))
        .replace("\\", "/")
        .rsplit("/", 1)[-1]
        .removesuffix(".dist-info")
    )
    try:
        name, version = dist.metadata["Name"], dist.metadata["Version"]
    # a missing METADATA file gives None or an exception, depending on the version of Python
    except Exception:
        name, version = "", ""
    return one_line(str(name or stem), 200), one_line(str(version or "?"), 100)


def of_leaderboard(name: str) -> Any:
    """Return a function that the leaderboard announces: core imports nothing of it."""
    return distribution(DISTRIBUTION).entry_points.select(group="fedbench.results")[name].load()


def _entries(dist: Distribution) -> list[EntryPoint | Exception]:
    """The group's entry points; an unreadable ``entry_points.txt`` that mentions the group is one
    failure.
    """
    try:
        return [e for e in dist.entry_points if e.group == PROJECT]
    except Exception as error:
        return [error] if f"[{PROJECT}]" in (dist.read_text("entry_points.txt") or "") else []


def _ask(entries: list[EntryPoint | Exception], distribution: str) -> Iterator[Announced]:
    if distribution == DISTRIBUTION:
        yield from map(_announced, entries)
        return
    for answer in ask_each(entries, _announced, quiet=True):
        yield answer.get() if answer.error is None else ([], str(answer.error))


def _status(
    entry: EntryPoint | Exception, said: Announced, distribution: str, version: str
) -> PluginStatus:
    components, reason = said
    return PluginStatus(
        entry_point="?" if isinstance(entry, Exception) else one_line(entry.name, 200),
        distribution=distribution,
        version=version,
        ok=not reason,
        reason=one_line(reason, 2000),
        components=tuple(
            RegisteredComponent(Component(**record), distribution, version, kind)
            for kind, record in components
        ),
    )


# --- one entry point ------------------------------------------------------------------------------


def _announced(entry: EntryPoint | Exception) -> Announced:
    """Load an entry point and call its hooks."""
    if isinstance(entry, Exception):
        return [], f"its entry_points.txt cannot be read: {explain(entry)}"
    who = f"cannot import '{one_line(entry.value, 200)}'"
    try:
        with at_work(who, plugin_limits()):
            plugin = entry.load()
        who = "what it announces cannot be read"
        with at_work(who, plugin_limits()):
            components, problems = announced(plugin)
            told = [
                (kind, {field.name: getattr(c, field.name) for field in fields(Component)})
                for kind, c in components
            ]
    except BaseException as error:
        pass_on_interrupt(error)
        return [], f"{who}: {explain(error)}"
    return told, "; ".join(problems)


def announced(plugin: Any) -> tuple[list[tuple[str, Component]], list[str]]:
    """([(kind, component)] of all hooks, what is wrong) of a loaded plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name="plugin")
    except BaseException as error:
        pass_on_interrupt(error)
        return [], [_invalid_hook(error)]
    implemented = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    problems = [
        f"unknown hook '{n}'{did_you_mean(n, HOOKS.values())}"
        for n in implemented
        if n not in HOOKS.values()
    ]
    unmarked = [
        n
        for n in dir(plugin)
        if n.startswith(f"{PROJECT}_") and n not in implemented and callable(getattr(plugin, n))
    ]
    problems += [
        f"the function '{name}' is not marked @hookimpl, so it announces nothing"
        for name in unmarked
    ]
    if not implemented and not problems:
        problems.append(
            "announces nothing: no function is marked @hookimpl; the hooks are "
            f"{', '.join(HOOKS.values())}"
        )
    components: list[tuple[str, Component]] = []
    for kind, hook in HOOKS.items():
        if hook in implemented:
            try:
                with at_work(hook, plugin_limits()):
                    records = _records(getattr(manager.hook, hook))
            except BaseException as error:
                pass_on_interrupt(error)
                problems.append(f"{hook} failed: {explain(error)}")
                continue
            mistakes = [_mistake(record) for record in records]
            problems += [f"{hook}: {mistake}" for mistake in mistakes if mistake]
            components += [
                (kind, record)
                for record, mistake in zip(records, mistakes, strict=True)
                if not mistake
            ]
    return components, problems


def _records(call: Callable[[], list[Any]]) -> list[Any]:
    """What a hook yields; pluggy gives a list of one iterable, an empty one for a hook that
    returned None.
    """
    (result,) = call() or [None]
    if result is None or isinstance(result, str | Component):
        raise TypeError(
            f"it returned {describe(result)}, expected an iterable of Component (use yield)"
        )
    return list(result)


def _invalid_hook(error: BaseException) -> str:
    """pluggy's message about a hook's signature on one line."""
    if isinstance(error, pluggy.PluginValidationError):
        found = re.search(r"hookimpl definition: (.*)", str(error))
        return f"{found.group(1) if found else error}: wrong signature, the hooks of fedbench take no arguments"
    return f"cannot be registered: {explain(error)}"


def _mistake(record: Any) -> str:
    """What is wrong with one announcement, or nothing."""
    if not isinstance(record, Component):
        return f"yielded {describe(record)}, expected fedbench.core.Component"
    for field in ("name", "target", "summary", "paper"):
        value = getattr(record, field)
        if not isinstance(value, str) or not value.isprintable():
            return f"the {field} of {record.name!r} is {describe(value)}, expected printable text on one line"
    if not _KEBAB.fullmatch(record.name):
        return f"the name {record.name!r} is not kebab-case (lower-case letters, digits and single dashes)"
    if not _TARGET.fullmatch(record.target):
        return f"the target {record.target!r} of '{record.name}' has not the form 'package.module:Class'"
    if not record.summary.strip() or type(record.floor) is not bool:
        return f"the summary of '{record.name}' must not be empty, its floor must be True or False"
    return ""
