"""The tables of one setting, coalition and view."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedbench.core.metrics import Interval, hypervolume, pareto_front
from fedbench.core.store.record import Group
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Cell, Metric, Row, Table
from fedbench.leaderboard.compare import Comparison, adversary_of, stands_under, utility_run

DIGITS: dict[Metric, int] = {"auc": 3, "tf01": 2}


def auc_table(table: Table, compared: Mapping[str, Comparison]) -> str:
    """One row a defense: AUC against each attack, mean and worst case over attacks, and what the defense costs."""
    rows = []
    for front, row in _fronts(table):
        c = compared[row.label]
        runtime = text.NOT_APPLICABLE if c.runtime is None else f"{c.runtime:.2f}x"
        costs = [_delta(row, c), text.interval(c.accuracy, 1, scale=100), "1" if row.undefended else runtime]
        rows.append([*front, *_scores(table, row, "auc"), text.interval(c.mean_auc, 3), _worst(row, "auc"), *costs])
    ends = ["mean", "worst case", "delta-accuracy (pp)", "accuracy (%)", "runtime"]
    return text.table(["#", "defense", *map(text.escape, table.attacks), *ends], rows, left=2)


def tf01_table(table: Table) -> str:
    """The same rows in the same order: TF01 in percent, its mean and worst case over attacks."""
    rows = [
        [*front, *_scores(table, row, "tf01"), text.number(row.mean("tf01"), 2), _worst(row, "tf01")]
        for front, row in _fronts(table)
    ]
    return text.table(["#", "defense", *map(text.escape, table.attacks), "mean", "worst case"], rows, left=2)


def _fronts(table: Table) -> list[tuple[list[str], Row]]:
    """Rank and name of each row."""
    names = [f"{text.escape(r.label)} (undefended)" if r.undefended else text.escape(r.label) for r in table.rows]
    ranks = [str(i) if r.complete else "–" for i, r in enumerate(table.rows, 1)]  # noqa: RUF001
    return [([rank, name], row) for rank, name, row in zip(ranks, names, table.rows, strict=True)]


def _delta(row: Row, compared: Comparison) -> str:
    return "0" if row.undefended else text.interval(compared.delta_accuracy, 2, signed=True, scale=100)


def _scores(table: Table, row: Row, metric: Metric) -> list[str]:
    best = {a: _lowest(table, a, metric) for a in table.attacks}
    return [cell_text(table, row.cells[a], metric, best[a]) for a in table.attacks]


def _lowest(table: Table, attack: str, metric: Metric) -> float | None:
    """Smallest mean of a column over complete cells, as printed: equal print, equal rank."""
    cells = [r.cells[attack] for r in table.rows if r.cells[attack].complete]
    means = [round(i.mean, DIGITS[metric]) for c in cells if (i := c.interval(metric)) is not None]
    return min(means, default=None)


def cell_text(table: Table, cell: Cell, metric: Metric, best: float | None) -> str:
    """Value, interval, n where it is not the table's, and every outcome that is not ``ok``."""
    found = cell.interval(metric)
    bad = [f"{what} ({n}/{len(table.targets)})" for what, n in sorted(cell.outcomes.items()) if what != "ok" and n]
    if not cell.outcomes["ok"]:
        return ", ".join(bad)
    shown = text.interval(found, DIGITS[metric])
    if found and cell.complete and round(found.mean, DIGITS[metric]) == best:
        shown = f"**{shown}**"
    if found and found.n != len(table.units):
        shown += f" (n={found.n})"
    return ", ".join([shown, *bad])


def _worst(row: Row, metric: Metric, group: Group = "mix") -> str:
    worst = row.worst(metric, group)
    return f"{text.number(worst[1], DIGITS[metric])} {text.escape(worst[0])}" if worst else text.NOT_APPLICABLE


def remarks(table: Table) -> list[str]:
    """What the numbers alone do not say."""
    notes = []
    if all(len(r.cells[a].units("mix")) < 5 for r in table.rows for a in table.attacks):
        notes.append("Fewer than 5 seeds x targets: intervals hold the error from the candidates, not from training.")
    below = [
        f"{text.escape(r.label)} / {text.escape(a)}"
        for r in table.rows for a, c in r.cells.items() if (i := c.interval("auc")) and i.high < 0.5
    ]  # fmt: skip
    if below:
        notes.append(f"AUC below 0.5 by more than its interval (inverted, the scores would leak): {', '.join(below)}.")
    return notes


def group_table(table: Table) -> str:
    """AUC against each group of non-members: mean over attacks and the strongest attack."""
    groups = [g for g in _GROUPS if any(r.means("auc", g) for r in table.rows)]
    rows = []
    for front, row in _fronts(table):
        cells = [(text.number(row.mean("auc", g), 3), _worst(row, "auc", g)) for g in groups]
        rows.append([front[1], *(c for pair in cells for c in pair)])
    return text.table(["defense", *(f"{_GROUPS[g]} {w}" for g in groups for w in ("mean", "worst"))], rows)


_GROUPS: dict[Group, str] = {"ofl": "ofl (outside)", "ifl": "ifl (other clients)", "canary": "canary (mislabelled)"}


def paired_table(table: Table, compared: Mapping[str, Comparison]) -> str:
    """Mean AUC minus the undefended one."""
    rows = []
    for front, row in _fronts(table):
        if not row.undefended:
            d = compared[row.label].difference
            rows.append([front[1], text.interval(d, 3, signed=True), str(d.n if d else 0), _verdict(d)])
    return text.table(["defense", "difference", "n", "leaks"], rows)


def _verdict(difference: Interval | None) -> str:
    if difference is None or difference.half_width != difference.half_width:
        return text.NOT_APPLICABLE
    if difference.low <= 0 <= difference.high:
        return "no difference shown"
    return "less" if difference.high < 0 else "MORE"


def accuracy_under_attack(table: Table) -> list[str]:
    """Test accuracy of the runs that were trained with an active adversary inside; nothing where there are none."""
    shown: dict[str, dict[str, list[float]]] = {}
    for row in table.rows:
        for seed in table.targets:
            usual = {r.record.run_key for r in utility_run(row, seed)}
            for attack, cell in row.cells.items():
                loaded = cell.ok(seed)
                active = loaded and (adversary_of(loaded) or loaded.record.run_key not in usual)
                if loaded and active and loaded.record.utility:
                    shown.setdefault(attack, {}).setdefault(row.label, []).append(loaded.record.utility.accuracy)
    if not shown:
        return []
    attacks = sorted(shown)
    rows = [
        [front[1], *(text.number(_percent(shown[a].get(row.label)), 1) for a in attacks)]
        for front, row in _fronts(table)
    ]
    heading = "**Accuracy (%) with the active adversary in the federation** (the table above: without)"
    return [heading, text.table(["defense", *map(text.escape, attacks)], rows), *_under_attack(table)]


def _under_attack(table: Table) -> list[str]:
    """Which rows have no run without an adversary, so that the table above shows one with it."""
    under = [f"{text.escape(r.label)} ({text.escape(a)})" for r in table.rows if (a := stands_under(r)) is not None]
    if not under:
        return []
    return [
        "No passive run has scores for the following rows: their accuracy, delta-accuracy and runtime above are those of the "
        f"run under the attack in brackets, and compared with the undefended run under the same attack: {', '.join(under)}."
    ]


def _percent(shares: list[float] | None) -> float | None:
    return 100 * float(np.mean(shares)) if shares else None


def privacy_loss(table: Table) -> tuple[str, dict[str, float]]:
    """(what it is, row label -> value in [0, 1]) for the complete rows: the worst case over attacks.

    TF01 as a fraction where every row has it, else 2 AUC - 1 (below 0.5: 0).
    """
    rows = [r for r in table.rows if r.complete]
    worst = {r.label: r.worst("tf01") for r in rows}
    if rows and all(worst.values()):
        return "worst TF01 / 100", {label: w[1] / 100 for label, w in worst.items() if w}
    found = {r.label: r.worst("auc") for r in rows}
    return "2 x worst AUC - 1", {label: min(1.0, max(0.0, 2 * w[1] - 1)) for label, w in found.items() if w}


def pareto_table(table: Table, compared: Mapping[str, Comparison]) -> list[str]:
    """Front and hypervolume (FedMIA, reference (1, 1)) of the complete rows, the undefended point in every front."""
    what, losses = privacy_loss(table)
    points = {
        label: (loss, 1 - accuracy.mean) for label, loss in losses.items() if (accuracy := compared[label].accuracy)
    }
    if not points:
        return []
    front = dict(zip(points, pareto_front(np.array(list(points.values()))), strict=True))
    plain = [points[r.label] for r in table.rows if r.undefended and r.label in points]
    rows = [
        [label, *(text.number(v, 3) for v in points[row.label]), "yes" if front[row.label] else "no",
         text.number(hypervolume(np.array([points[row.label], *plain])), 3)]
        for (_, label), row in _fronts(table) if row.label in points
    ]  # fmt: skip
    headers = ["defense", f"privacy loss ({what})", "test error", "on the front", "hypervolume"]
    parts = ["**Privacy against utility** (hypervolume: of the row and the undefended point; larger is better)"]
    parts.append(text.table(headers, rows))
    total = f"All rows together: hypervolume {hypervolume(np.array(list(points.values()))):.3f}."
    return [*parts, " ".join([total, *_families(table, points, plain)])]


def _families(table: Table, points: dict[str, tuple[float, float]], plain: list[tuple[float, float]]) -> list[str]:
    """Hypervolume of each defense that is listed with several parameters, over all of them."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        if row.label in points and not row.undefended:
            by_name.setdefault(row.name, []).append(points[row.label])
    return [
        f"{text.escape(name)} over its {len(own)} variants: {hypervolume(np.array([*own, *plain])):.3f}."
        for name, own in sorted(by_name.items()) if len(own) > 1
    ]  # fmt: skip
