"""The round loop next to a bare PyTorch loop over the same batches, and the cost of the audit. Reported, not asserted.

    pytest -m benchmark tests/benchmarks --benchmark-columns=median,iqr,rounds
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from torch.nn.functional import cross_entropy
from workloads import BATCH, CLIENTS, CONFIG, clients_of, setup_of

from fedbench.core.federation.loop import Training
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP

pytestmark = pytest.mark.benchmark

WORKLOADS = {  # model, input shape, samples a client, rounds
    "mlp": (MLP(), (1, 8, 8), 120, 5),
    "cnn-small": (SmallCNN(), (3, 32, 32), 200, 1),
}
EPOCHS = 2


def bare_loop(module, clients, rounds):
    """What one would write by hand: torch.optim.SGD, made anew for every client and round."""
    for _ in range(rounds):
        for data in clients:
            optimizer = torch.optim.SGD(module.parameters(), **CONFIG)
            for _ in range(EPOCHS):
                for pick in torch.randperm(len(data.y)).split(BATCH):
                    optimizer.zero_grad()
                    cross_entropy(module(data.x[pick]), data.y[pick]).backward()
                    optimizer.step()


def harness(model, shape, clients, rounds):
    setup = setup_of(model, shape, clients, rounds, EPOCHS)
    for _ in Training(setup).rounds():
        pass


def seconds(function, *args):
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


@pytest.mark.parametrize("name", WORKLOADS)
def test_local_steps_per_second(benchmark, name):
    model, shape, samples, rounds = WORKLOADS[name]
    clients = clients_of(shape, samples)
    steps = rounds * CLIENTS * EPOCHS * (samples // BATCH)
    bare_loop(model.build(shape, 10), clients, 1)
    pairs = []  # in turn, so that a drift of the machine's speed meets both
    for _ in range(9):
        bare = seconds(bare_loop, model.build(shape, 10), clients, rounds)
        pairs.append((bare, seconds(harness, model, shape, clients, rounds)))
    benchmark.pedantic(harness, (model, shape, clients, rounds), rounds=3)
    ratios = sorted(b / h for b, h in pairs)
    benchmark.extra_info |= {
        "harness_steps_per_s": round(steps / statistics.median(h for _, h in pairs)),
        "bare_steps_per_s": round(steps / statistics.median(b for b, _ in pairs)),
        "ratio_median": round(statistics.median(ratios), 3), "ratio_min": round(ratios[0], 3),
        "ratio_max": round(ratios[-1], 3), "n": len(pairs), "threads": 1,
    }  # fmt: skip
    print(f"\n{name}: {benchmark.extra_info}")


def test_audit_cost_relative_to_training(benchmark, tmp_path):
    """CPU time of all seven attacks' signals over CPU time of training, in the main suite's own undefended runs."""
    from jobs import judge

    from fedbench.core.cli.run import build_plan
    from fedbench.core.experiment.parts import build
    from fedbench.core.experiment.scene import set_scene
    from fedbench.core.experiment.train import train

    jobs = build_plan("partial_defense", (), tmp_path, "cpu").only(defense={"none"}).jobs
    signals, scores = [], []
    for job in [*jobs, *jobs]:
        attacks, parts = [attack for c in job.cells for attack in c.attack.make()], build(job)
        scene = set_scene(job, parts)
        trained = train(job, parts, scene, attacks, lambda t: None)
        signals.append(trained.measured["signals_cpu_s"] / trained.measured["train_cpu_s"])
        cpu = sum(judge(job, c, a, scene, trained).cpu_s for c, a in zip(job.cells, attacks, strict=True))
        scores.append(cpu / trained.measured["train_cpu_s"])
    benchmark.extra_info |= {
        "signals_over_training": [round(s, 3) for s in sorted(signals)],
        "attacks_over_training": [round(s, 3) for s in sorted(scores)], "n": len(signals),
    }  # fmt: skip
    benchmark.pedantic(lambda: None)
    print(f"\naudit: {benchmark.extra_info}")
