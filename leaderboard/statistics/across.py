"""One defense in every section of a board: does what wins in one world win in the others?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.sections import Section


@dataclass(frozen=True, kw_only=True)
class Place:
    """A defense in one section. ``rank``: (best, worst) that the tests leave open, None without one; ``less``: whether its worst
    case is told from the undefended row's and below it, None where they cannot be compared."""

    worst: Interval | None
    rank: tuple[int, int] | None
    delta_accuracy: Interval | None
    less: bool | None


@dataclass(frozen=True, kw_only=True)
class Traveller:
    """A row that stands in sections of several settings; ``places``: one a section, None where it is not there."""

    label: str
    undefended: bool
    places: tuple[Place | None, ...]

    @property
    def ranked(self) -> tuple[int, int]:
        """(sections in which its range of ranks reaches 1, sections in which it has a range)."""
        ranks = [p.rank for p in self.places if p is not None and p.rank is not None]
        return sum(low == 1 for low, _ in ranks), len(ranks)

    @property
    def beats(self) -> tuple[int, int]:
        """(sections in which it leaks less than the undefended row, sections in which the two can be compared)."""
        found = [p.less for p in self.places if p is not None and p.less is not None]
        return sum(found), len(found)


def travellers(sections: Sequence[Section]) -> list[Traveller]:
    """The undefended row first, then by the share of sections in which a row beats it, and in which it can be the first.

    Nothing where there is one setting only; floors, and rows of a single setting, are left out.
    """
    settings = {(s.suite, s.setting) for s in sections}
    if len(settings) < 2:
        return []
    labels = {r.label for s in sections for r in s.rows if not r.floor}
    found = []
    for label in labels:
        there = [s for s in sections if any(r.label == label for r in s.rows)]
        if len({(s.suite, s.setting) for s in there}) > 1:
            undefended = all(r.undefended for s in there for r in s.rows if r.label == label)
            places = tuple(_place(s, label) for s in sections)
            found.append(Traveller(label=label, undefended=undefended, places=places))
    return sorted(found, key=_order) if any(not t.undefended for t in found) else []


def _place(section: Section, label: str) -> Place | None:
    if all(r.label != label for r in section.rows):
        return None
    contest, base = section.comparison, section.base
    worst, less = contest.worst(label), None
    if base is not None and base.label != label and (against := contest.against(base.label).get(label)) is not None:
        less = against.shown and against.found.mean < 0
    return Place(
        worst=worst.found if worst else None, rank=contest.ranks.get(label), less=less,
        delta_accuracy=section.compared[label].delta_accuracy,
    )  # fmt: skip


def _order(t: Traveller) -> tuple[bool, float, float, str]:
    return not t.undefended, -_share(t.beats), -_share(t.ranked), t.label


def _share(of: tuple[int, int]) -> float:
    return of[0] / of[1] if of[1] else -1.0
