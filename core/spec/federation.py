"""The federation: its size, the clients' optimiser, its learning-rate schedule."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from ruamel.yaml import YAML

from fedbench.core.spec import bounds
from fedbench.core.spec.base import SpecModel, mistake
from fedbench.core.words import did_you_mean

RECIPES = Path(__file__).with_name("recipes")  # the papers' settings by name, a data file each


@cache
def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes, sorted."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.yaml")))


@cache
def recipe(name: str) -> dict[str, Any]:
    """Return the fields of a federation that the recipe states."""
    return YAML(typ="safe", pure=True).load(RECIPES / f"{name}.yaml")


def _check_recipe(name: str) -> str:
    if name not in recipe_names():
        raise mistake(
            f"unknown recipe '{name}'{did_you_mean(name, recipe_names())}; the recipes are "
            f"{', '.join(recipe_names())}"
        )
    return name


# --- types ----------------------------------------------------------------------------------------


class Schedule(SpecModel):
    """How the learning rate falls from round to round; ``constant``, ``cosine``, or a mapping with
    a factor.
    """

    short_forms = ({"enum": ["constant", "cosine"]},)

    name: Literal["constant", "exponential", "cosine", "milestones"] = Field(
        "constant",
        description="constant; exponential: x factor every round; cosine: to 0; milestones: x "
        "factor at each",
    )
    factor: float | None = Field(
        None, gt=0, le=1, description="of exponential (every round) and milestones (at each)"
    )
    rounds: list[Annotated[int, Field(ge=1, le=bounds.ROUNDS)]] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="milestones: the rounds after which the factor applies",
    )

    @model_validator(mode="after")
    def _fields_fit(self) -> Schedule:
        takes_factor = self.name in ("exponential", "milestones")
        takes_rounds = self.name == "milestones"
        if takes_factor and self.factor is None:
            raise mistake(f"{self.name} needs a factor")
        if not takes_factor and self.factor is not None:
            raise mistake(f"{self.name} takes no factor")
        if takes_rounds and self.rounds is None:
            raise mistake(f"{self.name} needs rounds")
        if not takes_rounds and self.rounds is not None:
            raise mistake(f"{self.name} takes no rounds")
        return self


BackendName = Literal["auto", "autograd", "stacked", "recorded"]
"""modules of ``core.federation`` with a class ``Backend``; ``auto`` chooses"""


def _optional(schema: dict[str, Any]) -> None:
    """A recipe may give the required fields."""
    del schema["required"]


class Optimizer(SpecModel):
    """The clients' optimiser, fresh in every round unless ``keep_state``."""

    model_config = ConfigDict(json_schema_extra=_optional)

    name: Literal["sgd", "adam"] = Field("sgd", description="the rule")
    lr: float = Field(gt=0, le=bounds.FACTOR, description="learning rate of round 1")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    betas: list[Annotated[float, Field(ge=0, lt=1)]] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="adam: decay of the two moments, [0.9, 0.999] by default",
    )
    keep_state: bool = Field(
        False,
        description="adam: a client's moments live on from round to round, though its parameters "
        "are replaced",
    )
    weight_decay: float = Field(
        0.0, ge=0, le=bounds.FACTOR, description="L2 penalty, added to the gradient"
    )
    schedule: Schedule = Field(
        default_factory=Schedule, description="the learning rate over the rounds"
    )

    @model_validator(mode="after")
    def _fields_of_the_rule(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise mistake("adam takes no momentum: remove it, or set betas")
        if self.name == "sgd" and (self.betas is not None or self.keep_state):
            raise mistake(
                "sgd takes neither betas nor keep_state: remove them, or use the name adam"
            )
        return self


class FederationSpec(SpecModel):
    """The federation's size and hyperparameters."""

    model_config = ConfigDict(json_schema_extra=_optional)

    recipe: Annotated[str, AfterValidator(_check_recipe)] | None = Field(
        None, description="a paper's settings, for the fields that are not given here"
    )
    clients: int = Field(ge=1, le=bounds.CLIENTS, description="number of clients K")
    rounds: int = Field(ge=1, le=bounds.ROUNDS, description="number of rounds T")
    local_epochs: int = Field(
        1, ge=1, le=bounds.EPOCHS, description="epochs over its own data of a client in a round"
    )
    local_batches: int | None = Field(
        None,
        ge=1,
        le=bounds.SAMPLES,
        description="train on only so many of each local epoch's shuffled batches; by default on "
        "all",
    )
    batch_size: int = Field(ge=1, le=bounds.SAMPLES, description="samples a training step")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's own samples, by class, that it validates on and never "
        "trains on",
    )
    test: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's own samples, by class, that is not trained on: its "
        "outside non-members, in place of the hold-out's",
    )
    test_by: Literal["class", "coin"] = Field(
        "class",
        description="coin: each sample is in the test part by a fair coin of its own (test: 0.5), "
        "as bounds on epsilon and calibration by sample need",
    )
    validation_on: Literal["own", "nonmembers"] = Field(
        "own",
        description="nonmembers: each client validates on its test part, as in MemberShield's "
        "released code",
    )
    weights: Literal["size", "equal"] = Field(
        "size",
        description="what the server weighs an update by: the samples its client trains on; equal: "
        "all alike",
    )
    weight_order: Literal["clients", "shuffled"] = Field(
        "clients",
        description="shuffled: updates get other clients' FedAvg weights, as in FedMIA's released "
        "code",
    )
    participation: float = Field(
        1.0, gt=0, le=1, description="share of the clients drawn in a round"
    )
    max_delay: int = Field(
        0,
        ge=0,
        le=bounds.ROUNDS,
        description="asynchronous: a client's global model is 0 to max_delay rounds old, "
        "uniformly; 0: synchronous",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="arithmetic of the training; parameters, updates and signals are float32 in "
        "any case",
    )
    memory_format: Literal["contiguous", "channels_last"] = Field(
        "contiguous",
        description="layout of images while clients train; channels_last is faster on some GPUs, "
        "with other digits",
    )
    compile: bool = Field(
        False,
        description="train with torch.compile: faster for long trainings on some GPUs, with other "
        "last digits; a first step takes a minute",
    )
    backend: BackendName = Field(
        "auto",
        description="how gradients are computed, the same to rounding: auto, the fastest way; "
        "autograd, plain and slow; stacked, along chains of layers, small models together; "
        "recorded, as stacked, with the steps of plain clients as CUDA graphs",
    )
    optimizer: Optimizer = Field(description="the clients' optimiser")

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, value: object) -> object:
        """Take every field that is left out from the recipe, the optimiser's one by one."""
        if not isinstance(value, dict) or value.get("recipe") not in recipe_names():
            return value
        stated = recipe(value["recipe"])
        merged = {**stated, **value}
        if isinstance(value.get("optimizer"), dict):
            merged["optimizer"] = {**stated["optimizer"], **value["optimizer"]}
        return merged

    @model_validator(mode="after")
    def _parts_fit(self) -> FederationSpec:
        if self.validation + self.test >= 1:
            raise mistake(
                f"validation {self.validation:g} and test {self.test:g} leave nothing to train on: "
                "lower them"
            )
        if self.test_by == "coin" and (self.validation or self.test != 0.5):
            raise mistake(
                "test_by: coin draws each sample by a fair coin: set test to 0.5, and no validation"
            )
        if self.validation_on == "nonmembers" and (self.validation or not self.test):
            raise mistake(
                "validation_on: nonmembers validates on the test part: give test a share, and no "
                "validation"
            )
        return self
