"""The quantities that claims are made of: a number of a row with its interval, and one number
against another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit

from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.core.report import Courses
from fedbench.leaderboard.statistics.intervals import Estimate, Measured
from fedbench.leaderboard.statistics.paired import PairTests, Rival
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
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
    """A claim cannot be tested here: ``why``, in our words, and ``what``, a name of the claim's
    file.
    """

    def __init__(self, why: str, what: str = "") -> None:
        super().__init__(why, what)
        self.why, self.what = why, what


@dataclass(frozen=True)
class Found:
    """A number, or a difference of two; ``p``: two-sided, that it equals the value it is compared
    with.
    """

    interval: Interval
    p: float


def measured(section: Section, q: Quantity) -> Interval:
    """The quantity with its 95 % interval, in the unit of its measure. Raises :class:`Missing`
    where the section does not have it.
    """
    row = row_of(section, q.row)
    _require_scores(section, row, q)
    if q.measure in _OF_POPULATION and not section.comparison.cells.parts:
        raise Missing(
            "no candidates with non-members of this population: "
            f"{section.comparison.scores.population}"
        )
    found = _MEASURES[q.measure](section, row, q)
    if found is None:
        raise Missing(_WHY.get(q.measure, "no score of"), q.attack or q.row)
    return found


def row_of(section: Section, label: str) -> Row:
    """The row of that label. Raises :class:`Missing` where the section has none."""
    if (row := section.row(label)) is None:
        raise Missing("no row", label)
    return row


def compared_with_value(section: Section, q: Quantity, value: float) -> Found:
    """The quantity against a number."""
    found = measured(section, q)
    return Found(found, p_of_interval(found, value, len(section.seeds)))


def contrasted(
    one: tuple[Section, Quantity], other: tuple[Section, Quantity], margin: float = 0.0
) -> Found:
    """The first quantity minus the second, against ``margin``: paired on the same candidates or
    seeds where both are of one section and measure that can be, else of two separate intervals.
    """
    (section, a), (elsewhere, b) = one, other
    ours, theirs = measured(section, a), measured(elsewhere, b)
    if section is elsewhere and a.measure in _RIVALS:
        rivals = [_RIVALS[q.measure](section, q) for q in (a, b)]
        tests = PairTests(
            section.comparison.cells.parts, {"one": rivals[0], "other": rivals[1]}, margin
        )
        pair = "one", "other"
        if (difference := tests.difference(pair)) is None:
            raise Missing("no candidates in common")
        return Found(difference.interval, tests.test(pair)[1])
    if section is elsewhere and a.measure == "accuracy":
        interval = _percent(
            section.accuracy_difference(row_of(section, a.row), row_of(section, b.row))
        )
        if interval is None:
            raise Missing("no seed that both have:", f"{a.row}, {b.row}")
        return Found(interval, p_of_interval(interval, margin, len(section.seeds)))
    if section is elsewhere and a.measure in BY_SEED:
        first, second = (series(section, row_of(section, q.row), q) for q in (a, b))
        pairs = [(first[s], second[s]) for s in first if s in second]
        found = {
            (s, 0): Measured(x.value - y.value, float(np.hypot(x.error, y.error)))
            for s, (x, y) in enumerate(pairs)
        }
        if not found:
            raise Missing("no seed that both have")
        estimate = Estimate(found)
        return Found(estimate.interval, estimate.p_value(margin))
    apart = separate(ours, theirs)
    return Found(apart, p_of_interval(apart, margin, min(len(section.seeds), len(elsewhere.seeds))))


def separate(one: Interval, other: Interval) -> Interval:
    """One minus the other of two unpaired intervals: each end is as far from the difference as both
    numbers' ends on that side together, in squares (Zou & Donner, Statistics in Medicine 2008).
    Positively correlated numbers, as those of one section are, differ by less: this errs on the
    safe side.
    """
    mean = one.mean - other.mean
    low = mean - float(np.hypot(one.mean - one.low, other.high - other.mean))
    high = mean + float(np.hypot(one.high - one.mean, other.mean - other.low))
    return Interval(
        mean, (high - low) / 2, min(one.n, other.n), one.between and other.between, (low, high)
    )


def p_of_interval(found: Interval, value: float, seeds: int) -> float:
    """Two-sided p-value of ``value``, .05 where it is an end of the 95 % interval; beyond, the tail
    is Student's t over seeds.

    1 with fewer than two seeds, since one training does not show the variance of training, and
    where the interval is not known.
    """
    reach = found.high - found.mean if found.mean < value else found.mean - found.low
    if seeds < 2 or reach != reach or found.mean == value:
        return 1.0
    if reach <= 0:
        return 0.0
    bar = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return 2 * float(stdtr(seeds - 1, -bar * abs(found.mean - value) / reach))


def power(
    found: Interval, distance: float, claimed: int, seeds: int, level: float = 1 - LEVEL
) -> float:
    """Chance that a two-sided test at ``level`` shows what is claimed, if the truth is ``distance``
    beyond the bound on the ``claimed`` side and the standard error is the interval's (noncentral t
    over seeds); 0 where that is not known.
    """
    reach = found.high - found.mean if claimed < 0 else found.mean - found.low
    if seeds < 2 or reach != reach:
        return 0.0
    error = reach / float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return 1.0 - float(
        nctdtr(
            seeds - 1,
            min(distance / error, 50.0) if error else 50.0,
            stdtrit(seeds - 1, 1 - level / 2),
        )
    )


def at_floor(section: Section, q: Quantity, slack: float = 0.0) -> bool:
    """Whether a leak is not significantly above chance, or above the free-rider's where the section
    has one: then it finds nothing, and no other row can be below it. With ``slack``, whether even
    the leak plus ``slack`` is not above.
    """
    if q.measure not in CHANCE or (
        (floor := section.free_rider) is not None and floor.label == q.row
    ):
        return False
    bars = [(compared_with_value(section, q, CHANCE[q.measure]), CHANCE[q.measure])]
    if floor is not None:
        with suppress(Missing):
            bars.append(
                (
                    contrasted((section, q), (section, q.model_copy(update={"row": floor.label}))),
                    0.0,
                )
            )
    return any(
        above.interval.mean + slack <= bar or (not slack and above.p > 1 - LEVEL)
        for above, bar in bars
    )


def learned(section: Section) -> bool:
    """Whether the undefended model is right at least three times as often as by chance; where the
    number of classes is not known, it is taken to be.
    """
    accuracy = section.base.accuracy if section.base else None
    classes = CLASSES.get(str(section.described.get("dataset", {}).get("name")))
    return accuracy is None or classes is None or accuracy.mean >= 3 / classes


def mixed(section: Section, *labels: str | None) -> str:
    """Why rows with clusters among ``labels`` are not judged: in no row of the section are clusters
    the groups of clients (mean purity over seeds, from an analysis of the groups). Empty where they
    are, and for other rows.
    """
    rows = section.found if section.described.get("groups") else ()
    clustered = [row for row in rows if any(r.clusters for rounds in row.histories for r in rounds)]
    if not any(row.label in labels for row in clustered):
        return ""
    best = max(float(np.mean(_purities(row) or [0.0])) for row in clustered)
    if best >= PURE:
        return ""
    return f"is compared where clusters are not the groups (purity {best:.2f}, least {PURE})"


def _purities(row: Row) -> list[float]:
    runs = row.utility_records.values()
    analyses = (found for loaded in runs for found in loaded.record.analyses.values())
    return [float(f.numbers["purity"].value or 0.0) for f in analyses if "purity" in f.numbers]


# -- one measure each ------------------------------------------------------------------------------


def _require_scores(section: Section, row: Row, q: Quantity) -> None:
    """A mean over the trainings that did not fail would favour a defense that makes others fail."""
    if q.attack is not None and q.attack not in row.entries:
        raise Missing("no attack", q.attack)
    if row.refuted:
        raise Missing("refuted cells of", q.row)
    if q.attack is not None:
        scored = row.entries[q.attack].complete
    else:
        scored = (
            row.complete
            if q.measure in _OVER_ATTACKS
            else len(row.utility_records) == len(row.seeds)
        )
    if not scored:
        raise Missing(
            "scores are missing of", q.row if q.attack is None else f"{q.row} / {q.attack}"
        )
    if q.measure in _OVER_ATTACKS and not section.comparison.worst_cases.eligible:
        raise Missing("no attack beats chance on the undefended run, so none judges")


def _mean_rate(section: Section, row: Row, q: Quantity) -> Interval | None:
    """Over the eligible attacks. They judge the same candidates, so their errors may all fall
    together.
    """
    found = [
        section.comparison.cells.of(row.label, a).tf01
        for a in section.comparison.worst_cases.eligible
    ]
    known = [i for i in found if i is not None]
    if not known or len(known) < len(found):
        return None
    mean, low, high = (
        float(np.mean([getattr(i, part) for i in known])) for part in ("mean", "low", "high")
    )
    return Interval(mean, (high - low) / 2, known[0].n, between=True, ends=(low, high))


def _over_seeds(section: Section, row: Row, q: Quantity) -> Interval | None:
    by_seed = {(seed, 0): m for seed, m in series(section, row, q).items()}
    return Estimate(by_seed).interval


def _percent(found: Interval | None) -> Interval | None:
    return (
        None
        if found is None
        else Interval(100 * found.mean, 100 * found.half_width, found.n, found.between)
    )


def series(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Seed -> value with its error within the run (NaN where not known). Raises :class:`Missing`
    unless every seed has one.
    """
    found = _SERIES[q.measure](section, row, q)
    # the correlation of their errors is not known, so neither is the error of the difference
    if q.minus is not None:
        other = _SERIES[q.measure](section, row, q.model_copy(update={"name": q.minus}))
        found = {
            s: Measured(found[s].value - other[s].value, float("nan")) for s in found if s in other
        }
    if set(found) != set(section.seeds):
        raise Missing("not on every seed:", q.name or q.group or q.attack or q.row)
    return found


def _decided(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Attack accuracy in the last round, the mean over the targets of a seed, or over those of one
    group of clients.
    """
    entry = row.entries[q.attack or ""]
    if q.group is not None:
        names = [g.name for g in section.groups]
        if q.group not in names:
            raise Missing("no group", q.group)
        entry = entry.of_group(section.groups, names.index(q.group))
    found, accuracies = {}, entry.accuracies()
    # targets have candidates of their own
    for seed in dict.fromkeys(seed for seed, _ in accuracies):
        own = [m for (s, _), m in accuracies.items() if s == seed]
        error = float(np.sqrt(np.sum([m.error**2 for m in own])) / len(own))
        found[seed] = Measured(float(np.mean([m.value for m in own])), error)
    return found


def _findings(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    label, found = q.analysis or "", {}
    for seed in section.seeds:
        finding = (
            row.findings(label, seed)
            if q.attack is None
            else row.entries[q.attack].findings(label, seed)
        )
        number = finding.numbers.get(q.name or "") if finding else None
        if number is not None and number.value is not None:
            found[seed] = Measured(
                number.value, float("nan") if number.error is None else number.error
            )
    return found


def _last_losses(section: Section, row: Row, q: Quantity) -> dict[int, Measured]:
    """Mean loss in the last audited round that has one, of the clients that defend in any row, in
    the undefended row, too.
    """
    part, side = (q.name or "").split()
    every = [
        c.sides[side] for c in Courses.of(section, q.analysis or "", (row.label,)) if c.part == part
    ]
    if not every or len(every[0]) != len(section.seeds):
        return {}
    known = {
        seed: course[~np.isnan(course)]
        for seed, course in zip(section.seeds, every[0], strict=True)
    }
    return {
        seed: Measured(float(course[-1]), float("nan"))
        for seed, course in known.items()
        if len(course)
    }


_SERIES: dict[str, Callable[[Section, Row, Quantity], dict[int, Measured]]] = {
    "attack-accuracy": _decided,
    "finding": _findings,
    "last-loss": _last_losses,
}
BY_SEED = tuple(_SERIES)  # measures with one value a seed
_MEASURES: dict[str, Callable[[Section, Row, Quantity], Interval | None]] = {
    "worst-auc": lambda section, row, q: (
        worst.found if (worst := section.comparison.worst_cases.of(row.label).worst) else None
    ),
    "mean-tf01": _mean_rate,
    "mean-auc": lambda section, row, q: section.comparison.worst_cases.of(row.label).mean,
    "auc": lambda section, row, q: section.comparison.cells.of(row.label, q.attack or "").auc,
    "tf01": lambda section, row, q: section.comparison.cells.of(row.label, q.attack or "").tf01,
    "accuracy": lambda section, row, q: _percent(row.accuracy),
    "delta-accuracy": lambda section, row, q: _percent(section.delta_accuracy(row)),
    "runtime": lambda section, row, q: section.runtime(row),
    "max-advantage": lambda section, row, q: (
        found.advantage.found if (found := row_maximum(row)) else None
    ),
    **dict.fromkeys(BY_SEED, _over_seeds),
}
_RIVALS: dict[str, Callable[[Section, Quantity], Rival]] = {
    "worst-auc": lambda section, q: section.comparison.worst_cases.of(q.row).rival,
    "mean-auc": lambda section, q: section.comparison.worst_cases.of(q.row).mean_rival,
    "auc": lambda section, q: section.comparison.worst_cases.of(q.row).cell_rival(q.attack or ""),
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
