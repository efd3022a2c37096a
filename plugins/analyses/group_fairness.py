"""Groups of clients side by side: accuracy, fairness, what attacks find in each, broken bounds and migration (IFCA-MIR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from fedbench.core.metrics import Interval, combined_interval
from fedbench.core.population.audit import FIRST_GROUP, HONEST
from fedbench.core.store.record import GroupFacts, RoundRow, Society, Violations
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Cell, Row, Table
from fedbench.leaderboard.compare import utility_run
from fedbench.leaderboard.decisions import attack_accuracy, deciding

GAPS = {
    "demographic_parity": "demographic parity", "equal_opportunity": "equal opportunity", "equalised_odds": "equalised odds",
}  # fmt: skip
MAX_CLUSTERS = 6  # of which every size is printed


def whose(targets: Sequence[int], names: Sequence[str]) -> str:
    """Targets in words: clients, all honest clients, or groups by ``names``."""
    if tuple(targets) == (HONEST,):
        return "all honest clients together"
    clients = [t for t in targets if t >= 0]
    groups = [FIRST_GROUP - t for t in sorted(targets, reverse=True) if t <= FIRST_GROUP]
    shown = [f"group {text.escape(names[g] if g < len(names) else g)}" for g in groups]
    if clients or not shown:
        ids = ", ".join(map(str, clients[:20])) + (f", … ({len(clients)})" if len(clients) > 20 else "")
        shown.append(f"clients {ids}")
    return ", ".join(shown)


def group_names(table: Table) -> list[str]:
    """Names of the setting's groups, in the order of the targets -10, -11, ...; none where it has none."""
    for loaded in table.records:
        groups: Any = loaded.record.facts.get("groups")
        if isinstance(groups, list) and all(isinstance(g, dict) and "name" in g for g in groups):
            return [str(g["name"]) for g in groups]
    return []


def societies(table: Table, row: Row) -> list[Society]:
    """One a seed: that of the run which stands for the row's accuracy."""
    runs = [utility_run(row, seed) for seed in table.targets]
    return [found for run in runs if run and (found := run[0].record.society) is not None]


def group_accuracy(found: Sequence[Society], name: str) -> Interval | None:
    """Mean test accuracy of a group over seeds, with its 95 % interval; fractions."""
    mine = [g for s in found for g in s.groups if g.name == name and g.n_test > 0]
    ses = [np.sqrt(g.accuracy * (1 - g.accuracy) / g.n_test) for g in mine]
    return combined_interval([g.accuracy for g in mine], ses) if mine else None


def gap(found: Sequence[Society], kind: str) -> Interval | None:
    """Mean over seeds of one of ``GAPS``, with its 95 % interval."""
    if not found:
        return None
    return combined_interval([getattr(s, kind) for s in found], [getattr(s, f"{kind}_se") for s in found])


def of_group(cell: Cell, groups: Sequence[GroupFacts], g: int) -> Cell:
    """The cell with the targets of one group alone: the group itself, or clients of its block of ids."""
    ends = list(accumulate(group.clients for group in groups))

    def mine(target: int) -> bool:
        return target == FIRST_GROUP - g or ends[g] - groups[g].clients <= target < ends[g]

    return replace(cell, targets={seed: tuple(filter(mine, targets)) for seed, targets in cell.targets.items()})


def violations_of(cell: Cell) -> list[Violations]:
    """One a seed with scores, in settings whose clients have bounds."""
    records = [cell.ok(seed) for seed in cell.targets]
    return [v for loaded in records if loaded is not None and (v := loaded.record.violations) is not None]


def violated(found: Sequence[Violations]) -> Interval | None:
    """Mean number of clients over seeds with its 95 % interval.

    Within a run: the binomial error of drawing so many bounds, one violation and one other client added (as
    ``accuracy_se`` does), since none among 200 clients is not none for certain.
    """
    if not found:
        return None
    shares = [(v.violated + 1) / (v.clients + 2) for v in found]
    ses = [v.clients * np.sqrt(p * (1 - p) / (v.clients + 2)) for v, p in zip(found, shares, strict=True)]
    return combined_interval([float(v.violated) for v in found], ses)


def histories(table: Table, row: Row) -> list[list[RoundRow]]:
    """The audited rounds of the run that stands for the row's accuracy, one list a seed."""
    return [run[0].record.history for seed in table.targets if (run := utility_run(row, seed))]


def cluster_sizes(found: Sequence[Sequence[RoundRow]]) -> list[float]:
    """Clients of each model in the last audited round, largest first, mean over seeds: models have no name over seeds."""
    sizes = [sorted(rows[-1].clusters, reverse=True) for rows in found if rows and rows[-1].clusters]
    if not sizes or len({len(s) for s in sizes}) > 1:
        return []
    return np.mean(sizes, axis=0).tolist()


def moves(found: Sequence[Sequence[RoundRow]]) -> float | None:
    """Changes of model from one audited round to the next, all rounds and clients together, mean over seeds."""
    totals = [sum(r.moved or 0 for r in rows) for rows in found if any(r.moved is not None for r in rows)]
    return float(np.mean(totals)) if totals else None


def society_tables(table: Table) -> list[str]:
    """Markdown: the groups under every defense, and under every attack; nothing where the setting has no groups."""
    by_row = {row.label: societies(table, row) for row in table.rows}
    first = next((s for found in by_row.values() for s in found), None)
    if first is None:
        return []
    parts = [
        "**Groups of clients**: test accuracy (%) of each group, and how far apart they are treated, 0 is fair (an absolute "
        "difference is above 0 for equals, too: compare it with its interval); clients of each global model in the last audited "
        "round, largest first, and changes of model between audited rounds, means over seeds",
        _side_by_side(table, by_row, [g.name for g in first.groups]),
    ]
    if attacks := deciding(table):
        parts += [
            "**MIA accuracy by group** in the last round, 0.5 is guessing, and violations: clients whose model the attack reads "
            "more accurately than they tolerate (interval over seeds, never narrower than the binomial one of their bounds)",
            _attacked(table, attacks, first.groups),
        ]
    return [*parts, "**AUC by group of clients** (the first table takes the groups together)", _aucs(table, first.groups)]


def _side_by_side(table: Table, by_row: dict[str, list[Society]], names: list[str]) -> str:
    rows = []
    for row in table.rows:
        found, past = by_row[row.label], histories(table, row)
        accuracies = [text.interval(group_accuracy(found, name), 1, scale=100) for name in names]
        gaps = [text.interval(gap(found, kind), 3) for kind in GAPS]
        rows.append([_name(row), *accuracies, *gaps, _sizes(cluster_sizes(past)), text.number(moves(past), 1)])
    headers = ["defense", *(f"accuracy {text.escape(n)}" for n in names), *GAPS.values(), "clients of each model", "moves"]
    return text.table(headers, rows)


def _sizes(sizes: Sequence[float]) -> str:
    if not sizes:
        return text.NOT_APPLICABLE
    if len(sizes) > MAX_CLUSTERS:
        return f"{len(sizes)} models of {sizes[0]:g} to {sizes[-1]:g}"
    return " / ".join(f"{s:.1f}".removesuffix(".0") for s in sizes)


def _attacked(table: Table, attacks: list[str], groups: Sequence[GroupFacts]) -> str:
    bounded = [a for a in attacks if any(violations_of(r.cells[a]) for r in table.rows)]
    headers, rows = ["defense"], [[_name(row)] for row in table.rows]
    for attack in attacks:
        headers += [f"{text.escape(attack)}: {text.escape(g.name)}" for g in groups]
        headers += [f"{text.escape(attack)}: violations"] if attack in bounded else []
        for row, line in zip(table.rows, rows, strict=True):
            cell = row.cells[attack]
            line += [text.interval(attack_accuracy(of_group(cell, groups, i)), 3) for i in range(len(groups))]
            line += [_count(violations_of(cell))] if attack in bounded else []
    return text.table(headers, rows)


def _count(found: Sequence[Violations]) -> str:
    clients = f" of {text.span([v.clients for v in found])}" if found else ""
    return text.interval(violated(found), 1) + clients


def _aucs(table: Table, groups: Sequence[GroupFacts]) -> str:
    headers = ["defense", *(f"{text.escape(a)}: {text.escape(g.name)}" for a in table.attacks for g in groups)]
    rows = [
        [_name(r), *(text.interval(of_group(r.cells[a], groups, i).interval("auc"), 3)
                     for a in table.attacks for i in range(len(groups)))]
        for r in table.rows
    ]  # fmt: skip
    return text.table(headers, rows)


def _name(row: Row) -> str:
    return text.escape(row.label) + (" (undefended)" if row.undefended else "")
