"""The papers' numbers beside ours: which cells correspond, how far apart they are, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedbench.core import UserError
from fedbench.leaderboard.statistics.entry import Entry
from fedbench.leaderboard.statistics.maximum import Largest, row_maximum
from fedbench.leaderboard.statistics.papers import VIEW_OF, comparable, plain, published
from fedbench.leaderboard.statistics.rounds import decision_mean
from fedbench.leaderboard.statistics.section import Section

QUANTITIES = (
    "auc", "tf01", "hypervolume", "attack_accuracy", "mia_accuracy", "auc_max", "advantage_max", "test_acc", "runtime",
)  # fmt: skip
_COLUMNS = ("table", "dataset", "model", "partition")


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our number for a published cell; ``half_width`` None: it has no interval."""

    value: float
    half_width: float | None = None
    last: float | None = None
    """attack accuracy only: ours in the last round, where no answer was looked at"""
    null: float | None = None
    """attack accuracy: our best round's mean under shuffled membership; maxima: the mean of ours under it"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One published number and ours, which is None where the cell was not run (or has no score)."""

    quantity: str
    """one of ``QUANTITIES``; attack accuracy: the papers report the best of all rounds, picked on the answers, so do we"""
    defense: str
    attack: str
    group: str = ""
    """of clients, where the number is of one"""
    paper: float
    paper_std: float | None
    paper_range: tuple[float, float] | None = None
    """maxima: smallest and largest over the paper's clients, whose mean is compared, since their data are not our clients'"""
    ours: Ours | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the quantity's unit."""
        return None if self.ours is None else self.ours.value - self.paper


@dataclass(frozen=True)
class Match:
    """One entry of a suite's ``published`` against our sections of one coalition."""

    source: str
    table: str
    setting: str
    coalition: str
    pairs: tuple[Pair, ...]

    def of(self, quantity: str) -> list[Pair]:
        """The pairs of one quantity."""
        return [p for p in self.pairs if p.quantity == quantity]


def match(entry: dict[str, Any], sections: Sequence[Section]) -> list[Match]:
    """The cells of a suite's entry of published numbers beside ours, for every coalition that the paper has.

    entry: ``source``, ``setting``, ``where`` (column -> value, of table, dataset, model, partition), ``case`` (our
    coalition -> the paper's case; by default the same names), ``defenses`` and ``attacks`` (our label -> the paper's).
    Raises ``UserError`` when the paper has no such rows.
    """
    where = {c: str(v) for c, v in entry.get("where", {}).items()}
    known = comparable(published(entry["source"]))
    rows = [r for r in known if all(r[c] == v for c, v in where.items()) and r["metric"] in QUANTITIES]
    if not rows:
        have = sorted({tuple(r[c] for c in _COLUMNS) for r in published(entry["source"])})
        raise UserError(f"reference {entry['source']} has no rows where {where}; it has {', '.join(map(str, have))}")
    cases = entry.get("case") or {r["case"]: r["case"] for r in rows if r["case"] != "none"} or {"none": "none"}
    found = []
    for coalition, case in cases.items():
        mine = [r for r in rows if _asked(r) and (r["case"] == case or r["defense"] == "none")]
        own = [s for s in sections if s.setting == entry["setting"] and s.coalition == coalition]  # one for each view
        pairs = tuple(_pair(r, own, entry) for r in mine)
        found.append(Match(entry["source"], where.get("table", "all tables"), entry["setting"], coalition, pairs))
    return found


def _asked(row: dict[str, str]) -> bool:
    """Whether a published number is of one attack, or of the model alone; means over attacks are left out."""
    return row["metric"] in ("test_acc", "runtime") or row["attack"] not in ("", "avg")


def _pair(row: dict[str, str], sections: Sequence[Section], entry: dict[str, Any]) -> Pair:
    # MIA accuracy is of one group of clients: attack:group
    theirs, _, group = row["attack"].partition(":") if row["metric"] == "mia_accuracy" else (row["attack"], "", "")
    defense, attack = _ours(row["defense"], entry.get("defenses", {})), _ours(theirs, entry.get("attacks", {}))
    find = partial(_mia_accuracy, group=plain(group)) if group else _FIND[row["metric"]]
    return Pair(
        quantity=row["metric"], defense=defense, attack=attack, group=group, paper=float(row["mean"]),
        paper_std=float(row["std"]) if row["std"] else None,
        paper_range=(float(row["low"]), float(row["high"])) if "low" in row else None,
        ours=next((o for s in sections if (o := find(s, plain(defense), plain(attack)))), None),
    )  # fmt: skip


def _entry(section: Section, defense: str, attack: str) -> Entry | None:
    return next(
        (e for row in section.rows for label, e in row.entries.items() if plain(row.label) == defense and plain(label) == attack),
        None,
    )


def _interval(section: Section, defense: str, attack: str, metric: str) -> Ours | None:
    """As the papers count: of the mix, with the attack's own sign."""
    entry = _entry(section, defense, attack)
    found = None if entry is None else entry.pooled_tf01() if metric == "tf01" else entry.interval(metric)
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _attack_accuracy(section: Section, defense: str, attack: str) -> Ours | None:
    entry = _entry(section, defense, attack)
    best, last = (entry.attack_accuracy(best=True), entry.attack_accuracy()) if entry else (None, None)
    if not (entry and best and last):
        return None
    null = decision_mean(entry, "null_best_accuracy")
    return Ours(value=best.mean, half_width=best.half_width, last=last.mean, null=null)


def _mia_accuracy(section: Section, defense: str, attack: str, group: str) -> Ours | None:
    """The attack's own decisions on one group of clients in the last round."""
    entry = _entry(section, defense, attack)
    mine = next((i for i, g in enumerate(section.groups) if plain(g.name) == group), None)
    found = entry.of_group(section.groups, mine).attack_accuracy() if entry and mine is not None else None
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _test_accuracy(section: Section, defense: str, _: str) -> Ours | None:
    """Of the final models, each group's clients counted as often as there are."""
    found = next((row.accuracy for row in section.rows if plain(row.label) == defense), None)
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _largest(section: Section, defense: str, attack: str, metric: str) -> Ours | None:
    """The maximum over attacks and rounds of the view that an adversary of the paper has."""
    row = next((row for row in section.rows if plain(row.label) == defense), None)
    if row is None or section.view != VIEW_OF.get(attack) or (found := row_maximum(row)) is None:
        return None
    largest: Largest = getattr(found, metric)
    return Ours(value=largest.found.mean, half_width=largest.found.half_width, null=largest.null_mean)


def _runtime(section: Section, defense: str, _: str) -> Ours | None:
    """Relative to the undefended run: hardware differs."""
    found = next((section.compared[r.label].runtime for r in section.rows if plain(r.label) == defense), None)
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _hypervolume(section: Section, defense: str, attack: str) -> Ours | None:
    """Over the strengths of the defense that were run, whatever their number; without an interval."""
    for sweep in section.sweeps(least=1):
        for label in sweep.points:
            if plain(sweep.family) == defense and plain(label) == attack:
                return Ours(value=sweep.hypervolume(label))
    return None


_FIND: dict[str, Callable[[Section, str, str], Ours | None]] = {
    "auc": partial(_interval, metric="auc"),
    "tf01": partial(_interval, metric="tf01"),
    "hypervolume": _hypervolume,
    "attack_accuracy": _attack_accuracy,
    "auc_max": partial(_largest, metric="auc"),
    "advantage_max": partial(_largest, metric="advantage"),
    "test_acc": _test_accuracy,
    "runtime": _runtime,
}


def _ours(name: str, renamed: dict[str, str]) -> str:
    return next((ours for ours, theirs in renamed.items() if theirs == name), name)
