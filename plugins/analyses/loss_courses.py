"""The courses of the loss that records hold, as a board shows them: means over the clients that a section is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core import Findings, Section

SIDES = ("members", "inside", "outside")  # of the non-members: other clients' training samples, and nobody's
PARTS = ("clean", "canary")


@dataclass(frozen=True)
class Courses:
    """Of one defense and part of the samples: ``rounds`` [R]; ``sides`` name -> [S, R], means over clients, a row a seed."""

    label: str
    part: str
    rounds: np.ndarray
    sides: dict[str, np.ndarray]


def courses(section: Section, label: str, defenses: tuple[str, ...] = ()) -> list[Courses]:
    """Every defense that a board shows, over the clients that the section is about."""
    shown = [row for row in section.rows if not defenses or row.label in defenses]
    every = {row.label: [f for s in section.seeds if (f := row.findings(label, s)) is not None] for row in section.rows}
    if not any(every.values()):
        return []
    whom = _about([f for found in every.values() for f in found])
    out = []
    for row in shown:
        for part in PARTS:
            found = [f.arrays for f in every[row.label] if f"{part} members" in f.arrays]
            if found and len({len(f["rounds"]) for f in found}) == 1:
                rounds = found[0]["rounds"]
                sides = {
                    side: np.array([over_clients(f[f"{part} {side}"].reshape(len(rounds), -1), whom) for f in found])
                    for side in SIDES
                }  # fmt: skip
                out.append(Courses(row.label, part, rounds, sides))
    return out


def _about(found: list[Findings]) -> np.ndarray:
    """[K] bool: the clients that defend in any row, or all where nobody does."""
    defends = np.array([f.arrays["defends"] for f in found]).reshape(len(found), -1).any(axis=0)
    return np.asarray(defends if defends.any() else ~defends)


def over_clients(course: np.ndarray, whom: np.ndarray) -> np.ndarray:
    """[R] the mean of [R, K] over those of the clients that were there; NaN where none was."""
    mine = course[:, whom]
    there = ~np.isnan(mine)
    n = there.sum(axis=1)
    return np.where(n > 0, np.where(there, mine, 0.0).sum(axis=1) / np.maximum(n, 1), np.nan)
