"""What the comparisons with other frameworks rest on: everyone takes the same steps, the audit
measures what FedMIA's procedure does, and a ratio moves when both medians leave both ranges.
"""

from __future__ import annotations

import peers
import pytest
import torch
from audit1 import audit
from peers import NETWORKS, PFL, Workload, data_of, training
from ratios import moved
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.rng import key_for

PUBLISHED = {name: NETWORKS[name] for name in ("blazefl", "pfl")}
SMALL = Workload(clients=3, cohort=2, samples=12, batch=5, epochs=2)


@pytest.mark.parametrize("network", PUBLISHED)
def test_a_clients_update_is_that_of_steps_by_hand(network):
    """In the order of its batches and with its dropout."""
    workload = Workload(network, clients=2, cohort=2, samples=12, batch=5, epochs=1)
    (result,) = training(workload, 1).rounds()
    client = result.uploads.participants[0]
    module = workload.module()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), workload.lr)
    x, y = data_of(workload, client)
    order = torch.Generator().manual_seed(key_for(0, "shuffle", 1, client) >> 1)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key_for(0, "module", 1, client) >> 1)
        for pick in torch.randperm(len(y), generator=order).split(workload.batch):
            optimizer.zero_grad()
            cross_entropy(module(x[pick]), y[pick]).backward()
            optimizer.step()
    update = nn.utils.parameters_to_vector(module.parameters()).detach() - before
    torch.testing.assert_close(result.uploads.updates[0], update, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("framework", ["bare", "pfl"])
def test_a_framework_takes_every_step(monkeypatch, framework):
    if framework != "bare":
        pytest.importorskip(framework, reason="not installed")
    steps, rounds = [], []
    monkeypatch.setattr(peers, "cross_entropy", lambda *z: steps.append(1) or cross_entropy(*z))

    def turns():
        for _ in range(3):
            yield
            rounds.append(len(steps))

    peers.FRAMEWORKS[framework](SMALL, turns())
    assert rounds[2] - rounds[1] == SMALL.steps


def test_workloads_are_the_published_ones():
    """BlazeFL: 100 clients of 500 images, 5 epochs, batches of 50; pfl-research: 375,000 steps in
    1,500 rounds.
    """
    assert Workload().steps == 5_000
    assert 1_500 * PFL.steps == 375_000
    sizes = {name: sum(p.numel() for p in net().parameters()) for name, net in PUBLISHED.items()}
    assert sizes == {"blazefl": 62_006, "pfl": 1_626_442}


def test_the_audit_measures_what_the_published_procedure_does():
    measured = audit(SMALL, 1, candidates=12, by_hand=4)
    assert measured["largest relative difference"] < 1e-4


@pytest.mark.parametrize(
    ("median", "low", "high", "answer"),
    [
        (2.0, 1.9, 2.1, False),
        (2.4, 2.3, 2.5, False),
        (4.2, 1.9, 4.4, False),
        (4.2, 4.1, 4.4, True),
        (0.9, 0.8, 1.1, True),
    ],
)
def test_a_ratio_moves_by_twice_and_out_of_both_ranges(median, low, high, answer):
    committed = {"median": 2.0, "low": 1.8, "high": 2.2}
    now = {"median": median, "low": low, "high": high}
    assert moved(now, committed) == moved(committed, now) == answer
