"""The suite file as types. Every field says what it is; ranges are enforced here, cross-checks in ``checks``."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from fedbench.core.contract.threat import KnowledgeLevel
from fedbench.core.spec.base import Name, SpecModel, mistake
from fedbench.core.spec.coalition import Coalition
from fedbench.core.spec.component import MethodUse, Use, expand
from fedbench.core.spec.federation import FederationSpec

SCHEMA = 1


class Partition(SpecModel):
    """How the training samples are divided among the clients."""

    short_form = "a name"

    name: Literal["iid", "dirichlet", "group-bias"] = Field(
        "iid", description="iid: equal random shares; dirichlet: label skew; group-bias: clients grouped by label"
    )
    beta: float | None = Field(
        None, gt=0, allow_inf_nan=True, description="concentration of dirichlet; smaller is more skewed, .inf is even"
    )
    bias: float | None = Field(
        None, ge=0, le=1, description="group-bias: probability that a sample goes to its own label's group of clients"
    )
    min_samples: int = Field(1, ge=1, description="fewest samples of a client")

    @field_serializer("beta", when_used="json-unless-none")
    def _json_knows_no_infinity(self, beta: float) -> float | str:
        return "inf" if math.isinf(beta) else beta

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _beta_of_dirichlet(self) -> Partition:
        if self.name == "dirichlet" and self.beta is None:
            raise mistake("dirichlet needs beta, e.g. {name: dirichlet, beta: 0.5}")
        if self.name != "dirichlet" and self.beta is not None:
            raise mistake(f"{self.name} takes no beta: remove it, or use the name dirichlet")
        if self.name == "group-bias" and self.bias is None:
            raise mistake("group-bias needs bias, e.g. {name: group-bias, bias: 0.5}")
        if self.name != "group-bias" and self.bias is not None:
            raise mistake(f"{self.name} takes no bias: remove it, or use the name group-bias")
        return self


class ShadowSpec(SpecModel):
    """The attacker's own data and the shadow models trained on it, for the attacks that need them."""

    samples: int = Field(1000, ge=20, description="hold-out samples that no audit asks about; each model trains on half")
    models: int = Field(8, ge=2, description="number of shadow models")
    epochs: int = Field(20, ge=1, description="epochs of the federation's own recipe")


class AuditSpec(SpecModel):
    """What is measured for the attacks, and about whom."""

    every: int = Field(1, ge=1, description="audited rounds are every, 2*every, ... and always the last one")
    nonmembers: int = Field(
        10_000, ge=1,
        description="non-members a target: equal shares from outside and each other client, if they exist; with "
        "targets: honest or groups, so many from outside (150 by default)",
    )  # fmt: skip
    outside: int | None = Field(
        None, ge=1,
        description="so many of them from outside in place of an equal share, if they exist: outside non-members carry the rank",
    )  # fmt: skip
    members: int | None = Field(
        None, ge=1, description="with targets: honest or groups, members drawn from their clients together (150 by default)"
    )
    shadow: ShadowSpec | None = Field(None, description="shadow models; without them the attacks that need some are skipped")
    targets: Literal["coalition", "honest", "groups"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = Field(
        "coalition",
        description="whose data is attacked: the coalition's members, a list of client ids, honest (was a sample used by "
        "any honest client at all?) or groups (by any client of the group?)",
    )  # fmt: skip
    align_nonmembers: bool = Field(
        True, description="false: other non-members in every round and for every client, as FedMIA's released code draws"
    )

    members_from: Literal["training", "holdout"] = Field(
        "training",
        description="holdout: the members asked about were in nobody's training either, so what an attack finds is its null",
    )

    @model_validator(mode="before")
    @classmethod
    def _attack_set(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("targets") in ("honest", "groups"):
            return {"members": 150, "nonmembers": 150, **value}
        return value

    @model_validator(mode="after")
    def _fields_fit(self) -> AuditSpec:
        together = self.targets in ("honest", "groups")
        if not together and self.members is not None:
            raise mistake("members goes with targets: honest or groups: remove it (all of a client's samples are asked about)")
        if together and self.outside is not None:
            raise mistake(f"outside: all non-members of targets: {self.targets} are from outside; say how many by nonmembers")
        if self.members_from == "holdout" and not self.align_nonmembers:
            raise mistake("align_nonmembers: false redraws non-members around members: remove it, or members_from: holdout")
        if together and not self.align_nonmembers:
            raise mistake(f"align_nonmembers: false redraws per client; targets: {self.targets} has none")
        return self


_EARLIER_LEVELS = {"partial": "own", "full": "honest"}  # of knowledge, in suites written before attacks' words were taken


class Adversary(SpecModel):
    """Who attacks from inside the federation, and what it gets to know; every active attack of the setting is such."""

    clients: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] = Field(
        1, description="number of malicious clients (the last ids), or their share of all"
    )
    knowledge: KnowledgeLevel = Field(
        "honest", description="own: its own clients' rows; honest: also this round's honest rows; rule: the server's rule too"
    )
    mask_set: int = Field(300, ge=1, description="samples of its own that it hides behind, from its clients' data")
    start_round: int = Field(1, ge=1, description="first round it attacks in; before, its clients are honest")
    assumed: int | None = Field(
        None, ge=0, description="malicious clients that the server's rule assumes; by default the real number"
    )

    @field_validator("knowledge", mode="before")
    @classmethod
    def _one_vocabulary(cls, value: object) -> object:
        if isinstance(value, str) and value in _EARLIER_LEVELS:
            raise mistake(f"'{value}' is called '{_EARLIER_LEVELS[value]}', as attacks call it")
        return value

    def malicious(self, clients: int) -> int:
        """How many of ``clients`` it controls."""
        return self.clients if isinstance(self.clients, int) else max(1, round(self.clients * clients))

    def expected(self, clients: int) -> int:
        """How many malicious clients the server's rule is told to expect."""
        return self.malicious(clients) if self.assumed is None else self.assumed


class Group(SpecModel):
    """Clients whose images are deformed alike: each draws its own angle or factor from the group's range."""

    name: Name = Field(description="name in records and tables")
    fraction: float | None = Field(None, gt=0, lt=1, description="share of the clients; one group may take the rest")
    rotation: list[float] | None = Field(None, min_length=2, max_length=2, description="degrees, [least, most]")
    brightness: list[Annotated[float, Field(gt=0)]] | None = Field(
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
    groups: list[Group] | None = Field(None, min_length=2, description="groups of clients with images of their own kind")
    thresholds: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        None, min_length=2, max_length=2, description="range of the accuracy of membership inference that a client tolerates"
    )
    coalitions: list[Coalition] | None = Field(None, min_length=1, description="in place of the suite's")
    defenses: list[str] | None = Field(
        None, min_length=1, description="labels of the suite's defenses that run here; by default all"
    )
    attacks: list[str] | None = Field(
        None, min_length=1, description="labels of the suite's attacks that run here; by default all"
    )

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
        600.0, gt=0, description="CPU time of one training, and again of each attack on it, seconds: a busy machine costs nothing"
    )
    idle_seconds: float = Field(
        300.0, gt=0, description="a run in which nothing moves for so long (no round, next to no CPU time) hangs, seconds"
    )
    memory_gb: float | None = Field(None, gt=0, description="memory of one run, GiB; null: no limit")


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


class SuiteSpec(SpecModel):
    """A whole suite."""

    # `schema` is a method of pydantic's models, hence the other name
    schema_version: Literal[1] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="name in records and tables")
    title: str = Field("", description="one line for people")
    description: str = Field("", description="what the suite shows and where it comes from")
    seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(min_length=1, description="one run for each")
    settings: list[Setting] = Field(min_length=1, description="the federations")
    coalitions: list[Coalition] | None = Field(None, min_length=1, description="who defends; a setting may differ")
    defenses: list[MethodUse] = Field(min_length=1, description="the defenses to compare")
    floors: list[str] | None = Field(
        None,
        description="which of free-rider and placebo are rows for comparison, by default both, of every setting that has "
        "members and names no defenses of its own; [] for none",
    )
    attacks: list[MethodUse] = Field(min_length=1, description="the attacks that judge them")
    analyses: list[MethodUse] | None = Field(
        None, description="what is made of finished runs, beside scores; by default all that come with fedbench"
    )
    limits: Limits = Field(default_factory=Limits, description="what one run may consume")
    published: list[PublishedNumbers] = Field(default_factory=list, description="published numbers to print beside ours")

    @field_validator("schema_version", mode="before")
    @classmethod
    def _no_bool(cls, value: object) -> object:
        if isinstance(value, bool):  # true == 1
            raise mistake(f"expected {SCHEMA}, found {str(value).lower()}")
        return value

    def coalitions_of(self, setting: Setting) -> list[Coalition]:
        """The setting's own coalitions, else the suite's."""
        return setting.coalitions or self.coalitions or []

    def n_cells(self, floors: int) -> int:
        """Most scores it can give with so many floors: settings x coalitions x defenses x seeds x attacks.

        A defense that does nothing is trained once for all coalitions, which leaves fewer.
        """
        sides = sum(len(self.coalitions_of(s)) for s in self.settings)
        rows = [sum(len(list(expand(use))) for use in uses) for uses in (self.defenses, self.attacks)]
        return sides * (rows[0] + floors) * rows[1] * len(self.seeds)
