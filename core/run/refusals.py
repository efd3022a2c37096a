"""Mistakes of a suite that planning finds, each with its place in the file, reported together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.declarations import Declared
from fedbench.core.run.job import Job
from fedbench.core.spec.base import grid_of
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.setting import Coalition
from fedbench.core.words import did_you_mean, explain


class Refusals:
    """Gathers what is wrong with a suite while it is planned."""

    def __init__(self, loaded: LoadedSuite, resolved: Resolved) -> None:
        self.loaded = loaded
        self.resolved = resolved
        self.problems: list[str] = []

    def raise_all(self) -> None:
        """Raise ``UserError`` with everything noted, if there is anything."""
        if self.problems:
            raise UserError(*dict.fromkeys(self.problems))

    def place_of(self, kind: str, use: ComponentUse) -> str:
        """Return file, line and column of a defense, an attack or an analysis."""
        return self._place(self.resolved.positions[kind, use.label])

    def place_of_setting(self, i: int) -> str:
        """Return file, line, column and name of a setting."""
        name = self.loaded.spec.settings[i].name
        return f"{self._place(self.loaded.position(('settings', i)))}: setting '{name}'"

    def _place(self, position: tuple[int, int]) -> str:
        return f"{self.loaded.path}:{position[0]}:{position[1]}"

    def ask(
        self,
        place: str,
        party: str,
        question: Callable[[], Any],
    ) -> Any:
        """Return the result of plugin code, or None with its failure noted."""
        try:
            with at_work(f"{place}: {party}"):
                return question()
        except UserError as error:
            self.problems += [f"{place}: {message}" for message in error.messages]
        except BaseException as error:
            pass_on_interrupt(error)
            self.problems.append(f"{place}: {party}: {explain(error)}")
        return None

    def labels_of_setting(
        self,
        i: int,
        kind: str,
        labels: list[str],
    ) -> list[str]:
        """Return those of ``labels`` that a setting's ``defenses`` or ``attacks`` name, each or by
        the label of their grid; all where it names none.
        """
        names = getattr(self.loaded.spec.settings[i], kind)
        if names is None:
            return labels
        grids = dict.fromkeys(grid_of(label) for label in labels)
        good = list(dict.fromkeys([*grids, *labels]))
        for j, name in enumerate(names):
            if name not in good:
                place = self._place(self.loaded.position(("settings", i, kind, j)))
                self.problems.append(
                    f"{place}: settings[{i}].{kind}[{j}]: unknown label '{name}'"
                    f"{did_you_mean(name, good)}; the suite's are {', '.join(good)}"
                )
        return [label for label in labels if label in names or grid_of(label) in names]

    def adversary_misfits(
        self,
        i: int,
        coalition: Coalition,
        first: int,
    ) -> bool:
        """Return whether no honest client is left, or a malicious one (from id ``first`` on) is
        named as a member or a target.

        The file alone does not tell: a setting that names no adversary has one where an active
        attack takes part.
        """
        targets = self.loaded.spec.settings[i].audit.targets
        problems = []
        if first < 1:
            problems.append(
                "an active attack controls a client, which leaves no honest one: raise "
                "federation.clients"
            )
        elif not isinstance(targets, str):
            remedy = "an adversary does not attack its own clients; remove it"
            problems += _malicious("audit.targets", targets, first, remedy)
        if first >= 1:
            remedy = "who attacks does not defend; remove it"
            problems += _malicious(
                f"the coalition '{coalition.name}'", coalition.ids, first, remedy
            )
        self.problems += [f"{self.place_of_setting(i)}: {text}" for text in problems]
        return bool(problems)

    def note_unmatched(
        self,
        defenses: Sequence[tuple[ComponentUse, Declared]],
        attacks: Sequence[tuple[ComponentUse, Declared]],
    ) -> None:
        """Refuse an adaptive attack on a defense that no row of the suite has."""
        names = {part.name for use, _ in defenses for part in use.chain}
        for use, attack in attacks:
            against = attack.request.against
            if against and against.isdisjoint(names):
                self.problems.append(
                    f"{self.place_of('attack', use)}: attack '{use.label}' is against "
                    f"{', '.join(sorted(against))}, and no defense of the suite has one of them: "
                    "add such a defense, or remove the attack"
                )

    def note_twins(self, earlier: Job, job: Job) -> None:
        """Refuse two rows of a suite that are one training: they would be one row of the board."""
        kinds = {
            "setting": (earlier.setting.name, job.setting.name),
            "coalition": (earlier.coalition, job.coalition),
            "defense": (earlier.defense.label, job.defense.label),
        }
        for kind, (a, b) in kinds.items():
            if a == b:
                continue
            reason = "are the same in all that counts"
            remedy = "remove one"
            if kind == "coalition":
                reason = f"hold the same clients {job.members_text}"
            if earlier.adversary != job.adversary:
                passive = ", ".join(cell.attack.label for cell in job.cells)
                reason = f"differ in their adversary alone, which does not act under {passive}"
                remedy = "give all of them but one `attacks:` without these"
            self.problems.append(
                f"{self.loaded.path}: setting '{job.setting.name}': the {kind}s '{a}' and '{b}' "
                f"{reason}: {remedy}"
            )


def _malicious(
    party: str,
    clients: list[int],
    first: int,
    remedy: str,
) -> list[str]:
    return [
        f"{party} names client {k}, which is malicious (those from {first} on are): {remedy}"
        for k in clients
        if k >= first
    ]
