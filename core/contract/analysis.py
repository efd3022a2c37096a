"""Analyses turn a finished run into named numbers and arrays, which a board shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy import ndarray

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
    """A finding."""

    value: float | None
    """None: it does not apply here"""
    error: float | None = None
    """standard error; None: unknown"""
    unit: str = ""
    """unit of the value, empty of a plain number"""
    # part of a record
    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True)
class Findings:
    """Results of an analysis."""

    numbers: Mapping[str, Number] = field(default_factory=dict)
    arrays: Mapping[str, ndarray] = field(default_factory=dict)
    """named vectors of numbers"""
    units: Mapping[str, str] = field(default_factory=dict)
    """units of the ``arrays``"""


_none = partial(np.zeros, 0, np.int64)
_no_rounds = partial(np.zeros, (0, 0), np.int64)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Scores of one attack for the candidates of one target, with the ground truth."""

    target: int
    """code in records: a client's id, -3 for all honest clients, -10, -11, ... for groups"""
    group: int | None
    """position of the group of clients that is the target; None for a client or all clients"""
    scores: ndarray
    """[n] float64, higher = member"""
    kind: ndarray
    """[n] int, 0 member, 1 outside the federation, 2 another client's, negative: excluded"""
    owner: ndarray
    """[n] the training client, -1 outside"""
    model_of: ndarray
    """[n] the global model that each candidate is observed through"""
    y: ndarray = field(default_factory=_none)
    """[n] labels"""

    @property
    def member(self) -> ndarray:
        """[n] bool: trained on."""
        return np.asarray(self.kind == MEMBER)

    @property
    def counted(self) -> ndarray:
        """[n] bool: members and non-members."""
        return np.asarray(self.kind != EXCLUDED)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Scores of one attack for each target."""

    attack: str
    threshold: float | None
    """score above which the attack says "member"; None: it only ranks"""
    targets: tuple[Judged, ...]


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run as the auditor sees it, membership included. All arrays are copies.

    The pool has N samples; a count of a round is 0 without training and for absent clients, -1
    where it is unknown (malicious clients, a ``local_train`` that goes its own way).
    """

    clients: int
    """K"""
    members: tuple[int, ...]
    """clients that defend"""
    malicious: tuple[int, ...]
    """clients that an adversary controlled"""
    facts: Mapping[str, Any]
    """the defense's report"""
    rounds: ndarray
    """[R] audited rounds"""
    rows: tuple[int, ...]
    """rows that the analysis' ``view`` and ``also`` see: clients' ids; -1, -1001, ... the global
    models; -2 the coalition's mean
    """
    signals: Mapping[str, ndarray]
    """[R, M, N] over rows and pool (a vector signal's [R, M, N, d]), of the analysis' ``needs``"""
    pool: ndarray
    """[N] the client that trained on each sample, -1 outside, -2 held out by its owner"""
    assignment: ndarray
    """[R, K] each client's global model in the audited rounds"""
    test_y: ndarray
    """[n_test] true classes"""
    predicted: ndarray
    """[n_test] final classes"""
    test_group: ndarray
    """[n_test] group of the client that each test sample looks like"""
    group_names: tuple[str, ...] = ()
    group_of: ndarray | None = None
    """[K], where the setting has groups of clients"""
    thresholds: ndarray | None = None
    """[K] accuracy of membership inference that each client tolerates, where it has one"""
    pool_y: ndarray = field(default_factory=_none)
    """[N] labels"""
    pool_canary: ndarray = field(default_factory=_none)
    """[N] whether these are wrong on purpose"""
    outsider_of: ndarray = field(default_factory=_none)
    """[N] client that has a sample in its own test part, -1 for none"""
    used: ndarray = field(default_factory=_none)
    """[N] in how many rounds a sample was trained on by its owner"""
    flagged: ndarray = field(default_factory=_none)
    """[N] in how many of them with a true flag of the defense's ``Selection``"""
    used_in_round: ndarray = field(default_factory=_no_rounds)
    """[T, K] how many samples each client trained on in every round"""
    flagged_in_round: ndarray = field(default_factory=_no_rounds)
    """[T, K] how many of them with a true flag"""
    sizes: ndarray = field(default_factory=_none)
    """[K] samples of each client"""
    rng: Callable[[str], np.random.Generator]
    """purpose -> generator keyed by the run's seed and the purpose"""


class Analysis(Configured):
    """Base of an analysis plugin.

    ``analyse`` runs once a cell after training; its result is stored in the record under the
    analysis' label in the suite. ``draw`` runs when a board is made, from records alone.
    """

    needs: frozenset[str] = frozenset()
    """names of the signals it reads"""
    may_lack: frozenset[str] = frozenset()
    """those of them that ``run.signals`` lacks where the data's task has none"""
    view: View = "server"
    """view with the rows that it sees"""
    also: frozenset[View] = frozenset()
    """views with more rows, shown after those of ``view``"""
    by_default: bool = True
    """for built-in ones: a suite that lists no analyses runs it; off for one that reads signals,
    which makes runs slower
    """
    needs_tuning_seeds: bool = False
    """a suite without ``tuning_seeds`` is refused"""
    every_board: bool = False
    """for built-in ones: ``draw_board`` is asked on boards of suites that do not name it"""
    place: Place = "attacks"
    """part of a section that shows its blocks"""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Whether it applies to a setting, given as in records (``described``).

        If not, it is neither run nor part of a cell's key.
        """
        return True

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Findings about a run and one attack's judgement (None where the attack has none)."""
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
