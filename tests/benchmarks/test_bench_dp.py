"""A member's step of DP-SGD beside a plain step. Reported, not asserted.

    pytest -m benchmark tests/benchmarks/test_bench_dp.py -s

CPU time of whole trainings in which everybody is a member, guards and noise included, in turn
within one process; one thread.
"""

from __future__ import annotations

import time

import pytest
from workloads import CLIENTS, MODELS, clients_of, in_turn, ratio, training_of

from fedbench.core import Defense
from fedbench.plugins.defenses.dp_sgd import DPSGD

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize(
    ("name", "samples", "rounds", "turns"), [("mlp", 100, 4, 15), ("cnn-small", 40, 1, 9)]
)
def test_step_of_dp_sgd_over_plain_step(name, samples, rounds, turns):
    model, shape = MODELS[name]
    clients = clients_of(shape, samples)

    def way(defense):
        members = tuple(range(CLIENTS)) if isinstance(defense, DPSGD) else ()
        return lambda: [
            *training_of(
                model.build(shape, 10), clients, rounds, defense, members, local_epochs=3
            ).rounds()
        ]

    ways = {"plain": way(Defense()), "now": way(DPSGD(sigma=0.1))}
    taken = in_turn(ways, turns, clock=time.process_time)
    print(f"\n{name}: { ({way: ratio(taken[way], taken['plain']) for way in ways}) }")
