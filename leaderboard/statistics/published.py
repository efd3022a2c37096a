"""The papers' numbers beside ours: which cells correspond, how far apart they are, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedbench.core import UserError
from fedbench.leaderboard.statistics.averages import Average, averages
from fedbench.leaderboard.statistics.beside import Ours, Pair
from fedbench.leaderboard.statistics.by_class import tf01_of_class
from fedbench.leaderboard.statistics.maximum import Largest, row_maximum
from fedbench.leaderboard.statistics.papers import AVERAGE, VIEW_OF, comparable, plain, published, same
from fedbench.leaderboard.statistics.rows import Entry
from fedbench.leaderboard.statistics.sections import Section

QUANTITIES = (
    "auc", "tf01", "tf01_by_class", "hypervolume", "attack_accuracy", "mia_accuracy", "auc_max", "advantage_max", "test_acc",
    "delta_acc", "runtime",
)  # fmt: skip
_OF_THE_MODEL = ("test_acc", "delta_acc", "runtime")
_OF_A_GROUP = ("mia_accuracy", "tf01_by_class")
_COLUMNS = ("table", "dataset", "model", "partition")


@dataclass(frozen=True, kw_only=True)
class Match:
    """One entry of a suite's ``published`` against our sections of one coalition."""

    source: str
    table: str
    setting: str
    coalition: str
    pairs: tuple[Pair, ...]
    differs: str = ""
    """what the suite says that is not the paper's"""
    unlike: tuple[str, ...] = ()
    """in what data set or model are not the paper's, in whole clauses"""
    printed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(the paper's defense, quantity) -> its printed average over its attacks"""

    def of(self, quantity: str) -> list[Pair]:
        """The pairs of one quantity."""
        return [p for p in self.pairs if p.quantity == quantity]

    def averages(self, quantity: str) -> list[Average]:
        """Over the attacks of each defense."""
        return averages(self.of(quantity), {d: mean for (d, q), mean in self.printed.items() if q == quantity})


def match(entry: dict[str, Any], sections: Sequence[Section]) -> list[Match]:
    """The cells of a suite's entry of published numbers beside ours, for every coalition that the paper has.

    entry: ``source``, ``setting``, ``where`` (column -> value, of table, dataset, model, partition), ``case`` (our
    coalition -> the paper's case; by default the same names), ``defenses`` and ``attacks`` (our label -> the paper's),
    ``differs`` (what is not the paper's besides). Raises ``UserError`` when the paper has no such rows.
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
        mine = [r for r in rows if _asked(r) and _of_case(r, case)]
        own = [s for s in sections if s.setting == entry["setting"] and s.coalition == coalition]  # one for each view
        pairs = tuple(pair for r in mine for pair in _pairs(r, own, entry))
        printed = {(r["defense"], r["metric"]): float(r["mean"]) for r in rows if r["attack"] == AVERAGE and _of_case(r, case)}
        found.append(Match(
            source=entry["source"], table=where.get("table", "all tables"), setting=entry["setting"], coalition=coalition,
            pairs=pairs, differs=str(entry.get("differs") or ""), printed=printed,
            unlike=_unlike(rows, [s for s in sections if s.setting == entry["setting"]]),
        ))  # fmt: skip
    return found


def _of_case(row: dict[str, str], case: str) -> bool:
    return row["case"] == case or row["defense"] == "none"


def _unlike(rows: Sequence[dict[str, str]], sections: Sequence[Section]) -> tuple[str, ...]:
    """In what the paper's data and model are not the setting's; what either does not state cannot differ."""
    found = []
    for column, what in (("dataset", "data set"), ("model", "model")):
        theirs = sorted({r[column] for r in rows} - {""})
        ours = next((str(s.described[column]["name"]) for s in sections if column in s.described), None)
        if ours is not None and not all(same(name, ours) for name in theirs):
            found.append(f"the paper's {what} is {' and '.join(theirs)}, ours {ours}")
    return tuple(found)


def _asked(row: dict[str, str]) -> bool:
    """Whether a published number is of one attack, or of the model alone; means over attacks are left out."""
    return row["metric"] in _OF_THE_MODEL or row["attack"] not in ("", AVERAGE)


def _pairs(row: dict[str, str], sections: Sequence[Section], entry: dict[str, Any]) -> list[Pair]:
    """One; where the paper prints one row and we ran several strengths of that defense (``grid``), one for each."""
    # of one group of clients, or of one client's samples of one class: attack:group, attack:client:class
    theirs, _, group = row["attack"].partition(":") if row["metric"] in _OF_A_GROUP else (row["attack"], "", "")
    name, attack = _ours(row["defense"], entry.get("defenses", {})), _ours(theirs, entry.get("attacks", {}))
    find = partial(_FIND[row["metric"]], group=group) if group else _FIND[row["metric"]]
    return [Pair(
        quantity=row["metric"], theirs=row["defense"], defense=defense, attack=attack, group=group, paper=float(row["mean"]),
        paper_std=float(row["std"]) if row["std"] else None,
        paper_range=(float(row["low"]), float(row["high"])) if "low" in row else None,
        ours=next((o for s in sections if (o := find(s, plain(defense), plain(attack)))), None),
    ) for defense in ([name] if row["metric"] == "hypervolume" else _strengths(name, sections))]  # fmt: skip


def _strengths(name: str, sections: Sequence[Section]) -> list[str]:
    """Our rows of that name: the one, or those of a grid over that defense."""
    labels = list(dict.fromkeys(row.label for s in sections for row in s.rows))
    grid = [label for label in labels if "[" in label and plain(label.partition("[")[0]) == plain(name)]
    return grid if grid and not any(plain(label) == plain(name) for label in labels) else [name]


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
    null = entry.decision_mean("null_best_accuracy")
    return Ours(value=best.mean, half_width=best.half_width, last=last.mean, null=null)


def _mia_accuracy(section: Section, defense: str, attack: str, group: str) -> Ours | None:
    """The attack's own decisions on one group of clients in the last round."""
    entry = _entry(section, defense, attack)
    mine = next((i for i, g in enumerate(section.groups) if plain(g.name) == plain(group)), None)
    found = entry.of_group(section.groups, mine).attack_accuracy() if entry and mine is not None else None
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _tf01_by_class(section: Section, defense: str, attack: str, group: str) -> Ours | None:
    """``group``: client0:class3, or client0:all for all classes together; without an interval."""
    entry = _entry(section, defense, attack)
    client, _, label = group.partition(":")
    which = None if label == "all" else int(label.removeprefix("class"))
    found = tf01_of_class(entry, int(client.removeprefix("client")), which) if entry else None
    return None if found is None else Ours(value=found)


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


def _delta_accuracy(section: Section, defense: str, _: str) -> Ours | None:
    """Minus the undefended federation's, seed by seed."""
    found = next((section.compared[r.label].delta_accuracy for r in section.rows if plain(r.label) == defense), None)
    return Ours(value=found.mean, half_width=found.half_width) if found else None


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


_FIND: dict[str, Callable[..., Ours | None]] = {
    "mia_accuracy": _mia_accuracy,
    "tf01_by_class": _tf01_by_class,
    "auc": partial(_interval, metric="auc"),
    "tf01": partial(_interval, metric="tf01"),
    "hypervolume": _hypervolume,
    "attack_accuracy": _attack_accuracy,
    "auc_max": partial(_largest, metric="auc"),
    "advantage_max": partial(_largest, metric="advantage"),
    "test_acc": _test_accuracy,
    "delta_acc": _delta_accuracy,
    "runtime": _runtime,
}


def _ours(name: str, renamed: dict[str, str]) -> str:
    return next((ours for ours, theirs in renamed.items() if theirs == name), name)
