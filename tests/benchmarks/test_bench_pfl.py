"""pfl-research's published CIFAR-10 workload: our steps per second next to its own and a bare
PyTorch loop's. Reported only.

    pytest -m benchmark -s tests/benchmarks/test_bench_pfl.py

pfl-research runs where it is installed: ``pip install pfl``, which pins older packages, so in an
environment of its own.

Granqvist et al., NeurIPS 2024 (datasets and benchmarks), Table 1: 1,000 clients of 50 samples, IID,
50 a round, batches of 10, 1 local epoch, SGD of learning rate 0.1, their two-convolution network.
Here 10 rounds, on random images of CIFAR-10's shape: the arithmetic is the same. The bare loop
takes our batches in our order and nothing else: no model is sent, collected or averaged.
pfl-research draws a cohort of its own and takes samples in their order.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from workloads import bare, clients_of, ratio, training_of

from fedbench.core.numerics.rng import key_for

pytestmark = pytest.mark.benchmark

CLIENTS, SAMPLES, COHORT, BATCH, ROUNDS, LR = 1000, 50, 50, 10, 10, 0.1


def network():
    """Two 3x3 convolutions without padding, 2x2 max-pool, a hidden layer, dropout: 1,626,442
    parameters.
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def federation(rounds):
    data = clients_of((3, 32, 32), SAMPLES, CLIENTS)
    return training_of(
        network(),
        data,
        rounds,
        batch_size=BATCH,
        optimizer={"lr": LR},
        participation=COHORT / CLIENTS,
    )


def by_hand(module, f, t, cohort):
    """One round of these clients in plain PyTorch, with batches in the order of the harness."""
    orders = [torch.Generator().manual_seed(key_for(0, "shuffle", t, k) >> 1) for k in cohort]
    visits = [
        (f.setup.clients[k], [torch.randperm(SAMPLES, generator=g)])
        for k, g in zip(cohort, orders, strict=True)
    ]
    bare(module, visits, f.setup.config)


def of_pfl(module, clients):
    """What trains one more round by pfl-research at each call; the first one evaluates, too. None
    where it is not installed.
    """
    if find_spec("pfl") is None:
        return None
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    module.loss, module.metrics = (lambda x, y: cross_entropy(module(x), y)), (lambda x, y: {})
    data = {k: (own.x, own.y) for k, own in enumerate(clients)}
    users = FederatedDataset.from_slices(data, get_user_sampler("random", range(len(clients))))
    backend, algorithm = (
        SimulatedBackend(users, users, postprocessors=[WeightByUser()]),
        FederatedAveraging(),
    )
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    local = NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH)
    whole = {"evaluation_frequency": 1_000, "train_cohort_size": COHORT, "val_cohort_size": 0}
    ends = count(1)  # a run goes on where the last one ended

    def one_round():
        params = NNAlgorithmParams(central_num_iterations=next(ends), **whole)
        algorithm.run(params, backend, model, local, send_metrics_to_platform=False)

    return one_round


def measure(function, *args):
    """(wall, CPU) seconds: CPU time leaves out what other programs on the machine take; wall time
    is what a user waits.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    function(*args)
    return time.perf_counter() - wall, time.process_time() - cpu


def rounds_in_turn():
    """Way -> what a round of it took, round by round; the first one warms up."""
    f, module = federation(ROUNDS + 1), network()
    rounds, theirs = f.rounds(), of_pfl(network(), f.setup.clients)
    for t in range(1, ROUNDS + 2):
        ways = {
            "a bare loop": (by_hand, module, f, t, f._cohort(t)),
            "pfl-research": (theirs,),
            "ours": (next, rounds),
        }
        found = {}
        for name, way in ways.items():
            if way[0] is not None:
                found[name] = measure(*way)
        if t > 1:
            yield found


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


@pytest.mark.skipif(find_spec("pfl") is None, reason="pfl-research is not installed")
def test_pfl_takes_as_many_steps():
    steps, module = [], network()
    one_round = of_pfl(module, clients_of((3, 32, 32), SAMPLES, COHORT + 1))
    one_round()
    module.register_forward_hook(lambda *_: steps.append(module.training))
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    one_round()
    assert steps == [True] * (COHORT * SAMPLES // BATCH)
    assert not torch.equal(before, nn.utils.parameters_to_vector(module.parameters()))


def test_steps_per_second_beside_pfl_and_a_bare_loop():
    """One process of one thread."""
    taken = [*rounds_in_turn()]
    for name in (name for name in taken[0] if name != "ours"):
        for at, clock in enumerate(("wall", "CPU")):
            found = ratio(*([of[way][at] for of in taken] for way in (name, "ours")))
            print(f"\nour steps per second over those of {name}, {clock} time: {found}")
