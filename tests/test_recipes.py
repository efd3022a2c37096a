"""Recipes fill what a suite leaves out; schedules say what does not fit."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedbench.core.spec.federation import FederationSpec, Schedule
from fedbench.core.spec.recipes import recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_alone_is_a_federation(name):
    spec = FederationSpec.model_validate({"recipe": name})
    if name.startswith("fedpoisonmia"):
        lr, batches = (0.001, None) if name.endswith("released") else (0.01, 1)
        assert (spec.clients, spec.batch_size, spec.participation, spec.rounds) == (10, 64, 0.8, 800)
        assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.keep_state) == ("adam", lr, True)
        assert spec.local_batches == batches
        return
    if name.startswith("membershield"):
        assert (spec.clients, spec.rounds, spec.local_epochs, spec.batch_size, spec.participation) == (5, 10, 50, 200, 1.0)
        rule = spec.optimizer
        assert (rule.name, rule.lr, rule.momentum, rule.weight_decay) == ("sgd", 0.001, 0.99, 0)
        own, released = ("own", 0.1, 0.2, "size"), ("nonmembers", 0.0, 0.2, "equal")
        given = (spec.validation_on, spec.validation, spec.test, spec.weights)
        assert given == (released if name.endswith("released") else own)
        return
    assert (spec.clients, spec.batch_size, spec.local_epochs, spec.optimizer.lr) == (10, 100, 1, 0.1)
    assert spec.rounds == (100 if name == "cofedmid" else 300)
    assert spec.optimizer.schedule.name == ("cosine" if name == "fedmia-released" else "exponential")


def test_given_fields_win_one_by_one():
    spec = FederationSpec.model_validate({"recipe": "fedmia", "rounds": 7, "optimizer": {"lr": 0.5, "schedule": "constant"}})
    assert (spec.rounds, spec.optimizer.lr, spec.optimizer.momentum, spec.batch_size) == (7, 0.5, 0.9, 100)
    assert spec.optimizer.schedule.name == "constant"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("exponential", "exponential needs a factor"),
        ({"name": "cosine", "factor": 0.5}, "cosine takes no factor"),
        ({"name": "milestones", "factor": 0.1}, "milestones needs rounds"),
        ({"name": "exponential", "factor": 0.1, "rounds": [3]}, "exponential takes no rounds"),
    ],
)
def test_a_schedule_that_does_not_fit_says_so(value, message):
    with pytest.raises(ValidationError, match=message):
        Schedule.model_validate(value)
