"""Wall time of the main job over that of its plain steps in a bare loop on the same cores.

python tests/benchmarks/main_job.py [--seeds 1] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import torch
from workloads import bare, of_suite

from fedbench.core.cli.run import build_plan, command

SUITE = "partial_defense"
ROUNDS = 120  # of a bare loop


def steps_a_second(_: int) -> float:
    """Steps of the suite's federation by hand in this process, one thread."""
    torch.set_num_threads(1)
    work = of_suite(SUITE, "digits")
    config = work.training(1).setup.config
    module = work.model.build(work.shape, work.classes)
    steps = 0
    begin = time.perf_counter()
    for data in ROUNDS * work.clients:
        orders = [torch.randperm(len(data.y)) for _ in range(config.local_epochs)]
        bare(module, [(data, orders)], config)
        steps += config.local_epochs * -(-len(data.y) // config.batch_size)
    return steps / (time.perf_counter() - begin)


def plain_steps(seeds: int) -> int:
    """Steps of the plan's federations if all of them trained plainly."""
    clients = of_suite(SUITE, "digits").clients
    steps = 0
    for job in build_plan(SUITE, (), Path("unused"), "cpu").jobs:
        config = job.setting.federation
        batches = sum(-(-len(data.y) // config.batch_size) for data in clients)
        if job.seed < seeds:
            steps += config.rounds * config.local_epochs * batches
    return steps


def measured(seeds: int, workers: int) -> dict[str, float]:
    """Bare steps/s on all workers' cores before and after the job, and its wall time."""
    rates = []
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        rates.append(sum(pool.map(steps_a_second, range(workers))))
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            options = ["--seeds", str(seeds), "--workers", str(workers), "--results", folder]
            command.main([SUITE, *options, "--no-plots"], standalone_mode=False)
            wall = time.perf_counter() - begin
        rates.append(sum(pool.map(steps_a_second, range(workers))))
    steps = plain_steps(seeds)
    return {
        "wall s": wall,
        "plain steps": steps,
        "bare steps/s before": rates[0],
        "bare steps/s after": rates[1],
        "ratio before": wall * rates[0] / steps,
        "ratio after": wall * rates[1] / steps,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    print(json.dumps(measured(arguments.seeds, arguments.workers), indent=1))
