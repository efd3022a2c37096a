"""Find plugins: every entry point of the group ``fedbench`` on its own, so that a broken one breaks nothing else.

Our own are loaded here. A stranger's package is loaded in a process of its own, whatever it does there; what it announced is
remembered until one of its files, or what is installed, changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

from fedbench.core.apart.channel import at_work, pass_on_interrupt
from fedbench.core.contract.hooks import PROJECT, Component
from fedbench.core.registry.announced import announced
from fedbench.core.registry.ask import Ended, ask_each, patience
from fedbench.core.registry.component import RegisteredComponent
from fedbench.core.registry.remembered import Remembered
from fedbench.core.words.explain import explain, one_line

__all__ = ["PluginStatus", "RegisteredComponent", "discover_plugins"]


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


def discover_plugins(fresh: bool = False, ask: bool = True) -> list[PluginStatus]:
    """Load every entry point of the group, in the order of package and entry point; ``fresh``: also those remembered. Without
    ``ask``, none but our own is loaded: of strangers' those count that are remembered."""
    patience()  # the user's mistake, not a plugin's
    memory = Remembered(fresh)
    found: dict[str, list[PluginStatus]] = {}
    for dist in distributions():
        entries = list(dict.fromkeys(_entries(dist)))
        # reading what describes a package costs, and almost none has such entries
        name, version = _identity(dist) if entries else (_stem(dist).partition("-")[0], "")
        if _canonical(name) not in found:  # seen twice on sys.path: Python imports the first, so the first counts
            told = [_tell(entry) for entry in entries] if name == PROJECT else _told(dist, entries, memory, ask)
            found[_canonical(name)] = [
                _status(entry, said, name, version) for entry, said in zip(entries, told, strict=True)
            ]
    memory.save()
    return sorted((p for plugins in found.values() for p in plugins), key=lambda p: (p.distribution, p.entry_point))


def _identity(dist: Distribution) -> tuple[str, str]:
    """Name and version, also of a distribution whose metadata is damaged."""
    try:
        name, version = dist.metadata["Name"], dist.metadata["Version"]
    except Exception:  # a missing METADATA file gives None or an exception, depending on the version of Python
        name, version = "", ""
    return one_line(str(name or _stem(dist)), 200), one_line(str(version or "?"), 100)


def _stem(dist: Distribution) -> str:
    """``name-version``, as the folder that describes a distribution is called."""
    stem = str(getattr(dist, "_path", "unknown")).replace("\\", "/").rsplit("/", 1)[-1]
    return stem.removesuffix(".dist-info").removesuffix(".egg-info")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(dist: Distribution) -> list[EntryPoint | Exception]:
    """The group's entry points; an unreadable ``entry_points.txt`` that mentions the group is one failure."""
    try:
        return [e for e in dist.entry_points if e.group == PROJECT]
    except Exception as exc:
        text = dist.read_text("entry_points.txt") or ""
        return [exc] if f"[{PROJECT}]" in text else []


# What an entry point said, as JSON values: {"components": [[kind, {field: value}]], "reason": str, "stopped": bool}
Said = dict[str, Any]


def _told(dist: Distribution, entries: Sequence[EntryPoint | Exception], memory: Remembered, ask: bool) -> list[Said]:
    """What a stranger's entry points say."""
    if not entries:
        return []
    state = memory.state(dist)
    told: list[Said | None] = memory.recall(dist, state, len(entries))
    unknown = [i for i, said in enumerate(told) if said is None]
    if not ask:
        return [said or _nothing("nobody has asked it yet") for said in told]
    for i, answer in zip(unknown, ask_each([entries[i] for i in unknown], _tell, quiet=True), strict=True):
        if answer.error is None:
            told[i] = answer.get()
        else:
            told[i] = _nothing(str(answer.error), isinstance(answer.error, Ended) and answer.error.timed_out)
    if unknown:
        memory.keep(dist, state, told)
    return [said for said in told if said is not None]


def _nothing(reason: str, stopped: bool = False) -> Said:
    return {"components": [], "reason": reason, "stopped": stopped}


def _tell(entry: EntryPoint | Exception) -> Said:
    """Load an entry point and ask it what it announces."""
    if isinstance(entry, Exception):
        return _nothing(f"its entry_points.txt cannot be read: {explain(entry)}")
    try:
        with at_work(f"cannot import '{one_line(entry.value, 200)}'", patience()):
            plugin = entry.load()
    except BaseException as exc:
        pass_on_interrupt(exc)
        return _nothing(f"cannot import '{one_line(entry.value, 200)}': {explain(exc)}")
    try:
        with at_work("what it announces cannot be read", patience()):
            components, problems = announced(plugin)
            told = [[kind, {field.name: getattr(c, field.name) for field in fields(Component)}] for kind, c in components]
    except BaseException as exc:  # an announcement can fail at being looked at
        pass_on_interrupt(exc)
        return _nothing(f"what it announces cannot be read: {explain(exc)}")
    return {"components": told, "reason": "; ".join(problems), "stopped": False}


def _status(entry: EntryPoint | Exception, said: Said, distribution: str, version: str) -> PluginStatus:
    return PluginStatus(
        entry_point="?" if isinstance(entry, Exception) else one_line(entry.name, 200),
        distribution=distribution, version=version, ok=not said["reason"], reason=one_line(said["reason"], 2000),
        components=tuple(
            RegisteredComponent(Component(**record), distribution, version, kind) for kind, record in said["components"]
        ),
    )  # fmt: skip
