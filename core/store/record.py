"""The record of one cell: what was asked, what came out, where it came from. One JSON file each, no pickle."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

# Everything a cell can end as. `ok` has scores; every other outcome has a reason.
Outcome = Literal["ok", "failed", "timeout", "diverged", "skipped"]

# Which candidates a score was computed on. `mix`: members vs all non-members; `ofl`: vs outside-federation ones;
# `ifl`: vs other clients' training samples; `canary`: mislabelled members vs mislabelled non-members.
Group = Literal["mix", "ofl", "ifl", "canary"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Score(_Part):
    """Metrics of one attack on one target over one group of candidates; None: not applicable (too few samples)."""

    auc: float | None
    auc_se: float | None
    """bootstrap standard error over both classes"""
    tf01: float | None
    """TPR at FPR <= 0.1 %, in percent; None with fewer than 1,000 non-members"""
    tf01_se: float | None
    advantage: float | None
    """max over thresholds of TPR - FPR (signed), as a fraction"""
    balanced_accuracy: float | None
    """(TPR + TNR) / 2 at the threshold of the best advantage: (1 + advantage) / 2"""
    n_members: int
    n_nonmembers: int


class RoundScores(_Part):
    """A single-round attack by how its round is chosen; TF01 in percent, None with too few non-members."""

    last_auc: float
    last_tf01: float | None
    calibrated_auc: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_tf01: float | None
    best_round: int
    best_auc: float
    """labelled oracle: the round is chosen on the very answers; read it only beside its null value"""
    best_tf01: float | None
    null_best_auc: float
    """the oracle's mean over shuffled memberships"""
    null_best_tf01: float | None


class DecisionScores(_Part):
    """What an attack with a threshold of its own says, by how its round is chosen; fractions.

    Accuracy is (TPR + TNR) / 2; precision is None where nobody was called a member.
    """

    last_accuracy: float
    last_precision: float | None
    last_recall: float
    calibrated_accuracy: float | None
    """round chosen on a random half of the candidates, judged on the other half"""
    calibrated_precision: float | None
    calibrated_recall: float | None
    best_round: int
    best_accuracy: float
    """labelled oracle, as the poisoning papers report; read it only beside its null value"""
    best_precision: float | None
    best_recall: float
    null_best_accuracy: float
    """the oracle's mean over shuffled memberships"""


class TargetScores(_Part):
    """One target client (-3: all honest clients together); the groups a dataset does not have (no canaries) are absent."""

    target: int
    groups: dict[Group, Score]
    rounds: RoundScores | None = None
    """only of attacks that use a single round"""
    decision: DecisionScores | None = None
    """only of attacks with a threshold of their own"""


class ComponentUse(_Part):
    """A component as this cell used it: name, resolved parameters, and the code that ran."""

    name: str
    label: str
    """name in tables: the name, or the suite's own label where a suite lists one component several times"""
    params: dict[str, Any]
    distribution: str
    """package and version, e.g. ``fedbench 0.1.0``"""
    digest: str
    """sha256 over the source files of the component"""


class Utility(_Part):
    """What the federation is worth: the final global model on the clean test set."""

    accuracy: float
    n_test: int


class RoundRow(_Part):
    """One audited round."""

    round: int
    accuracy: float
    """test accuracy of the global model after this round"""
    train_loss: float | None
    """mean cross-entropy of the global model on the members' own samples; None where not measured"""
    clusters: list[int] | None = None
    """clients of each global model, where there are several"""
    moved: int | None = None
    """clients that changed their global model since the last audited round"""
    group_accuracy: list[float] | None = None
    """test accuracy of each group of clients, in the setting's order"""


class GroupFacts(_Part):
    """One group of clients under the final models."""

    name: str
    clients: int
    accuracy: float
    n_test: int


class Society(_Part):
    """Groups of clients side by side; the gaps are absolute differences of rates, 0 = fair (IFCA-MIR, section 3.2)."""

    groups: list[GroupFacts]
    demographic_parity: float
    demographic_parity_se: float
    equal_opportunity: float
    equal_opportunity_se: float
    equalised_odds: float
    equalised_odds_se: float


class Violations(_Part):
    """Clients whose global model an attack reads better than they tolerate (IFCA-MIR, section 5.2.2)."""

    violated: int
    clients: int
    accuracy_of_model: list[float | None]
    """accuracy of the attack's own decisions on the candidates that each global model serves; None without a class"""


class Measured(_Part):
    """Figures that differ from run to run on the same machine; everything else in a record is reproducible bit by bit."""

    started: str
    """UTC, ISO 8601"""
    wall_s: float
    """the run (training, signals, all its attacks), seconds"""
    cpu_s: float
    train_cpu_s: float
    """local training and aggregation only: the basis of relative runtime"""
    signals_cpu_s: float
    attack_cpu_s: float
    """this cell's attack"""
    peak_memory_mb: float


class Provenance(_Part):
    """Where a record came from."""

    fedbench: str
    python: str
    torch: str
    numpy: str
    git_commit: str | None
    git_dirty: bool | None
    platform: str
    cpu: str
    device: str
    dtype: str
    threads: int
    deterministic: bool


class Record(_Part):
    """One cell = run x attack."""

    schema_version: int = SCHEMA_VERSION
    key: str
    """sha256 of everything that can change the answer, this attack included"""
    run_key: str
    """the same for the training alone; cells of one run share it"""
    outcome: Outcome
    reason: str = ""
    suite: str
    setting: str
    """the setting's name in the suite"""
    coalition: str
    """``none``, ``pair``, ``half``, ``uniform`` or the suite's label"""
    members: list[int]
    """the clients that defend; empty for an undefended run"""
    seed: int
    defense: ComponentUse
    attack: ComponentUse
    view: str
    facts: dict[str, Any]
    """the resolved setting in words a board can print: dataset, model, clients, rounds, ..."""
    utility: Utility | None = None
    targets: list[TargetScores] = Field(default_factory=list)
    pooled: dict[Group, Score] = Field(default_factory=dict)
    """scores of all targets thrown together"""
    society: Society | None = None
    """only of settings with groups"""
    violations: Violations | None = None
    """only of attacks with a threshold of their own in settings whose clients have one"""
    history: list[RoundRow] = Field(default_factory=list)
    digests: dict[str, str] = Field(default_factory=dict)
    """``data``, ``split``, ``scores`` (the .npz beside the record), each a sha256"""
    notes: list[str] = Field(default_factory=list)
    provenance: Provenance
    measured: Measured
