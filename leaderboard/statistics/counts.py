"""How many values and candidates are behind the numbers of a section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.core.metrics import Group
from fedbench.leaderboard.statistics.sections import Section

Span = tuple[int, int]
"""(fewest, most)"""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """``units``: seeds x targets of an entry. ``members``: per target, None without scores; ``nonmembers``: per target and
    group, of the groups there are. ``targets``: who they are -> the seeds with these."""

    units: int
    seeds: int
    members: Span | None
    nonmembers: dict[Group, Span]
    targets: dict[tuple[int, ...], list[int]]


def count(section: Section) -> Counts:
    """The n behind every number of the section, and who the targets are."""
    groups: tuple[Group, ...] = ("mix", "ofl", "ifl")
    targets: dict[tuple[int, ...], list[int]] = {}
    for seed, own in section.targets.items():
        targets.setdefault(own, []).append(seed)
    return Counts(
        units=len(section.units), seeds=len(section.targets), targets=targets,
        members=span([s.n_members for s in section.scores("mix")]),
        nonmembers={g: found for g in groups if (found := span([s.n_nonmembers for s in section.scores(g)]))},
    )  # fmt: skip


def span(values: Sequence[int]) -> Span | None:
    """(fewest, most); None of nothing."""
    return (min(values), max(values)) if values else None
