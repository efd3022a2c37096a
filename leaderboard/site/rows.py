"""The sections of a board and their ranked rows: each number with its interval, each attack's with its curve and cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedbench.core.contract.board import Words
from fedbench.core.metrics import Interval
from fedbench.leaderboard.site.cells import Cells, outcomes, packages
from fedbench.leaderboard.site.encode import DECADES, interval, number, packed_rates, text
from fedbench.leaderboard.site.texts import plain
from fedbench.leaderboard.statistics.roc import fpr_grid, roc_band
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import RowCosts, Section
from fedbench.leaderboard.tables.ranking import answer, claimed, sentences
from fedbench.leaderboard.tables.tradeoffs import TradeOff, trade_off

FPR = np.geomspace(10.0**-DECADES, 1, 8 * DECADES + 1)  # 0.1 % among them
_MOST_REMARKS = 4
_NO_CHANGE, _AS_FAST = Interval(0, 0, 1, between=False), Interval(1, 0, 1, between=False)

Trust = Callable[[Row], Words]


def section_of(section: Section, setting: int, first: int, cells: Cells) -> dict[str, Any]:
    """One section, whose rows are numbered from ``first``."""
    return {
        "setting": setting, "coalition": text(section.coalition), "view": text(section.view), "seeds": list(section.seeds),
        "units": len(section.units), "attacks": [_attack_use(section, attack, cells) for attack in section.attacks],
        "eligible": [i for i, attack in enumerate(section.attacks) if attack in section.comparison.eligible],
        "fpr_from": _from(section), "power": number(section.smallest_difference),
        "sentences": list(map(plain, sentences(answer(section)))),
        "rows": list(range(first, first + len(section.rows))),
    }  # fmt: skip


def _attack_use(section: Section, attack: str, cells: Cells) -> int:
    """One that is called differently somewhere has the parameters of its first record here; each cell names its own."""
    first = next(r for row in section.rows for r in row.entries[attack].records.values())
    return cells.use(first.record.attack)


def _from(section: Section) -> int:
    """Where the curves begin: no lower than one outside non-member of the largest audit set."""
    lowest: float = fpr_grid(section)[0]
    return int(np.searchsorted(FPR, lowest * (1 - 1e-9)))


def rows_of(section: Section, at: int, cells: Cells, trust: Trust | None) -> list[dict[str, Any]]:
    """The rows of the section at position ``at``, in the board's order."""
    front, start = trade_off(section), _from(section)
    return [_row(section, row, at, start, front, cells, trust) for row in section.rows]


def _row(
    section: Section, row: Row, at: int, start: int, front: TradeOff | None, cells: Cells, trust: Trust | None
) -> dict[str, Any]:
    use = next(r.record.defense for e in row.entries.values() for r in e.records.values())
    return {
        "section": at, "defense": cells.use(use), "label": text(row.label), "packages": packages(use),
        "rank": _pair(section.comparison.ranks.get(row.label)), "floor": row.floor, "undefended": row.undefended,
        "complete": row.complete, "front": front.on_front.get(row.label) if front else None,
        **_leaks(section, row), **_costs(row, section.compared[row.label]), "outcomes": outcomes(cells, row.outcomes),
        "remarks": [text(said, 400) for said in row.remarks[:_MOST_REMARKS]], "claims": text(plain(claimed(row))),
        "trust": trust(row).text if trust else "",
        "entries": [_entry(section, row, attack, start, cells) for attack in section.attacks],
    }  # fmt: skip


def _pair(found: tuple[int, int] | None) -> list[int] | None:
    return None if found is None else list(found)


def _leaks(section: Section, row: Row) -> dict[str, Any]:
    contest, place = section.comparison, {attack: i for i, attack in enumerate(section.attacks)}
    worst, rate = contest.worst(row.label), contest.worst_tf01(row.label)
    return {
        "worst": interval(worst.found if worst else None), "worst_attack": place[worst.attack] if worst else -1,
        "largest": number(worst.largest[1]) if worst and worst.largest else None,
        "largest_attack": place[worst.largest[0]] if worst and worst.largest else -1,
        "mean": interval(contest.mean(row.label)), "tf01": interval(rate.found if rate else None),
        "tf01_attack": place[rate.attack] if rate else -1,
    }  # fmt: skip


def _costs(row: Row, compared: RowCosts) -> dict[str, Any]:
    delta, runtime = (_NO_CHANGE, _AS_FAST) if row.undefended else (compared.delta_accuracy, compared.runtime)
    return {
        "delta": interval(delta), "accuracy": interval(row.accuracy), "contribution": interval(compared.contribution),
        "runtime": interval(runtime),
    }  # fmt: skip


def _entry(section: Section, row: Row, attack: str, start: int, cells: Cells) -> dict[str, Any]:
    contest, entry = section.comparison, row.entries[attack]
    band = roc_band(section, row.label, attack, FPR[start:])
    return {
        "auc": interval(contest.signed(row.label, attack)), "tf01": interval(contest.tf01(row.label, attack)),
        "turned": contest.turned(row.label, attack),
        "roc": "" if band is None else packed_rates(np.concatenate([band.mean, band.low, band.high])),
        "cells": [cells.cell(entry.records[seed]) if seed in entry.records else -1 for seed in section.seeds],
    }  # fmt: skip
