"""The clients' optimiser, its learning-rate schedule, and the papers' settings by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedbench.core.spec.base import Part, mistake


class Schedule(Part):
    """How the learning rate falls from round to round; ``constant``, ``cosine``, or a mapping with a factor."""

    name: Literal["constant", "exponential", "cosine", "milestones"] = Field(
        "constant", description="constant; exponential: x factor every round; cosine: to 0; milestones: x factor at each"
    )
    factor: float | None = Field(None, gt=0, le=1, description="of exponential (every round) and milestones (at each)")
    rounds: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, description="milestones: the rounds after which the factor applies"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fields_fit(self) -> Schedule:
        if (self.factor is None) == (self.name in ("exponential", "milestones")):
            raise mistake(f"{self.name} {'needs a' if self.factor is None else 'takes no'} factor")
        if (self.rounds is None) == (self.name == "milestones"):
            raise mistake(f"{self.name} {'needs' if self.rounds is None else 'takes no'} rounds")
        return self


class Optimizer(Part):
    """The clients' optimiser, fresh in every round unless ``keep_state``."""

    name: Literal["sgd", "adam"] = Field("sgd", description="the rule")
    lr: float = Field(gt=0, description="learning rate of round 1")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    betas: list[Annotated[float, Field(ge=0, lt=1)]] | None = Field(
        None, min_length=2, max_length=2, description="adam: decay of the two moments, [0.9, 0.999] by default"
    )
    keep_state: bool = Field(
        False, description="adam: a client's moments live on from round to round, though its parameters are replaced"
    )
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the gradient")
    schedule: Schedule = Field(default_factory=Schedule, description="the learning rate over the rounds")

    @model_validator(mode="after")
    def _fields_of_the_rule(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise mistake("adam takes no momentum: remove it, or set betas")
        if self.name == "sgd" and (self.betas is not None or self.keep_state):
            raise mistake("sgd takes neither betas nor keep_state: remove them, or use the name adam")
        return self


_FEDMIA: dict[str, Any] = {
    "clients": 10, "rounds": 300, "local_epochs": 1, "batch_size": 100, "participation": 1.0,
    "optimizer": {
        "name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": {"name": "exponential", "factor": 0.99},
    },
}  # fmt: skip
# FedPoisonMIA: paper appendix E and section 2.1, where an update is the gradient of one mini-batch; `fedpoisonmia-released`
# as its code has it: a whole local epoch at learning rate 1e-3 (docs/methods/federation.md#recipes). Adam's moments live on over
# the rounds.
_FEDPOISONMIA: dict[str, Any] = {
    "clients": 10, "rounds": 800, "local_epochs": 1, "batch_size": 64, "participation": 0.8,
}  # fmt: skip
# FedMIA: paper Table 3 and section 4.1; `fedmia-released` is what its run script passes (cosine over the rounds).
# CoFedMID states 10 clients, 100 rounds, 1 local epoch and no optimiser; it builds on FedMIA's code base.
RECIPES: dict[str, dict[str, Any]] = {
    "fedmia": _FEDMIA,
    "fedmia-released": {**_FEDMIA, "optimizer": {**_FEDMIA["optimizer"], "schedule": {"name": "cosine"}}},
    "cofedmid": {**_FEDMIA, "rounds": 100},
    "fedpoisonmia": {**_FEDPOISONMIA, "local_batches": 1, "optimizer": {"name": "adam", "lr": 0.01, "keep_state": True}},
    "fedpoisonmia-released": {**_FEDPOISONMIA, "optimizer": {"name": "adam", "lr": 0.001, "keep_state": True}},
}


def with_recipe(value: object) -> object:
    """The mapping with every field it leaves out taken from its recipe; the optimiser's fields one by one."""
    if not isinstance(value, dict) or value.get("recipe") not in RECIPES:
        return value
    recipe = RECIPES[value["recipe"]]
    merged = {**recipe, **value}
    if isinstance(value.get("optimizer"), dict):
        merged["optimizer"] = {**recipe["optimizer"], **value["optimizer"]}
    return merged
