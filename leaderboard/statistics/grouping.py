"""Records to the sections of a board, by setting, coalition and view, and to their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import Any, TypeVar

from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.statistics.rows import UNDEFENDED, AttackEntry, DefenseRow
from fedbench.leaderboard.statistics.scores import SectionScores
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.verdict import LeakStatistics

_COALITIONS = ("none", "pair", "half", "uniform")
Refuted = Callable[[LoadedRecord], bool] | None
"""whether a record was run again here and not reproduced; None: no record"""
Item = TypeVar("Item")
Key = TypeVar("Key", bound=str | int | tuple[Any, ...])


def build_sections(records: Iterable[LoadedRecord], refuted: Refuted = None) -> list[BoardSection]:
    """Build the sections of a board, in the order of suite, setting, coalition, view.

    A section of coalition C has the rows of C and, restricted to the targets of C, those in which
    no client defends: the undefended federation and the server's rules, trained once for all
    coalitions. With such rows alone, the one section is that of coalition ``none``. Runs of tuning
    seeds make sections of their own, each an attribute of the one of the reported seeds.
    """
    current, _ = newest(records)
    tuning = {_place(s): s for s in _sections(filter(of_tuning, current), refuted)}
    reported = _sections(filterfalse(of_tuning, current), refuted)
    return [replace(section, tuning=tuning.get(_place(section))) for section in reported]


def of_tuning(loaded: LoadedRecord) -> bool:
    """Tell whether the record is of a seed on which strengths are chosen, and so is in no table of
    reported numbers.
    """
    return loaded.record.described.get("tuning") is True


def newest(records: Iterable[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """Split records into (current, superseded): of several records of one cell, as a change of code
    leaves them, the latest counts; one that was measured here comes before imported ones.
    """

    def cell(loaded: LoadedRecord) -> tuple[Any, ...]:
        r = loaded.record
        return r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.seed

    def order(loaded: LoadedRecord) -> tuple[Any, ...]:
        return not loaded.bundle, loaded.record.measured.started, loaded.record.key

    current, superseded = [], []
    for _, group in _grouped(records, cell):
        *earlier, latest = sorted(group, key=order)
        current.append(latest)
        superseded += earlier
    return current, superseded


def _place(section: BoardSection) -> tuple[str, str, str, str]:
    return section.suite, section.setting, section.coalition, section.view


def _sections(records: Iterable[LoadedRecord], refuted: Refuted) -> list[BoardSection]:
    sections = []
    for (suite, setting), group in _grouped(records, lambda r: (r.record.suite, r.record.setting)):
        shared, of_coalitions = _coalition_free(group)
        coalitions = _grouped(of_coalitions, lambda r: _coalition_order(r.record.coalition))
        for (_, coalition), defended in coalitions or [(("", "none"), [])]:
            # where no client defends, the targets are those of all records: there are no members to
            # take in their place
            judged = [*defended, *shared]
            targets = _targets(judged if coalition == "none" else defended or shared)
            counted = [r for r in judged if r.record.seed in targets]
            views = _views(counted)
            for view in sorted(set(views.values())):
                of_view = [r for r in counted if views[r.record.attack.label] == view]
                rows = _rows(of_view, targets, refuted)
                attacks = tuple(rows[0].entries)
                sections.append(
                    BoardSection(
                        suite=suite,
                        setting=setting,
                        coalition=coalition,
                        view=view,
                        attacks=attacks,
                        targets=targets,
                        unordered_rows=rows,
                        comparison=_statistics(rows, attacks, targets),
                    )
                )
    return sections


def _statistics(
    rows: tuple[DefenseRow, ...], attacks: Sequence[str], targets: dict[int, tuple[int, ...]]
) -> LeakStatistics:
    units = []
    for seed, of_seed in targets.items():
        units += [(seed, target) for target in of_seed]
    judging = []
    for attack in attacks:
        if attack not in rows[0].left_out and not rows[0].entries[attack].adaptive:
            judging.append(attack)
    return LeakStatistics(SectionScores(rows, units), judging)


def _coalition_free(group: Sequence[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """Split into (rows of every section, rows of their coalition's): the former are of coalition
    ``none`` and defended in no other. Of the latter are attacks on the mean of a coalition's
    clients where no client defends.
    """
    defending = set()
    for r in (loaded.record for loaded in group):
        if r.coalition != "none" and (r.members or r.view != "coalition"):
            defending.add(r.defense.label)

    def free(loaded: LoadedRecord) -> bool:
        r = loaded.record
        undefended = r.defense.full_name == UNDEFENDED
        return r.coalition == "none" and (undefended or r.defense.label not in defending)

    return list(filter(free, group)), list(filterfalse(free, group))


def _views(records: list[LoadedRecord]) -> dict[str, str]:
    """Attack label -> view. A cell that failed before its attack was made does not have it; one
    with scores does.
    """

    def certainty(loaded: LoadedRecord) -> tuple[bool, bool]:
        return loaded.record.outcome == "ok", loaded.record.utility is not None

    ordered = sorted(records, key=certainty)
    return {r.record.attack.label: r.record.view for r in ordered}


def _coalition_order(name: str) -> tuple[str, str]:
    place = str(_COALITIONS.index(name)) if name in _COALITIONS else "9"
    return place, name


def _targets(records: list[LoadedRecord]) -> dict[int, tuple[int, ...]]:
    """Targets by seed: those that were judged or, where no cell of a seed has scores, the
    members.
    """
    targets = {}
    for seed, of_seed in _grouped(records, lambda loaded: loaded.record.seed):
        judged: set[int] = set()
        for loaded in of_seed:
            judged.update(target.target for target in loaded.record.targets)
        members = next(filter(None, (loaded.record.members for loaded in of_seed)), ())
        targets[seed] = tuple(sorted(judged or set(members)))
    return targets


def _rows(
    records: list[LoadedRecord], targets: dict[int, tuple[int, ...]], refuted: Refuted
) -> tuple[DefenseRow, ...]:
    """Return the rows, and of each the entries, by name."""
    attacks = sorted({r.record.attack.label for r in records})
    against = {r.record.attack.label: r.record.against for r in records if r.record.against}
    rows = []
    for label, group in _grouped(records, lambda r: r.record.defense.label):
        by_attack: dict[str, dict[int, LoadedRecord]] = {a: {} for a in attacks}
        for loaded in group:
            by_attack[loaded.record.attack.label][loaded.record.seed] = loaded
        defense = group[0].record.defense
        components = {part.name for part in defense.chain}
        entries = {}
        for attack, by_seed in by_attack.items():
            judges = attack not in against or not components.isdisjoint(against[attack])
            judged = targets if judges else {}
            entries[attack] = AttackEntry(attack, by_seed, judged, attack in against)
        name = defense.full_name
        is_refuted = refuted is not None and any(map(refuted, group))
        rows.append(DefenseRow(label, name, entries, tuple(targets), is_refuted))
    left_out = _left_out(rows, attacks)
    return tuple(replace(row, left_out=left_out) for row in rows)


def _left_out(rows: Sequence[DefenseRow], attacks: Sequence[str]) -> frozenset[str]:
    """Return the attacks that are broken in some row that has another one whole: ranks are over the
    others.

    None where every attack is broken somewhere: the rows without all scores then have no rank.
    """
    broken: set[str] = set()
    for row in rows:
        complete = [entry for entry in row.entries.values() if entry.complete]
        if complete and not (row.floor or row.refuted):
            broken.update(attack for attack in attacks if row.entries[attack].broken)
    if len(broken) == len(attacks):
        return frozenset()
    return frozenset(broken)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda group: group[0])
