"""The record of one cell: what was asked, what came out, where it came from. Cells of a run share a
file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedbench.core.contract.analysis import Number
from fedbench.core.contract.attack import Group
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics.registry import Score
from fedbench.core.metrics.utility import run_accuracy
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.integrity import components_of, key_of
from fedbench.core.store.scores import RecordPart, TargetScores

SCHEMA_VERSION = 1

# Everything a cell can end as. `ok` has scores; every other outcome has a reason.
Outcome = Literal["ok", "failed", "timeout", "diverged", "skipped"]


class Utility(RecordPart):
    """What the federation is worth: the final global model on the clean test set."""

    accuracy: float
    """share of the test samples that are classified correctly"""
    n_test: int
    """how many test samples there are"""


class RoundRow(RecordPart):
    """One audited round."""

    round: int
    """its number, from 1"""
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


class Found(RecordPart):
    """What one analysis found; its vectors are in the .npz beside the record,
    ``<analysis>:<name>``.
    """

    numbers: dict[str, Number] = Field(default_factory=dict)
    """name -> what it found"""
    arrays: dict[str, str] = Field(default_factory=dict)
    """name of each vector -> its unit"""


class Measured(RecordPart):
    """Figures that differ from run to run; everything else in a record, but the digest that covers
    them too, is reproducible bit by bit on the same type of CPU.
    """

    started: str
    """UTC, ISO 8601"""
    wall_s: float
    """the run (training, signals, all its attacks), seconds"""
    cpu_s: float
    """the same by the CPU, of all its processes, seconds"""
    train_cpu_s: float
    """local training and aggregation only: the basis of relative runtime"""
    train_wall_s: float | None = None
    """the same by the clock: far more than the CPU time where the machine was busy"""
    signals_cpu_s: float
    """measuring what attacks and analyses read, seconds"""
    attack_cpu_s: float
    """this cell's attack"""
    peak_memory_mb: float
    """of the largest process, MB"""


class Provenance(RecordPart):
    """Where a record came from."""

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
        """What one command gives the same bits on."""
        return f"{self.cpu} ({self.cpu_capability})"


class Identity(RecordPart):
    """What a record's keys are the hashes of, as JSON values: see ``store/integrity.py``."""

    run: dict[str, Any]
    """everything that can change what the training answers; its hash is ``run_key``"""
    attack: dict[str, Any]
    """the attack: name, parameters, target, package and digest of its code"""
    signals: dict[str, Any]
    """those the attack and the analyses read, by name"""
    analyses: dict[str, Any]
    """those that compute something in this setting, by label"""


class Components(RecordPart):
    """What took part beside the defense and the attack, each with its package and version."""

    dataset: ComponentUse
    """the data set"""
    model: ComponentUse
    """the architecture"""
    signals: dict[str, ComponentUse]
    """those that the attack and the analyses read, by the name that they ask for"""
    analyses: dict[str, ComponentUse]
    """those that compute something in this setting, by label"""


class Record(RecordPart):
    """One cell = run x attack."""

    key: str
    """sha256 of everything that can change the answer, this attack included"""
    run_key: str
    """the same for the training alone; cells of one run share it"""
    outcome: Outcome
    """how it ended"""
    reason: str = ""
    """why there is no score"""
    by_adversary: bool = False
    """that it diverged is what an adversary inside brought about: a result, no failure of the run"""
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
    described: dict[str, Any]
    """the resolved setting in words a board can print: dataset, model, clients, rounds, ...;
    ``tuning`` is true of a seed on which strengths are chosen, and absent elsewhere
    """
    facts: dict[str, FactValue] = Field(default_factory=dict)
    """what the defense says of its run: epsilon, choices, bytes, ..."""
    utility: Utility | None = None
    """what the federation is worth after the last round; null where the training gave no model"""
    targets: list[TargetScores] = Field(default_factory=list)
    """scores of every target"""
    pooled: dict[Group, Score] = Field(default_factory=dict)
    """scores of all targets thrown together"""
    analyses: dict[str, Found] = Field(default_factory=dict)
    """what the suite's analyses found, by their labels"""
    history: list[RoundRow] = Field(default_factory=list)
    """the audited rounds"""
    digests: dict[str, str] = Field(default_factory=dict)
    """``data``, ``split``, ``scores`` (the arrays of the cell), each a sha256"""
    notes: list[str] = Field(default_factory=list)
    """what to know about the scores: who colluded, dropped rows of an adversary"""
    complaints: list[str] = Field(default_factory=list)
    """what a plugin did wrong that cost no score: an analysis that failed, a fact that cannot be
    recorded
    """
    provenance: Provenance
    """versions and machine"""
    measured: Measured
    """times and memory"""
    identity: Identity
    """what both keys are made of; they are made again on reading, and other fields that stand in it
    must agree
    """

    @property
    def accuracy(self) -> float:
        """Test accuracy of the run, of a record with a ``utility``: :func:`run_accuracy`."""
        return run_accuracy([row.accuracy for row in self.history])

    @property
    def digest(self) -> str:
        """Hex sha256 of the canonical JSON of all fields."""
        return key_of(self.model_dump(mode="json"))

    @property
    def components(self) -> Components:
        """Data set, model, signals and analyses, each with its package and version."""
        return Components.model_validate(components_of(self.identity.model_dump()))


# -- remarks of defenses, kept as notes ------------------------------------------------------------


def remark_note(label: str, setting: str, text: str) -> str:
    """A remark of the defense with this label, as a plan prints it and its records keep it."""
    return f"{_lead(label, setting)}{text}"


def remarks_in(record: Record) -> list[str]:
    """The remarks of a record, each once: those that were made before the training, then those of
    the finished run. Their text is the defense's.
    """
    lead, said = _lead(record.defense.label, record.setting), record.facts.get(REMARKS, [])
    before = [note.removeprefix(lead) for note in record.notes if note.startswith(lead)]
    after = said if isinstance(said, list) else [said]
    return list(dict.fromkeys([*before, *(text for text in after if isinstance(text, str))]))


def _lead(label: str, setting: str) -> str:
    return f"defense '{label}' in setting '{setting}': "
