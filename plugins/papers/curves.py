"""Curves of a sweep: a measured number at each point of a swept setting, and the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from fedbench.core import Params, UserError
from fedbench.core.report import Interval
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.scores import Population
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.plugins.papers.claim_files import Quantity
from fedbench.plugins.papers.published import VIEW_OF, PublishedCell, match, plain
from fedbench.plugins.papers.quantities import Missing, measured
from fedbench.plugins.papers.trends import Trend, trend

Over = Literal["settings", "coalitions", "rows"]
Measured = Literal[
    "auc",
    "tf01",
    "attack-accuracy",
    "worst-auc",
    "max-advantage",
    "accuracy",
    "delta-accuracy",
    "runtime",
]
OF_ATTACKS = ("auc", "tf01", "attack-accuracy")


class Look(NamedTuple):
    """How a measure is drawn."""

    title: str
    largest: float = 1.0
    """value at which intervals end"""
    printed: str = ""
    """the quantity of a paper that its hollow marks show"""
    scale: float = 1.0
    """of the paper's unit in ours"""
    chance: float | None = None


LOOKS: Mapping[str, Look] = {
    "auc": Look("AUC", printed="auc", chance=0.5),
    "tf01": Look("TF01, %", 100, "tf01", chance=0.1),
    "attack-accuracy": Look("attack accuracy", printed="attack_accuracy", chance=0.5),
    "worst-auc": Look("worst-case AUC", chance=0.5),
    "max-advantage": Look("largest advantage", printed="advantage_max"),
    "accuracy": Look("test accuracy, %", 100, "test_acc", 100),
    "delta-accuracy": Look("accuracy - undefended, pp", math.inf, "delta_acc", 100),
    "runtime": Look("runtime / plain training", math.inf, "runtime"),
}


class Curve(Params):
    """A swept setting: which names of a suite are its points, and what is drawn at each."""

    name: str = Field(pattern="^[a-z0-9-]{1,40}$", description="word for the names of files")
    along: str = Field(
        min_length=1, max_length=60, description="the swept quantity, title of the axis"
    )
    over: Over = Field(
        "settings", description="of what the points are names; all else is the same at each"
    )
    points: list[tuple[str, str | float]] = Field(
        description="name and value of each point, in the order of the axis"
    )
    measures: list[Measured] = Field(["auc"], min_length=1, description="one panel each, or more")
    rows: list[str] = Field([], description="defenses; by default all that the first point has")
    attacks: list[str] = Field([], description="attacks; by default all of the section")
    nonmembers: Population = Field("outside", description="which non-members AUC and TF01 count")
    tables: list[str] = Field(
        [],
        description="tables of the paper that are marked; by default all that `published` names",
    )

    @field_validator("points")
    @classmethod
    def _several(cls, points: list[tuple[str, str | float]]) -> list[tuple[str, str | float]]:
        names = {name for name, _ in points}
        if len(names) < 2 or len(names) < len(points):
            text = "a sweep has at least two points, each with a name of its own; found {names}"
            found = ", ".join(name for name, _ in points) or "none"
            raise PydanticCustomError("fedbench", text, {"names": found})
        return points


# ---------------------------------------------------------------- points and lines


class PointOf(NamedTuple):
    """Point of a curve on a board."""

    name: str
    value: str
    section: BoardSection


@dataclass(frozen=True)
class SweptPlace:
    """A curve where all but the swept quantity is the same."""

    curve: Curve
    where: tuple[str, ...]
    """what is the same, of setting, coalition and view"""
    points: tuple[PointOf, ...]
    """those that the board has"""

    @property
    def kind(self) -> str:
        """Word for the names of files."""
        return "-".join(("curve", self.curve.name, *self.where))

    @property
    def title(self) -> str:
        """Title of figure and table."""
        return f"{self.curve.along} ({', '.join(self.where)})"


def places_of(curve: Curve, sections: Sequence[BoardSection]) -> list[SweptPlace]:
    """Return every place with at least two points of the curve, in the board's order."""
    by_place: dict[tuple[str, ...], dict[str, BoardSection]] = {}
    for section in sections:
        place = section.setting, section.coalition, section.view
        if curve.over == "rows":
            names = {row.label: section for row in section.rows}
            by_place.setdefault(place, {}).update(names)
        else:
            swept = 0 if curve.over == "settings" else 1
            rest = place[:swept] + place[swept + 1 :]
            by_place.setdefault(rest, {})[place[swept]] = section
    places = []
    for where, named in by_place.items():
        points = [PointOf(n, _text(v), named[n]) for n, v in curve.points if n in named]
        if len(points) > 1 and _attacks(curve, points[0].section):
            places.append(SweptPlace(curve, where, tuple(points)))
    return places


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _attacks(curve: Curve, section: BoardSection) -> list[str]:
    return [a for a in section.attacks if not curve.attacks or a in curve.attacks]


@dataclass(frozen=True)
class Line:
    """One measure of one defense, against one attack where the measure is of attacks."""

    quantity: Quantity
    """at the first point"""
    ours: list[Interval | None]
    """at each point"""
    printed: list[list[float]]
    """the paper's numbers at each point, in our unit"""
    direction: Trend | None
    lacking: str
    """why there is no direction"""


def lines_of(at: SweptPlace, published: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the lines that have a number at some point; ``published``: the suite's entries."""
    curve = at.curve
    cells = {p.section.where: cells_of(curve, p.section, published) for p in at.points}
    held = [point.section.held_against(curve.nonmembers) for point in at.points]
    lines = []
    for quantity in _quantities(at):
        points = []
        for point, section in zip(at.points, held, strict=True):
            row = point.name if curve.over == "rows" else quantity.row
            points.append((section, quantity.model_copy(update={"row": row})))
        line = _line(points, cells)
        lines += [line] if any(line.ours) else []
    for section in held if curve.nonmembers != "outside" else ():
        section.comparison.scores.forget()
    return lines


def _quantities(at: SweptPlace) -> Iterator[Quantity]:
    """Yield what is measured at the first point, measure by measure."""
    curve, first = at.curve, at.points[0]
    in_order = sorted(first.section.rows, key=lambda row: (not row.undefended, row.label))
    rows = curve.rows or [row.label for row in in_order if not row.floor]
    if curve.over == "rows":
        rows = [first.name]
    for measure, row in product(curve.measures, rows):
        attacks: list[str | None] = [None]
        if measure in OF_ATTACKS:
            attacks = [*_attacks(curve, first.section)]
        for attack in attacks:
            yield Quantity(measure=measure, row=row, attack=attack)


def cells_of(
    curve: Curve, section: BoardSection, published: Sequence[Mapping[str, Any]]
) -> list[PublishedCell]:
    """Return the published numbers of a section; an entry that fits no paper is named where all
    published numbers are.
    """
    cells: list[PublishedCell] = []
    for entry in published:
        if entry["setting"] == section.setting:
            with suppress(UserError):
                for of_table in match(entry, [section]):
                    wanted = not curve.tables or of_table.table in curve.tables
                    if wanted and of_table.coalition == section.coalition:
                        cells += of_table.pairs
    return cells


def _line(
    points: Sequence[tuple[BoardSection, Quantity]], cells: Mapping[str, Sequence[PublishedCell]]
) -> Line:
    ours: list[Interval | None] = []
    printed: list[list[float]] = []
    look = LOOKS[points[0][1].measure]
    for section, q in points:
        interval = None
        with suppress(Missing):
            interval = bounded(measured(section, q), -look.largest, look.largest)
        ours.append(interval)
        same = [cell for cell in cells[section.where] if _is_of(cell, q, section.view)]
        printed.append([look.scale * cell.paper for cell in same])
    direction, lacking = None, ""
    try:
        direction = trend(points)
    except Missing as missing:
        lacking = f"{missing.why} {missing.what}".strip()
    return Line(points[0][1], ours, printed, direction, lacking)


def _is_of(cell: PublishedCell, q: Quantity, view: str) -> bool:
    """Tell whether the published number is of that quantity; of a maximum over attacks the paper
    names an adversary.
    """
    if cell.quantity != LOOKS[q.measure].printed or plain(cell.defense) != plain(q.row):
        return False
    attack = plain(cell.attack)
    if q.measure in OF_ATTACKS:
        return attack == plain(q.attack or "")
    return not attack or VIEW_OF.get(attack) == view
