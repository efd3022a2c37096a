"""Events of `fedbench run`: plain data for listeners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Scores = Mapping[str, Mapping[str, tuple[float | None, float | None]]]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run of the plan: one training and its attacks."""

    key: str
    """name of the run's record and unique in the plan"""
    suite: str
    setting: str
    coalition: str
    defense: str
    adversary: str
    """the active attack inside, or nothing"""
    seed: int
    rounds: int
    cells: int
    """number of attacks to judge"""
    results: str
    """the results folder"""


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run starts."""

    run: RunInfo


@dataclass(frozen=True, kw_only=True)
class RoundFinished:
    """A round of a training is over. Only audited rounds have an accuracy."""

    run: RunInfo
    round: int
    """from 1 to ``run.rounds``"""
    accuracy: float | None = None
    """test accuracy of the global model, or the task's utility"""
    train_loss: float | None = None
    """None where no client trained in the standard loop"""


@dataclass(frozen=True, kw_only=True)
class CellFinished:
    """An attack on a run has a record."""

    run: RunInfo
    attack: str
    view: str
    outcome: str
    """``ok``, or why there are no scores"""
    reason: str
    scores: Scores
    """group of non-members (``ofl``, ``ifl``, ``mix``, ``canary``) -> metric -> (value, standard
    error), all targets together; None: not known
    """


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    """A run has ended, with records or without."""

    run: RunInfo


@dataclass(frozen=True, kw_only=True)
class BoardWritten:
    """A board was written: its first tables as text."""

    path: str
    provisional: bool
    """whether other seeds of the plan are not finished"""
    headers: list[str]
    rows: list[list[str]]
    headings: list[str]
    """the table of each row"""


Event = RunStarted | RoundFinished | CellFinished | RunFinished | BoardWritten
