"""The mistakes of a suite that planning finds, each with its place in the file, reported
together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Job
from fedbench.core.spec.base import grid_of
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.setting import Coalition, Setting
from fedbench.core.words import did_you_mean, explain


class Refusals:
    """Gathers what is wrong with a suite while it is planned."""

    def __init__(self, loaded: LoadedSuite, resolved: Resolved) -> None:
        self.loaded, self.resolved = loaded, resolved
        self.problems: list[str] = []
        rows = {
            "defense": resolved.defenses,
            "attack": resolved.attacks,
            "analysis": resolved.analyses,
        }
        used = [(kind, use) for kind, uses in rows.items() for use in uses]
        used += [
            (kind, getattr(setting, kind))
            for setting in resolved.settings
            for kind in ("dataset", "model")
        ]
        self._packages = {f"{kind} '{use.name}'": f"{kind} {use}" for kind, use in used}

    def raise_all(self) -> None:
        """``UserError`` with everything noted, if there is anything."""
        if self.problems:
            raise UserError(*dict.fromkeys(self.problems))

    def place_of(self, kind: str, use: ComponentUse) -> str:
        """File, line and column of a defense, an attack or an analysis."""
        return self._place(self.resolved.positions[kind, use.label])

    def place_of_setting(self, i: int) -> str:
        """The same of a setting, and its name."""
        name = self.loaded.spec.settings[i].name
        return f"{self._place(self.loaded.position(('settings', i)))}: setting '{name}'"

    def _place(self, position: tuple[int, int]) -> str:
        return f"{self.loaded.path}:{position[0]}:{position[1]}"

    def ask(self, place: str, who: str, question: Callable[[], Any]) -> Any:
        """The result of plugin code, or None with its failure noted. ``who`` of a component is
        extended by its package.
        """
        who = self._packages.get(who, who)
        try:
            with at_work(f"{place}: {who}"):
                return question()
        except UserError as error:
            self.problems += [f"{place}: {message}" for message in error.messages]
        except BaseException as error:
            pass_on_interrupt(error)
            self.problems.append(f"{place}: {who}: {explain(error)}")
        return None

    def known_labels(self, i: int, kind: str, labels: list[str]) -> list[str]:
        """Those of ``labels`` that a setting's ``defenses`` or ``attacks`` name, each or by the
        label of their grid; all where it names none.
        """
        names = getattr(self.loaded.spec.settings[i], kind)
        if names is None:
            return labels
        grids = dict.fromkeys(grid_of(label) for label in labels)
        for j, name in enumerate(names):
            if name not in labels and name not in grids:
                known = [*grids, *(label for label in labels if label not in grids)]
                text = (
                    f"unknown label '{name}'{did_you_mean(name, known)}; the suite's are "
                    f"{', '.join(known)}"
                )
                place = self._place(self.loaded.position(("settings", i, kind, j)))
                self.problems.append(f"{place}: settings[{i}].{kind}[{j}]: {text}")
        return [label for label in labels if label in names or grid_of(label) in names]

    def adversary_misfits(self, i: int, coalition: Coalition, first: int) -> bool:
        """Whether no honest client is left, or a malicious one (from id ``first`` on) is named as a
        member or a target.

        Asked here, not of the file alone: a setting that names no adversary has one where an active
        attack takes part.
        """
        setting: Setting = self.loaded.spec.settings[i]
        found: list[str] = []
        targets = [] if isinstance(setting.audit.targets, str) else setting.audit.targets
        if first < 1:
            found.append(
                "an active attack controls a client, which leaves no honest one: raise "
                "federation.clients"
            )
        else:
            found += [
                f"{what} names client {k}, which is malicious (those from {first} on are): {remedy}"
                for what, ids, remedy in (
                    (
                        "audit.targets",
                        targets,
                        "an adversary does not attack its own clients; remove it",
                    ),
                    (
                        f"the coalition '{coalition.name}'",
                        coalition.ids,
                        "who attacks does not defend; remove it",
                    ),
                )
                for k in ids
                if k >= first
            ]
        self.problems += [f"{self.place_of_setting(i)}: {text}" for text in found]
        return bool(found)

    def note_twins(self, kept: Job, job: Job) -> None:
        """Refuse two rows of the suite that are one training: they would be one row of the
        board.
        """
        kinds = ("setting", "coalition", "defense")
        one, two = ((j.setting.name, j.coalition, j.defense.label) for j in (kept, job))
        for kind, a, b in zip(kinds, one, two, strict=True):
            if a != b:
                same = (
                    f"hold the same clients {job.who}"
                    if kind == "coalition"
                    else "are the same in all that counts"
                )
                remedy = "remove one"
                if kept.adversary != job.adversary:
                    passive = ", ".join(cell.attack.label for cell in job.cells)
                    same = f"differ in their adversary alone, which does not act under {passive}"
                    remedy = "give all of them but one `attacks:` without these"
                where = f"{self.loaded.path}: setting '{job.setting.name}'"
                self.problems.append(f"{where}: the {kind}s '{a}' and '{b}' {same}: {remedy}")
