"""Section of a board as analyses read it: a row per defense, an entry per attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy import ndarray

from fedbench.core.contract.analysis import Findings

if TYPE_CHECKING:
    from fedbench.core.contract.attack import Group
    from fedbench.core.contract.board import Interval
    from fedbench.core.contract.defense import FactValue


@dataclass(frozen=True)
class ClientGroup:
    """A group of so many clients of the setting, with consecutive ids."""

    name: str
    clients: int


class AuditedRound(Protocol):
    """Audited round of a run; ``clusters``, ``moved`` and ``group_accuracy`` where the run has
    several models or groups.
    """

    @property
    def round(self) -> int: ...
    @property
    def accuracy(self) -> float: ...
    @property
    def clusters(self) -> list[int] | None: ...
    @property
    def moved(self) -> int | None: ...
    @property
    def group_accuracy(self) -> list[float] | None: ...


class Entry(Protocol):
    """A defense against an attack, over seeds and targets."""

    @property
    def attack(self) -> str: ...
    @property
    def complete(self) -> bool:
        """Whether every seed and every target of the section has a score."""

    def interval(self, metric: str, group: Group = "mix") -> Interval | None:
        """Mean of a metric over seeds x targets with its 95 % interval; None where it does not
        apply.
        """

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """(TPR + TNR) / 2 of the attack's decisions in the last round, or in the labelled best one;
        fractions.
        """

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> Entry:
        """Entry of the targets of the g-th group alone."""

    def findings(self, label: str, seed: int) -> Findings | None:
        """Findings of the analysis in this cell; None without scores or findings."""


class Row(Protocol):
    """A defense of a section."""

    @property
    def label(self) -> str: ...
    @property
    def name(self) -> str:
        """The component's name; ``a+b`` of a composition."""

    @property
    def undefended(self) -> bool: ...
    @property
    def floor(self) -> bool:
        """Whether it is a floor, shown for comparison: free-rider or placebo."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Entries by attack."""

    @property
    def accuracy(self) -> Interval | None:
        """Test accuracy over seeds, a fraction; None without scores."""

    @property
    def histories(self) -> Sequence[Sequence[AuditedRound]]:
        """The audited rounds of the run that gives the row's accuracy, one list a seed."""

    @property
    def facts(self) -> Mapping[str, Sequence[FactValue]]:
        """The facts of that run (``Defense.report``): one value a seed that has the fact."""

    def findings(self, label: str, seed: int) -> Findings | None:
        """Findings of the analysis in the run that gives the row's accuracy."""


@dataclass(frozen=True)
class Sweep:
    """A defense at several strengths; a point is (TF01 as a fraction, test error)."""

    family: str
    labels: tuple[str, ...]
    points: Mapping[str, ndarray]
    """attack -> [n, 2]"""
    undefended: Mapping[str, ndarray]
    """attack -> [k, 2], the undefended point or nothing"""
    hypervolumes: Mapping[str, float]
    """attack -> area between the front (undefended point included) and (1, 1); larger = better
    defense, weaker attack
    """


@dataclass(frozen=True, kw_only=True)
class RowSummary:
    """Leakage and cost of a row as in the ranking; None: not available."""

    label: str
    complete: bool
    """whether it has all scores of every attack that judges other rows"""
    worst: Interval | None = None
    """worst-case AUC: the adversary picks attack and sign on other seeds"""
    attack: str = ""
    """the attack picked most often"""
    tf01: Interval | None = None
    """TF01 in percent, of the attack with the largest TF01"""
    tf01_attack: str = ""
    accuracy: Interval | None
    """test accuracy, a fraction"""
    delta_accuracy: Interval | None
    """test accuracy minus that of the undefended row, paired by seed, a fraction"""
    deviation: float | None = None
    """standard deviation of that difference from seed to seed"""
    contribution: Interval | None = None
    """test accuracy minus that with members that upload nothing, paired by seed, a fraction"""
    runtime: Interval | None = None
    """CPU time of the training over the placebo's or, without one to compare with, the undefended
    run's; None across different machines, and where they were busy
    """
    mean: Interval | None = None
    """mean AUC over the attacks that count"""
    largest: tuple[str, float] | None = None
    """the attack with the largest mean AUC over all seeds, and that AUC, biased upward"""


@dataclass(frozen=True, kw_only=True)
class RowDifference:
    """Two defenses of a section, the ``first`` minus the ``second``."""

    first: str
    second: str
    worst: Interval | None
    """difference of worst-case AUC, paired on the same candidates; None if one row has none"""
    shown: bool
    """whether that is significant at 5 %, corrected for all pairs requested together"""
    accuracy: Interval | None
    """difference of test accuracy, paired by seed, a fraction"""


class Section(Protocol):
    """All defenses of one setting, coalition and view."""

    @property
    def setting(self) -> str: ...
    @property
    def coalition(self) -> str: ...
    @property
    def view(self) -> str: ...
    @property
    def attacks(self) -> tuple[str, ...]: ...
    @property
    def rows(self) -> Sequence[Row]:
        """Best defense first."""

    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def tuning(self) -> Section | None:
        """Section of these rows on the tuning seeds, which no other table counts."""

    @property
    def measures_accuracy(self) -> bool:
        """Whether ``accuracy`` of rows and summaries is one, and no other utility of the task."""

    @property
    def where(self) -> str:
        """Setting, coalition and view, for titles; text from records."""

    @property
    def described(self) -> Mapping[str, Any]:
        """The setting as in its records."""

    @property
    def groups(self) -> Sequence[ClientGroup]:
        """Groups of clients, in the order of the setting; none where it has none."""

    @property
    def deciding(self) -> Sequence[str]:
        """The attacks that say "member" by a threshold of their own."""

    def families(self) -> Mapping[str, tuple[str, ...]]:
        """Name of every defense -> labels of its strengths, by name; without floors."""

    def summary(self, label: str) -> RowSummary | None:
        """Leakage and cost of the row of that label; None without such a row."""

    def ranks(self, labels: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """(best, worst) rank of each of these rows among them, where it has one."""

    def sweeps(self, least: int = 2) -> Sequence[Sweep]:
        """Every defense with at least ``least`` strengths, by name."""

    def differences(self, pairs: Sequence[tuple[str, str]]) -> Sequence[RowDifference]:
        """Difference of each pair of labels that both have a row in this section."""


# --- losses over the rounds -----------------------------------------------------------------------


@dataclass(frozen=True)
class Courses:
    """Courses of a loss over the rounds, of one defense and one part of the samples."""

    # inside: trained on by other clients; outside: by none
    SIDES: ClassVar = ("members", "inside", "outside")
    PARTS: ClassVar = ("clean", "canary")

    label: str
    """the defense"""
    part: str
    """of ``PARTS``"""
    rounds: ndarray
    """[R]"""
    sides: dict[str, ndarray]
    """side -> [S, R], means over clients, a row a seed"""

    @classmethod
    def of(cls, section: Section, label: str, defenses: tuple[str, ...] = ()) -> list[Courses]:
        """Courses from the findings of the analysis ``label`` for every row, or for ``defenses``;
        means over the clients that defend in any row, over all clients if none does.
        """
        by_row = {}
        for row in section.rows:
            findings = [row.findings(label, seed) for seed in section.seeds]
            by_row[row.label] = [f.arrays for f in findings if f is not None]
        defends = [arrays["defends"] for seeds in by_row.values() for arrays in seeds]
        if not defends:
            return []
        clients: ndarray = np.any(defends, axis=0)
        if not clients.any():
            clients = ~clients
        courses = []
        for row_label, part in product(by_row, cls.PARTS):
            if not defenses or row_label in defenses:
                seeds = [a for a in by_row[row_label] if f"{part} members" in a]
                if len({len(arrays["rounds"]) for arrays in seeds}) == 1:
                    courses.append(cls._of_seeds(row_label, part, seeds, clients))
        return courses

    @classmethod
    def _of_seeds(
        cls, label: str, part: str, seeds: list[Mapping[str, ndarray]], clients: ndarray
    ) -> Courses:
        rounds = seeds[0]["rounds"]
        sides = dict[str, ndarray]()
        for side in cls.SIDES:
            courses = [arrays[f"{part} {side}"].reshape(len(rounds), -1) for arrays in seeds]
            sides[side] = np.array([cls.over_clients(course, clients) for course in courses])
        return cls(label, part, rounds, sides)

    @staticmethod
    def over_clients(course: ndarray, clients: ndarray) -> ndarray:
        """[R] mean of [R, K] over ``clients``; NaN where all are absent."""
        values = course[:, clients]
        present = ~np.isnan(values)
        n = present.sum(axis=1)
        means = np.where(present, values, 0.0).sum(axis=1) / np.maximum(n, 1)
        return np.where(n > 0, means, np.nan)
