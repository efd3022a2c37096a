"""pfl-research's published CIFAR-10 workload: our local steps per second next to a bare PyTorch loop's. Reported only.

    pytest -m benchmark -s tests/benchmarks/test_bench_pfl.py

Granqvist et al., NeurIPS 2024 (datasets and benchmarks), Table 1: 1,000 clients of 50 samples, IID, 50 a round, batches
of 10, 1 local epoch, SGD of learning rate 0.1, their two-convolution network. Here 10 rounds, on random images of
CIFAR-10's shape: the arithmetic is the same. The bare loop takes the same batches in the same order and nothing else:
no model is sent, collected or averaged.
"""

from __future__ import annotations

import multiprocessing
import time

import pytest
import torch
from torch import nn
from workloads import bare, clients_of, ratio, training_of

from fedbench.core.numerics.rng import key_for

pytestmark = pytest.mark.benchmark

CLIENTS, SAMPLES, COHORT, BATCH, ROUNDS, LR = 1000, 50, 50, 10, 10, 0.1


def network():
    """Two 3x3 convolutions without padding, 2x2 max-pool, a hidden layer, dropout: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def federation(rounds):
    data = clients_of((3, 32, 32), SAMPLES, CLIENTS)
    return training_of(network(), data, rounds, batch_size=BATCH, optimizer={"lr": LR}, participation=COHORT / CLIENTS)


def by_hand(module, f, t, cohort):
    """One round of these clients in plain PyTorch, with batches in the order of the harness."""
    orders = [torch.Generator().manual_seed(key_for(0, "shuffle", t, k) >> 1) for k in cohort]
    visits = [(f.setup.clients[k], torch.randperm(SAMPLES, generator=g)) for k, g in zip(cohort, orders, strict=True)]
    bare(module, visits, BATCH, lr=LR)


def measure(function, *args):
    """(wall, CPU) seconds: CPU time leaves out what other programs on the machine take; wall time is what a user waits."""
    wall, cpu = time.perf_counter(), time.process_time()
    function(*args)
    return time.perf_counter() - wall, time.process_time() - cpu


def rounds_in_turn(wait=lambda: None):
    """(a bare round, ours over the same batches), round by round; the first one warms up. ``wait``: before each of the two."""
    f, module = federation(ROUNDS + 1), network()
    rounds = f.rounds()
    for t in range(1, ROUNDS + 2):
        wait()
        plain = measure(by_hand, module, f, t, f._cohort(t))
        wait()
        whole = measure(next, rounds)
        if t > 1:
            yield plain, whole
    wait()


def report(title, pairs):
    for at, clock in enumerate(("wall", "CPU")):
        found = ratio([plain[at] for plain, _ in pairs], [whole[at] for _, whole in pairs])
        print(f"\npfl workload, {title}, our steps per second over a bare loop's, {clock} time: {found}")


def test_both_loops_take_the_same_steps():
    """Or the comparison would mean nothing: the first client's upload, from either."""
    f, module = federation(1), network()
    (result,) = f.rounds()
    client = result.uploads.participants[0]
    nn.utils.vector_to_parameters(f.setup.initial[0].clone(), module.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key_for(0, "module", 1, client) >> 1)  # dropout
        by_hand(module, f, 1, [client])
    update = nn.utils.parameters_to_vector(module.parameters()).detach() - f.setup.initial[0]
    torch.testing.assert_close(result.uploads.updates[0], update, rtol=1e-3, atol=1e-6)


def test_one_process():
    report("one process of one thread", [*rounds_in_turn()])


def _worker(barrier, pairs):
    """Every round starts when the other process's does."""
    torch.set_num_threads(1)
    for pair in rounds_in_turn(barrier.wait):
        pairs.put(pair)


def test_two_processes_side_by_side():
    """All cores of a two-core machine: two federations at once, one thread each; the slower of the two counts."""
    context = multiprocessing.get_context("spawn")
    barrier, queues = context.Barrier(2), [context.Queue() for _ in range(2)]
    workers = [context.Process(target=_worker, args=(barrier, q)) for q in queues]
    for w in workers:
        w.start()
    of_both = [[q.get(timeout=600) for _ in range(ROUNDS)] for q in queues]
    for w in workers:
        w.join()
    slower = [[tuple(map(max, *sides)) for sides in zip(*pairs, strict=True)] for pairs in zip(*of_both, strict=True)]
    report("two processes of one thread", slower)
