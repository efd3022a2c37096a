"""The round loop beside a bare PyTorch loop over as many batches, a placebo beside no defense,
growth with the number of clients, and the cost of the audit.
"""

from __future__ import annotations

import random
import time

import pytest
import torch
from workloads import MODELS, Work, bare, clients_of, of_suite, quotients

from fedbench.plugins.defenses.uploads import Placebo

pytestmark = pytest.mark.benchmark(group="training")

CPU_TIME = pytest.mark.benchmark(group="training", timer=time.process_time)


def bare_loop(work, rounds):
    """A round loop written by hand over the batches of ``work``."""
    config = work.training(rounds).setup.config
    most = config.local_batches and config.local_batches * config.batch_size
    cohort = round(config.participation * len(work.clients))

    def way():
        draw = random.Random(0)
        present = (data for _ in range(rounds) for data in draw.sample(work.clients, cohort))
        visits = (
            (data, [torch.randperm(len(data.y))[:most] for _ in range(config.local_epochs)])
            for data in present
        )
        bare(work.model.build(work.shape, work.classes), visits, config)

    return way


@pytest.mark.parametrize(("name", "samples", "rounds"), [("mlp", 120, 5), ("cnn-small", 200, 1)])
def test_local_steps(beside, name, samples, rounds):
    model, shape = MODELS[name]
    work = Work(model, shape, 10, clients_of(shape, samples), {"local_epochs": 2})
    beside({"bare": bare_loop(work, rounds), "ours": lambda: [*work.training(rounds).rounds()]})


@pytest.mark.parametrize(
    ("suite", "setting", "rounds"),
    [
        ("poisoning", "location30", 50),
        ("papers/fedpoisonmia_table2", "texas100-iid", 3),
        ("overfitting", "location30", 1),
        ("papers/membershield_purchase100", "mlp4-beta1", 1),
    ],
)
def test_local_steps_of_a_suite(beside, suite, setting, rounds):
    work = of_suite(suite, setting)
    beside({"bare": bare_loop(work, rounds), "ours": lambda: [*work.training(rounds).rounds()]})


@CPU_TIME
@pytest.mark.parametrize(
    ("suite", "setting", "rounds"),
    [
        ("partial_defense", "digits", 5),
        ("partial_defense_cifar10", "cifar10", 1),
        ("partial_defense_location30", "location30", 3),
    ],
)
def test_training_with_a_placebo(beside, suite, setting, rounds):
    """CPU time as the runtime column counts it, where every client is a member."""
    work = of_suite(suite, setting)
    everyone = tuple(range(len(work.clients)))
    ways = {
        "placebo": lambda: [*work.training(rounds, Placebo(), everyone).rounds()],
        "none": lambda: [*work.training(rounds).rounds()],
    }
    beside(ways)


@CPU_TIME
def test_one_round_of_the_same_data_split_among_more_clients(beside):
    """CPU time of 10,000 samples of MNIST's shape."""
    model, shape = MODELS["mlp"][0], (1, 28, 28)
    rounds = {}
    for clients in (1000, 100, 10):
        data = clients_of(shape, 10_000 // clients, clients)
        rounds[f"{clients} clients"] = Work(model, shape, 10, data, {}).training(10).rounds()
    beside({name: lambda r=r: next(r) for name, r in rounds.items()})


@CPU_TIME
def test_audit_cost(benchmark, tmp_path):
    """CPU time of the signals of all seven attacks, and of the attacks, over CPU time of training,
    in the main suite's undefended runs.
    """
    from jobs import judge

    from fedbench.core.cli.run import build_plan
    from fedbench.core.run.scene import build, set_scene
    from fedbench.core.run.train import train

    jobs = build_plan("partial_defense", (), tmp_path, "cpu").only(defense={"none"}).jobs
    remaining = [*jobs, *jobs]
    signals, scores, training = [], [], []

    def audited_run():
        job = remaining.pop()
        attacks, parts = [attack for c in job.cells for attack in c.attack.make()], build(job)
        scene = set_scene(job, parts)
        trained = train(job, parts, scene, attacks, lambda t, measured: None)
        signals.append(trained.measured["signals_cpu_s"])
        training.append(trained.measured["train_cpu_s"])
        verdicts = [
            judge(job, c, a, scene, trained) for c, a in zip(job.cells, attacks, strict=True)
        ]
        scores.append(sum(v.cpu_s for v in verdicts))

    benchmark.pedantic(audited_run, rounds=len(remaining))
    benchmark.extra_info["ratios"] = {
        "signals / training": quotients(signals, training),
        "attacks / training": quotients(scores, training),
    }
