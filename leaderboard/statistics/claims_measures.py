"""The quantities that claims are made of: a number of a row with its interval, and one number against another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.claims.schema import Quantity
from fedbench.leaderboard.statistics.claims_series import BY_SEED, Missing, series
from fedbench.leaderboard.statistics.intervals import Measured, over_units, p_value
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import PairTests, Rival


@dataclass(frozen=True)
class Found:
    """A number, or a difference of two; ``p``: two-sided, that it is no other than the value it was held against."""

    interval: Interval
    p: float


def row_of(section: Section, label: str) -> Row:
    """The row of that label; :class:`Missing` where the section has none."""
    row = next((r for r in section.rows if r.label == label), None)
    if row is None:
        raise Missing("no row", label)
    return row


def measured(section: Section, q: Quantity) -> Interval:
    """The quantity with its 95 % interval, in the unit of its measure; :class:`Missing` where the section cannot say it."""
    row = row_of(section, q.row)
    _require_scores(section, row, q)
    found = _MEASURES[q.measure](section, row, q)
    if found is None:
        raise Missing(_WHY.get(q.measure, "no score of"), q.attack or q.row)
    return found


def held_against(section: Section, q: Quantity, value: float) -> Found:
    """The quantity against a number."""
    found = measured(section, q)
    return Found(found, p_of_interval(found, value, len(section.seeds)))


def contrasted(one: tuple[Section, Quantity], other: tuple[Section, Quantity], margin: float = 0.0) -> Found:
    """The first quantity minus the second, against ``margin``: paired on the same candidates or seeds where both are of one
    section and measure that can be, else of two separate intervals."""
    (section, a), (elsewhere, b) = one, other
    ours, theirs = measured(section, a), measured(elsewhere, b)
    if section is elsewhere and a.measure in _RIVALS:
        return _on_candidates(section, _RIVALS[a.measure](section, a), _RIVALS[b.measure](section, b), margin)
    if section is elsewhere and a.measure == "accuracy":
        difference = section.accuracy_difference(row_of(section, a.row), row_of(section, b.row))
        if difference is None:
            raise Missing("no seed that both have:", f"{a.row}, {b.row}")
        scaled = _scaled(difference)
        return Found(scaled, p_of_interval(scaled, margin, len(section.seeds)))
    if section is elsewhere and a.measure in BY_SEED:
        return _over_seeds(series(section, row_of(section, a.row), a), series(section, row_of(section, b.row), b), margin)
    apart = separate(ours, theirs)
    return Found(apart, p_of_interval(apart, margin, min(len(section.seeds), len(elsewhere.seeds))))


def separate(one: Interval, other: Interval) -> Interval:
    """One minus the other of two intervals that nothing pairs: each end is as far from the difference as both numbers' ends on
    that side together, in squares (Zou & Donner, Statistics in Medicine 2008). Numbers that rise and fall together, as
    those of one section do, differ by less: this errs on the safe side."""
    mean = one.mean - other.mean
    low = mean - float(np.hypot(one.mean - one.low, other.high - other.mean))
    high = mean + float(np.hypot(one.high - one.mean, other.mean - other.low))
    return Interval(mean, (high - low) / 2, min(one.n, other.n), one.between and other.between, (low, high))


def p_of_interval(found: Interval, value: float, seeds: int) -> float:
    """Two-sided p-value of ``value``, .05 where it is an end of the 95 % interval; beyond, the tail is Student's t over seeds.

    1 with fewer than two seeds, since one training says nothing of the next, and where the interval is not known.
    """
    reach = found.high - found.mean if found.mean < value else found.mean - found.low
    if seeds < 2 or reach != reach:
        return 1.0
    if found.mean == value:
        return 1.0
    if reach <= 0:
        return 0.0
    bar = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return 2 * float(stdtr(seeds - 1, -bar * abs(found.mean - value) / reach))


def _on_candidates(section: Section, one: Rival, other: Rival, margin: float) -> Found:
    tests = PairTests(section.comparison.parts, {"one": one, "other": other}, margin)
    interval = tests.interval("one", "other")
    if interval is None:
        raise Missing("no candidates in common")
    return Found(interval, tests.test("one", "other")[1])


def _over_seeds(one: Mapping[int, Measured], other: Mapping[int, Measured], margin: float) -> Found:
    pairs = {seed: (one[seed], other[seed]) for seed in one if seed in other}
    found = {(s, 0): Measured(a.value - b.value, float(np.hypot(a.error, b.error))) for s, (a, b) in pairs.items()}
    interval = over_units(found)
    if interval is None:
        raise Missing("no seed that both have")
    return Found(interval, p_value({unit: Measured(m.value - margin, m.error) for unit, m in found.items()}))


# -- one measure each ---------------------------------------------------------------------------------------------------


def _require_scores(section: Section, row: Row, q: Quantity) -> None:
    """A mean over the trainings that did not fail would flatter whatever made the others fail."""
    if q.attack is not None and q.attack not in row.entries:
        raise Missing("no attack", q.attack)
    if q.attack is not None:
        scored = row.entries[q.attack].complete
    else:
        scored = row.complete if q.measure in _OVER_ATTACKS else all(row.utility_run(seed) for seed in row.seeds)
    if not scored:
        raise Missing("scores are missing of", q.row if q.attack is None else f"{q.row} / {q.attack}")
    if q.measure in _OVER_ATTACKS and not section.comparison.eligible:
        raise Missing("no attack beats chance on the undefended run, so none judges")


def _worst(section: Section, row: Row, q: Quantity) -> Interval | None:
    worst = section.comparison.worst(row.label)
    return worst.found if worst else None


def _worst_rate(section: Section, row: Row, q: Quantity) -> Interval | None:
    worst = section.comparison.worst_tf01(row.label)
    return worst.found if worst else None


def _mean_rate(section: Section, row: Row, q: Quantity) -> Interval | None:
    """Over the eligible attacks. They judge the same candidates, so their errors may all fall together."""
    found = [section.comparison.tf01(row.label, a) for a in section.comparison.eligible]
    known = [i for i in found if i is not None]
    if not known or len(known) < len(found):
        return None
    mean, low, high = (float(np.mean([getattr(i, part) for i in known])) for part in ("mean", "low", "high"))
    return Interval(mean, (high - low) / 2, known[0].n, between=True, ends=(low, high))


def _over_seeds_of(section: Section, row: Row, q: Quantity) -> Interval | None:
    return over_units({(seed, 0): m for seed, m in series(section, row, q).items()})


def _percent(found: Interval | None) -> Interval | None:
    return None if found is None else _scaled(found)


def _scaled(found: Interval) -> Interval:
    return Interval(100 * found.mean, 100 * found.half_width, found.n, found.between)


_Of = Callable[[Section, Row, Quantity], Interval | None]
_MEASURES: dict[str, _Of] = {
    "worst-auc": _worst,
    "mean-auc": lambda section, row, q: section.comparison.mean(row.label),
    "auc": lambda section, row, q: section.comparison.signed(row.label, q.attack or ""),
    "worst-tf01": _worst_rate,
    "mean-tf01": _mean_rate,
    "tf01": lambda section, row, q: section.comparison.tf01(row.label, q.attack or ""),
    "accuracy": lambda section, row, q: _percent(row.accuracy),
    "delta-accuracy": lambda section, row, q: _percent(section.compared[row.label].delta_accuracy),
    "runtime": lambda section, row, q: section.compared[row.label].runtime,
    **dict.fromkeys(BY_SEED, _over_seeds_of),
}
_RIVALS: dict[str, Callable[[Section, Quantity], Rival]] = {
    "worst-auc": lambda section, q: section.comparison.worst_rival(q.row),
    "mean-auc": lambda section, q: section.comparison.mean_rival(q.row),
    "auc": lambda section, q: section.comparison.cell_rival(q.row, q.attack or ""),
}
_OVER_ATTACKS = ("worst-auc", "mean-auc", "worst-tf01", "mean-tf01")
_WHY = {
    **dict.fromkeys(("worst-tf01", "mean-tf01", "tf01"), "too few non-members for TF01 of"),
    "accuracy": "no test accuracy of", "delta-accuracy": "no undefended run to compare with", "runtime": "no comparable times of",
}  # fmt: skip
