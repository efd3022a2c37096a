"""A member's step of DP-SGD beside a plain step: CPU time of whole trainings in which everybody is
a member, guards and noise included.
"""

from __future__ import annotations

import time

import pytest
from workloads import CLIENTS, MODELS, clients_of, training_of

from fedbench.core import Defense
from fedbench.plugins.defenses.dp_sgd import DPSGD

pytestmark = pytest.mark.benchmark(group="dp-sgd", timer=time.process_time)


@pytest.mark.parametrize(
    ("name", "samples", "rounds", "turns"), [("mlp", 100, 4, 15), ("cnn-small", 40, 1, 9)]
)
def test_step_of_dp_sgd(beside, name, samples, rounds, turns):
    model, shape = MODELS[name]
    clients = clients_of(shape, samples)

    def way(defense, members):
        module = model.build(shape, 10)
        training = training_of(module, clients, rounds, defense, members, local_epochs=3)
        list(training.rounds())

    ways = {
        "dp-sgd": lambda: way(DPSGD(sigma=0.1), tuple(range(CLIENTS))),
        "plain": lambda: way(Defense(), ()),
    }
    beside(ways, turns)
