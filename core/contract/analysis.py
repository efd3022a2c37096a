"""An analysis looks at a finished run and returns named numbers and arrays, which a board shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from fedbench.core.contract.attack import EXCLUDED, MEMBER, View
from fedbench.core.contract.board import Numbers
from fedbench.core.contract.components import Configured

if TYPE_CHECKING:
    from fedbench.core.contract.board import Block
    from fedbench.core.contract.section import Section

Place = Literal["attacks", "costs"]
PLACES: tuple[Place, ...] = get_args(Place)


@dataclass(frozen=True)
class Number:
    """A finding: ``value`` (None: it does not apply here), its standard ``error`` (None: not known)
    and its ``unit``.
    """

    value: float | None
    error: float | None = None
    unit: str = ""
    # a record holds these
    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True)
class Findings:
    """What an analysis found: named ``numbers``, named vectors of numbers (``arrays``) and the
    ``units`` of the latter.
    """

    numbers: Mapping[str, Number] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One attack's scores of one target's candidates, with the ground truth. ``target``: its code
    in records, a client's id, -3 for all honest clients together, -10, -11, ... for groups;
    ``scores`` [n] float64, higher = member; ``y`` [n] labels; ``kind`` [n] int, 0 member, 1 outside
    the federation, 2 another client's, negative: excluded; ``owner`` [n] the training client, -1
    outside; ``model_of`` [n] the global model that each candidate is observed through. ``group``:
    the position of the group of clients that is the target; None for a client or all clients.
    """

    target: int
    group: int | None
    scores: np.ndarray
    kind: np.ndarray
    owner: np.ndarray
    model_of: np.ndarray
    y: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def member(self) -> np.ndarray:
        """[n] bool: trained on."""
        return np.asarray(self.kind == MEMBER)

    @property
    def counted(self) -> np.ndarray:
        """[n] bool: members and non-members."""
        return np.asarray(self.kind != EXCLUDED)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One cell: the ``attack``; ``threshold``: the score above which it says "member" (None: it
    only ranks); ``targets``: its scores of each target.
    """

    attack: str
    threshold: float | None
    targets: tuple[Judged, ...]


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run as the auditor sees it, membership included. All arrays are copies.

    ``clients``: how many; ``members``: those that defend; ``malicious``: those that an adversary
    controlled. ``facts``: the defense's report of the run. ``rounds``: [R] audited rounds;
    ``assignment``: [R, K] each client's global model in them; ``signals[name]``: [R, M, N] over the
    sample pool (a vector signal's [R, M, N, d]), of the signals in the analysis' ``needs``, on the
    ``rows`` that its ``view`` and ``also`` see (clients' ids; -1, -1001, ... the global models; -2
    the coalition's mean). ``pool``: [N] the client that trained on each sample of the pool, -1
    outside, -2 held out by its owner; ``pool_y``: [N] their labels, ``pool_canary``: [N] whether
    these are wrong on purpose; ``outsider_of``: [N] the client that has a sample in its own test
    part, -1 for none. ``test_y``, ``predicted``: [n_test] true and final classes; ``test_group``:
    [n_test] group of the client that each test sample looks like. ``used``: [N] in how many rounds
    each sample of the pool was trained on by its owner, and ``flagged``: [N] in how many of them
    with a true flag of the defense's ``Selection``; ``used_in_round`` and ``flagged_in_round``: [T,
    K] how many samples each client trained on in every round, of its ``sizes`` [K]: 0 without
    training and for absent clients, -1 where it is unknown (malicious clients, a ``local_train``
    that goes its own way). ``group_names`` and ``group_of``: [K], where the setting has groups of
    clients; ``thresholds``: [K] the accuracy of membership inference that each client tolerates,
    where it has one. ``rng(purpose)``: a numpy generator keyed by the run's seed and the purpose.
    """

    clients: int
    members: tuple[int, ...]
    malicious: tuple[int, ...]
    facts: Mapping[str, Any]
    rounds: np.ndarray
    rows: tuple[int, ...]
    signals: Mapping[str, np.ndarray]
    pool: np.ndarray
    assignment: np.ndarray
    test_y: np.ndarray
    predicted: np.ndarray
    test_group: np.ndarray
    group_names: tuple[str, ...] = ()
    group_of: np.ndarray | None = None
    thresholds: np.ndarray | None = None
    pool_y: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    pool_canary: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    outsider_of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    used: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    flagged: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    used_in_round: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    flagged_in_round: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rng: Callable[[str], np.random.Generator]


class Analysis(Configured):
    """Base of an analysis plugin.

    ``needs``: names of the signals it reads, of the rows that ``view`` sees. ``analyse`` runs once
    a cell after training; its result is stored in the record under the analysis' label in the
    suite. ``draw`` runs when a board is made, from records alone. ``place``: the part of a section
    that shows its blocks, attacks or costs. ``also``: other views with rows that it is shown, after
    those of ``view``. ``by_default``: of the built-in ones, whether a suite that lists no analyses
    runs it; one that reads signals makes runs slower, so it is off by default.
    ``needs_tuning_seeds``: whether it needs ``tuning_seeds``; a suite without them is refused.
    ``tells``: of the built-in ones, the endings of the names of facts that it shows, which the
    table of facts then leaves out. ``every_board``: of the built-in ones, whether ``draw_board`` is
    asked on boards of suites that do not name it.
    """

    needs: frozenset[str] = frozenset()
    view: View = "server"
    also: frozenset[View] = frozenset()
    by_default: bool = True
    needs_tuning_seeds: bool = False
    tells: tuple[str, ...] = ()
    every_board: bool = False
    place: Place = "attacks"

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Whether it applies to a setting, given as in records (``described``); if not, it is
        neither run nor part of a cell's key.
        """
        return True

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Findings about a run and one attack's judgement (None where the attack has none); None:
        no findings.
        """
        return None

    def draw(self, section: Section, label: str) -> Iterable[Block]:
        """Tables and figures for one section of a board, from the findings stored under ``label``.

        By default the generic table: one row a defense, one column a number, means over seeds. Put
        text of records into a ``str`` or a ``Quote``, never into ``Words``.
        """
        return (Numbers(label),)

    def draw_board(
        self, sections: Sequence[Section], published: Sequence[Mapping[str, Any]]
    ) -> Iterable[Block]:
        """Blocks about the whole board, from its sections and the suite's entries of published
        numbers; none by default.
        """
        return ()
