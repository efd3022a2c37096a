"""Numbers that the papers print, and the cell of our board that corresponds to each."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.rows import Entry, Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.plugins.papers.maximum import row_maximum

QUANTITIES = (
    "auc",
    "tf01",
    "tf01_by_class",
    "hypervolume",
    "attack_accuracy",
    "mia_accuracy",
    "auc_max",
    "advantage_max",
    "test_acc",
    "delta_acc",
    "runtime",
)
MAXIMA = ("auc_max", "advantage_max")
"""over all attacks and rounds, printed for every client of a paper"""
VIEW_OF = {
    "globaladversary": "server",
    "globaladversaryadaptive": "server",
    "localadversary": "client",
}
"""an adversary of a paper, without punctuation -> our view: on local models the server, on the
global model a client
"""
COMPONENT = {
    "fc": "mlp-512-128",
    "cnn2": "membershield-cnn2",
    "cnn3": "membershield-cnn3",
    "mlp4": "membershield-mlp4",
}
"""name of a model in a paper -> the component that is its network, where the names differ"""
AVERAGE = "avg"
"""the attack of a paper's printed average over its attacks"""
BY_CLASS = frozenset({"client", "class", "members", "found"})
"""arrays of an analysis that counts, for every client and class, the members above a threshold at
0.1 % of the non-members
"""
_OF_THE_MODEL = ("test_acc", "delta_acc", "runtime")
_OF_A_GROUP = ("mia_accuracy", "tf01_by_class")
_WHERE = ("table", "dataset", "model", "partition")
_CELL = (*_WHERE, "case", "defense", "attack", "metric")


@cache
def published(source: str) -> tuple[dict[str, str], ...]:
    """The rows of ``plugins/papers/reference/<source>.csv``. Raises UserError for a paper that is
    not there.
    """
    folder = files("fedbench.plugins.papers") / "reference"
    names = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if source not in names:
        raise UserError(f"no reference numbers of '{source}'; there are {', '.join(names)}")
    return tuple(
        csv.DictReader((folder / f"{source}.csv").read_text(encoding="utf-8").splitlines())
    )


def plain(name: str) -> str:
    """A method's name without punctuation: ``fedmia-ii`` and ``fedmia_ii``, ``dp-sgd`` and
    ``dpsgd`` are the same.
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def comparable(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of a paper's table, those that only make sense together as one row: maxima of all
    clients as their mean, with ``low`` and ``high``; seconds as a share of the undefended
    federation's.
    """
    found = [r for r in rows if r["metric"] not in (*MAXIMA, "runtime_s")]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in (r for r in rows if r["metric"] in MAXIMA):
        one = {**row, "attack": row["attack"].partition(":")[0]}
        groups.setdefault(tuple(one[c] for c in _CELL), []).append(one)
    for own in groups.values():
        values = [float(r["mean"]) for r in own]
        low, high, mean = min(values), max(values), sum(values) / len(values)
        found.append({**own[0], "mean": repr(mean), "low": repr(low), "high": repr(high)})
    times = {
        (*(r[c] for c in (*_WHERE, "case")), r["defense"]): r
        for r in rows
        if r["metric"] == "runtime_s"
    }
    for (*place, defense), row in times.items():
        if defense != "none" and (base := times.get((*place, "none"))) is not None:
            found.append(
                {**row, "metric": "runtime", "mean": repr(float(row["mean"]) / float(base["mean"]))}
            )
    return found


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our number for a published cell; ``half_width`` None: it has no interval."""

    value: float
    half_width: float | None = None
    last: float | None = None
    """attack accuracy only: ours in the last round, chosen without labels"""
    null: float | None = None
    """attack accuracy and maxima: mean of ours under shuffled membership"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One published number and ours, which is None where the cell was not run (or has no score)."""

    quantity: str
    """one of ``QUANTITIES``; attack accuracy: of the best of all rounds, picked with the labels, as
    the papers report it
    """
    theirs: str
    """the paper's name of the defense; several strengths of ours may correspond to one"""
    defense: str
    attack: str
    group: str = ""
    """of clients, or client0:class3, where the number is of one"""
    paper: float
    paper_std: float | None
    paper_range: tuple[float, float] | None = None
    """maxima: smallest and largest over the paper's clients; their mean is compared, since their
    data are not our clients'
    """
    ours: Ours | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the quantity's unit."""
        return None if self.ours is None else self.ours.value - self.paper


@dataclass(frozen=True, kw_only=True)
class Match:
    """One entry of a suite's ``published`` against our sections of one coalition."""

    source: str
    table: str
    setting: str
    coalition: str
    pairs: tuple[Pair, ...]
    differs: str = ""
    """differences from the paper that the suite names"""
    unlike: tuple[str, ...] = ()
    """differences of data set or model, in whole clauses"""
    printed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(the paper's defense, quantity) -> its printed average over its attacks"""

    def of(self, quantity: str) -> list[Pair]:
        """The pairs of one quantity."""
        return [p for p in self.pairs if p.quantity == quantity]


def match(entry: Mapping[str, Any], sections: Sequence[Section]) -> list[Match]:
    """The cells of a suite's entry of published numbers and ours, for every coalition that the
    paper has.

    entry: ``source``, ``setting``, ``where`` (column -> value, of table, dataset, model,
    partition), ``case`` (our coalition -> the paper's case; by default the same names),
    ``defenses`` and ``attacks`` (our label -> the paper's), ``differs`` (further differences from
    the paper). Raises UserError when the paper has no such rows.
    """
    where = {c: str(v) for c, v in entry.get("where", {}).items()}
    known = comparable(published(entry["source"]))
    rows = [
        r for r in known if all(r[c] == v for c, v in where.items()) and r["metric"] in QUANTITIES
    ]
    if not rows:
        have = sorted({tuple(r[c] for c in _WHERE) for r in published(entry["source"])})
        raise UserError(
            f"reference {entry['source']} has no rows where {where}; it has "
            f"{', '.join(map(str, have))}"
        )
    cases = (
        entry.get("case")
        or {r["case"]: r["case"] for r in rows if r["case"] != "none"}
        or {"none": "none"}
    )
    here = [s for s in sections if s.setting == entry["setting"]]
    found = []
    for coalition, case in cases.items():
        mine = [r for r in rows if r["case"] == case or r["defense"] == "none"]
        own = [s for s in here if s.coalition == coalition]  # one for each view
        single = [
            r for r in mine if r["metric"] in _OF_THE_MODEL or r["attack"] not in ("", AVERAGE)
        ]
        found.append(
            Match(
                source=entry["source"],
                table=where.get("table", "all tables"),
                setting=entry["setting"],
                coalition=coalition,
                pairs=tuple(pair for r in single for pair in _pairs(r, own, entry)),
                differs=str(entry.get("differs") or ""),
                printed={
                    (r["defense"], r["metric"]): float(r["mean"])
                    for r in mine
                    if r["attack"] == AVERAGE
                },
                unlike=_unlike(rows, here),
            )
        )
    return found


def _unlike(rows: Sequence[dict[str, str]], sections: Sequence[Section]) -> tuple[str, ...]:
    """Differences of data set and model from the setting's, where the paper and the records state
    them.
    """
    found = []
    for column, what in (("dataset", "data set"), ("model", "model")):
        theirs = sorted({r[column] for r in rows} - {""})
        ours = next(
            (str(s.described[column]["name"]) for s in sections if column in s.described), None
        )
        if ours is not None and any(
            plain(COMPONENT.get(name, name)) != plain(ours) for name in theirs
        ):
            found.append(f"the paper's {what} is {' and '.join(theirs)}, ours {ours}")
    return tuple(found)


def _pairs(
    row: dict[str, str], sections: Sequence[Section], entry: Mapping[str, Any]
) -> list[Pair]:
    """One; where the paper prints one row and we ran several strengths of that defense (``grid``),
    one for each.
    """
    # of one group of clients, or of one client's samples of one class: attack:group,
    # attack:client:class
    theirs, _, group = (
        row["attack"].partition(":") if row["metric"] in _OF_A_GROUP else (row["attack"], "", "")
    )
    name, attack = (
        _renamed(row["defense"], entry.get("defenses", {})),
        _renamed(theirs, entry.get("attacks", {})),
    )
    return [
        Pair(
            quantity=row["metric"],
            theirs=row["defense"],
            defense=defense,
            attack=attack,
            group=group,
            paper=float(row["mean"]),
            paper_std=float(row["std"]) if row["std"] else None,
            paper_range=(float(row["low"]), float(row["high"])) if "low" in row else None,
            ours=next(
                (
                    o
                    for s in sections
                    if (o := _ours(s, row["metric"], plain(defense), plain(attack), group))
                ),
                None,
            ),
        )
        for defense in ([name] if row["metric"] == "hypervolume" else _strengths(name, sections))
    ]


def _renamed(name: str, ours: dict[str, str]) -> str:
    return next((label for label, theirs in ours.items() if theirs == name), name)


def _strengths(name: str, sections: Sequence[Section]) -> list[str]:
    """Our rows of that name: the one, or those of a grid over that defense."""
    labels = list(dict.fromkeys(row.label for s in sections for row in s.rows))
    grid = [
        label for label in labels if "[" in label and plain(label.partition("[")[0]) == plain(name)
    ]
    return grid if grid and not any(plain(label) == plain(name) for label in labels) else [name]


# -- our number of one quantity --------------------------------------------------------------------


def _ours(section: Section, metric: str, defense: str, attack: str, group: str) -> Ours | None:
    """``defense`` and ``attack``: as :func:`plain` gives them."""
    if metric == "hypervolume":
        return _hypervolume(section, defense, attack)
    row = next((row for row in section.rows if plain(row.label) == defense), None)
    if row is None:
        return None
    if metric in _OF_THE_MODEL:
        costs = section.summaries[row.label]
        return _number(
            {"test_acc": row.accuracy, "delta_acc": costs.delta_accuracy, "runtime": costs.runtime}[
                metric
            ]
        )
    if metric in MAXIMA:
        return _maximum(row, metric) if section.view == VIEW_OF.get(attack) else None
    entry = next((e for label, e in row.entries.items() if plain(label) == attack), None)
    return None if entry is None else _of_entry(section, entry, metric, group)


def _of_entry(section: Section, entry: Entry, metric: str, group: str) -> Ours | None:
    """As the papers count: of the mix, with the attack's own sign."""
    if metric == "attack_accuracy":
        best, last = entry.attack_accuracy(best=True), entry.attack_accuracy()
        null = entry.decision_mean("null_best_accuracy")
        return (
            Ours(value=best.mean, half_width=best.half_width, last=last.mean, null=null)
            if best and last
            else None
        )
    # the attack's own decisions on one group of clients in the last round
    if metric == "mia_accuracy":
        mine = next(
            (i for i, g in enumerate(section.groups) if plain(g.name) == plain(group)), None
        )
        return (
            None
            if mine is None
            else _number(entry.of_group(section.groups, mine).attack_accuracy())
        )
    if metric == "tf01_by_class":
        return _of_class(entry, group)
    return _number(entry.pooled_tf01() if metric == "tf01" else entry.interval(metric))


def _number(found: Interval | None) -> Ours | None:
    return Ours(value=found.mean, half_width=found.half_width) if found else None


def _maximum(row: Row, metric: str) -> Ours | None:
    found = row_maximum(row)
    if found is None:
        return None
    largest = found.auc if metric == "auc_max" else found.advantage
    return Ours(
        value=largest.found.mean, half_width=largest.found.half_width, null=largest.null_mean
    )


def _hypervolume(section: Section, defense: str, attack: str) -> Ours | None:
    """Over all strengths of the defense that were run; without an interval."""
    for sweep in section.sweeps(least=1):
        for label in sweep.points if plain(sweep.family) == defense else ():
            if plain(label) == attack:
                return Ours(value=sweep.hypervolumes[label])
    return None


def _of_class(entry: Entry, group: str) -> Ours | None:
    """TF01 in percent of client0:class3, or client0:all, all seeds together; without an interval.
    From the first analysis of each record that counted; None where nothing was counted, or one seed
    could not be.
    """
    client, _, label = group.partition(":")
    hits = members = 0.0
    for loaded in filter(None, map(entry.ok, entry.targets)):
        found = (
            entry.findings(name, loaded.record.seed) for name in sorted(loaded.record.analyses)
        )
        arrays = next(
            (f.arrays for f in found if f is not None and set(f.arrays) >= BY_CLASS), None
        )
        if arrays is not None:
            mine = arrays["client"] == int(client.removeprefix("client"))
            if label != "all":
                mine &= arrays["class"] == int(label.removeprefix("class"))
            hits, members = (
                hits + float(arrays["found"][mine].sum()),
                members + float(arrays["members"][mine].sum()),
            )
    return Ours(value=100 * hits / members) if members and hits == hits else None
