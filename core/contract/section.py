"""What an analysis may ask of one section of a board: a defense a row, an attack an entry, numbers over seeds and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from fedbench.core.contract.analysis import Findings
    from fedbench.core.contract.candidates import Group
    from fedbench.core.contract.defense import FactValue
    from fedbench.core.contract.interval import Interval


@dataclass(frozen=True)
class ClientGroup:
    """A group of clients of the setting: its name and how many ``clients`` there are, in consecutive blocks of ids."""

    name: str
    clients: int


class AuditedRound(Protocol):
    """One audited round of a run; ``clusters``, ``moved`` and ``group_accuracy`` where the run has several models or groups."""

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
        """Mean of a metric over seeds x targets with its 95 % interval; None where it does not apply."""

    def attack_accuracy(self, best: bool = False) -> Interval | None:
        """(TPR + TNR) / 2 of what the attack decides in the last round, or in the labelled best one; fractions."""

    def of_group(self, groups: Sequence[ClientGroup], g: int) -> Entry:
        """The same with the targets of the g-th group alone."""

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in this cell; None without scores, or where it found nothing."""


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
        """Whether it is there for comparison alone: members that upload nothing, or train plainly in another order."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By attack."""

    @property
    def accuracy(self) -> Interval | None:
        """Test accuracy over seeds, a fraction; None without scores."""

    @property
    def histories(self) -> Sequence[Sequence[AuditedRound]]:
        """The audited rounds of the run that stands for the row's accuracy, one list a seed that has one."""

    @property
    def facts(self) -> Mapping[str, Sequence[FactValue]]:
        """What the defense says of that run (``Defense.report``), fact by fact: one value a seed that has it."""

    def findings(self, label: str, seed: int) -> Findings | None:
        """What the analysis found in the run that stands for the row's accuracy."""


class Sweep(Protocol):
    """A defense at several strengths; a point is (TF01 as a fraction, test error)."""

    @property
    def family(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def points(self) -> Mapping[str, np.ndarray]:
        """Attack -> [n, 2]."""

    @property
    def undefended(self) -> Mapping[str, np.ndarray]:
        """Attack -> [k, 2], the undefended point or nothing."""

    def hypervolume(self, attack: str) -> float:
        """Area between the front (undefended point included) and (1, 1); larger = better defense, weaker attack."""


class Family(Protocol):
    """One defense at several strengths, or at one."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]:
        """Of its rows."""


class Standing(Protocol):
    """What a row leaks and costs, by the protocol of the ranking; None: it cannot be said."""

    @property
    def label(self) -> str: ...
    @property
    def complete(self) -> bool:
        """Every cell that applies has scores."""

    @property
    def worst(self) -> Interval | None:
        """AUC of an adversary who picks attack and sign on other seeds."""

    @property
    def attack(self) -> str:
        """The one picked most often."""

    @property
    def tf01(self) -> Interval | None:
        """In percent, of the attack that is worst in it."""

    @property
    def tf01_attack(self) -> str: ...
    @property
    def accuracy(self) -> Interval | None:
        """Test accuracy, a fraction."""

    @property
    def delta_accuracy(self) -> Interval | None:
        """Minus that of the undefended row, seed by seed, a fraction."""


class Duel(Protocol):
    """Two defenses of a section, the ``first`` minus the ``second``."""

    @property
    def first(self) -> str: ...
    @property
    def second(self) -> str: ...
    @property
    def worst(self) -> Interval | None:
        """Of the worst case AUC, paired on the same candidates; None where one of them has none."""

    @property
    def shown(self) -> bool:
        """Whether that is told from none, at 95 % for all pairs asked for together."""

    @property
    def accuracy(self) -> Interval | None:
        """Of the test accuracy, seed by seed, as a fraction."""


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
        """The same rows on the seeds where strengths are chosen, which nothing else of the section counts; None without any."""

    @property
    def where(self) -> str:
        """Setting, coalition and view, for titles; from records."""

    @property
    def described(self) -> Mapping[str, Any]:
        """The setting in the words of its records."""

    @property
    def groups(self) -> Sequence[ClientGroup]:
        """Groups of clients, in the order of the setting; none where it has none."""

    @property
    def deciding(self) -> Sequence[str]:
        """The attacks that say "member" by a threshold of their own."""

    def families(self) -> Sequence[Family]:
        """Every defense with its strengths, be it a single one, in the order of the names; floors are none."""

    def standing(self, label: str) -> Standing | None:
        """What the row of that label leaks and costs; None where there is no such row."""

    def ranks(self, labels: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """(best, worst) rank of these rows among each other, of those that have one."""

    def sweeps(self, least: int = 2) -> Sequence[Sweep]:
        """Every defense with at least so many strengths, in the order of the names."""

    def duels(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Duel]:
        """Those pairs of labels whose rows are both here."""
