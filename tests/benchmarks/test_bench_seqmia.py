"""SeqMIA's network: beside the same through autograd, beside its matrix products alone, and what stopping early would cost.

    pytest -m benchmark tests/benchmarks/test_bench_seqmia.py -s

CPU time of trainings in turn within one process, one thread; the sizes are those of the main job. Reported, not asserted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.metrics import auc
from fedbench.plugins.attacks.adam import Adam
from fedbench.plugins.attacks.flat_adam import FlatAdam
from fedbench.plugins.attacks.one_thread import one_thread
from fedbench.plugins.attacks.seqmia_net import HIDDEN, Room, SequenceNet
from fedbench.plugins.attacks.seqmia_train import BATCH, WEIGHT_DECAY, train, wrong_by

pytestmark = pytest.mark.benchmark

ROUNDS, SIGNALS, SAMPLES, EPOCHS = 6, 5, 700, 20
PAIRS = 9
WORLDS = 12


class Modules(nn.Module):
    """The same network as modules."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(SIGNALS, HIDDEN, batch_first=True), nn.Linear(2 * HIDDEN, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm(x)
        weight = (h @ h[:, -1:].mT).softmax(1)
        return self.head(torch.cat([h[:, -1], (weight * h).sum(1)], dim=1))


def series(n: int, seed: int, members: float, leak: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """([n, ROUNDS, SIGNALS] signals that follow one loss, [n] bool members): a member's loss falls faster along the rounds, so
    much that the network finds about what it finds on digits."""
    rng = np.random.default_rng(seed)
    member = rng.random(n) < members
    loss = rng.normal(size=(n, 1)) - leak * member[:, None] * np.arange(1, ROUNDS + 1) + 0.8 * rng.normal(size=(n, ROUNDS))
    x = loss[..., None] * [1, -1, -1, 1, 1] + 0.5 * rng.normal(size=(n, ROUNDS, SIGNALS))
    return x.astype(np.float32), member


def through_autograd(x: np.ndarray, y: np.ndarray, epochs: int, generator: torch.Generator) -> None:
    """As ``train``, but for where the gradient comes from."""
    net, samples, labels = Modules(), torch.from_numpy(x), torch.from_numpy(y).long()
    adam = Adam(list(net.parameters()), WEIGHT_DECAY)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            adam.step(cross_entropy(net(samples[batch]), labels[batch]), 0.01)


def products(x: np.ndarray, epochs: int) -> None:
    """The matrix products of a training, and nothing else."""
    net = SequenceNet(SIGNALS, torch.Generator().manual_seed(0))
    for _ in range(epochs):
        for start in range(0, len(x), BATCH):
            room = Room(net, ROUNDS, min(BATCH, len(x) - start))
            room.z[:], room.slope[:] = 0.5, 0.5
            back = net.gates[:, net.inputs :].T
            for step in room.steps:
                np.matmul(net.gates, step.z, out=step.gate)
                np.matmul(back, step.slope, out=room.spare)
            np.matmul(room.slope, room.z[:-1].swapaxes(1, 2), out=room.products)


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def told(values: list[float]) -> dict[str, object]:
    spread = round(min(values), 3), round(max(values), 3)
    return {"median": round(statistics.median(values), 3), "spread": spread, "n": len(values)}


def test_written_out_beside_autograd_and_beside_its_products(benchmark):
    x, y = series(SAMPLES, 0, 0.1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken = []
    with one_thread():
        for i in range(PAIRS + 1):
            ways = {
                "written": lambda i=i: train(x, y, EPOCHS, True, torch.Generator().manual_seed(i)),
                "autograd": lambda i=i: through_autograd(x, y, EPOCHS, torch.Generator().manual_seed(i)),
                "products": lambda: products(x, EPOCHS),
            }
            taken.append({way: cpu_seconds(work) for way, work in ways.items()})
    torch.set_num_threads(threads)
    for way in ("autograd", "products"):
        found = told([t[way] / t["written"] for t in taken[1:]])
        benchmark.extra_info[f"{way} / written out"] = found
        print(f"\nSeqMIA's network: {way} / written out: {found}", end="")
    benchmark.pedantic(lambda: None)


def stopped_early(
    x: np.ndarray, y: np.ndarray, epochs: int, patience: int, generator: torch.Generator
) -> tuple[SequenceNet, int]:
    """Trained on four fifths, until the cross-entropy on the rest has not fallen for ``patience`` epochs; the weights of the best
    epoch, and how many were trained."""
    order = torch.randperm(len(x), generator=generator).numpy()
    held, learnt = np.split(order, [len(x) // 5])
    net = SequenceNet(SIGNALS, generator, x.dtype)
    net.standardise_by(x[learnt])
    adam, gradient, best = FlatAdam(net.flat, WEIGHT_DECAY), np.empty_like(net.flat), (np.inf, 0, net.flat.copy())
    for epoch in range(epochs):
        for start in range(0, len(learnt), BATCH):
            some = learnt[start : start + BATCH]
            room = Room(net, ROUNDS, len(some))
            net.gradient(room, wrong_by(net.forward(room, net.read(x[some])), y[some]), gradient)
            adam.step(gradient, max(0.01 * 0.9 ** (epoch // 10), 5e-4))
        said = net.logits(x[held]).astype(np.float64)
        loss = np.logaddexp(0, np.where(y[held], -1, 1) * (said[:, 1] - said[:, 0])).mean()
        if loss < best[0]:
            best = loss, epoch, net.flat.copy()
        elif epoch - best[1] >= patience:
            break
        learnt = learnt[torch.randperm(len(learnt), generator=generator).numpy()]
    net.flat[:] = best[2]
    return net, epoch + 1


@pytest.mark.parametrize("members", [15, 45, 180])
def test_what_stopping_early_costs_in_auc(benchmark, members):
    """On simulated series, by how many members teach; scored on others."""
    lost, whole, trained = [], [], []
    with one_thread():
        for seed in range(WORLDS):
            x, y = series(SAMPLES, seed, members / SAMPLES)
            asked, answer = series(4000, 1000 + seed, 0.1)
            early, epochs = stopped_early(x, y, EPOCHS, 2, torch.Generator().manual_seed(seed))
            full = train(x, y, EPOCHS, True, torch.Generator().manual_seed(seed))
            whole.append(auc(margin(full, asked), answer))
            lost.append(whole[-1] - auc(margin(early, asked), answer))
            trained.append(epochs)
    benchmark.extra_info |= {"AUC of 20 epochs": told(whole), "lost by stopping early": told(lost), "epochs": told(trained)}
    print(f"\n{members} members teach: {benchmark.extra_info}", end="")
    benchmark.pedantic(lambda: None)


def margin(net: SequenceNet, x: np.ndarray) -> np.ndarray:
    logits = net.logits(x).astype(np.float64)
    return logits[:, 1] - logits[:, 0]
