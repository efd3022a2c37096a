"""The round loop next to a bare PyTorch loop over as many batches, a placebo next to no defense,
growth with the number of clients, and the cost of the audit. Reported, not asserted.

pytest -m benchmark -s tests/benchmarks/test_bench_loop.py
"""

from __future__ import annotations

import random
import statistics
import time

import pytest
import torch
from workloads import MODELS, Work, bare, clients_of, in_turn, of_suite, ratio

from fedbench.plugins.defenses.uploads import Placebo

pytestmark = pytest.mark.benchmark

N = 9


def beside_a_bare_loop(what, work, rounds):
    config = work.training(rounds).setup.config
    most = config.local_batches and config.local_batches * config.batch_size
    cohort = round(config.participation * len(work.clients))

    def by_hand():
        draw = random.Random(0)
        present = (data for _ in range(rounds) for data in draw.sample(work.clients, cohort))
        visits = (
            (data, [torch.randperm(len(data.y))[:most] for _ in range(config.local_epochs)])
            for data in present
        )
        bare(work.model.build(work.shape, work.classes), visits, config)

    taken = in_turn({"bare": by_hand, "harness": lambda: [*work.training(rounds).rounds()]}, N)
    print(
        f"\n{what}, our steps per second over a bare loop's: "
        f"{ratio(taken['bare'], taken['harness'])}"
    )


@pytest.mark.parametrize(("name", "samples", "rounds"), [("mlp", 120, 5), ("cnn-small", 200, 1)])
def test_local_steps_per_second(name, samples, rounds):
    model, shape = MODELS[name]
    beside_a_bare_loop(
        name, Work(model, shape, 10, clients_of(shape, samples), {"local_epochs": 2}), rounds
    )


@pytest.mark.parametrize(
    ("suite", "setting", "rounds"),
    [
        ("poisoning", "location30", 50),
        ("papers/fedpoisonmia_table2", "texas100-iid", 3),
        ("overfitting", "location30", 1),
        ("papers/membershield_purchase100", "mlp4-beta1", 1),
    ],
)
def test_local_steps_per_second_of_a_suite(suite, setting, rounds):
    beside_a_bare_loop(f"{suite}, {setting}", of_suite(suite, setting), rounds)


@pytest.mark.parametrize(
    ("suite", "setting", "rounds"),
    [
        ("partial_defense", "digits", 5),
        ("partial_defense_cifar10", "cifar10", 1),
        ("partial_defense_location30", "location30", 3),
    ],
)
def test_training_with_a_placebo_over_plain_training(suite, setting, rounds):
    """CPU time as the runtime column counts it, where every client is a member."""
    work = of_suite(suite, setting)
    everyone = tuple(range(len(work.clients)))
    ways = {"none": lambda: [*work.training(rounds).rounds()]}
    ways["placebo"] = lambda: [*work.training(rounds, Placebo(), everyone).rounds()]
    taken = in_turn(ways, N, clock=time.process_time)
    print(
        f"\n{suite}, {setting}, CPU time with a placebo over none: "
        f"{ratio(taken['placebo'], taken['none'])}"
    )


def test_one_round_of_the_same_data_split_among_more_clients():
    """CPU time of 10,000 samples of MNIST's shape."""
    model, shape = MODELS["mlp"][0], (1, 28, 28)
    trainings = {
        k: Work(model, shape, 10, clients_of(shape, 10_000 // k, k), {}).training(N + 1)
        for k in (10, 100, 1000)
    }
    rounds = {k: training.rounds() for k, training in trainings.items()}
    taken = in_turn({k: lambda r=r: next(r) for k, r in rounds.items()}, N, clock=time.process_time)
    for k, seconds in taken.items():
        each = 1000 * statistics.median(seconds) / k
        print(
            f"\nmlp, {k} clients: {each:.3g} ms a client; round over that of 10 clients: "
            f"{ratio(seconds, taken[10])}"
        )


def test_audit_cost_relative_to_training(tmp_path):
    """CPU time of all seven attacks' signals over CPU time of training, in the main suite's own
    undefended runs.
    """
    from jobs import judge

    from fedbench.core.cli.run import build_plan
    from fedbench.core.run.scene import build, set_scene
    from fedbench.core.run.train import train

    jobs = build_plan("partial_defense", (), tmp_path, "cpu").only(defense={"none"}).jobs
    signals, scores, training = [], [], []
    for job in [*jobs, *jobs]:
        attacks, parts = [attack for c in job.cells for attack in c.attack.make()], build(job)
        scene = set_scene(job, parts)
        trained = train(job, parts, scene, attacks, lambda t: None)
        signals.append(trained.measured["signals_cpu_s"])
        training.append(trained.measured["train_cpu_s"])
        scores.append(
            sum(
                judge(job, c, a, scene, trained).cpu_s
                for c, a in zip(job.cells, attacks, strict=True)
            )
        )
    print(
        f"\nsignals / training: {ratio(signals, training)}; attacks / training: "
        f"{ratio(scores, training)}"
    )
