"""The suite file as types. Every field says what it is; ranges are enforced here, cross-checks in ``checks``."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from fedbench.core.spec import most
from fedbench.core.spec.audit import Adversary, AuditSpec, ShadowSpec
from fedbench.core.spec.base import Name, SpecModel, mistake
from fedbench.core.spec.coalition import Coalition
from fedbench.core.spec.component import MethodUse, Use
from fedbench.core.spec.federation import FederationSpec

SCHEMA = 1
__all__ = [
    "SCHEMA", "Adversary", "AuditSpec", "Group", "Limits", "Partition", "PublishedNumbers", "Setting", "ShadowSpec", "SuiteSpec",
]  # fmt: skip


class Partition(SpecModel):
    """How the training samples are divided among the clients."""

    short_forms = ({"enum": ["iid"]},)

    name: Literal["iid", "dirichlet", "dirichlet-sizes", "group-bias"] = Field(
        "iid",
        description="iid: equal random shares; dirichlet: label skew; dirichlet-sizes: unequal random shares, one label mix; "
        "group-bias: clients grouped by label",
    )  # fmt: skip
    beta: float | None = Field(
        None, gt=0, allow_inf_nan=True,
        description="concentration of dirichlet and dirichlet-sizes, 0.0001 to 1000000: smaller is more skewed; .inf is even",
    )
    bias: float | None = Field(
        None, ge=0, le=1, description="group-bias: probability that a sample goes to its own label's group of clients"
    )
    min_samples: int = Field(1, ge=1, le=most.SAMPLES, description="fewest samples of a client, all its parts together")

    @field_validator("beta")
    @classmethod
    def _drawable(cls, beta: float | None) -> float | None:
        if beta is not None and math.isfinite(beta) and not most.SMALLEST_CONCENTRATION <= beta <= most.FACTOR:
            span = f"[{most.SMALLEST_CONCENTRATION:g}, {most.FACTOR:.0f}]"
            raise mistake(f"expected a number in {span}, or .inf, found {beta!r}")
        return beta

    @field_serializer("beta", when_used="json-unless-none")
    def _json_knows_no_infinity(self, beta: float) -> float | str:
        return "inf" if math.isinf(beta) else beta

    @model_validator(mode="after")
    def _beta_of_dirichlet(self) -> Partition:
        drawn = self.name in ("dirichlet", "dirichlet-sizes")
        if drawn and self.beta is None:
            raise mistake(f"{self.name} needs beta, e.g. {{name: {self.name}, beta: 0.5}}")
        if not drawn and self.beta is not None:
            raise mistake(f"{self.name} takes no beta: remove it, or use the name dirichlet")
        if self.name == "group-bias" and self.bias is None:
            raise mistake("group-bias needs bias, e.g. {name: group-bias, bias: 0.5}")
        if self.name != "group-bias" and self.bias is not None:
            raise mistake(f"{self.name} takes no bias: remove it, or use the name group-bias")
        return self


class Group(SpecModel):
    """Clients with images deformed alike: each draws its own angle or factor from the group's range."""

    name: Name = Field(description="name in records and tables")
    fraction: float | None = Field(None, gt=0, lt=1, description="share of the clients; one group may take the rest")
    rotation: list[Annotated[float, Field(ge=-most.TURN, le=most.TURN)]] | None = Field(
        None, min_length=2, max_length=2, description="degrees, [least, most]"
    )
    brightness: list[Annotated[float, Field(gt=0, le=most.BRIGHTNESS)]] | None = Field(
        None, min_length=2, max_length=2, description="factor on the pixels, [least, most]"
    )

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Group:
        for name in ("rotation", "brightness"):
            ends = getattr(self, name)
            if ends is not None and ends[0] > ends[1]:
                raise mistake(f"{name} goes from {ends[0]} to {ends[1]}: give the smaller value first")
        return self


class Setting(SpecModel):
    """One federation: dataset, model, partition, hyperparameters, audit, coalitions."""

    name: Name = Field(description="name in records and tables")
    dataset: Use = Field(description="the dataset")
    model: Use | None = Field(None, description="the architecture; by default the dataset's own")
    partition: Partition = Field(default_factory=Partition, description="who gets which samples")
    federation: FederationSpec = Field(description="size and hyperparameters")
    audit: AuditSpec = Field(default_factory=AuditSpec, description="what is measured")
    adversary: Adversary | None = Field(
        None, description="who attacks from inside; by default, where an active attack takes part, one client of knowledge honest"
    )
    groups: list[Group] | None = Field(
        None, min_length=2, max_length=most.GROUPS, description="groups of clients with images of their own kind"
    )
    thresholds: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        None, min_length=2, max_length=2, description="range of the accuracy of membership inference that a client tolerates"
    )
    coalitions: list[Coalition] | None = Field(
        None, min_length=1, max_length=most.COALITIONS, description="in place of the suite's"
    )
    defenses: list[str] | None = Field(
        None, min_length=1, max_length=most.ROWS_OF_LIST,
        description="labels of the suite's defenses that run here, that of a grid for all its rows; by default all",
    )  # fmt: skip
    attacks: list[str] | None = Field(
        None, min_length=1, max_length=most.ROWS_OF_LIST,
        description="labels of the suite's attacks that run here, that of a grid for all its rows; by default all",
    )  # fmt: skip

    @model_validator(mode="after")
    def _groups_fit(self) -> Setting:
        if self.audit.targets == "groups" and self.groups is None:
            raise mistake("audit.targets: groups needs groups: list the setting's groups of clients")
        names = [g.name for g in self.groups or []]
        if len(set(names)) < len(names):
            raise mistake(f"two groups have the same name: {', '.join(names)}")
        if self.thresholds is not None and self.thresholds[0] > self.thresholds[1]:
            raise mistake("thresholds goes from the larger to the smaller value: give the smaller one first")
        return self


class Limits(SpecModel):
    """What one run may consume; a run beyond it is ended and recorded."""

    run_seconds: float = Field(
        600.0, gt=0, le=most.SECONDS,
        description="CPU time of one training, and again of each attack on it, seconds: a busy machine costs nothing",
    )
    idle_seconds: float = Field(
        300.0, gt=0, le=most.SECONDS,
        description="a run in which nothing moves for so long (no round, next to no CPU time) hangs, seconds",
    )
    memory_gb: float | None = Field(None, gt=0, le=most.MEMORY_GB, description="memory of one run, GiB; null: no limit")
    cpus: float = Field(
        1.0, ge=0.01, le=most.PROCESSORS,
        description="cores that `--executor ray` keeps for one run, which computes in one thread; below 1: several share a core",
    )
    gpus: float = Field(
        0.0, ge=0, le=most.PROCESSORS,
        description="GPUs that `--executor ray` keeps for one run; 0.25: four runs share one; above 1 whole ones",
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> Limits:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise mistake("limits.gpus above 1 is a number of whole GPUs: a run gets shares of one alone")
        return self


class PublishedNumbers(SpecModel):
    """Published numbers to print beside ours (from ``leaderboard/reference/<source>.csv``)."""

    source: Name = Field(description="the paper, e.g. fedmia")
    setting: Name = Field(description="our setting that corresponds")
    where: dict[Literal["table", "dataset", "model", "partition"], str] = Field(
        default_factory=dict, description="which of the paper's rows: column -> value"
    )
    case: dict[str, str] = Field(default_factory=dict, description="our coalition -> the paper's case, where names differ")
    defenses: dict[str, str] = Field(default_factory=dict, description="our label -> the paper's, where names differ")
    attacks: dict[str, str] = Field(default_factory=dict, description="our label -> the paper's, where names differ")
    differs: str = Field(
        "", max_length=1_000,
        description="what is not the paper's besides data set and model, which a board compares itself: rounds, clients, "
        "parameters, what the paper leaves open; printed above the comparison",
    )  # fmt: skip


class SuiteSpec(SpecModel):
    """A whole suite."""

    # `schema` is a method of pydantic's models, hence the other name
    schema_version: Literal[1] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="name in records and tables")
    title: str = Field("", max_length=1_000, description="one line for people")
    description: str = Field("", max_length=100_000, description="what the suite shows and where it comes from")
    seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(
        min_length=1, max_length=most.SEEDS, description="one run for each"
    )
    tuning_seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(
        default_factory=list, max_length=most.SEEDS,
        description="further seeds, on which an analysis chooses strengths; no other table counts their runs",
    )  # fmt: skip
    settings: list[Setting] = Field(min_length=1, max_length=most.SETTINGS, description="the federations")
    coalitions: list[Coalition] | None = Field(
        None, min_length=1, max_length=most.COALITIONS, description="who defends; a setting may differ"
    )
    defenses: list[MethodUse] = Field(min_length=1, max_length=most.USES, description="the defenses to compare")
    floors: list[str] | None = Field(
        None, max_length=most.USES,
        description="which of free-rider and placebo are rows for comparison, by default both, of every setting that has "
        "members and names no defenses of its own; [] for none",
    )
    attacks: list[MethodUse] = Field(min_length=1, max_length=most.USES, description="the attacks that judge them")
    analyses: list[MethodUse] | None = Field(
        None, max_length=most.USES,
        description="what is made of finished runs, beside scores; by default those of fedbench that read no signals",
    )  # fmt: skip
    signals: list[Use] = Field(
        default_factory=list, max_length=most.USES,
        description="signals with parameters of their own; any other that an attack or an analysis needs has its defaults",
    )  # fmt: skip
    limits: Limits = Field(default_factory=Limits, description="what one run may consume")
    published: list[PublishedNumbers] = Field(
        default_factory=list, max_length=most.SETTINGS, description="published numbers to print beside ours"
    )

    @field_validator("schema_version", mode="before")
    @classmethod
    def _no_bool(cls, value: object) -> object:
        if isinstance(value, bool):  # true == 1
            raise mistake(f"expected {SCHEMA}, found {str(value).lower()}")
        return value

    @property
    def all_seeds(self) -> list[int]:
        """Those that are reported, then those of tuning."""
        return [*self.seeds, *self.tuning_seeds]

    def coalitions_of(self, setting: Setting) -> list[Coalition]:
        """The setting's own coalitions, else the suite's."""
        return setting.coalitions or self.coalitions or []

    @model_validator(mode="after")
    def _can_be_planned(self) -> SuiteSpec:
        cells = self.n_cells(0)
        if cells > most.CELLS:
            raise mistake(
                f"the suite has {cells:,} cells (settings x coalitions x defenses x attacks x seeds), at most {most.CELLS:,} can "
                "be planned: split it into several suites"
            )
        return self

    def n_cells(self, floors: int) -> int:
        """Most scores it can give with so many floors: settings x coalitions x defenses x seeds x attacks.

        A defense that does nothing is trained once for all coalitions, which leaves fewer.
        """
        sides = sum(len(self.coalitions_of(s)) for s in self.settings)
        rows = [sum(use.n_rows for use in uses) for uses in (self.defenses, self.attacks)]
        return sides * (rows[0] + floors) * rows[1] * len(self.all_seeds)
