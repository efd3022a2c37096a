"""The courses of the loss that records hold, as a board shows them: means over the clients that a section is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbench.core.contract.analysis import Findings
from fedbench.core.contract.section import Section


@dataclass(frozen=True)
class Courses:
    """The courses of a loss over ``rounds`` [R], of the defense ``label`` and one ``part`` of the samples (``PARTS``).

    ``sides``: name (``SIDES``) -> [S, R], means over clients, a row a seed.
    """

    SIDES: ClassVar = ("members", "inside", "outside")  # of the non-members: other clients' training samples, and nobody's
    PARTS: ClassVar = ("clean", "canary")

    label: str
    part: str
    rounds: np.ndarray
    sides: dict[str, np.ndarray]

    @classmethod
    def of(cls, section: Section, label: str, defenses: tuple[str, ...] = ()) -> list[Courses]:
        """What the analysis ``label`` found of every defense that a board shows, or of ``defenses``, over the clients that the
        section is about."""
        shown = [row for row in section.rows if not defenses or row.label in defenses]
        every = {row.label: [f for s in section.seeds if (f := row.findings(label, s)) is not None] for row in section.rows}
        if not any(every.values()):
            return []
        whom = _about([f for found in every.values() for f in found])
        out = []
        for row in shown:
            for part in cls.PARTS:
                found = [f.arrays for f in every[row.label] if f"{part} members" in f.arrays]
                if found and len({len(f["rounds"]) for f in found}) == 1:
                    rounds = found[0]["rounds"]
                    sides = {
                        side: np.array([cls.over_clients(f[f"{part} {side}"].reshape(len(rounds), -1), whom) for f in found])
                        for side in cls.SIDES
                    }  # fmt: skip
                    out.append(cls(row.label, part, rounds, sides))
        return out

    @staticmethod
    def over_clients(course: np.ndarray, whom: np.ndarray) -> np.ndarray:
        """[R] the mean of [R, K] over those of the clients that were there; NaN where none was."""
        mine = course[:, whom]
        there = ~np.isnan(mine)
        n = there.sum(axis=1)
        return np.where(n > 0, np.where(there, mine, 0.0).sum(axis=1) / np.maximum(n, 1), np.nan)


def _about(found: list[Findings]) -> np.ndarray:
    """[K] bool: the clients that defend in any row, or all where nobody does."""
    defends = np.array([f.arrays["defends"] for f in found]).reshape(len(found), -1).any(axis=0)
    return np.asarray(defends if defends.any() else ~defends)
