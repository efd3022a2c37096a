"""The record of one cell: identity, results and provenance. Cells of a run share a file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedbench.core.contract.analysis import Number
from fedbench.core.contract.attack import Group
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics.registry import Score
from fedbench.core.metrics.utility import run_accuracy
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.integrity import components_of, derived_fields, key_of, with_derived
from fedbench.core.store.scores import RecordPart, TargetScores

SCHEMA_VERSION = 1

# How a cell can end. `ok` has scores; every other outcome has a reason.
Outcome = Literal["ok", "failed", "timeout", "diverged", "skipped"]

# Fields of a record that a file has for each cell; the cells of a run share the others.
CELL_FIELDS = (
    "outcome",
    "reason",
    "by_adversary",
    "attack",
    "view",
    "against",
    "targets",
    "pooled",
    "analyses",
    "digests",
    "notes",
    "complaints",
    "measured",
)


class Utility(RecordPart):
    """Utility of the final global model on the clean test set."""

    accuracy: float
    """mean over the test samples; in classification the share that is classified correctly"""
    n_test: int
    """how many test samples there are"""
    name: str = "accuracy"
    """the task's word for it, left out where it is this one, as the following fields are"""
    unit: str = ""
    """empty: a share, printed in percent"""
    low: float = 0.0
    """smallest possible value"""
    high: float = 1.0
    """largest possible value"""
    direction: Literal["lower", "higher"] = "higher"
    """which values are better"""

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if value != fields[name].default}


class RoundRow(RecordPart):
    """An audited round."""

    round: int
    """its number, from 1"""
    accuracy: float
    """test accuracy, or the task's other utility, of the global model after this round"""
    train_loss: float | None
    """the global model's mean cross-entropy on the members' samples; None where not measured"""
    clusters: list[int] | None = None
    """clients of each global model, where there are several"""
    moved: int | None = None
    """clients that changed their global model since the last audited round"""
    group_accuracy: list[float] | None = None
    """test accuracy of each group of clients, in the setting's order"""


class RecordedFindings(RecordPart):
    """Findings of one analysis; its vectors are in the .npz, ``<analysis>:<name>``."""

    numbers: dict[str, Number] = Field(default_factory=dict)
    """by name"""
    arrays: dict[str, str] = Field(default_factory=dict)
    """name of each vector -> its unit"""


class Costs(RecordPart):
    """Figures that differ from run to run; everything else in a record, but the digest that covers
    them too, is reproducible bit by bit on the same type of CPU.
    """

    started: str
    """UTC, ISO 8601"""
    wall_s: float
    """the run (training, signals, all its attacks), seconds"""
    cpu_s: float
    """CPU time of the run, of all its processes, seconds"""
    train_cpu_s: float
    """local training and aggregation only: the basis of relative runtime"""
    train_wall_s: float | None = None
    """``train_cpu_s`` by the clock: far more where the machine was busy"""
    signals_cpu_s: float
    """measuring what attacks and analyses read, seconds"""
    attack_cpu_s: float
    """this cell's attack"""
    peak_memory_mb: float
    """of the largest process, MB"""


class Provenance(RecordPart):
    """Versions and machine that made a record."""

    fedbench: str
    """its version"""
    python: str
    """its version"""
    torch: str
    """its version; those of the libraries are part of the key"""
    numpy: str
    """its version"""
    scipy: str
    """its version"""
    scikit_learn: str
    """its version"""
    git_commit: str | None
    """of the checkout that fedbench ran from; null where it was installed from a wheel"""
    git_dirty: bool | None
    """whether that checkout had changes that were not committed"""
    platform: str
    """operating system, processor family and C library"""
    cpu: str
    """model of the processor"""
    cpu_capability: str
    """the vector instructions that torch uses here; with ``cpu`` what decides the last digits"""
    device: str
    """``cpu``, or ``cuda`` with the name of the GPU"""
    dtype: str
    """of the parameters"""
    threads: int
    """of a run"""
    deterministic: bool
    """whether torch was told to be"""

    @property
    def cpu_type(self) -> str:
        """The type of CPU on which one command gives the same bits."""
        return f"{self.cpu} ({self.cpu_capability})"


class Identity(RecordPart):
    """Everything that can change a result, as JSON values: the record's keys are its hashes; its
    seed, members, components, setting, versions and digests are read from it.
    """

    run: dict[str, Any]
    """everything that can change the training; its hash is ``run_key``"""
    attack: dict[str, Any]
    """the attack: name, parameters, target, package and digest of its code"""
    signals: dict[str, Any]
    """signals that the attack and the analyses read, by name"""
    analyses: dict[str, Any]
    """analyses that compute something in this setting, by label"""


class Components(RecordPart):
    """Components beside the defense and the attack, each with its package and version."""

    dataset: ComponentUse
    """the data set"""
    model: ComponentUse
    """the architecture"""
    signals: dict[str, ComponentUse]
    """signals that the attack and the analyses read, by the name that they ask for"""
    analyses: dict[str, ComponentUse]
    """analyses that compute something in this setting, by label"""


class Record(RecordPart):
    """The record of one cell: an attack on a run."""

    key: str
    """sha256 of everything that can change the scores"""
    run_key: str
    """sha256 of everything that can change the training; cells of one run share it"""
    outcome: Outcome
    """how it ended"""
    reason: str = ""
    """why there is no score"""
    by_adversary: bool = False
    """whether an adversary inside made it diverge: a result, no failure of the run"""
    suite: str
    """the suite's name"""
    setting: str
    """the setting's name in the suite"""
    coalition: str
    """``none``, ``pair``, ``half``, ``uniform`` or the suite's label"""
    members: list[int]
    """the clients that defend; empty for an undefended run"""
    seed: int
    """of the run"""
    defense: ComponentUse
    """what the members use"""
    attack: ComponentUse
    """who judges, or attacks from inside"""
    view: str
    """what the adversary sees: ``server``, ``client``, ``coalition``, ``external``"""
    against: list[str] = Field(default_factory=list)
    """names of the defenses that an adaptive attack knows; left out where there are none"""
    described: dict[str, Any]
    """the resolved setting: dataset, model, clients, rounds, ...; ``tuning`` is true of a seed on
    which strengths are chosen, and absent elsewhere
    """
    facts: dict[str, FactValue] = Field(default_factory=dict)
    """facts that the defense reports: epsilon, choices, bytes, ..."""
    utility: Utility | None = None
    """utility after the last round; null where the training gave no model"""
    targets: list[TargetScores] = Field(default_factory=list)
    """scores of every target"""
    pooled: dict[Group, Score] = Field(default_factory=dict)
    """scores of all targets thrown together"""
    analyses: dict[str, RecordedFindings] = Field(default_factory=dict)
    """findings of the suite's analyses, by their labels"""
    history: list[RoundRow] = Field(default_factory=list)
    """the audited rounds"""
    digests: dict[str, str] = Field(default_factory=dict)
    """``data``, ``split``, ``scores`` (the arrays of the cell), each a sha256"""
    notes: list[str] = Field(default_factory=list)
    """notes on the scores: who colluded, dropped rows of an adversary"""
    complaints: list[str] = Field(default_factory=list)
    """failures that cost no score: an analysis that failed, a fact that cannot be recorded"""
    provenance: Provenance
    """versions and machine"""
    measured: Costs
    """times and memory"""
    identity: Identity
    """everything that both keys are hashes of, stored once: fields that follow from it are made on
    reading
    """

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if not values.get("against", True):  # earlier records lack it
            del values["against"]
        return values

    @property
    def accuracy(self) -> float:
        """Test accuracy of the run, for a record with a ``utility``: :func:`run_accuracy`."""
        return run_accuracy([row.accuracy for row in self.history])

    @property
    def digest(self) -> str:
        """The hex sha256 of the canonical JSON of all fields; the ``key`` stands for the
        identity.
        """
        return key_of(self.model_dump(mode="json", exclude={"identity"}))

    @property
    def components(self) -> Components:
        """Data set, model, signals and analyses, each with its package and version."""
        return Components.model_validate(components_of(self.identity.model_dump()))


def record_of(identity: dict[str, Any], coalition: str, **stored: Any) -> Record:
    """Return the record with these fields and those that follow from its identity."""
    derived = derived_fields(identity, coalition)
    stored |= {"identity": identity, "coalition": coalition}
    return Record.model_validate(with_derived(stored, derived))


# -- remarks of defenses, kept as notes ------------------------------------------------------------


def remark_note(label: str, setting: str, text: str) -> str:
    """Return a defense's remark as a plan prints it and its records keep it."""
    return f"defense '{label}' in setting '{setting}': {text}"


def remarks_in(record: Record) -> list[str]:
    """Return the remarks of the record's defense, each once: those made before the training, then
    those of the finished run.
    """
    lead = remark_note(record.defense.label, record.setting, "")
    before = [note.removeprefix(lead) for note in record.notes if note.startswith(lead)]
    fact = record.facts.get(REMARKS, [])
    after: list[Any] = fact if isinstance(fact, list) else [fact]
    return list(dict.fromkeys([*before, *(text for text in after if isinstance(text, str))]))
