"""Rows that a claim names by their defense: each at the strength that the tuning seeds choose for it."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Strengths
from fedbench.leaderboard.claims.schema import Other, Quantity
from fedbench.leaderboard.statistics.claims_series import Missing
from fedbench.leaderboard.statistics.sections import Section

WITHIN = 1.0  # points of accuracy that a matched strength may lose on the tuning seeds: "within one point of the undefended"


class OutOfReach(Missing):
    """No strength of a defense is within reach of the undefended run's accuracy."""


def own_row(section: Section, q: Quantity) -> str:
    """Label of the row that the quantity is of; :class:`Missing` where its defense has no such strength."""
    return q.row if q.chosen is None else _label(section, _choices(section), q.row, q.chosen == "matched")


def rivals(section: Section, q: Quantity, than: Other) -> Iterator[str | Missing]:
    """The label of every other row, or what is missing of one.

    A rival without a strength within reach is no rival at matched accuracy and is left out; where none is left, that is said.
    """
    if q.chosen is None:
        yield from than.rows or ()
        return
    choices, found = _choices(section), 0
    for name in than.rows or [f.name for f in section.families() if f.name != q.row]:
        try:
            label: str | Missing = _label(section, choices, name, q.chosen == "matched")
        except OutOfReach:
            continue
        except Missing as missing:
            label = missing
        found += 1
        yield label
    if not found:
        yield OutOfReach(f"no other defense has a strength within {WITHIN:g} pp on the tuning seeds")


def _choices(section: Section) -> dict[str, Strengths]:
    if section.tuning is None:
        raise Missing("no records of tuning seeds")
    return {c.family: c for c in Strengths.chosen(section.tuning, WITHIN)}


def _label(section: Section, choices: dict[str, Strengths], name: str, matched: bool) -> str:
    if section.base is not None and section.base.label == name:
        return name  # the undefended run has one strength
    if name not in choices:
        raise Missing("no tuned defense", name)
    choice = choices[name]
    if choice.best is None:
        raise Missing("not all scores on the tuning seeds of", name)
    label = choice.matched if matched else choice.best
    if label is None:
        if section.tuning is not None and section.tuning.base is None:
            raise Missing("no undefended run on the tuning seeds, so nothing is matched:", name)
        raise OutOfReach(f"no strength within {WITHIN:g} pp on the tuning seeds:", name)
    return label
