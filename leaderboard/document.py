"""The board as Markdown, from records alone: the same records give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.core import UserError
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Group, Score
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Table, build_tables, newest
from fedbench.leaderboard.compare import Comparison, compare
from fedbench.leaderboard.decisions import decision_tables
from fedbench.leaderboard.foot import cells_without_scores, provenance
from fedbench.leaderboard.migration import migration_table
from fedbench.leaderboard.papers import match, section
from fedbench.leaderboard.rounds import round_table
from fedbench.leaderboard.setting import describe
from fedbench.leaderboard.society import group_names, society_tables, whose
from fedbench.leaderboard.sweep import sweep_table
from fedbench.leaderboard.tables import (
    accuracy_under_attack,
    auc_table,
    group_table,
    paired_table,
    pareto_table,
    remarks,
    tf01_table,
)

REGENERATE = "fedbench leaderboard RESULTS"

READING = """\
How to read it: an attack's AUC is the chance that it ranks a member above a non-member; 0.5 is guessing. TF01 is the
share of members it finds, in percent, while at most 0.1 % of the non-members are called members; `n/a` with fewer than
1,000 non-members. `±` is the half-width of a 95 % interval over seeds x targets (from 5 of them on, and never narrower
than what resampling members and non-members gives; with fewer, that alone). Lower is better; **bold** is the lowest
complete cell of a column. Rows are ranked by their worst case over the attacks; a row with scores missing has no rank.
Delta-accuracy is paired with the undefended run of the same seed, in percentage points of test accuracy; runtime is
training CPU time relative to that run (n/a across different machines)."""


def render_board(
    records: Sequence[LoadedRecord],
    title: str,
    regenerate: str = REGENERATE,
    plots: Mapping[tuple[str, str, str, str], Sequence[str]] | None = None,
    superseded: int = 0,
    reference: Sequence[dict[str, Any]] = (),
) -> str:
    """Markdown board of ``records``.

    ``regenerate``: the command shown as the way to make it again. ``plots``: relative paths of images by (suite,
    setting, coalition, view). ``superseded``: how many records were left out before the call. ``reference``: the
    suite's entries of published numbers. Raises UserError when
    records that must share their candidates do not.
    """
    current, old = newest(records)
    tables = build_tables(current)
    made = f"Regenerate: `{_code(regenerate)}`. Made from {len(current)} records."
    parts = [f"# {text.escape(title)}", made, READING]
    if superseded + len(old):
        parts.append(f"{superseded + len(old)} records of earlier code, parameters or plans are not shown.")
    several = len({t.suite for t in tables}) > 1
    for i, table in enumerate(tables):
        previous = tables[i - 1] if i else None
        if previous is None or (previous.suite, previous.setting) != (table.suite, table.setting):
            name = f"{table.suite}: {table.setting}" if several else table.setting
            same = [t for t in tables if (t.suite, t.setting) == (table.suite, table.setting)]
            parts += [f"## Setting {text.escape(name)}", describe([r for t in same for r in t.records])]
        parts += _section(table, (plots or {}).get((table.suite, table.setting, table.coalition, table.view), ()))
    if reference:
        parts += _beside_papers(reference, tables)
    parts += cells_without_scores(tables)
    parts.append(provenance(current))
    return "\n\n".join(parts) + "\n"


def _beside_papers(reference: Sequence[dict[str, Any]], tables: Sequence[Table]) -> list[str]:
    """The published numbers; an entry that fits no paper is said, and costs nobody the board."""
    matches, wrong = [], []
    for entry in reference:
        try:
            matches += match(entry, tables)
        except UserError as error:
            wrong.append(f"- {text.escape(error, 400)}")
    return section(matches) + (["\n".join(wrong)] if wrong else [])


def _section(table: Table, plots: Sequence[str]) -> list[str]:
    compared: dict[str, Comparison] = compare(table)
    parts = [
        f"### Coalition {text.escape(table.coalition)}, {text.escape(table.view)} view",
        counts(table),
        "**AUC**", auc_table(table, compared),
        "**TF01 (%)**", tf01_table(table),
        *remarks(table),
        *decision_tables(table),
        *society_tables(table),
        *migration_table(table),
        *accuracy_under_attack(table),
        "**AUC by group of non-members** (worst: the strongest attack on that group)", group_table(table),
    ]  # fmt: skip
    if table.base is not None and len(table.rows) > 1:
        parts += ["**Mean AUC minus undefended**, over the attacks both have, on the same samples"]
        parts += [paired_table(table, compared)]
    parts += pareto_table(table, compared)
    parts += sweep_table(table, compared)
    parts += round_table(table)
    where = f"{table.setting}, coalition {table.coalition}, {table.view} view"
    for path in plots:
        what = _PLOTS.get(path.partition("-")[0], "Privacy against utility")
        parts.append(f"![{what}: {text.escape(where)}]({path})")
    return parts


_PLOTS = {"roc": "ROC curves", "sweep": "Strengths of the defenses", "accuracy": "Attack accuracy by defense",
          "groups": "Groups of clients"}  # fmt: skip


def counts(table: Table) -> str:
    """The n behind every number of the table, and who the targets are."""
    seeds = len(table.targets)
    runs = f"{seeds} {'seed' if seeds == 1 else 'seeds'} x targets"
    line = f"n = {len(table.units)} a cell ({runs}) unless it says otherwise"
    if mix := _scores(table, "mix"):
        line += f"; per target {text.span([s.n_members for s in mix])} members and "
        line += f"{text.span([s.n_nonmembers for s in mix])} non-members"
    kinds: tuple[tuple[Group, str], ...] = (
        ("ofl", "from outside the federation"),
        ("ifl", "from other clients"),
    )
    for group, what in kinds:
        if scores := _scores(table, group):
            line += f", {text.span([s.n_nonmembers for s in scores])} {what}"
    by_targets: dict[tuple[int, ...], list[int]] = {}
    for seed, targets in table.targets.items():
        by_targets.setdefault(targets, []).append(seed)
    said = {t: whose(t, group_names(table)) for t in by_targets}
    targets_of = [f"{said[t]} (seed {_ids(s)})" if len(by_targets) > 1 else said[t] for t, s in by_targets.items()]
    return f"{line}. Targets: {'; '.join(targets_of)}."


def _scores(table: Table, group: Group) -> list[Score]:
    return [s for row in table.rows for cell in row.cells.values() for s in cell.units(group).values()]


def _ids(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:20]))
    return shown if len(values) <= 20 else f"{shown}, … ({len(values)})"


def _code(command: str) -> str:
    return " ".join(command.replace("`", "'").split())


def summary_table(records: Sequence[LoadedRecord]) -> tuple[list[str], list[list[str]]]:
    """(headers, rows) for a terminal: one row a defense of each setting, coalition and view, in the board's order.

    Cells are plain text, not escaped for any markup. Skipped, failed and missing cells are counted in the last column.
    """
    headers = ["setting", "coalition", "view", "#", "defense", "worst AUC", "by", "mean AUC", "worst TF01 %",
               "delta-acc pp", "runtime", "cells"]  # fmt: skip
    rows = []
    for table in build_tables(records):
        compared = compare(table)
        for rank, row in enumerate(table.rows, 1):
            worst, tf01, c = row.worst("auc"), row.worst("tf01"), compared[row.label]
            rows.append([
                table.setting, table.coalition, table.view, str(rank) if row.complete else "-", row.label,
                text.number(worst[1] if worst else None, 3), worst[0] if worst else "",
                text.interval(c.mean_auc, 3), text.number(tf01[1] if tf01 else None, 2),
                text.interval(c.delta_accuracy, 2, signed=True, scale=100),
                "n/a" if c.runtime is None else f"{c.runtime:.2f}x",
                ", ".join(f"{n} {what}" for what, n in sorted(row.outcomes.items()) if n),
            ])  # fmt: skip
    return headers, rows
