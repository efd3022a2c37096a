"""Find plugins: every entry point of the group ``fedbench`` on its own, so that a broken one breaks nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

import pluggy

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT, Component, Hooks
from fedbench.core.registry.kinds import BASES, HOOKS
from fedbench.core.words.explain import explain
from fedbench.core.words.nearest import did_you_mean

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class RegisteredComponent:
    """A component and the package that announced it. ``load`` imports its class; until then nothing is imported."""

    component: Component
    distribution: str
    version: str
    kind: str

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' ({self.distribution} {self.version})"

    def load(self) -> Any:
        """The class; raises ``UserError`` when it cannot be imported or is not what its kind demands."""
        module_name, _, attribute = self.component.target.partition(":")
        try:
            module = import_module(module_name)
        except (Exception, SystemExit) as exc:
            raise UserError(f"{self}: cannot import '{module_name}': {explain(exc)}") from exc
        try:
            found = getattr(module, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, vars(module))
            raise UserError(f"{self}: the module '{module_name}' has no '{attribute}'{hint}") from None
        self._check_class(found)
        return found

    def _check_class(self, found: Any) -> None:
        base_module, base_name = BASES[self.kind]
        base: type = getattr(import_module(base_module), base_name)
        if not (isinstance(found, type) and issubclass(found, base)):
            expected = f"expected a subclass of fedbench.core.{base_name}"
            raise UserError(f"{self}: '{self.component.target}' is {_describe(found)}, {expected}")
        from fedbench.core.contract.params import Params

        params = getattr(found, "Params", None)
        if not (isinstance(params, type) and issubclass(params, Params)):
            raise UserError(f"{self}: its Params is {_describe(params)}, expected a subclass of fedbench.core.Params")


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """One entry point: what it announced (``components``), and what is wrong with it (``reason``, empty when ok)."""

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
    found: dict[str, list[PluginStatus]] = {}
    for dist in distributions():
        name, version = _identity(dist)
        if _canonical(name) not in found:  # seen twice on sys.path: Python imports the first, so the first counts
            entries = dict.fromkeys(_entries(dist))
            found[_canonical(name)] = [_load(entry, name, version) for entry in entries]
    return sorted((p for plugins in found.values() for p in plugins), key=lambda p: (p.distribution, p.entry_point))


def _identity(dist: Distribution) -> tuple[str, str]:
    """Name and version, also of a distribution whose metadata is damaged."""
    try:
        name, version = dist.metadata["Name"], dist.metadata["Version"]
    except Exception:  # a missing METADATA file gives None or an exception, depending on the version of Python
        name, version = "", ""
    stem = str(getattr(dist, "_path", "unknown")).replace("\\", "/").rsplit("/", 1)[-1]
    return str(name or stem.removesuffix(".dist-info").removesuffix(".egg-info")), str(version or "?")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(dist: Distribution) -> list[EntryPoint | Exception]:
    """The group's entry points; an unreadable ``entry_points.txt`` that mentions the group is one failure."""
    try:
        return [e for e in dist.entry_points if e.group == PROJECT]
    except Exception as exc:
        text = dist.read_text("entry_points.txt") or ""
        return [exc] if f"[{PROJECT}]" in text else []


def _load(entry: EntryPoint | Exception, distribution: str, version: str) -> PluginStatus:
    if isinstance(entry, Exception):
        reason = f"its entry_points.txt cannot be read: {explain(entry)}"
        return PluginStatus(entry_point="?", distribution=distribution, version=version, ok=False, reason=reason, components=())
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as exc:
        reason = f"cannot import '{entry.value}': {explain(exc)}"
        return PluginStatus(
            entry_point=entry.name, distribution=distribution, version=version, ok=False, reason=reason, components=()
        )
    components, problems = _announced(plugin, distribution, version)
    return PluginStatus(
        entry_point=entry.name,
        distribution=distribution,
        version=version,
        ok=not problems,
        reason="; ".join(problems),
        components=tuple(components),
    )


def _announced(plugin: Any, distribution: str, version: str) -> tuple[list[RegisteredComponent], list[str]]:
    """What a loaded plugin announces, hook by hook. A manager of its own keeps its mistakes to itself."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name="plugin")
    except (Exception, SystemExit) as exc:
        return [], [_invalid_hook(exc)]
    implemented = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    problems = [*_misspelt(implemented), *_unmarked(plugin, implemented)]
    if not implemented and not problems:
        hooks = ", ".join(HOOKS.values())
        problems.append(f"announces nothing: no function is marked @hookimpl; the hooks are {hooks}")
    components = []
    for kind, hook in HOOKS.items():
        if hook in implemented:
            try:
                records = _records(getattr(manager.hook, hook), hook)
            except _Bad as bad:
                problems.append(str(bad))
                continue
            for record in records:
                mistake = _mistake(record)
                if mistake:
                    problems.append(f"{hook}: {mistake}")
                else:
                    components.append(RegisteredComponent(record, distribution, version, kind))
    return components, problems


class _Bad(Exception):
    """A hook that yields nothing usable."""


def _records(call: Callable[[], list[Any]], hook: str) -> list[Any]:
    """Run a hook to its end; pluggy gives a list of one iterable, an empty one for a hook that returned None."""
    try:
        results = call() or [None]
        if results[0] is not None and not isinstance(results[0], str | Component):
            return list(results[0])
    except (Exception, SystemExit) as exc:
        raise _Bad(f"{hook} failed: {explain(exc)}") from exc
    raise _Bad(f"{hook} returned {_describe(results[0])}, expected an iterable of Component (use yield)")


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
        return f"yielded {_describe(record)}, expected fedbench.core.Component"
    for field in ("name", "target", "summary", "paper"):
        if not isinstance(getattr(record, field), str):
            return f"the {field} of {record.name!r} is {_describe(getattr(record, field))}, expected text"
    if not _KEBAB.fullmatch(record.name):
        return f"the name {record.name!r} is not kebab-case (lower-case letters, digits and single dashes)"
    if not _TARGET.fullmatch(record.target):
        return f"the target {record.target!r} of '{record.name}' has not the form 'package.module:Class'"
    if not record.summary.strip() or "\n" in record.summary:
        return f"the summary of '{record.name}' must be one non-empty line"
    return ""


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        bases = ", ".join(b.__name__ for b in value.__bases__)
        return f"the class {value.__name__}({bases})"
    name = getattr(value, "__name__", None)
    if callable(value) and name:
        return f"the function {name}"
    return f"{type(value).__name__} {value!r:.60}"
