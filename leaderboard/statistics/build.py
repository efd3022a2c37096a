"""Records sorted into the sections of a board: one for each setting, coalition and view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.entry import Entry
from fedbench.leaderboard.statistics.row import UNDEFENDED, Row
from fedbench.leaderboard.statistics.section import Section

_COALITIONS = ("none", "pair", "half", "uniform")
Key = TypeVar("Key", bound=str | tuple[Any, ...])


def build_sections(records: Iterable[LoadedRecord]) -> list[Section]:
    """The sections of a board, in the order of suite, setting, coalition, view.

    A section of coalition C holds the rows of C and, restricted to the targets of C, those that no client defends in: the
    undefended federation and the server's rules, trained once for all coalitions. With such rows alone, the one section is
    that of coalition ``none``. Runs of tuning seeds make sections of their own, each beside the one of the reported seeds.
    """
    current, _ = newest(records)
    beside = {_place(s): s for s in _sections([r for r in current if of_tuning(r)])}
    return [replace(s, tuning=beside.get(_place(s))) for s in _sections([r for r in current if not of_tuning(r)])]


def of_tuning(loaded: LoadedRecord) -> bool:
    """Whether the record is of a seed on which strengths are chosen, and so counts in no table of what is reported."""
    return loaded.record.described.get("tuning") is True


def _place(section: Section) -> tuple[str, str, str, str]:
    return section.suite, section.setting, section.coalition, section.view


def _sections(records: Sequence[LoadedRecord]) -> list[Section]:
    sections = []
    for (suite, setting), group in _grouped(records, lambda r: (r.record.suite, r.record.setting)):
        shared, own_rows = _coalition_free(group)
        coalitions = _grouped(own_rows, lambda r: _coalition_order(r.record.coalition)) or [(("", "none"), [])]
        for (_, coalition), own in coalitions:
            # where nobody defends, whoever was judged tells the targets: there are no members to stand in for them
            targets = _targets([*own, *shared] if coalition == "none" else own or shared)
            shown = own + [r for r in shared if r.record.seed in targets]
            views = _views(shown)
            for view in sorted(set(views.values())):
                seen = [r for r in shown if views[r.record.attack.label] == view]
                attacks, rows = _rows(seen, targets)
                contest = Contest(rows, attacks, [(seed, t) for seed, own_targets in targets.items() for t in own_targets])
                sections.append(Section(
                    suite=suite, setting=setting, coalition=coalition, view=view, attacks=attacks, targets=targets,
                    found=rows, contest=contest,
                ))  # fmt: skip
    return sections


def newest(records: Iterable[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(current, superseded): of several records of one cell, as a change of code leaves them, the latest counts."""
    by_cell = _grouped(records, _cell_name)
    ordered = [sorted(group, key=lambda r: (r.record.measured.started, r.record.key)) for _, group in by_cell]
    return [g[-1] for g in ordered], [r for g in ordered for r in g[:-1]]


def _cell_name(loaded: LoadedRecord) -> tuple[Any, ...]:
    r = loaded.record
    return r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.seed


def _coalition_free(group: Sequence[LoadedRecord]) -> tuple[list[LoadedRecord], list[LoadedRecord]]:
    """(rows of every section, rows of their coalition's): the former are of coalition ``none`` and defended in no other. Of the
    latter are attacks on the mean of a coalition's clients where nobody defends."""
    beside = [r for r in group if r.record.coalition != "none"]
    defending = {r.record.defense.label for r in beside if r.record.members or r.record.view != "coalition"}

    def free(r: LoadedRecord) -> bool:
        return r.record.coalition == "none" and (
            r.record.defense.full_name == UNDEFENDED or r.record.defense.label not in defending
        )

    return [r for r in group if free(r)], [r for r in group if not free(r)]


def _views(records: list[LoadedRecord]) -> dict[str, str]:
    """Attack label -> view. A cell that failed before its attack was made does not know; one with scores does."""
    ordered = sorted(records, key=lambda r: (r.record.outcome == "ok", r.record.utility is not None))
    return {r.record.attack.label: r.record.view for r in ordered}


def _coalition_order(name: str) -> tuple[str, str]:
    return (str(_COALITIONS.index(name)) if name in _COALITIONS else "9"), name


def _targets(records: list[LoadedRecord]) -> dict[int, tuple[int, ...]]:
    """Targets by seed: those that were judged or, where no cell of a seed has scores, the members."""
    found: dict[int, set[int]] = {}
    for loaded in records:
        found.setdefault(loaded.record.seed, set()).update(t.target for t in loaded.record.targets)
    for loaded in records:
        if not found[loaded.record.seed]:
            found[loaded.record.seed] = set(loaded.record.members)
    return {seed: tuple(sorted(targets)) for seed, targets in sorted(found.items())}


def _rows(
    records: list[LoadedRecord], targets: dict[int, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """(attacks, rows), by name."""
    attacks = tuple(sorted({r.record.attack.label for r in records}))
    rows = []
    for label, group in _grouped(records, lambda r: r.record.defense.label):
        by_attack: dict[str, dict[int, LoadedRecord]] = {a: {} for a in attacks}
        for loaded in group:
            by_attack[loaded.record.attack.label][loaded.record.seed] = loaded
        entries = {a: Entry(a, found, targets) for a, found in by_attack.items()}
        rows.append(Row(label, group[0].record.defense.full_name, entries, tuple(targets)))
    return attacks, tuple(rows)


def _grouped(
    records: Iterable[LoadedRecord], key: Callable[[LoadedRecord], Key]
) -> list[tuple[Key, list[LoadedRecord]]]:
    groups: dict[Key, list[LoadedRecord]] = {}
    for loaded in records:
        groups.setdefault(key(loaded), []).append(loaded)
    return sorted(groups.items(), key=lambda item: item[0])
