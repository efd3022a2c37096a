"""Rows of a plan: every defense in every coalition of every setting, with its attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.declarations import Declared
from fedbench.core.run.refusals import Refusals
from fedbench.core.spec.resolve import ResolvedSetting
from fedbench.core.spec.setting import Adversary, groups_of, resolve_coalition

Declaration = tuple[ComponentUse, Declared]


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A defense in a coalition of a setting, with its attacks."""

    i: int
    """position of the setting"""
    coalition: str
    members: tuple[int, ...]
    """of the coalition"""
    coalitions: tuple[tuple[int, ...], ...]
    """members of each of several coalitions"""
    use: ComponentUse
    defense: Declared
    attacks: list[Declaration]
    adversary: Adversary | None
    observed: tuple[int, ...] = ()
    """for an undefended row beside a coalition's, the clients of that coalition"""

    def require_members(self) -> None:
        """Raise ``UserError`` for a coalition, or one of several, of fewer clients than the defense
        takes.
        """
        least = self.defense.least_members
        for group in self.coalitions or (self.members,):
            if not 0 < len(group) < least:
                continue
            clients = f"clients {', '.join(map(str, group))} are"
            if len(group) == 1:
                clients = f"client {group[0]} is"
            raise UserError(
                f"'{self.use.label}' takes {least} clients or more, and in the coalition "
                f"'{self.coalition}' {clients} alone: add clients to it, or choose a mode of the "
                "defense in which every member defends by itself"
            )


def planned_rows(
    refusals: Refusals,
    settings: set[str] | None,
    defenses: list[Declaration],
    attacks: list[Declaration],
) -> Iterator[PlannedRow]:
    """Return the rows of these settings, by default of all, in the order of the file. Mistakes in
    the names that a setting gives are noted.
    """
    for i, setting in enumerate(refusals.resolved.settings):
        if settings is None or setting.spec.name in settings:
            yield from _rows_of_setting(refusals, i, setting, defenses, attacks)


def _rows_of_setting(
    refusals: Refusals,
    i: int,
    setting: ResolvedSetting,
    defenses: list[Declaration],
    attacks: list[Declaration],
) -> Iterator[PlannedRow]:
    clients = setting.spec.federation.clients
    judges = _named(refusals, i, "attacks", attacks)
    adversary = setting.spec.adversary
    if adversary is None and any(attack.active for _, attack in judges):
        adversary = Adversary()
    for coalition in setting.coalitions:
        members = tuple(resolve_coalition(coalition, clients))
        if adversary:
            first = clients - adversary.malicious(clients)
            if refusals.adversary_misfits(i, coalition, first):
                continue
            members = tuple(k for k in members if k < first)  # who attacks does not defend
        for use, defense in _named(refusals, i, "defenses", defenses):
            if not members and use.label in refusals.resolved.floors:
                continue  # a floor stands for a coalition, and there is none
            components = {part.name for part in use.chain}
            row = PlannedRow(
                i=i,
                coalition=coalition.name,
                members=members,
                coalitions=groups_of(coalition),
                use=use,
                defense=defense,
                attacks=[judge for judge in judges if _judges(judge[1], components)],
                adversary=adversary,
            )
            if defense.in_coalition:
                yield row
            else:
                yield from _undefended(row, setting)


def _judges(attack: Declared, components: set[str]) -> bool:
    """Return whether an attack judges a defense of these components: an adaptive one is against
    one of them.
    """
    against = attack.request.against
    return not against or not against.isdisjoint(components)


def _named(
    refusals: Refusals,
    i: int,
    kind: str,
    components: list[Declaration],
) -> list[Declaration]:
    """Return the ``defenses`` or ``attacks`` that a setting runs: all, or those it names (floors
    too must be named there).
    """
    labels = refusals.labels_of_setting(i, kind, [use.label for use, _ in components])
    return [component for component in components if component[0].label in labels]


def _undefended(row: PlannedRow, setting: ResolvedSetting) -> Iterator[PlannedRow]:
    """Return the rows of a defense that has no members: one for all coalitions and, for attacks on
    a coalition's mean, one for each coalition, with the mean of the clients that defend in the rows
    beside it.
    """
    clients = setting.spec.federation.clients
    defended = any(resolve_coalition(coalition, clients) for coalition in setting.coalitions)
    on_mean: list[Declaration] = []
    rest: list[Declaration] = []
    for use, attack in row.attacks:
        watches = defended and attack.request.view == "coalition" and not attack.active
        (on_mean if watches else rest).append((use, attack))
    yield replace(row, coalition="none", members=(), coalitions=(), attacks=rest)
    if row.members and on_mean:
        yield replace(row, members=(), observed=row.members, attacks=on_mean)
