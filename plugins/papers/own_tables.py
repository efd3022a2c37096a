"""What a paper's own tables say of its claims: each predicate evaluated on the printed numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

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
    """``distances``: (position in ``holds``, name of the other side or None) -> how far each
    printed number lies on the claimed side, slack included, in the unit of its measure;
    ``printed``: sheets that have them; ``against``: place of a sheet -> its first cell on the other
    side, in words; ``share``: of the sheets, that must hold the claim.
    """

    distances: Mapping[tuple[int, str | None], list[float]]
    printed: int = 0
    against: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0

    @property
    def fails(self) -> bool:
        """Whether too few sheets hold it."""
        return self.printed - len(self.against) < self.share * self.printed

    @property
    def tables(self) -> str:
        """The tables that speak against it."""
        return ", ".join(dict.fromkeys(place.partition(",")[0] for place in self.against))

    def distance(self, predicate: int, other: str | None) -> float | None:
        """The mean over the tables; None where it is not printed, or a tie."""
        found = float(np.mean(self.distances.get((predicate, other), [0.0])))
        return found if found > _ROUNDING else None


def own_table(paper: Paper, claim: Claim) -> OwnTable:
    """The claim on the numbers that it says are printed. Equal numbers count as holding: they are
    rounded.
    """
    distances: dict[tuple[int, str | None], list[float]] = {}
    printed: set[str] = set()
    against: dict[str, str] = {}
    every = [
        s
        for printed in claim.printed
        for s in sheets(paper, printed, paper.sections[claim.where[0]].view)
    ]
    for sheet, i, predicate in ((sheet, *at) for sheet in every for at in enumerate(claim.holds)):
        for other, one, value in _compared(sheet, predicate.asked):
            distance = predicate.direction * (one - value) + getattr(predicate.asked, "slack", 0.0)
            distances.setdefault((i, other), []).append(distance)
            printed.add(sheet.place)
            if distance < -_ROUNDING:
                against.setdefault(sheet.place, _said(sheet, predicate, other, one, value))
    return OwnTable(distances, len(printed), against, claim.share)


@dataclass(frozen=True)
class Sheet:
    """The numbers of one data set, model, partition and case: ``cells``, (defense, metric, attack)
    in the paper's names -> number; ``than``: the sheet of the other section of a comparison.
    """

    place: str
    cells: Mapping[tuple[str, str, str], float]
    names: Names
    view: str
    than: Sheet | None = None

    def number(self, q: Quantity) -> float | None:
        """In the unit of the measure, from the cells and not from a printed average; None where it
        is not printed.
        """
        row = plain(self.names.defenses.get(q.row, q.row))
        over, _, metric = q.measure.partition("-")
        if over in ("worst", "mean"):
            found = [
                v for (r, m, a), v in self.cells.items() if (r, m) == (row, metric) and a != AVERAGE
            ]
            if (
                over == "worst"
                and (
                    largest := self.cells.get((row, f"{metric}_max", ADVERSARY.get(self.view, "")))
                )
                is not None
            ):
                found.append(largest)
            return float((np.max if over == "worst" else np.mean)(found)) if found else None
        if q.measure in ("accuracy", "delta-accuracy"):
            return self._utility(row, q)
        attack = plain(self.names.attacks.get(q.attack or "", q.attack or "") + (q.group or ""))
        attack = ADVERSARY[self.view] if q.measure == "max-advantage" else attack
        if q.measure == "finding":  # a spread over groups of one attack
            found = [
                v
                for (r, m, a), v in self.cells.items()
                if (r, plain(m)) == (row, plain(q.analysis or "")) and attack in a
            ]
            return (
                max(found) - min(found)
                if found and (q.name, q.minus) == ("highest", "lowest")
                else None
            )
        cells = (self.cells.get((row, metric, attack)) for metric in _PRINTED.get(q.measure, ()))
        return next((v for v in cells if v is not None), None)

    def _utility(self, row: str, q: Quantity) -> float | None:
        """In percent or percentage points; where only differences from the undefended accuracy are
        printed, these.
        """
        base, found, apart = (
            self.cells.get((*at, ""))
            for at in (("none", "test_acc"), (row, "test_acc"), (row, "delta_acc"))
        )
        apart = 0.0 if row == "none" else apart
        if apart is None and found is not None and base is not None:
            apart = found - base
        if q.measure == "accuracy":
            apart = found if found is not None or apart is None else (base or 0.0) + apart
        return None if apart is None else 100 * apart


def sheets(paper: Paper, printed: Printed, view: str) -> Iterator[Sheet]:
    """One for every data set, model, partition and case that ``printed`` leaves open."""
    names = Names(
        defenses=paper.names.defenses | printed.defenses,
        attacks=paper.names.attacks | printed.attacks,
    )
    asked = printed.model_dump(exclude_none=True, exclude={"than", "defenses", "attacks"})
    rows = _where(comparable(published(paper.source)), asked)
    groups = dict.fromkeys(tuple(r[c] for c in _SHEET) for r in rows)
    # undefended rows are of every case
    for group in [g for g in groups if g[-1] != "none"] or groups:
        at = dict(zip(_SHEET, group, strict=True))
        own, there = _where(rows, at), printed.model_copy(update={**at, **printed.than, "than": {}})
        cells = {
            (plain(r["defense"]), r["metric"], plain(r["attack"])): float(r["mean"])
            for r in reversed(own)
        }
        place = ", ".join(part for part in (own[-1]["table"], *group) if part not in ("", "none"))
        yield Sheet(
            place,
            cells,
            names,
            view,
            next(sheets(paper, there, view), None) if printed.than else None,
        )


def _where(rows: list[dict[str, str]], asked: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        r
        for r in rows
        if all(r[c] == v or (c == "case" and r[c] == "none") for c, v in asked.items())
    ]


def _compared(sheet: Sheet, asked: Bound | Contrast) -> Iterator[tuple[str | None, float, float]]:
    """(name of the other side, the printed number, what it is compared with) of all that are
    printed.
    """
    one = sheet.number(asked)
    if one is None:
        return
    if isinstance(asked, Bound):
        yield None, one, asked.value
        return
    than = asked.than
    others = [
        (field, label, sheet)
        for field in ("row", "attack", "group")
        for label in getattr(than, f"{field}s") or ()
    ]
    if (section := than.section) and sheet.than:
        others = [
            (
                "attack",
                section.attack or asked.attack,
                replace(sheet.than, view=section.view or sheet.view),
            )
        ]
    for name, label, there in others:
        if (value := there.number(asked.model_copy(update={name: label}))) is not None:
            yield section.name if section else label, one, value


def _said(sheet: Sheet, predicate: Predicate, other: str | None, one: float, value: float) -> str:
    asked, side = predicate.asked, "below" if predicate.direction < 0 else "above"
    own = " / ".join(part for part in (asked.row, asked.attack) if part)
    slack = (
        f" {-predicate.direction * allowed:+g}" if (allowed := getattr(asked, "slack", 0.0)) else ""
    )
    return (
        f"{sheet.place}: {own} {one:.4g}, claimed {side} {other or 'the value'} {value:.4g}{slack}"
    )
