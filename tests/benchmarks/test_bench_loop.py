"""The round loop next to a bare PyTorch loop over the same batches, and the cost of the audit. Reported, not asserted.

pytest -m benchmark -s tests/benchmarks/test_bench_loop.py
"""

from __future__ import annotations

import pytest
import torch
from workloads import MODELS, bare, clients_of, in_turn, ratio, training_of

pytestmark = pytest.mark.benchmark

EPOCHS = 2


@pytest.mark.parametrize(("name", "samples", "rounds"), [("mlp", 120, 5), ("cnn-small", 200, 1)])
def test_local_steps_per_second(name, samples, rounds):
    model, shape = MODELS[name]
    clients = clients_of(shape, samples)

    def by_hand():
        visits = ((data, torch.cat([torch.randperm(samples) for _ in range(EPOCHS)])) for data in rounds * clients)
        bare(model.build(shape, 10), visits)

    def harness():
        for _ in training_of(model.build(shape, 10), clients, rounds, local_epochs=EPOCHS).rounds():
            pass

    taken = in_turn({"bare": by_hand, "harness": harness}, 9)
    print(f"\n{name}, our steps per second over a bare loop's: {ratio(taken['bare'], taken['harness'])}")


def test_audit_cost_relative_to_training(tmp_path):
    """CPU time of all seven attacks' signals over CPU time of training, in the main suite's own undefended runs."""
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
        scores.append(sum(judge(job, c, a, scene, trained).cpu_s for c, a in zip(job.cells, attacks, strict=True)))
    print(f"\nsignals / training: {ratio(signals, training)}; attacks / training: {ratio(scores, training)}")
