"""Metrics of an attack in a record, target by target."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fedbench.core.contract.attack import Group
from fedbench.core.metrics.registry import Score
from fedbench.core.metrics.rounds import DecisionScores, RoundScores


class RecordPart(BaseModel):
    """A part of a record, which refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class MaximumScores(RecordPart):
    """The papers' largest value over all rounds, against outside non-members; read it only beside
    its null: the largest values under shuffled memberships, equal for all attacks of a run, in the
    .npz beside the record as ``t<target>_null_auc`` and ``t<target>_null_advantage``.
    """

    auc: float
    """largest AUC over the rounds (of an attack on the whole trajectory: of its one score)"""
    advantage: float
    """largest TPR - FPR over rounds and thresholds, signed; not always of the same round"""
    rounds: int
    """in how many rounds it looked"""


class TargetScores(RecordPart):
    """Metrics for one target; groups that a dataset does not have (canaries) are absent."""

    target: int
    """a client's id; -3: all honest clients together; -10, -11, ...: a group of clients"""
    groups: dict[Group, Score]
    """every metric, by group of candidates: `mix`, `ofl`, `ifl`, `canary`"""
    rounds: RoundScores | None = None
    """only of attacks that use a single round"""
    decision: DecisionScores | None = None
    """only of attacks with a threshold of their own"""
    maximum: MaximumScores | None = None
    """the largest value over the rounds; None without outside non-members"""
