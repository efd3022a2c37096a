"""Quantities of claims: a number of a row with its interval, and one number against another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.core.report import Courses
from fedbench.leaderboard.statistics.intervals import Estimate, UnitValue
from fedbench.leaderboard.statistics.paired import PairTests, Rival
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.plugins.papers.claim_files import Quantity
from fedbench.plugins.papers.maximum import row_maximum

CLASSES = {
    "digits": 10,
    "mnist": 10,
    "femnist": 62,
    "cifar10": 10,
    "cifar100": 100,
    "tiny-imagenet": 200,
    "stl10": 10,
    "fer2013": 7,
    "dermnet": 23,
    "chmnist": 8,
    "location30": 30,
    "texas100": 100,
    "purchase100": 100,
}
"""by data set: no record says how many it has"""
PURE = 0.75  # least purity of clusters that are the groups of clients


class Missing(Exception):
    """Raised where a claim cannot be tested here: ``why``, in our words, and ``what``, a name of
    the claim's file.
    """

    def __init__(self, why: str, what: str = "") -> None:
        super().__init__(why, what)
        self.why, self.what = why, what


@dataclass(frozen=True)
class Tested:
    """Number, or difference of two."""

    interval: Interval
    p: float
    """two-sided, that it equals the value it is compared with"""


def measured(section: BoardSection, q: Quantity) -> Interval:
    """Return the quantity with its 95 % interval, in the unit of its measure. Raises
    :class:`Missing` where the section does not have it.
    """
    row = row_of(section, q.row)
    _require_scores(section, row, q)
    if q.measure in _OF_POPULATION and not section.comparison.leaks.parts:
        population = section.comparison.scores.population
        raise Missing(f"no candidates with non-members of this population: {population}")
    interval = _MEASURES[q.measure](section, row, q)
    if interval is None:
        raise Missing(_WHY.get(q.measure, "no score of"), q.attack or q.row)
    return interval


def row_of(section: BoardSection, label: str) -> DefenseRow:
    """Return the row of that label. Raises :class:`Missing` where the section has none."""
    if (row := section.row(label)) is None:
        raise Missing("no row", label)
    return row


def compared_with_value(section: BoardSection, q: Quantity, value: float) -> Tested:
    """Test the quantity against a number."""
    interval = measured(section, q)
    return Tested(interval, p_of_interval(interval, value, len(section.seeds)))


def contrasted(
    first: tuple[BoardSection, Quantity], second: tuple[BoardSection, Quantity], margin: float = 0.0
) -> Tested:
    """Test the first quantity minus the second against ``margin``: paired on the same candidates or
    seeds where both are of one section and measure that can be, else of two separate intervals.
    """
    (section, a), (elsewhere, b) = first, second
    intervals = measured(section, a), measured(elsewhere, b)
    if section is elsewhere:
        if a.measure in _RIVALS:
            return _paired_by_candidates(section, a, b, margin)
        if a.measure in BY_SEED:
            return _paired_by_seed(section, a, b, margin)
    seeds = min(len(section.seeds), len(elsewhere.seeds))
    interval = separate(*intervals)
    if section is elsewhere and a.measure == "accuracy":
        rows = row_of(section, a.row), row_of(section, b.row)
        paired = _percent(section.accuracy_difference(*rows))
        if paired is None:
            raise Missing("no seed that both have:", f"{a.row}, {b.row}")
        interval = paired
    return Tested(interval, p_of_interval(interval, margin, seeds))


def _paired_by_candidates(section: BoardSection, a: Quantity, b: Quantity, margin: float) -> Tested:
    rivals = {"first": _RIVALS[a.measure](section, a), "second": _RIVALS[b.measure](section, b)}
    tests = PairTests(section.comparison.leaks, rivals, margin)
    pair = "first", "second"
    if (difference := tests.difference(pair)) is None:
        raise Missing("no candidates in common")
    return Tested(difference.interval, tests.test(pair)[1])


def _paired_by_seed(section: BoardSection, a: Quantity, b: Quantity, margin: float) -> Tested:
    first, second = (series(section, row_of(section, q.row), q) for q in (a, b))
    differences = {}
    for seed, x in first.items():
        y = second[seed]
        error = float(np.hypot(x.error, y.error))
        differences[seed, 0] = UnitValue(x.value - y.value, error)
    estimate = Estimate(differences)
    return Tested(estimate.interval, estimate.p_value(margin))


def separate(first: Interval, second: Interval) -> Interval:
    """Subtract the second of two unpaired intervals from the first: each end is as far from the
    difference as both numbers' ends on that side together, in squares (Zou & Donner, Statistics in
    Medicine 2008). Positively correlated numbers, as those of one section are, differ by less: this
    errs on the safe side.
    """
    mean = first.mean - second.mean
    low = mean - float(np.hypot(first.mean - first.low, second.high - second.mean))
    high = mean + float(np.hypot(first.high - first.mean, second.mean - second.low))
    return Interval(
        mean,
        (high - low) / 2,
        min(first.n, second.n),
        first.between and second.between,
        (low, high),
    )


def p_of_interval(interval: Interval, value: float, seeds: int) -> float:
    """Two-sided p-value of ``value``, .05 where it is an end of the 95 % interval; beyond, the tail
    is Student's t over seeds.

    1 with fewer than two seeds, since one training does not show the variance of training, and
    where the interval is not known.
    """
    reach = interval.high - interval.mean if interval.mean < value else interval.mean - interval.low
    if seeds < 2 or reach != reach or interval.mean == value:
        return 1.0
    if reach <= 0:
        return 0.0
    bar = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return 2 * float(stdtr(seeds - 1, -bar * abs(interval.mean - value) / reach))


def power(
    interval: Interval, distance: float, claimed: int, seeds: int, level: float = 1 - LEVEL
) -> float:
    """Chance that a two-sided test at ``level`` shows what is claimed, if the truth is ``distance``
    beyond the bound on the ``claimed`` side and the standard error is the interval's (noncentral t
    over seeds); 0 where that is not known.
    """
    reach = interval.high - interval.mean if claimed < 0 else interval.mean - interval.low
    if seeds < 2 or reach != reach:
        return 0.0
    error = reach / float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    noncentrality = 50.0
    if error:
        noncentrality = min(distance / error, noncentrality)
    bar = stdtrit(seeds - 1, 1 - level / 2)
    return 1.0 - float(nctdtr(seeds - 1, noncentrality, bar))


def at_floor(section: BoardSection, q: Quantity, slack: float = 0.0) -> bool:
    """Tell whether a leak is not significantly above chance, or above the free-rider's where the
    section has one: then it finds nothing, and no other row can be below it. With ``slack``,
    whether even the leak plus ``slack`` is not above.
    """
    floor = section.free_rider
    if q.measure not in CHANCE or (floor is not None and floor.label == q.row):
        return False
    chance = CHANCE[q.measure]
    bars = [(compared_with_value(section, q, chance), chance)]
    if floor is not None:
        of_floor = q.model_copy(update={"row": floor.label})
        with suppress(Missing):
            bars.append((contrasted((section, q), (section, of_floor)), 0.0))
    for leak, bar in bars:
        if leak.interval.mean + slack <= bar or (not slack and leak.p > 1 - LEVEL):
            return True
    return False


def learned(section: BoardSection) -> bool:
    """Tell whether the undefended model is right at least three times as often as by chance; where
    the number of classes is not known, it is taken to be.
    """
    accuracy = section.base.accuracy if section.base else None
    classes = CLASSES.get(str(section.described.get("dataset", {}).get("name")))
    return accuracy is None or classes is None or accuracy.mean >= 3 / classes


def mixed(section: BoardSection, *labels: str | None) -> str:
    """Say why rows with clusters among ``labels`` are not judged: in no row of the section are
    clusters the groups of clients (mean purity over seeds, from an analysis of the groups). Empty
    where they are, and for other rows.
    """
    if not section.described.get("groups"):
        return ""
    purities: dict[str, float] = {}
    for row in section.unordered_rows:
        if any(r.clusters for r in chain.from_iterable(row.histories)):
            purities[row.label] = float(np.mean(_purities(row) or [0.0]))
    best = max(purities.values(), default=0.0)
    if best >= PURE or purities.keys().isdisjoint(labels):
        return ""
    return f"is compared where clusters are not the groups (purity {best:.2f}, least {PURE})"


def _purities(row: DefenseRow) -> list[float]:
    purities = []
    for loaded in row.utility_records.values():
        for findings in loaded.record.analyses.values():
            if "purity" in findings.numbers:
                purities.append(float(findings.numbers["purity"].value or 0.0))
    return purities


# -- one measure each ------------------------------------------------------------------------------


def _require_scores(section: BoardSection, row: DefenseRow, q: Quantity) -> None:
    """Raise :class:`Missing` without all scores: a mean over the trainings that did not fail would
    favour a defense that makes others fail.
    """
    if q.attack is not None and q.attack not in row.entries:
        raise Missing("no attack", q.attack)
    if row.refuted:
        raise Missing("refuted cells of", q.row)
    if q.attack is not None:
        scored, cells = row.entries[q.attack].complete, f"{q.row} / {q.attack}"
    elif q.measure in _OVER_ATTACKS:
        if row.complete and section.comparison.worst_cases.inapplicable(q.row):
            raise Missing("an attack that judges other rows has no score of", q.row)
        scored, cells = row.complete, q.row
    else:
        scored, cells = len(row.utility_records) == len(row.seeds), q.row
    if not scored:
        raise Missing("scores are missing of", cells)
    if q.measure in _OVER_ATTACKS and not section.comparison.worst_cases.eligible:
        raise Missing("no attack that counts beats chance on the undefended run, so none judges")


def _worst(section: BoardSection, row: DefenseRow, q: Quantity) -> Interval | None:
    worst = section.comparison.worst_cases.of(row.label).worst
    return worst.interval if worst else None


def _max_advantage(section: BoardSection, row: DefenseRow, q: Quantity) -> Interval | None:
    maximum = row_maximum(row)
    return maximum.advantage.found if maximum else None


def _mean_rate(section: BoardSection, row: DefenseRow, q: Quantity) -> Interval | None:
    """Mean over the eligible attacks. They judge the same candidates, so their errors may all fall
    together.
    """
    rates = []
    for attack in section.comparison.worst_cases.eligible:
        rate = section.comparison.leaks.of(row.label, attack).tf01
        if rate is None:
            return None
        rates.append((rate.mean, rate.low, rate.high))
    mean, low, high = map(float, np.mean(rates, axis=0))
    n = len(section.units)
    return Interval(mean, (high - low) / 2, n, between=True, ends=(low, high))


def _over_seeds(section: BoardSection, row: DefenseRow, q: Quantity) -> Interval | None:
    by_seed = {(seed, 0): value for seed, value in series(section, row, q).items()}
    return Estimate(by_seed).interval


def _percent(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    mean, half = 100 * interval.mean, 100 * interval.half_width
    return Interval(mean, half, interval.n, interval.between)


def series(section: BoardSection, row: DefenseRow, q: Quantity) -> dict[int, UnitValue]:
    """Return seed -> value with its error within the run (NaN where not known). Raises
    :class:`Missing` unless every seed has one.
    """
    by_seed = _SERIES[q.measure](section, row, q)
    # the correlation of their errors is not known, so neither is the error of the difference
    if q.minus is not None:
        other = _SERIES[q.measure](section, row, q.model_copy(update={"name": q.minus}))
        for seed in by_seed.keys() & other.keys():
            difference = by_seed[seed].value - other[seed].value
            by_seed[seed] = UnitValue(difference, float("nan"))
        by_seed = {seed: value for seed, value in by_seed.items() if seed in other}
    if set(by_seed) != set(section.seeds):
        raise Missing("not on every seed:", q.name or q.group or q.attack or q.row)
    return by_seed


def _decided(section: BoardSection, row: DefenseRow, q: Quantity) -> dict[int, UnitValue]:
    """Attack accuracy in the last round, the mean over the targets of a seed, or over those of one
    group of clients.
    """
    entry = row.entries[q.attack or ""]
    if q.group is not None:
        names = [g.name for g in section.groups]
        if q.group not in names:
            raise Missing("no group", q.group)
        entry = entry.of_group(section.groups, names.index(q.group))
    targets: dict[int, list[UnitValue]] = {}
    for (seed, _), accuracy in entry.accuracies().items():
        targets.setdefault(seed, []).append(accuracy)
    by_seed = {}
    for seed, accuracies in targets.items():
        # targets have candidates of their own
        error = float(np.sqrt(np.sum([m.error**2 for m in accuracies])) / len(accuracies))
        by_seed[seed] = UnitValue(float(np.mean([m.value for m in accuracies])), error)
    return by_seed


def _findings(section: BoardSection, row: DefenseRow, q: Quantity) -> dict[int, UnitValue]:
    source = row if q.attack is None else row.entries[q.attack]
    by_seed = {}
    for seed in section.seeds:
        findings = source.findings(q.analysis or "", seed)
        number = findings.numbers.get(q.name or "") if findings else None
        if number is not None and number.value is not None:
            error = float("nan") if number.error is None else number.error
            by_seed[seed] = UnitValue(number.value, error)
    return by_seed


def _last_losses(section: BoardSection, row: DefenseRow, q: Quantity) -> dict[int, UnitValue]:
    """Mean loss in the last audited round that has one, of the clients that defend in any row, in
    the undefended row, too.
    """
    part, side = (q.name or "").split()
    courses = Courses.of(section, q.analysis or "", (row.label,))
    losses = [course.sides[side] for course in courses if course.part == part]
    if not losses or len(losses[0]) != len(section.seeds):
        return {}
    by_seed = {}
    for seed, course in zip(section.seeds, losses[0], strict=True):
        finite = course[~np.isnan(course)]
        if len(finite):
            by_seed[seed] = UnitValue(float(finite[-1]), float("nan"))
    return by_seed


_SERIES: dict[str, Callable[[BoardSection, DefenseRow, Quantity], dict[int, UnitValue]]] = {
    "attack-accuracy": _decided,
    "finding": _findings,
    "last-loss": _last_losses,
}
BY_SEED = tuple(_SERIES)  # measures with one value a seed
_MEASURES: dict[str, Callable[[BoardSection, DefenseRow, Quantity], Interval | None]] = {
    "worst-auc": _worst,
    "mean-tf01": _mean_rate,
    "mean-auc": lambda section, row, q: section.comparison.worst_cases.of(row.label).mean,
    "auc": lambda section, row, q: section.comparison.leaks.of(row.label, q.attack or "").auc,
    "tf01": lambda section, row, q: section.comparison.leaks.of(row.label, q.attack or "").tf01,
    "accuracy": lambda section, row, q: _percent(row.accuracy),
    "delta-accuracy": lambda section, row, q: _percent(section.delta_accuracy(row)),
    "runtime": lambda section, row, q: section.runtime(row),
    "max-advantage": _max_advantage,
    **dict.fromkeys(BY_SEED, _over_seeds),
}
_RIVALS: dict[str, Callable[[BoardSection, Quantity], Rival]] = {
    "worst-auc": lambda section, q: section.comparison.worst_cases.of(q.row).rival,
    "mean-auc": lambda section, q: section.comparison.worst_cases.of(q.row).mean_rival,
    "auc": lambda section, q: section.comparison.worst_cases.of(q.row).attack_rival(q.attack or ""),
}
_OF_POPULATION = ("worst-auc", "mean-auc", "auc", "mean-tf01", "tf01")
CHANCE = dict.fromkeys(("worst-auc", "mean-auc", "auc", "attack-accuracy"), 0.5) | dict.fromkeys(
    _OF_POPULATION[3:], 0.1
)
_OVER_ATTACKS = ("worst-auc", "mean-auc", "mean-tf01")
_WHY = {
    **dict.fromkeys(("mean-tf01", "tf01"), "too few non-members for TF01 of"),
    "accuracy": "no test accuracy of",
    "delta-accuracy": "no undefended run to compare with",
    "runtime": "no comparable times of",
}
