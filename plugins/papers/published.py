"""Numbers that the papers print, and the cell of our board that corresponds to each."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from numpy import ndarray

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.rows import AttackEntry, DefenseRow, accuracy_of
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.plugins.papers.maximum import row_maximum

QUANTITIES = (
    "auc",
    "tf01",
    "tf01_by_class",
    "hypervolume",
    "attack_accuracy",
    "attack_precision",
    "attack_recall",
    "mia_accuracy",
    "auc_max",
    "advantage_max",
    "test_acc",
    "delta_acc",
    "runtime",
)
MAXIMA = ("auc_max", "advantage_max")
"""over all attacks and rounds, printed for every client of a paper"""
DECISIONS = ("attack_accuracy", "attack_precision", "attack_recall")
"""of an attack with its own threshold, in the labelled best round as the paper reports it"""
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
    """Return the rows of ``plugins/papers/reference/<source>.csv``, one a number: a line may hold
    several defenses and their means, divided by semicolons. Raises UserError for a paper that is
    not there.
    """
    folder = files("fedbench.plugins.papers") / "reference"
    names = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if source not in names:
        raise UserError(f"no reference numbers of '{source}'; there are {', '.join(names)}")
    rows: list[dict[str, str]] = []
    for line in csv.DictReader((folder / f"{source}.csv").read_text(encoding="utf-8").splitlines()):
        defenses, means = line["defense"].split(";"), line["mean"].split(";")
        for defense, mean in zip(defenses, means, strict=True):
            rows.append({**line, "defense": defense, "mean": mean})
    return tuple(rows)


def plain(name: str) -> str:
    """Return a method's name without punctuation: ``fedmia-ii`` and ``fedmia_ii``, ``dp-sgd`` and
    ``dpsgd`` are the same.
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def comparable(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of a paper's table, those that only make sense together as one row: maxima of
    all clients as their mean, with ``low`` and ``high``; seconds as a share of the undefended
    federation's.
    """
    single: list[dict[str, str]] = []
    maxima: dict[tuple[str, ...], list[dict[str, str]]] = {}
    times: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows:
        if row["metric"] in MAXIMA:
            row = {**row, "attack": row["attack"].partition(":")[0]}
            maxima.setdefault(tuple(row[c] for c in _CELL), []).append(row)
        elif row["metric"] == "runtime_s":
            place = tuple(row[c] for c in (*_WHERE, "case"))
            times.setdefault(place, {})[row["defense"]] = row
        else:
            single.append(row)
    single += map(_mean_maximum, maxima.values())
    for defenses in times.values():
        single += _shares(defenses)
    return single


def _mean_maximum(clients: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the rows of one maximum a client as their mean."""
    values = [float(row["mean"]) for row in clients]
    low, high, mean = min(values), max(values), sum(values) / len(values)
    return {**clients[0], "mean": repr(mean), "low": repr(low), "high": repr(high)}


def _shares(defenses: Mapping[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return the times of defenses as shares of the undefended federation's; none without it."""
    if "none" not in defenses:
        return []
    base = float(defenses["none"]["mean"])
    shares = []
    for defense, row in defenses.items():
        if defense != "none":
            ratio = float(row["mean"]) / base
            shares.append({**row, "metric": "runtime", "mean": repr(ratio)})
    return shares


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our number for a published cell."""

    value: float
    half_width: float | None = None
    """None: it has no interval"""
    last: float | None = None
    """decisions only: ours in the last round, chosen without labels"""
    null: float | None = None
    """attack accuracy and maxima: mean of ours under shuffled membership"""


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """Published number, and ours, which is None where the cell was not run (or has no score)."""

    quantity: str
    """one of ``QUANTITIES``; decisions: of the best of all rounds, picked with the labels, as the
    papers report them
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
    """Entry of a suite's ``published`` against our sections of one coalition."""

    source: str
    table: str
    setting: str
    coalition: str
    pairs: tuple[PublishedCell, ...]
    differs: str = ""
    """differences from the paper that the suite names"""
    unlike: tuple[str, ...] = ()
    """differences of data set or model, in whole clauses"""
    printed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(the paper's defense, quantity) -> its printed average over its attacks"""

    def of(self, quantity: str) -> list[PublishedCell]:
        """Return the cells of one quantity."""
        return [p for p in self.pairs if p.quantity == quantity]


def match(entry: Mapping[str, Any], sections: Sequence[BoardSection]) -> list[Match]:
    """Return the cells of a suite's entry of published numbers and ours, for every coalition that
    the paper has.

    entry: ``source``, ``setting``, ``where`` (column -> value or several, of table, dataset, model,
    partition), ``case`` (our coalition -> the paper's case; by default the same names),
    ``defenses`` and ``attacks`` (our label -> the paper's), ``differs`` (further differences from
    the paper). Raises UserError when the paper has no rows of a value.
    """
    source = entry["source"]
    where: dict[str, list[str]] = {}
    for column, value in entry.get("where", {}).items():
        where[column] = value if isinstance(value, list) else [str(value)]
    rows = _rows(source, where)
    cases = entry.get("case") or {r["case"]: r["case"] for r in rows if r["case"] != "none"}
    sections = [s for s in sections if s.setting == entry["setting"]]
    matches = []
    for coalition, case in (cases or {"none": "none"}).items():
        of_case = [r for r in rows if r["case"] == case or r["defense"] == "none"]
        views = [s for s in sections if s.coalition == coalition]
        cells: list[PublishedCell] = []
        for row in of_case:
            if row["metric"] in _OF_THE_MODEL or row["attack"] not in ("", AVERAGE):
                cells += _cells(row, views, entry)
        averages = [r for r in of_case if r["attack"] == AVERAGE]
        matches.append(
            Match(
                source=source,
                table=", ".join(where.get("table", ["all tables"])),
                setting=entry["setting"],
                coalition=coalition,
                pairs=tuple(cells),
                differs=str(entry.get("differs") or ""),
                printed={(r["defense"], r["metric"]): float(r["mean"]) for r in averages},
                unlike=_unlike(rows, sections),
            )
        )
    return matches


def _rows(source: str, where: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the paper's rows with these values of columns. Raises UserError when one has none."""
    rows = [r for r in comparable(published(source)) if r["metric"] in QUANTITIES]
    for column, values in where.items():
        rows = [r for r in rows if r[column] in values]
    if not rows or any({*values} - {r[c] for r in rows} for c, values in where.items()):
        have = sorted({tuple(r[c] for c in _WHERE) for r in published(source)})
        places = ", ".join(map(str, have))
        raise UserError(f"reference {source} has no rows where {where}; it has {places}")
    return rows


def _unlike(rows: Sequence[dict[str, str]], sections: Sequence[BoardSection]) -> tuple[str, ...]:
    """Differences of data set and model from the setting's, where the paper and the records state
    them.
    """
    clauses = []
    for column, title in (("dataset", "data set"), ("model", "model")):
        theirs = sorted({r[column] for r in rows} - {""})
        ours = [str(s.described[column]["name"]) for s in sections if column in s.described][:1]
        networks = {plain(COMPONENT.get(name, name)) for name in theirs}
        if ours and not networks <= {plain(ours[0])}:
            clauses.append(f"the paper's {title} is {' and '.join(theirs)}, ours {ours[0]}")
    return tuple(clauses)


def _cells(
    row: dict[str, str], sections: Sequence[BoardSection], entry: Mapping[str, Any]
) -> list[PublishedCell]:
    """Return one cell; where the paper prints one row and we ran several strengths of that defense
    (``grid``), one for each.
    """
    metric, theirs, group = row["metric"], row["attack"], ""
    if metric in _OF_A_GROUP:  # attack:group, or of one client's samples of one class
        theirs, _, group = theirs.partition(":")
    name = _renamed(row["defense"], entry.get("defenses", {}))
    attack = _renamed(theirs, entry.get("attacks", {}))
    cells = []
    for defense in [name] if metric == "hypervolume" else _strengths(name, sections):
        ours = (_ours(s, metric, plain(defense), plain(attack), group) for s in sections)
        cells.append(
            PublishedCell(
                quantity=metric,
                theirs=row["defense"],
                defense=defense,
                attack=attack,
                group=group,
                paper=float(row["mean"]),
                paper_std=float(row["std"]) if row["std"] else None,
                paper_range=(float(row["low"]), float(row["high"])) if "low" in row else None,
                ours=next(filter(None, ours), None),
            )
        )
    return cells


def _renamed(name: str, ours: dict[str, str]) -> str:
    return next((label for label, theirs in ours.items() if theirs == name), name)


def _strengths(name: str, sections: Sequence[BoardSection]) -> list[str]:
    """Return our rows of that name: the one, or those of a grid over that defense."""
    labels = list(dict.fromkeys(row.label for s in sections for row in s.rows))
    if any(plain(label) == plain(name) for label in labels):
        return [name]
    of_grid = [label.partition("[") for label in labels if "[" in label]
    return ["".join(parts) for parts in of_grid if plain(parts[0]) == plain(name)] or [name]


# -- our number of one quantity --------------------------------------------------------------------


def _ours(section: BoardSection, metric: str, defense: str, attack: str, group: str) -> Ours | None:
    """Return our number; ``defense`` and ``attack``: as :func:`plain` gives them."""
    if metric == "hypervolume":
        return _hypervolume(section, defense, attack)
    row = next((row for row in section.rows if plain(row.label) == defense), None)
    if row is None:
        return None
    if metric == "test_acc" and not attack:
        return _number(row.accuracy)
    if metric == "delta_acc":
        return _number(section.summaries[row.label].delta_accuracy)
    if metric == "runtime":
        return _number(section.summaries[row.label].runtime)
    if metric in MAXIMA:
        return _maximum(row, metric) if section.view == VIEW_OF.get(attack) else None
    entry = next((e for label, e in row.entries.items() if plain(label) == attack), None)
    return None if entry is None else _of_entry(section, entry, metric, group)


def _of_entry(section: BoardSection, entry: AttackEntry, metric: str, group: str) -> Ours | None:
    """Count as the papers do: of the mix, with the attack's own sign; the test accuracy is that
    under the attack.
    """
    if metric == "test_acc":
        return _number(accuracy_of(filter(None, map(entry.ok, entry.targets))))
    if metric == "attack_accuracy":
        best, last = entry.attack_accuracy(best=True), entry.attack_accuracy()
        if not best or not last:
            return None
        null = entry.decision_mean("null_best_accuracy")
        return Ours(value=best.mean, half_width=best.half_width, last=last.mean, null=null)
    if metric in DECISIONS:
        name = metric.removeprefix("attack_")
        of_best = entry.decision_mean(f"best_{name}")
        of_last = entry.decision_mean(f"last_{name}")
        return None if of_best is None else Ours(value=of_best, last=of_last)
    # the attack's own decisions on one group of clients in the last round
    if metric == "mia_accuracy":
        names = [plain(g.name) for g in section.groups]
        if plain(group) not in names:
            return None
        of_group = entry.of_group(section.groups, names.index(plain(group)))
        return _number(of_group.attack_accuracy())
    if metric == "tf01_by_class":
        return _of_class(entry, group)
    return _number(entry.pooled_tf01() if metric == "tf01" else entry.interval(metric))


def _number(interval: Interval | None) -> Ours | None:
    return Ours(value=interval.mean, half_width=interval.half_width) if interval else None


def _maximum(row: DefenseRow, metric: str) -> Ours | None:
    maximum = row_maximum(row)
    if maximum is None:
        return None
    largest = maximum.auc if metric == "auc_max" else maximum.advantage
    interval = largest.found
    return Ours(value=interval.mean, half_width=interval.half_width, null=largest.null_mean)


def _hypervolume(section: BoardSection, defense: str, attack: str) -> Ours | None:
    """Return that over all strengths of the defense that were run; without an interval."""
    for sweep in section.sweeps(least=1):
        if plain(sweep.family) == defense:
            for label, volume in sweep.hypervolumes.items():
                if plain(label) == attack:
                    return Ours(value=volume)
    return None


def _of_class(entry: AttackEntry, group: str) -> Ours | None:
    """Return TF01 in percent of client0:class3, or client0:all, all seeds together; without an
    interval. From the first analysis of each record that counted; None where nothing was counted,
    or one seed could not be.
    """
    client, _, label = group.partition(":")
    hits = members = 0.0
    for seed in entry.targets:
        arrays = _counted(entry, seed)
        if arrays is not None:
            of_class = arrays["client"] == int(client.removeprefix("client"))
            if label != "all":
                of_class &= arrays["class"] == int(label.removeprefix("class"))
            hits += float(arrays["found"][of_class].sum())
            members += float(arrays["members"][of_class].sum())
    return Ours(value=100 * hits / members) if members and hits == hits else None


def _counted(entry: AttackEntry, seed: int) -> Mapping[str, ndarray] | None:
    """Return arrays of the seed's first analysis that counted by class."""
    loaded = entry.ok(seed)
    for name in sorted(loaded.record.analyses) if loaded else ():
        findings = entry.findings(name, seed)
        if findings is not None and set(findings.arrays) >= BY_CLASS:
            return findings.arrays
    return None
