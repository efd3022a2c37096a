"""Types of a setting: coalitions, the audit, adversaries inside, and the division of the data."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, field_serializer, model_validator

from fedbench.core.contract.attack import KnowledgeLevel
from fedbench.core.spec import bounds
from fedbench.core.spec.base import Name, SpecModel, Use, mistake
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.words import did_you_mean

NAMED = ("none", "pair", "half", "uniform")
_FORMS = "none, pair, half, uniform, {name, clients}, {name, fraction} or {name, groups}"
_Client = Annotated[int, Field(ge=0, lt=bounds.CLIENTS)]
_Group = Annotated[list[_Client], Field(min_length=1, max_length=bounds.CLIENTS)]


def _require_distinct(clients: list[int]) -> None:
    """Raise a mistake for a client that is named twice."""
    for client, n in Counter(clients).items():
        if n > 1:
            raise mistake(f"the client {client} is given twice")


def no_client(client: int, clients: int) -> str:
    """Return the message on a client id that is too large."""
    return f"there is no client {client}, federation.clients is {clients} (ids count from 0)"


class Coalition(SpecModel):
    """A named coalition, or the suite's own: a label with a list of client ids, a share of the
    clients, or several lists.
    """

    short_forms = ({"enum": list(NAMED)},)

    name: Name = Field(description="none, pair, half or uniform; or a label of your own")
    clients: list[_Client] | None = Field(
        None, min_length=1, max_length=bounds.CLIENTS, description="ids of the members"
    )
    fraction: float | None = Field(
        None, gt=0, le=1, description="the first clients up to this share of all"
    )
    groups: list[_Group] | None = Field(
        None,
        min_length=2,
        max_length=bounds.GROUPS,
        description="several coalitions at once: the ids of each one's members, who defend "
        "together and with no others",
    )

    @model_validator(mode="after")
    def _one_form(self) -> Coalition:
        forms = [f for f in ("clients", "fraction", "groups") if getattr(self, f) is not None]
        if self.name in NAMED and forms:
            raise mistake(
                f"'{self.name}' has fixed members: remove {forms[0]} or choose another name"
            )
        if self.name not in NAMED and len(forms) != 1:
            hint = did_you_mean(self.name, NAMED)
            raise mistake(
                f"the coalition '{self.name}' needs one of clients, fraction and groups{hint}; "
                f"expected {_FORMS}"
            )
        _require_distinct(self.ids)
        return self

    @property
    def ids(self) -> list[int]:
        """Clients that are named one by one, in the order of the file."""
        return self.clients or [k for group in self.groups or [] for k in group]


def resolve_coalition(coalition: Coalition, clients: int) -> list[int]:
    """Return the ids of the members among ``clients``, ascending.

    Pair is [0, 1], half the first K//2, uniform all, none []; a fraction f takes the first
    max(1, round(f K)); of several groups it is all their clients.
    """
    if coalition.ids:
        return sorted(coalition.ids)
    if coalition.fraction is not None:
        return list(range(max(1, round(coalition.fraction * clients))))
    sizes = {"none": 0, "pair": 2, "half": clients // 2, "uniform": clients}
    return list(range(sizes[coalition.name]))


def groups_of(coalition: Coalition) -> tuple[tuple[int, ...], ...]:
    """Return the members of each of several coalitions, ascending, the smallest id first.

    The order in which a suite names them decides nothing. Empty where all members defend together.
    """
    return tuple(sorted(tuple(sorted(group)) for group in coalition.groups or []))


def coalition_problem(coalition: Coalition, clients: int) -> str:
    """Return why this coalition cannot be formed among ``clients`` clients, or nothing."""
    if coalition.name in ("pair", "half") and clients < 2:
        return f"'{coalition.name}' needs at least 2 clients, but federation.clients is {clients}"
    ids = coalition.ids
    if len(ids) > clients:
        return f"'{coalition.name}' has {len(ids)} members, but federation.clients is {clients}"
    outside = [k for k in ids if k >= clients]
    return no_client(outside[0], clients) if outside else ""


# --- audit and adversary --------------------------------------------------------------------------


class ShadowSpec(SpecModel):
    """The attacker's own data and the shadow models trained on it, for attacks that need them."""

    samples: int = Field(
        1000,
        ge=20,
        le=bounds.SAMPLES,
        description="hold-out samples that no audit asks about; each model trains on half",
    )
    models: int = Field(8, ge=2, le=bounds.MODELS, description="number of shadow models")
    epochs: int = Field(
        20, ge=1, le=bounds.EPOCHS, description="epochs of the federation's own recipe"
    )


class AuditSpec(SpecModel):
    """Signals measured for the attacks, and the audited samples."""

    every: int = Field(
        1,
        ge=1,
        le=bounds.ROUNDS,
        description="audited rounds are every, 2*every, ... and always the last one",
    )
    nonmembers: int = Field(
        10_000,
        ge=1,
        le=bounds.SAMPLES,
        description="non-members a target: equal shares from outside and each other client, if "
        "they exist; with "
        "targets: honest or groups, so many from outside (150 by default)",
    )
    outside: int | None = Field(
        None,
        ge=1,
        le=bounds.SAMPLES,
        description="so many of them from outside in place of an equal share, if they exist: "
        "outside non-members carry the rank",
    )
    members: int | None = Field(
        None,
        ge=1,
        le=bounds.SAMPLES,
        description="with targets: honest or groups, members drawn from their clients together "
        "(150 by default)",
    )
    precision: Literal["fp32", "tf32"] = Field(
        "fp32", description="arithmetic of the signals; tf32 is faster on NVIDIA GPUs, less exact"
    )
    shadow: ShadowSpec | None = Field(
        None, description="shadow models; without them the attacks that need some are skipped"
    )
    targets: (
        Literal["coalition", "honest", "groups"]
        | Annotated[
            list[Annotated[int, Field(ge=0, lt=bounds.CLIENTS)]],
            Field(min_length=1, max_length=bounds.CLIENTS),
        ]
    ) = Field(
        "coalition",
        description="the attacked clients: the coalition's members, a list of client ids, honest "
        "(was a sample used by "
        "any honest client at all?) or groups (by any client of the group?)",
    )
    references: Annotated[int, Field(ge=1, le=bounds.CLIENTS)] | Literal["all"] = Field(
        64,
        description="other clients that an attack may compare a target client with, by the uploads "
        "in the views server and "
        "coalition: so many, drawn by key, the same for all attacks and rounds; or all",
    )
    align_nonmembers: bool = Field(
        True,
        description="false: other non-members in every round and for every client, as FedMIA's "
        "released code draws",
    )

    members_from: Literal["training", "holdout"] = Field(
        "training",
        description="holdout: the audited members were not trained on either, so an attack's "
        "result is its null",
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
            raise mistake(
                "members goes with targets: honest or groups: remove it (all of a client's samples "
                "are asked about)"
            )
        if together and self.outside is not None:
            raise mistake(
                f"outside: all non-members of targets: {self.targets} are from outside; say how "
                "many by nonmembers"
            )
        if self.members_from == "holdout" and not self.align_nonmembers:
            raise mistake(
                "align_nonmembers: false redraws non-members around members: remove it, or "
                "members_from: holdout"
            )
        if together and not self.align_nonmembers:
            raise mistake(
                f"align_nonmembers: false redraws per client; targets: {self.targets} has none"
            )
        if isinstance(self.targets, list):
            _require_distinct(self.targets)
        return self


class Adversary(SpecModel):
    """Who attacks from inside the federation, and what it gets to know; every active attack of the
    setting is such.
    """

    clients: (
        Annotated[int, Field(ge=1, le=bounds.CLIENTS)] | Annotated[float, Field(gt=0, lt=1)]
    ) = Field(1, description="number of malicious clients (the last ids), or their share of all")
    knowledge: KnowledgeLevel = Field(
        "honest",
        description="none: no rows; own: its clients' rows; honest: also this round's honest rows; "
        "rule: the server's rule too",
    )
    mask_set: int = Field(
        300,
        ge=1,
        le=bounds.SAMPLES,
        description="samples of its own that it hides behind, from its clients' data",
    )
    start_round: int = Field(
        1,
        ge=1,
        le=bounds.ROUNDS,
        description="first round it attacks in; before, its clients are honest",
    )
    assumed: int | None = Field(
        None,
        ge=0,
        le=bounds.CLIENTS,
        description="malicious clients that the server's rule assumes; by default the real number",
    )

    def malicious(self, clients: int) -> int:
        """Return how many of ``clients`` it controls."""
        if isinstance(self.clients, int):
            return self.clients
        return max(1, round(self.clients * clients))

    def expected(self, clients: int) -> int:
        """Return the number of malicious clients that the server's rule assumes."""
        return self.malicious(clients) if self.assumed is None else self.assumed


# --- data, groups and the whole setting -----------------------------------------------------------


class Partition(SpecModel):
    """How the training samples are divided among the clients."""

    short_forms = ({"enum": ["iid"]},)

    name: Literal["iid", "dirichlet", "dirichlet-sizes", "group-bias", "given"] = Field(
        "iid",
        description="iid: equal random shares; dirichlet: label skew; dirichlet-sizes: unequal "
        "random shares, one label mix; group-bias: clients grouped by label; given: as the data "
        "set says",
    )
    beta: float | None = Field(
        None,
        ge=bounds.SMALLEST_CONCENTRATION,
        allow_inf_nan=True,
        description="concentration of dirichlet and dirichlet-sizes: smaller is more skewed; .inf "
        "is even",
    )
    bias: float | None = Field(
        None,
        ge=0,
        le=1,
        description="group-bias: probability that a sample goes to its own label's group of "
        "clients",
    )
    min_samples: int = Field(
        1, ge=1, le=bounds.SAMPLES, description="fewest samples of a client, all its parts together"
    )

    @field_serializer("beta", when_used="json-unless-none")
    def _json_knows_no_infinity(self, beta: float) -> float | str:
        return "inf" if math.isinf(beta) else beta

    @model_validator(mode="after")
    def _beta_of_dirichlet(self) -> Partition:
        name = self.name
        if name.startswith("dirichlet") and self.beta is None:
            raise mistake(f"{name} needs beta, e.g. {{name: {name}, beta: 0.5}}")
        if not name.startswith("dirichlet") and self.beta is not None:
            raise mistake(f"{name} takes no beta: remove it, or use the name dirichlet")
        if name == "group-bias" and self.bias is None:
            raise mistake("group-bias needs bias, e.g. {name: group-bias, bias: 0.5}")
        if name != "group-bias" and self.bias is not None:
            raise mistake(f"{name} takes no bias: remove it, or use the name group-bias")
        return self


def _require_ascending(name: str, ends: list[float] | None) -> None:
    if ends is not None and ends[0] > ends[1]:
        raise mistake(f"{name} goes from {ends[0]} to {ends[1]}: give the smaller value first")


class Group(SpecModel):
    """Clients with images deformed alike: each draws its own angle or factor from the group's
    range.
    """

    name: Name = Field(description="name in records and tables")
    fraction: float | None = Field(
        None, gt=0, lt=1, description="share of the clients; one group may take the rest"
    )
    rotation: list[Annotated[float, Field(ge=-bounds.TURN, le=bounds.TURN)]] | None = Field(
        None, min_length=2, max_length=2, description="degrees, [least, most]"
    )
    brightness: list[Annotated[float, Field(gt=0, le=bounds.BRIGHTNESS)]] | None = Field(
        None, min_length=2, max_length=2, description="factor on the pixels, [least, most]"
    )

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Group:
        _require_ascending("rotation", self.rotation)
        _require_ascending("brightness", self.brightness)
        return self


class Setting(SpecModel):
    """Federation: dataset, model, partition, hyperparameters, audit, coalitions."""

    name: Name = Field(description="name in records and tables")
    dataset: Use = Field(description="the dataset")
    model: Use | None = Field(None, description="the architecture; by default the dataset's own")
    partition: Partition = Field(default_factory=Partition, description="who gets which samples")
    federation: FederationSpec = Field(description="size and hyperparameters")
    data_seed: int | None = Field(
        None,
        ge=0,
        le=2**63 - 1,
        description="loads and divides the data of all seeds as that seed does, so that a client "
        "has the same samples in each: with test_by: coin, seeds differ in which it trains on",
    )
    audit: AuditSpec = Field(default_factory=AuditSpec, description="what is measured")
    adversary: Adversary | None = Field(
        None,
        description="who attacks from inside; by default, where an active attack takes part, one "
        "client of knowledge honest",
    )
    groups: list[Group] | None = Field(
        None,
        min_length=2,
        max_length=bounds.GROUPS,
        description="groups of clients with images of their own kind",
    )
    thresholds: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="range of the accuracy of membership inference that a client tolerates",
    )
    coalitions: list[Coalition] | None = Field(
        None, min_length=1, max_length=bounds.COALITIONS, description="in place of the suite's"
    )
    defenses: list[str] | None = Field(
        None,
        min_length=1,
        max_length=bounds.ROWS_OF_LIST,
        description="labels of the suite's defenses that run here, that of a grid for all its "
        "rows; by default all",
    )
    attacks: list[str] | None = Field(
        None,
        min_length=1,
        max_length=bounds.ROWS_OF_LIST,
        description="labels of the suite's attacks that run here, that of a grid for all its rows; "
        "by default all",
    )

    def seed_of_data(self, seed: int) -> int:
        """Return the seed by which a run's data are loaded and divided."""
        return seed if self.data_seed is None else self.data_seed

    @model_validator(mode="after")
    def _groups_fit(self) -> Setting:
        if self.audit.targets == "groups" and self.groups is None:
            raise mistake(
                "audit.targets: groups needs groups: list the setting's groups of clients"
            )
        names = [g.name for g in self.groups or []]
        if len(set(names)) < len(names):
            raise mistake(f"two groups have the same name: {', '.join(names)}")
        _require_ascending("thresholds", self.thresholds)
        return self
