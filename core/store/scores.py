"""What a record says of an attack's scores, target by target."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fedbench.core.contract.attack import Group
from fedbench.core.metrics.registry import Score


class RecordPart(BaseModel):
    """What a record holds: a field that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class RoundScores(RecordPart):
    """A single-round attack by how its round is chosen; TF01 in percent, None with too few
    non-members.
    """

    last_auc: float
    """AUC of the last audited round"""
    last_tf01: float | None
    """TF01 of the last audited round"""
    calibrated_auc: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_tf01: float | None
    """the same of TF01"""
    best_round: int
    """which round the oracle chose"""
    best_auc: float
    """labelled oracle: the round is chosen on the very answers; read it only beside its null value"""
    best_tf01: float | None
    """the same of TF01"""
    null_best_auc: float
    """the oracle's mean over shuffled memberships"""
    null_best_tf01: float | None
    """the same of TF01"""


class MaximumScores(RecordPart):
    """The papers' largest value over all rounds, against outside non-members; read it only beside
    its null.

    What the same looking finds under shuffled memberships, the same for all attacks of a run, lies
    in the .npz beside the record: ``t<target>_null_auc`` and ``t<target>_null_advantage``, one
    value a shuffle.
    """

    auc: float
    """largest AUC over the rounds (of an attack on the whole trajectory: of its one score)"""
    advantage: float
    """largest TPR - FPR over rounds and thresholds, signed; not always of the same round"""
    rounds: int
    """in how many rounds it looked"""


class DecisionScores(RecordPart):
    """What an attack with a threshold of its own says, by how its round is chosen; fractions.

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
    """the same of precision"""
    calibrated_recall: float | None
    """the same of recall"""
    best_round: int
    """which round the oracle chose"""
    best_accuracy: float
    """labelled oracle, as the poisoning papers report; read it only beside its null value"""
    best_precision: float | None
    """the same of precision"""
    best_recall: float
    """the same of recall"""
    null_best_accuracy: float
    """the oracle's mean over shuffled memberships"""


class TargetScores(RecordPart):
    """One target client (-3: all honest clients together); the groups a dataset does not have (no
    canaries) are absent.
    """

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
