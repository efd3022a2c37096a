"""pfl-research's published CIFAR-10 workload: our local steps per second next to a bare PyTorch loop's. Reported only.

    pytest -m benchmark -s tests/benchmarks/test_bench_pfl.py

Granqvist et al., NeurIPS 2024 (datasets and benchmarks), Table 1: 1,000 clients of 50 samples, IID, 50 a round, batches
of 10, 1 local epoch, SGD of learning rate 0.1, their two-convolution network. Here 10 rounds, on random images of
CIFAR-10's shape: the arithmetic is the same. The bare loop takes the same batches in the same order and nothing else:
no model is sent, collected or averaged.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, MemberData
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.rng import key_for
from fedbench.core.spec.federation import FederationSpec, Optimizer

pytestmark = pytest.mark.benchmark

CLIENTS, SAMPLES, COHORT, BATCH, ROUNDS, LR, SEED = 1000, 50, 50, 10, 10, 0.1, 0
STEPS = COHORT * SAMPLES // BATCH  # a round


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


Pair = tuple[Cost, Cost]  # bare, ours


def network() -> nn.Module:
    """Two 3x3 convolutions without padding, 2x2 max-pool, a hidden layer, dropout: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def clients() -> list[MemberData]:
    """Views of one tensor."""
    g = torch.Generator().manual_seed(SEED)
    x = torch.rand(CLIENTS * SAMPLES, 3, 32, 32, generator=g)
    y = torch.randint(0, 10, (CLIENTS * SAMPLES,), generator=g)
    return [MemberData(a, b) for a, b in zip(x.split(SAMPLES), y.split(SAMPLES), strict=True)]


def federation(data: list[MemberData], rounds: int) -> Training:
    flat = FlatModel(network(), torch.device("cpu"))
    config = FederationSpec(
        clients=CLIENTS,
        rounds=rounds,
        local_epochs=1,
        batch_size=BATCH,
        participation=COHORT / CLIENTS,
        optimizer=Optimizer(lr=LR),
    )
    return Training(
        Setup(
            config=config,
            seed=SEED,
            flat=flat,
            clients=data,
            n_classes=10,
            defense=Defense(),
            members=(),
            initial=flat.params[None].clone(),
        )
    )


def order_of(client: int, round: int) -> torch.Tensor:
    """The order in which the harness takes a client's samples."""
    g = torch.Generator().manual_seed(key_for(SEED, "shuffle", round, client) >> 1)
    return torch.randperm(SAMPLES, generator=g)


def bare(module: nn.Module, data: list[MemberData], visits: Iterable[tuple[int, torch.Tensor]]) -> None:
    """One optimiser a visit, as every client starts with a fresh one."""
    for k, order in visits:
        optimizer = torch.optim.SGD(module.parameters(), LR)
        for pick in order.split(BATCH):
            optimizer.zero_grad()
            cross_entropy(module(data[k].x[pick]), data[k].y[pick]).backward()
            optimizer.step()


def rounds_in_turn(data: list[MemberData], wait: Callable[[], object] = lambda: None) -> Iterator[Pair]:
    """The federation, round by round, each next to a bare round over the same batches; the first one warms up.

    Round by round, so that a drift of the machine's speed meets both; ``wait`` is called before each of the two.
    """
    f, module = federation(data, ROUNDS + 1), network()
    rounds = iter(f.rounds())
    for t in range(1, ROUNDS + 2):
        visits = [(k, order_of(k, t)) for k in f._cohort(t)]
        wait()
        plain = measure(bare, module, data, visits)
        wait()
        whole = measure(next, rounds)
        if t > 1:
            yield plain, whole
    wait()


def measure(function: Callable, *args: object) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    function(*args)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def report(title: str, pairs: list[Pair], processes: int) -> dict[str, object]:
    """CPU time leaves out what other programs on the machine take; wall time is what a user waits."""
    figures: dict[str, object] = {"n": len(pairs), "processes": processes}
    for clock in Cost._fields:
        plain, whole = ([getattr(side, clock) for side in sides] for sides in zip(*pairs, strict=True))
        ratios = sorted(b / o for b, o in zip(plain, whole, strict=True))
        for side, costs in (("ours", whole), ("bare", plain)):
            figures[f"{side}_steps_per_{clock}_s"] = round(processes * STEPS / statistics.median(costs))
        figures[f"{clock}_ratio_min_median_max"] = [round(f(ratios), 3) for f in (min, statistics.median, max)]
    print(f"\n{title}: {figures}")
    return figures


def test_both_loops_take_the_same_steps():
    """Or the comparison would mean nothing: the first client's upload, from either."""
    data = clients()
    f = federation(data, rounds=1)
    (result,) = f.rounds()
    client = result.uploads.participants[0]
    module = network()
    nn.utils.vector_to_parameters(f.setup.initial[0], module.parameters())
    start = f.setup.initial[0].clone()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key_for(SEED, "module", 1, client) >> 1)  # dropout
        bare(module, data, [(client, order_of(client, 1))])
    update = nn.utils.parameters_to_vector(module.parameters()).detach() - start
    torch.testing.assert_close(result.uploads.updates[0], update, rtol=1e-3, atol=1e-6)


def test_one_process(benchmark):
    pairs = list(rounds_in_turn(clients()))
    benchmark.extra_info |= report("pfl workload, one process of one thread", pairs, processes=1)
    benchmark.pedantic(lambda: None)


def _worker(barrier, pairs) -> None:
    """Every round starts when the other process's does."""
    torch.set_num_threads(1)
    for pair in rounds_in_turn(clients(), barrier.wait):
        pairs.put(pair)


def test_two_processes_side_by_side(benchmark):
    """All cores of a two-core machine: two federations at once, one thread each; the slower of the two counts."""
    context = multiprocessing.get_context("spawn")
    barrier, queues = context.Barrier(2), [context.Queue() for _ in range(2)]
    workers = [context.Process(target=_worker, args=(barrier, q)) for q in queues]
    for w in workers:
        w.start()
    one, two = ([q.get(timeout=600) for _ in range(ROUNDS)] for q in queues)
    for w in workers:
        w.join()
    pairs = [tuple(map(_slower, a, b)) for a, b in zip(one, two, strict=True)]
    benchmark.extra_info |= report("pfl workload, two processes of one thread", pairs, processes=2)
    benchmark.pedantic(lambda: None)


def _slower(a: Cost, b: Cost) -> Cost:
    return Cost(max(a.wall, b.wall), max(a.cpu, b.cpu))
