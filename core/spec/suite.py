"""The suite file as types with ranges; checks between fields are in ``load``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedbench.core.spec import bounds
from fedbench.core.spec.base import MethodUse, Name, SpecModel, Use, mistake
from fedbench.core.spec.setting import Coalition, Setting


class Limits(SpecModel):
    """Resources of a run; a run beyond them is ended and recorded."""

    run_seconds: float = Field(
        600.0,
        gt=0,
        le=bounds.SECONDS,
        description="CPU time of one training, and again of each attack on it, seconds: a busy "
        "machine costs nothing",
    )
    idle_seconds: float = Field(
        300.0,
        gt=0,
        le=bounds.SECONDS,
        description="a run in which nothing moves for so long (no round, next to no CPU time) "
        "hangs, seconds",
    )
    memory_gb: float | None = Field(
        None, gt=0, le=bounds.MEMORY_GB, description="memory of one run, GiB; null: no limit"
    )
    cpus: float = Field(
        1.0,
        ge=0.01,
        le=bounds.PROCESSORS,
        description="cores that `--executor ray` keeps for one run, which computes in one thread; "
        "below 1: several share a core",
    )
    gpus: float = Field(
        0.0,
        ge=0,
        le=bounds.PROCESSORS,
        description="GPUs that `--executor ray` keeps for one run; 0.25: four runs share one; "
        "above 1 whole ones",
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> Limits:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise mistake(
                "limits.gpus above 1 is a number of whole GPUs: a run gets shares of one alone"
            )
        return self


class PublishedNumbers(SpecModel):
    """Published numbers to print beside ours (from ``plugins/papers/reference/<source>.csv``)."""

    source: Name = Field(description="the paper, e.g. fedmia")
    setting: Name = Field(description="our setting that corresponds")
    where: dict[Literal["table", "dataset", "model", "partition"], str | list[str]] = Field(
        default_factory=dict, description="which of the paper's rows: column -> value, or several"
    )
    case: dict[str, str] = Field(
        default_factory=dict, description="our coalition -> the paper's case, where names differ"
    )
    defenses: dict[str, str] = Field(
        default_factory=dict, description="our label -> the paper's, where names differ"
    )
    attacks: dict[str, str] = Field(
        default_factory=dict, description="our label -> the paper's, where names differ"
    )
    differs: str = Field(
        "",
        max_length=1_000,
        description="what is not the paper's besides data set and model, which a board compares "
        "itself: rounds, clients, "
        "parameters, what the paper leaves open; printed above the comparison",
    )


class SuiteSpec(SpecModel):
    """A whole suite."""

    # `schema` is a method of pydantic's models, hence the other name
    schema_version: int = Field(alias="schema", ge=1, le=1, description="version of this format")
    name: Name = Field(description="name in records and tables")
    title: str = Field("", max_length=1_000, description="one line for people")
    description: str = Field(
        "", max_length=100_000, description="what the suite shows and where it comes from"
    )
    seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(
        min_length=1, max_length=bounds.SEEDS, description="one run for each"
    )
    tuning_seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(
        default_factory=list,
        max_length=bounds.SEEDS,
        description="further seeds, on which an analysis chooses strengths; no other table counts "
        "their runs",
    )
    settings: list[Setting] = Field(
        min_length=1, max_length=bounds.SETTINGS, description="the federations"
    )
    coalitions: list[Coalition] | None = Field(
        None,
        min_length=1,
        max_length=bounds.COALITIONS,
        description="who defends; a setting may differ",
    )
    defenses: list[MethodUse] = Field(
        min_length=1, max_length=bounds.USES, description="the defenses to compare"
    )
    floors: list[str] | None = Field(
        None,
        max_length=bounds.USES,
        description="which of free-rider and placebo are rows for comparison, by default both, of "
        "every setting that has members and names no defenses of its own; [] for none",
    )
    attacks: list[MethodUse] = Field(
        min_length=1, max_length=bounds.USES, description="the attacks that judge them"
    )
    adaptive: bool = Field(
        False,
        description="whether fedbench's attacks that know a defense judge the rows that have it, "
        "beside the attacks",
    )
    analyses: list[MethodUse] | None = Field(
        None,
        max_length=bounds.USES,
        description="what is made of finished runs, beside scores; by default those of fedbench "
        "that read no signals",
    )
    signals: list[Use] = Field(
        default_factory=list,
        max_length=bounds.USES,
        description="signals with parameters of their own; any other that an attack or an analysis "
        "needs has its defaults",
    )
    limits: Limits = Field(default_factory=Limits, description="what one run may consume")
    published: list[PublishedNumbers] = Field(
        default_factory=list,
        max_length=bounds.SETTINGS,
        description="published numbers to print beside ours",
    )

    @property
    def all_seeds(self) -> list[int]:
        """Seeds that are reported, then those of tuning."""
        return [*self.seeds, *self.tuning_seeds]

    def coalitions_of(self, setting: Setting) -> list[Coalition]:
        """Return the setting's own coalitions, else the suite's."""
        return setting.coalitions or self.coalitions or []

    @model_validator(mode="after")
    def _can_be_planned(self) -> SuiteSpec:
        cells = self.n_cells(0)
        if cells > bounds.CELLS:
            raise mistake(
                f"the suite has {cells:,} cells (settings x coalitions x defenses x attacks x "
                f"seeds), at most {bounds.CELLS:,} can be planned: split it into several suites"
            )
        return self

    def n_cells(self, floors: int) -> int:
        """Return the largest number of scores with so many floors.

        A defense that does nothing is trained once for all coalitions, which leaves fewer.
        """
        n_coalitions = sum(len(self.coalitions_of(setting)) for setting in self.settings)
        n_defenses = sum(use.n_rows for use in self.defenses) + floors
        n_attacks = sum(use.n_rows for use in self.attacks)
        return n_coalitions * n_defenses * n_attacks * len(self.all_seeds)
