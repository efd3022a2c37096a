"""Metrics of an attack in a record, target by target."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fedbench.core.contract.attack import Group
from fedbench.core.metrics.registry import Score


class RecordPart(BaseModel):
    """A part of a record, which refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class RoundScores(RecordPart):
    """Metrics of a single-round attack by the choice of its round; TF01 in percent, None with too
    few non-members.
    """

    last_auc: float
    """AUC of the last audited round"""
    last_tf01: float | None
    """TF01 of the last audited round"""
    calibrated_auc: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_tf01: float | None
    """TF01 of the calibrated choice"""
    best_round: int
    """which round the oracle chose"""
    best_auc: float
    """labelled oracle: the round is chosen on the answers; read it only beside its null value"""
    best_tf01: float | None
    """TF01 of the oracle's choice"""
    null_best_auc: float
    """the oracle's mean over shuffled memberships"""
    null_best_tf01: float | None
    """the oracle's mean TF01 over shuffled memberships"""


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


class DecisionScores(RecordPart):
    """Decisions of an attack with a threshold of its own, by the choice of its round; fractions.

    Accuracy is (TPR + TNR) / 2; precision is None without positives.
    """

    last_accuracy: float
    """of the last audited round"""
    last_precision: float | None
    """of the last audited round"""
    last_recall: float
    """of the last audited round"""
    calibrated_accuracy: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_precision: float | None
    """precision of the calibrated choice"""
    calibrated_recall: float | None
    """recall of the calibrated choice"""
    best_round: int
    """which round the oracle chose"""
    best_accuracy: float
    """labelled oracle, as the poisoning papers report; read it only beside its null value"""
    best_precision: float | None
    """precision of the oracle's choice"""
    best_recall: float
    """recall of the oracle's choice"""
    null_best_accuracy: float
    """the oracle's mean over shuffled memberships"""


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
