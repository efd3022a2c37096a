"""A member's step of DP-SGD beside a plain step, and beside the same from per-sample gradients. Reported, not asserted.

    pytest -m benchmark tests/benchmarks/test_bench_dp.py -s

CPU time of whole trainings in which everybody is a member, guards and noise included, in turn within one process; one thread.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from workloads import BATCH, CLIENTS, clients_of, setup_of

from fedbench.core import Batch, Defense, MemberContext
from fedbench.core.federation.loop import Training
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.numerics.norms import clip_factors, norms
from fedbench.plugins.defenses.dp_sgd import DPSGD

pytestmark = pytest.mark.benchmark

WORKLOADS = {  # model, input shape, samples a client, rounds, pairs
    "mlp": (MLP(hidden=(256, 128)), (1, 8, 8), 100, 4, 15),
    "cnn-small": (SmallCNN(), (3, 32, 32), 40, 1, 9),
}
EPOCHS = 3


class OneByOne(DPSGD):
    """Every gradient made, then clipped and summed: what a step was before."""

    def _clipped_sum(self, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        rows = ctx.per_sample_gradients(batch.x, batch.y)
        return clip_factors(norms(rows).square(), self.params.clip).to(rows) @ rows


def cpu_seconds(defense, model, shape, clients, rounds):
    members = () if type(defense) is Defense else tuple(range(CLIENTS))
    setup = setup_of(model, shape, clients, rounds, EPOCHS, defense, members)
    began = time.process_time()
    for _ in Training(setup).rounds():
        pass
    return time.process_time() - began


@pytest.mark.parametrize("name", WORKLOADS)
def test_step_of_dp_sgd_over_plain_step(benchmark, name):
    model, shape, samples, rounds, pairs = WORKLOADS[name]
    work = model, shape, clients_of(shape, samples), rounds
    ways = {"plain": Defense(), "now": DPSGD(sigma=0.1), "one by one": OneByOne(sigma=0.1)}
    taken = [{way: cpu_seconds(defense, *work) for way, defense in ways.items()} for _ in range(pairs + 1)][1:]
    steps = rounds * CLIENTS * EPOCHS * (samples // BATCH)
    benchmark.extra_info["plain_us_a_step"] = round(1e6 * statistics.median(t["plain"] for t in taken) / steps)
    for way in ("now", "one by one"):
        ratios = sorted(t[way] / t["plain"] for t in taken)
        spread = round(ratios[0], 2), round(ratios[-1], 2)
        found = {"median": round(statistics.median(ratios), 2), "spread": spread, "n": len(ratios)}
        benchmark.extra_info[f"{way} / plain"] = found
    benchmark.pedantic(lambda: None)
    print(f"\n{name}: {benchmark.extra_info}")
