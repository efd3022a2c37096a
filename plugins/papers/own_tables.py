"""Claims on their papers' own tables: each predicate evaluated on the printed numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, product

import numpy as np

from fedbench.plugins.papers.claim_files import (
    Bound,
    Claim,
    Contrast,
    Names,
    Paper,
    Predicate,
    Printed,
    Quantity,
    Sweep,
)
from fedbench.plugins.papers.published import AVERAGE, comparable, plain, published

# view -> the adversary of the printed maxima
ADVERSARY = {"server": "globaladversary", "client": "localadversary"}
_PRINTED = {
    "auc": ("auc", "auc_max"),
    "tf01": ("tf01",),
    "attack-accuracy": ("attack_accuracy", "mia_accuracy"),
    "runtime": ("runtime",),
    "max-advantage": ("advantage_max",),
}
_SHEET = ("dataset", "model", "partition", "case")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class OwnTable:
    """Claim on the printed numbers of its paper."""

    distances: Mapping[tuple[int, str | None], list[float]]
    """(position in ``holds``, name of the other side or None) -> how far each printed number lies
    on the claimed side, slack included, in the unit of its measure
    """
    printed: int = 0
    """sheets that have them"""
    against: Mapping[str, str] = field(default_factory=dict)
    """place of a sheet -> its first cell on the other side, in words"""
    share: float = 1.0
    """share of the sheets that must hold the claim"""

    @property
    def fails(self) -> bool:
        """Whether too few sheets hold it."""
        return self.printed - len(self.against) < self.share * self.printed

    @property
    def tables(self) -> str:
        """The tables that speak against it."""
        return ", ".join(dict.fromkeys(place.partition(",")[0] for place in self.against))

    def distance(self, predicate: int, other: str | None) -> float | None:
        """Return the mean over the tables; None where it is not printed, or a tie."""
        mean = float(np.mean(self.distances.get((predicate, other), [0.0])))
        return mean if mean > _ROUNDING else None


def own_table(paper: Paper, claim: Claim) -> OwnTable:
    """Evaluate the claim on the numbers that it says are printed. Equal numbers count as holding:
    they are rounded.
    """
    distances: dict[tuple[int, str | None], list[float]] = {}
    places: set[str] = set()
    against: dict[str, str] = {}
    view = paper.sections[claim.where[0]].view
    every_sheet = chain.from_iterable(sheets(paper, printed, view) for printed in claim.printed)
    for sheet, (i, predicate) in product(every_sheet, enumerate(claim.holds)):
        for other, number, value in _compared(sheet, predicate.asked):
            slack = getattr(predicate.asked, "slack", 0.0)
            distance = predicate.direction * (number - value) + slack
            distances.setdefault((i, other), []).append(distance)
            places.add(sheet.place)
            if distance < -_ROUNDING:
                against.setdefault(sheet.place, _in_words(sheet, predicate, other, number, value))
    return OwnTable(distances, len(places), against, claim.share)


@dataclass(frozen=True)
class Sheet:
    """Numbers of one data set, model, partition and case."""

    place: str
    cells: Mapping[tuple[str, str, str], float]
    """(defense, metric, attack) in the paper's names -> number"""
    names: Names
    view: str
    than: Sheet | None = None
    """sheet of the other section of a comparison"""

    def number(self, q: Quantity) -> float | None:
        """Return the number in the unit of the measure, from the cells and not from a printed
        average; None where it is not printed.
        """
        row = plain(self.names.defenses.get(q.row, q.row))
        over, _, metric = q.measure.partition("-")
        if over in ("worst", "mean"):
            return self._over_attacks(row, over, metric)
        if q.measure in ("accuracy", "delta-accuracy"):
            return self._utility(row, q)
        attack = plain(self.names.attacks.get(q.attack or "", q.attack or "") + (q.group or ""))
        if q.measure == "max-advantage":
            attack = ADVERSARY[self.view]
        if q.measure == "finding":  # a spread over groups of one attack
            metric = plain(q.analysis or "")
            groups = [
                number
                for (r, m, a), number in self.cells.items()
                if (r, plain(m)) == (row, metric) and attack in a
            ]
            spread = (q.name, q.minus) == ("highest", "lowest")
            return max(groups) - min(groups) if groups and spread else None
        for metric in _PRINTED.get(q.measure, ()):
            if (row, metric, attack) in self.cells:
                return self.cells[row, metric, attack]
        return None

    def _over_attacks(self, row: str, over: str, metric: str) -> float | None:
        """Worst case or mean of the attacks of a row."""
        numbers = [
            number
            for (r, m, attack), number in self.cells.items()
            if (r, m) == (row, metric) and attack != AVERAGE
        ]
        if over == "mean":
            return float(np.mean(numbers)) if numbers else None
        largest = self.cells.get((row, f"{metric}_max", ADVERSARY.get(self.view, "")))
        if largest is not None:
            numbers.append(largest)
        return max(numbers, default=None)

    def _utility(self, row: str, q: Quantity) -> float | None:
        """Accuracy or its difference, in percent or percentage points; where only differences from
        the undefended accuracy are printed, these.
        """
        base = self.cells.get(("none", "test_acc", ""))
        accuracy = self.cells.get((row, "test_acc", ""))
        difference = 0.0 if row == "none" else self.cells.get((row, "delta_acc", ""))
        if difference is None and accuracy is not None and base is not None:
            difference = accuracy - base
        number = difference
        if q.measure == "accuracy":
            number = accuracy
            if accuracy is None and difference is not None:
                number = (base or 0.0) + difference
        return None if number is None else 100 * number


def sheets(paper: Paper, printed: Printed, view: str) -> Iterator[Sheet]:
    """Yield a sheet for every data set, model, partition and case that ``printed`` leaves open."""
    names = Names(
        defenses=paper.names.defenses | printed.defenses,
        attacks=paper.names.attacks | printed.attacks,
    )
    wanted = printed.model_dump(exclude_none=True, exclude={"than", "defenses", "attacks"})
    rows = _where(comparable(published(paper.source)), wanted)
    groups = dict.fromkeys(tuple(r[c] for c in _SHEET) for r in rows)
    # undefended rows are of every case
    for group in [g for g in groups if g[-1] != "none"] or groups:
        columns = dict(zip(_SHEET, group, strict=True))
        of_sheet = _where(rows, columns)
        cells = {}
        for r in reversed(of_sheet):
            cells[plain(r["defense"]), r["metric"], plain(r["attack"])] = float(r["mean"])
        table = of_sheet[-1]["table"]
        place = ", ".join(part for part in (table, *group) if part not in ("", "none"))
        than = None
        if printed.than:
            other = printed.model_copy(update={**columns, **printed.than, "than": {}})
            than = next(sheets(paper, other, view), None)
        yield Sheet(place, cells, names, view, than)


def _where(rows: list[dict[str, str]], wanted: Mapping[str, str]) -> list[dict[str, str]]:
    """Rows with the wanted values; undefended ones are of every case."""
    values = {column: {value} for column, value in wanted.items()}
    if "case" in values:
        values["case"].add("none")
    return [r for r in rows if all(r[column] in values[column] for column in values)]


def _compared(
    sheet: Sheet, asked: Bound | Contrast | Sweep
) -> Iterator[tuple[str | None, float, float]]:
    """Yield (name of the other side, the printed number, what it is compared with) of all that are
    printed; nothing of a sweep, which has its points in several sheets.
    """
    number = sheet.number(asked)
    if number is None or isinstance(asked, Sweep):
        return
    if isinstance(asked, Bound):
        yield None, number, asked.value
        return
    than, section = asked.than, asked.than.section
    rivals: list[tuple[str, Sheet, dict[str, str | None]]] = []
    for column, labels in (("row", than.rows), ("attack", than.attacks), ("group", than.groups)):
        rivals += [(label, sheet, {column: label}) for label in labels or ()]
    if section and sheet.than:
        elsewhere = replace(sheet.than, view=section.view or sheet.view)
        rivals.append((section.name, elsewhere, {"attack": section.attack or asked.attack}))
    for name, other, update in rivals:
        value = other.number(asked.model_copy(update=update))
        if value is not None:
            yield name, number, value


def _in_words(
    sheet: Sheet, predicate: Predicate, other: str | None, number: float, value: float
) -> str:
    asked, side = predicate.asked, "below" if predicate.direction < 0 else "above"
    cell = f"{asked.row} / {asked.attack}" if asked.attack else asked.row
    allowed = getattr(asked, "slack", 0.0)
    slack = f" {-predicate.direction * allowed:+g}" if allowed else ""
    rival = other or "the value"
    return f"{sheet.place}: {cell} {number:.4g}, claimed {side} {rival} {value:.4g}{slack}"
