"""What one section says to somebody who asks which defense to use: the strongest at the undefended accuracy, if any is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import holm
from fedbench.leaderboard.statistics.sections import RowSummary, Section
from fedbench.leaderboard.statistics.verdict import Comparison, Difference

WITHIN = 0.01  # of test accuracy below the undefended federation's: "one point"

Outcome = Literal["found", "none told", "none within", "none here", "nothing leaks", "no undefended run"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``outcome``: ``found``: the ``defense`` leaks less than the undefended federation, with significance, and costs at most one
    point as measured. ``none told``: of those within one point none is told from it; ``defense`` is the lowest of them. ``none
    within``: every defense costs more; ``defense`` is the one that costs least. Otherwise there is no ``defense``: no row but
    floors has a rank (``none here``), no attack beats chance (``nothing leaks``), or nobody ran undefended.

    ``difference``: the defense's worst case minus the undefended one's. ``surely_within``: whether the whole interval of its
    delta-accuracy lies within one point. ``tied``: the other rows within one point that are not told from it, the lowest first.
    ``seeds``: how many are behind it."""

    outcome: Outcome
    undefended: RowSummary | None = None
    defense: RowSummary | None = None
    difference: Difference | None = None
    surely_within: bool = False
    tied: tuple[str, ...] = ()
    seeds: int = 0


def answer(section: Section) -> Answer:
    """Of rows with a rank: floors never win, and a row with scores missing does not either."""
    comparison, base = section.comparison, section.base
    undefended = None if base is None else section.standing(base.label)
    seeds = len(section.seeds)
    if base is None or undefended is None:
        return Answer(outcome="no undefended run", seeds=seeds)
    others = [label for row in section.rows if (label := row.label) in comparison.ranked and label != base.label]
    known = {label: found for label in others if (found := section.standing(label)) is not None}
    priced = {label: s for label, s in known.items() if s.delta_accuracy is not None}
    if undefended.worst is None or not comparison.eligible:
        return Answer(outcome="nothing leaks", undefended=undefended, seeds=seeds)
    if not priced:
        return Answer(outcome="none here", undefended=undefended, seeds=seeds)
    within = [label for label, s in priced.items() if _cost(s) <= WITHIN]
    against = comparison.against(base.label)
    told = [label for label in within if label in against and against[label].shown and against[label].found.mean < 0]
    lowest = told or within or [min(priced, key=lambda label: _cost(priced[label]))]
    apart = told_apart(comparison)
    first = priced[lowest[0]]  # rows stand in the order of their worst cases
    return Answer(
        outcome="found" if told else "none told" if within else "none within", undefended=undefended, defense=first,
        difference=against.get(first.label), surely_within=_surely(first), seeds=seeds,
        tied=tuple(label for label in within if label != first.label and frozenset((label, first.label)) not in apart),
    )  # fmt: skip


def told_apart(comparison: Comparison) -> set[frozenset[str]]:
    """The pairs of rows with ranks that are told apart where all are tested together, as for the ranges of ranks."""
    differences, p_values = comparison.tests_among(comparison.ranked)
    return {frozenset(pair) for pair, p in holm(p_values).items() if p <= 1 - LEVEL and differences[pair] != 0}


def _cost(standing: RowSummary) -> float:
    return -standing.delta_accuracy.mean if standing.delta_accuracy is not None else float("inf")


def _surely(standing: RowSummary) -> bool:
    found = standing.delta_accuracy
    return found is not None and found.half_width == found.half_width and found.low >= -WITHIN
