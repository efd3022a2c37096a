"""The papers' numbers beside ours: which cells correspond, how far apart they are, and what was not run."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
from scipy import stats

from fedbench.core import UserError
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Cell, Metric, Table
from fedbench.leaderboard.compare import compare, utility_of
from fedbench.leaderboard.decisions import attack_accuracy, null_of_best
from fedbench.leaderboard.society import of_group, societies
from fedbench.leaderboard.sweep import base_point, sweeps

METRICS = ("auc", "tf01", "hypervolume", "attack_accuracy", "mia_accuracy", "test_acc")
# attack accuracy: the poisoning papers report the best of all rounds, picked on the answers; so does ours beside them
_NAMES = {
    "auc": "AUC", "tf01": "TF01 (%)", "hypervolume": "hypervolume", "attack_accuracy": "best_round attack accuracy",
    "mia_accuracy": "MIA accuracy in the last round", "test_acc": "test accuracy",
}  # fmt: skip
_COLUMNS = ("table", "dataset", "model", "partition", "case")


@dataclass(frozen=True)
class Pair:
    """One published number and ours; ``ours`` is None where the cell was not run (or has no score)."""

    metric: str
    defense: str
    attack: str
    paper: float
    paper_std: float | None
    ours: float | None
    half_width: float | None
    last: float | None = None
    """attack accuracy only: ours in the last round, where no answer was looked at"""
    null: float | None = None
    """attack accuracy only: our best round's mean under shuffled membership"""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the metric's unit."""
        return None if self.ours is None else self.ours - self.paper


@dataclass(frozen=True)
class Match:
    """One entry of a suite's ``reference`` against one of our tables."""

    source: str
    table: str
    setting: str
    coalition: str
    pairs: tuple[Pair, ...]


@cache
def published(source: str) -> tuple[dict[str, str], ...]:
    """The rows of ``leaderboard/reference/<source>.csv``; raises ``UserError`` for a paper that is not there."""
    folder = files("fedbench.leaderboard.reference")
    names = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if source not in names:
        raise UserError(f"no reference numbers of '{source}'; there are {', '.join(names)}")
    return tuple(csv.DictReader((folder / f"{source}.csv").read_text(encoding="utf-8").splitlines()))


def plain(name: str) -> str:
    """A method's name without punctuation: ``fedmia-ii`` and ``fedmia_ii``, ``dp-sgd`` and ``dpsgd`` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def match(entry: dict[str, Any], tables: Sequence[Table]) -> list[Match]:
    """The published cells of a ``reference`` entry beside ours, for every coalition that the paper has.

    entry: ``source``, ``setting``, ``where`` (column -> value, of table, dataset, model, partition), ``case`` (our
    coalition -> the paper's case; by default the same names), ``defenses`` and ``attacks`` (our label -> the paper's).
    Raises ``UserError`` when the paper has no such rows.
    """
    where = {c: str(v) for c, v in entry.get("where", {}).items()}
    rows = [r for r in published(entry["source"]) if all(r[c] == v for c, v in where.items()) and r["metric"] in METRICS]
    if not rows:
        have = sorted({tuple(r[c] for c in _COLUMNS[:4]) for r in published(entry["source"])})
        raise UserError(f"reference {entry['source']} has no rows where {where}; it has {', '.join(map(str, have))}")
    cases = entry.get("case") or {r["case"]: r["case"] for r in rows if r["case"] != "none"} or {"none": "none"}
    found = []
    for coalition, case in cases.items():
        mine = [r for r in rows if _asked(r) and (r["case"] == case or r["defense"] == "none")]
        own = [t for t in tables if t.setting == entry["setting"] and t.coalition == coalition]  # one for each view
        pairs = tuple(_pair(r, own, entry) for r in mine)
        found.append(Match(entry["source"], where.get("table", "all tables"), entry["setting"], coalition, pairs))
    return found


def _asked(row: dict[str, str]) -> bool:
    """Whether a published number is of one attack, or of the model alone; means over attacks are left out."""
    return row["metric"] == "test_acc" or row["attack"] not in ("", "avg")


def _pair(row: dict[str, str], tables: Sequence[Table], entry: dict[str, Any]) -> Pair:
    # MIA accuracy is of one group of clients: attack:group
    theirs, _, group = row["attack"].partition(":") if row["metric"] == "mia_accuracy" else (row["attack"], "", "")
    defense, attack = _ours(row["defense"], entry.get("defenses", {})), _ours(theirs, entry.get("attacks", {}))
    std = float(row["std"]) if row["std"] else None
    find = partial(_mia_accuracy, group=plain(group)) if group else _FIND[row["metric"]]
    ours = next((o for t in tables if (o := find(t, plain(defense), plain(attack)))), ())
    named = f"{attack}, group {group}" if group else attack
    return Pair(row["metric"], defense, named, float(row["mean"]), std, *(ours or (None, None)))


def _cell(table: Table, defense: str, attack: str) -> Cell | None:
    return next(
        (c for row in table.rows for label, c in row.cells.items() if plain(row.label) == defense and plain(label) == attack),
        None,
    )


def _interval(table: Table, defense: str, attack: str, metric: Metric) -> tuple[float | None, ...]:
    cell = _cell(table, defense, attack)
    interval = cell.interval(metric) if cell else None
    return (interval.mean, interval.half_width) if interval else ()


def _attack_accuracy(table: Table, defense: str, attack: str) -> tuple[float | None, ...]:
    cell = _cell(table, defense, attack)
    best, last = (attack_accuracy(cell, best=True), attack_accuracy(cell)) if cell else (None, None)
    return (best.mean, best.half_width, last.mean, null_of_best(cell)) if cell and best and last else ()


def _mia_accuracy(table: Table, defense: str, attack: str, group: str) -> tuple[float | None, ...]:
    """The attack's own decisions on one group of clients in the last round."""
    cell = _cell(table, defense, attack)
    kinds = [s[0].groups for row in table.rows if plain(row.label) == defense and (s := societies(table, row))]
    groups = kinds[0] if kinds else []
    mine = next((i for i, g in enumerate(groups) if plain(g.name) == group), None)
    found = attack_accuracy(of_group(cell, groups, mine)) if cell and mine is not None else None
    return (found.mean, found.half_width) if found else ()


def _test_accuracy(table: Table, defense: str, _: str) -> tuple[float | None, ...]:
    """Of the final models, each group's clients counted as often as there are."""
    found = next((utility_of(row, table) for row in table.rows if plain(row.label) == defense), None)
    return (found.mean, found.half_width) if found else ()


def _hypervolume(table: Table, defense: str, attack: str) -> tuple[float | None, ...]:
    """Over the strengths of the defense that were run, whatever their number; without an interval."""
    compared = compare(table)
    for sweep in sweeps(table, compared, least=1):
        for label in sweep.points:
            if plain(sweep.family) == defense and plain(label) == attack:
                return sweep.hypervolume(label, base_point(table, label, compared)), None
    return ()


_FIND: dict[str, Callable[[Table, str, str], tuple[float | None, ...]]] = {
    "auc": partial(_interval, metric="auc"),
    "tf01": partial(_interval, metric="tf01"),
    "hypervolume": _hypervolume,
    "attack_accuracy": _attack_accuracy,
    "test_acc": _test_accuracy,
}


def _ours(name: str, renamed: dict[str, str]) -> str:
    return next((ours for ours, theirs in renamed.items() if theirs == name), name)


def section(matches: Sequence[Match]) -> list[str]:
    """Markdown: per match a table of ours, the paper's and the difference, and a summary of the reproduction."""
    parts = ["## Beside the paper"]
    for m in matches:
        done = [p for p in m.pairs if p.ours is not None]
        where = ", ".join(map(text.escape, (f"{m.source} {m.table}", m.setting, f"coalition {m.coalition}")))
        parts.append(f"### {where}")
        parts.append(_summary(m.pairs))
        for metric in METRICS:
            rows = [
                [text.escape(p.defense), text.escape(p.attack), *_numbers(p)] for p in m.pairs if p.metric == metric
            ]
            if rows and any(p.metric == metric for p in done):
                headers = ["defense", "attack", f"ours {_NAMES[metric]}", "paper", "difference"]
                more = ["ours in the last round", "ours, null of best_round"] if metric == "attack_accuracy" else []
                parts.append(text.table([*headers, *more], rows, left=2))
    return parts


def _numbers(p: Pair) -> list[str]:
    digits = {"tf01": 2, "hypervolume": 4}.get(p.metric, 3)
    more = [text.number(p.last, digits), text.number(p.null, digits)] if p.metric == "attack_accuracy" else []
    paper = f"{p.paper:.{digits}f}" + (f" ± {p.paper_std:.{digits}f}" if p.paper_std is not None else "")
    if p.ours is None or p.difference is None:
        return ["not run", paper, "", *["" for _ in more]]
    half = "" if p.half_width is None or np.isnan(p.half_width) else f" ± {p.half_width:.{digits}f}"
    return [f"{p.ours:.{digits}f}{half}", paper, f"{p.difference:+.{digits}f}", *more]


def _summary(pairs: Sequence[Pair]) -> str:
    """Rank correlation and mean absolute difference per metric, over the cells that were run; how many were not."""
    lines = []
    for metric in METRICS:
        mine = [p for p in pairs if p.metric == metric]
        done = [(p.ours, p.paper) for p in mine if p.ours is not None]
        if not mine:
            continue
        line = f"{_NAMES[metric].removesuffix(' (%)')}: {len(done)} of {len(mine)} published cells run"
        if len(done) >= 3:
            ours, paper = np.array(done, dtype=float).T
            rank = stats.spearmanr(ours, paper).statistic
            unit = " percentage points" if metric == "tf01" else ""
            shown = "n/a" if np.isnan(rank) else f"{rank:.2f}"
            line += f"; rank correlation {shown}, mean absolute difference {np.abs(ours - paper).mean():.3f}{unit}"
        lines.append(f"- {line}")
    return "\n".join(lines)
