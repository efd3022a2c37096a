"""The audit and the adversary of a setting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedbench.core.contract.threat import KnowledgeLevel
from fedbench.core.spec import most
from fedbench.core.spec.base import SpecModel, mistake


class ShadowSpec(SpecModel):
    """The attacker's own data and the shadow models trained on it, for the attacks that need them."""

    samples: int = Field(
        1000, ge=20, le=most.SAMPLES, description="hold-out samples that no audit asks about; each model trains on half"
    )
    models: int = Field(8, ge=2, le=most.MODELS, description="number of shadow models")
    epochs: int = Field(20, ge=1, le=most.EPOCHS, description="epochs of the federation's own recipe")


class AuditSpec(SpecModel):
    """What is measured for the attacks, and the audited samples."""

    every: int = Field(1, ge=1, le=most.ROUNDS, description="audited rounds are every, 2*every, ... and always the last one")
    nonmembers: int = Field(
        10_000, ge=1, le=most.SAMPLES,
        description="non-members a target: equal shares from outside and each other client, if they exist; with "
        "targets: honest or groups, so many from outside (150 by default)",
    )  # fmt: skip
    outside: int | None = Field(
        None, ge=1, le=most.SAMPLES,
        description="so many of them from outside in place of an equal share, if they exist: outside non-members carry the rank",
    )  # fmt: skip
    members: int | None = Field(
        None, ge=1, le=most.SAMPLES,
        description="with targets: honest or groups, members drawn from their clients together (150 by default)",
    )  # fmt: skip
    shadow: ShadowSpec | None = Field(None, description="shadow models; without them the attacks that need some are skipped")
    targets: Literal["coalition", "honest", "groups"] | Annotated[
        list[Annotated[int, Field(ge=0, lt=most.CLIENTS)]], Field(min_length=1, max_length=most.CLIENTS)
    ] = Field(
        "coalition",
        description="the attacked clients: the coalition's members, a list of client ids, honest (was a sample used by "
        "any honest client at all?) or groups (by any client of the group?)",
    )  # fmt: skip
    align_nonmembers: bool = Field(
        True, description="false: other non-members in every round and for every client, as FedMIA's released code draws"
    )

    members_from: Literal["training", "holdout"] = Field(
        "training",
        description="holdout: the audited members were not trained on either, so an attack's result is its null",
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




class Adversary(SpecModel):
    """Who attacks from inside the federation, and what it gets to know; every active attack of the setting is such."""

    clients: Annotated[int, Field(ge=1, le=most.CLIENTS)] | Annotated[float, Field(gt=0, lt=1)] = Field(
        1, description="number of malicious clients (the last ids), or their share of all"
    )
    knowledge: KnowledgeLevel = Field(
        "honest",
        description="none: no rows; own: its clients' rows; honest: also this round's honest rows; rule: the server's rule too",
    )
    mask_set: int = Field(
        300, ge=1, le=most.SAMPLES, description="samples of its own that it hides behind, from its clients' data"
    )
    start_round: int = Field(1, ge=1, le=most.ROUNDS, description="first round it attacks in; before, its clients are honest")
    assumed: int | None = Field(
        None, ge=0, le=most.CLIENTS, description="malicious clients that the server's rule assumes; by default the real number"
    )

    def malicious(self, clients: int) -> int:
        """How many of ``clients`` it controls."""
        return self.clients if isinstance(self.clients, int) else max(1, round(self.clients * clients))

    def expected(self, clients: int) -> int:
        """How many malicious clients the server's rule is told to expect."""
        return self.malicious(clients) if self.assumed is None else self.assumed
