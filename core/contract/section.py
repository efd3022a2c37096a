"""What an analysis reads of one section of a board: a row per defense, an entry per attack, numbers
over seeds and targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedbench.core.contract.analysis import Findings

if TYPE_CHECKING:
    import numpy as np

    from fedbench.core.contract.analysis import Findings
    from fedbench.core.contract.attack import Group
    from fedbench.core.contract.board import Interval
    from fedbench.core.contract.defense import FactValue


@dataclass(frozen=True)
class ClientGroup:
    """A group of clients of the setting: its name and how many ``clients`` there are, in
    consecutive blocks of ids.
    """

    name: str
    clients: int


class AuditedRound(Protocol):
    """One audited round of a run; ``clusters``, ``moved`` and ``group_accuracy`` where the run has
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
    """One defense against one attack, over seeds and targets."""

    @property
    def attack(self) -> str: ...
    @property
    def complete(self) -> bool:
        """Every seed and every target of the section has a score."""

    def interval(self, metric: str, group: Group = "mix") -> Interval | None:
        """Mean of a metric over seeds x targets with its 95 % interval; None where it does not
        apply.
        """

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """(TPR + TNR) / 2 of what the attack decides in the last round, or in the labelled best
        one; fractions.
        """

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> Entry:
        """The same with the targets of the g-th group alone."""

    def findings(self, label: str, seed: int) -> Findings | None:
        """Findings of the analysis in this cell; None without scores or findings."""


class Row(Protocol):
    """One defense of a section."""

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
        """By attack."""

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
    points: Mapping[str, np.ndarray]
    """attack -> [n, 2]"""
    undefended: Mapping[str, np.ndarray]
    """attack -> [k, 2], the undefended point or nothing"""
    hypervolumes: Mapping[str, float]
    """attack -> area between the front (undefended point included) and (1, 1); larger = better
    defense, weaker attack
    """


@dataclass(frozen=True, kw_only=True)
class RowSummary:
    """Leakage and cost of the row ``label`` as in the ranking; None: not available."""

    label: str
    complete: bool
    """whether every cell that applies has scores"""
    worst: Interval | None
    """worst-case AUC: the adversary picks attack and sign on other seeds"""
    attack: str
    """the attack picked most often"""
    tf01: Interval | None
    """TF01 in percent, of the attack with the largest TF01"""
    tf01_attack: str
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
        """The same rows on the tuning seeds, which no other table counts; None without any."""

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
        """Name of every defense -> labels of its strengths (one or more), by name; without floors."""

    def summary(self, label: str) -> RowSummary | None:
        """Leakage and cost of the row of that label; None without such a row."""

    def ranks(self, labels: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """(best, worst) rank of each of these rows among them, where it has one."""

    def sweeps(self, least: int = 2) -> Sequence[Sweep]:
        """Every defense with at least ``least`` strengths, by name."""

    def differences(self, pairs: Sequence[tuple[str, str]]) -> Sequence[RowDifference]:
        """One per pair of labels that both have a row in this section."""


# --- losses over the rounds -----------------------------------------------------------------------


@dataclass(frozen=True)
class Courses:
    """The courses of a loss over ``rounds`` [R], of the defense ``label`` and one ``part`` of the
    samples (``PARTS``).

    ``sides``: name (``SIDES``) -> [S, R], means over clients, a row a seed.
    """

    # inside: trained on by other clients; outside: by none
    SIDES: ClassVar = ("members", "inside", "outside")
    PARTS: ClassVar = ("clean", "canary")

    label: str
    part: str
    rounds: np.ndarray
    sides: dict[str, np.ndarray]

    @classmethod
    def of(cls, section: Section, label: str, defenses: tuple[str, ...] = ()) -> list[Courses]:
        """From the findings of the analysis ``label`` for every row, or for ``defenses``; means
        over the defending clients.
        """
        shown = [row for row in section.rows if not defenses or row.label in defenses]
        every = {
            row.label: [f for s in section.seeds if (f := row.findings(label, s)) is not None]
            for row in section.rows
        }
        if not any(every.values()):
            return []
        clients = _about([f for found in every.values() for f in found])
        out = []
        for row in shown:
            for part in cls.PARTS:
                found = [f.arrays for f in every[row.label] if f"{part} members" in f.arrays]
                if found and len({len(f["rounds"]) for f in found}) == 1:
                    rounds = found[0]["rounds"]
                    sides = {
                        side: np.array(
                            [
                                cls.over_clients(
                                    f[f"{part} {side}"].reshape(len(rounds), -1), clients
                                )
                                for f in found
                            ]
                        )
                        for side in cls.SIDES
                    }
                    out.append(cls(row.label, part, rounds, sides))
        return out

    @staticmethod
    def over_clients(course: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """[R] the mean of [R, K] over ``clients``; NaN where all are absent."""
        mine = course[:, clients]
        there = ~np.isnan(mine)
        n = there.sum(axis=1)
        return np.where(n > 0, np.where(there, mine, 0.0).sum(axis=1) / np.maximum(n, 1), np.nan)


def _about(found: list[Findings]) -> np.ndarray:
    """[K] bool: the clients that defend in any row; all clients if none does."""
    defends = np.array([f.arrays["defends"] for f in found]).reshape(len(found), -1).any(axis=0)
    return np.asarray(defends if defends.any() else ~defends)


# --- choice of strengths --------------------------------------------------------------------------


_ROUNDING = 1e-9  # tolerance: a mean equal to the limit must not fall below it by rounding


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """The strengths of one ``family`` on the tuning seeds, and the labels of two of them,
    ``matched`` and ``best``; None where none qualifies.
    """

    family: str
    strengths: tuple[RowSummary, ...]
    matched: str | None
    best: str | None

    @classmethod
    def chosen(cls, tuning: Section, within: float) -> list[Strengths]:
        """One per family, chosen on the section ``tuning`` alone; ``within``: points of accuracy
        that a matched strength may lose.

        ``matched``: the lowest worst-case AUC among the strengths with a mean delta-accuracy of at
        least ``-within`` points. ``best``: the largest :meth:`area`. A strength qualifies if all
        its cells have scores on the tuning seeds; ties go to the more accurate one, then to the
        first label.
        """
        return [
            cls._of_family(name, labels, tuning, within)
            for name, labels in tuning.families().items()
        ]

    @classmethod
    def unknown(cls, family: str) -> Strengths:
        """Of a defense without a run of a tuning seed."""
        return cls(family=family, strengths=(), matched=None, best=None)

    @classmethod
    def _of_family(
        cls, name: str, labels: tuple[str, ...], tuning: Section, within: float
    ) -> Strengths:
        strengths = tuple(s for label in sorted(labels) if (s := tuning.summary(label)) is not None)
        known = [
            s for s in strengths if s.complete and s.worst is not None and s.accuracy is not None
        ]
        near = [
            s
            for s in known
            if s.delta_accuracy is not None and 100 * s.delta_accuracy.mean >= -within - _ROUNDING
        ]
        matched = min(
            near, key=lambda s: (cls.advantage(s), -cls.accuracy(s), s.label), default=None
        )
        best = min(known, key=lambda s: (-cls.area(s), -cls.accuracy(s), s.label), default=None)
        return cls(
            family=name,
            strengths=strengths,
            matched=matched.label if matched else None,
            best=best.label if best else None,
        )

    @staticmethod
    def advantage(row: RowSummary) -> float:
        """2 AUC - 1 of the worst case, cut to [0, 1]."""
        assert row.worst is not None
        return min(1.0, max(0.0, 2 * row.worst.mean - 1))

    @staticmethod
    def accuracy(row: RowSummary) -> float:
        """Mean test accuracy, a fraction."""
        assert row.accuracy is not None
        return row.accuracy.mean

    @staticmethod
    def area(row: RowSummary) -> float:
        """(1 - advantage) x accuracy: the hypervolume of the one point (advantage, test error) with
        the reference (1, 1).

        FedMIA's measure of a front (CVPR 2025, appendix, definition 1), for a front of one point:
        it needs no weight between privacy and utility.
        """
        return (1 - Strengths.advantage(row)) * Strengths.accuracy(row)
