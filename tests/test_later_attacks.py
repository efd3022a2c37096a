"""Source inference, ProjRes, DSM-MIA and PROLIN, against slow references of what defines them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tiny import normed, record_all, tiny_clients, tiny_setup
from torch import nn
from torch.nn.functional import cross_entropy
from worlds import (
    TARGET,
    attack,
    auc,
    chance_band,
    measured,
    taught,
    with_absence,
    with_signals,
    world,
)

from fedbench.core import Observations, Probe, SkipCell
from fedbench.core.signals.measure import COALITION
from fedbench.plugins.attacks.prolin import Prolin
from fedbench.plugins.attacks.received import ProjectionResidual, ReceivedMetrics
from fedbench.plugins.attacks.series import FEATURES


def bayes(prior, loss, seen):
    """P(client k is the source | the parameters ``seen`` of all clients), by enumeration over a
    grid of parameters with a ``prior``: those of the source are drawn from prior * exp(-loss).
    """
    mass = sum(p * exp(-value) for p, value in zip(prior, loss, strict=True))
    joint = []
    for source in range(len(seen)):
        product = 1.0
        for k, theta in enumerate(seen):
            product *= prior[theta] * (exp(-loss[theta]) / mass if k == source else 1)
        joint.append(product)
    return [value / sum(joint) for value in joint]


def test_source_inference_is_the_bayes_posterior_and_says_member_where_the_target_is_its_mode():
    rng = np.random.default_rng(0)
    clients, n = 4, 60
    prior, grid = rng.dirichlet(np.ones(9)).tolist(), 2 * rng.random((9, n))
    seen = np.argsort(rng.random((9, n)), axis=0)[:clients]  # no two alike
    w = with_signals(
        world(1.0, 20, 40), loss=np.stack([np.take_along_axis(grid, seen, axis=0)] * 2)
    )
    w = replace(w, observations=replace(w.observations, clients=np.arange(clients)))
    found = w.score(attack("source-inference"))
    for i in range(n):
        p = bayes(prior, grid[:, i].tolist(), seen[:, i].tolist())
        others = [q for k, q in enumerate(p) if k != TARGET]
        assert found[i] == pytest.approx(log(p[TARGET] / max(others)), abs=1e-6)
        assert (found[i] > 0) == (p[TARGET] > max(others))
    absent = with_absence(w, 3, 1)
    assert_array_equal(
        absent.score(attack("source-inference")),
        with_signals(w, loss=w.observations["loss"][:, :3]).score(attack("source-inference")),
    )


# --- ProjRes --------------------------------------------------------------------------------------


def stepped(batch, steps=1):
    """A network after steps of SGD on ``batch`` samples, its update, and those samples before as
    many others.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 20), nn.Tanh(), nn.Linear(20, 3)
    )
    x, y = torch.randn(2 * batch, 8), torch.arange(batch) % 3
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(steps):
        model.zero_grad()
        cross_entropy(model(x[:batch]), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
    return model, nn.utils.parameters_to_vector(model.parameters()).detach() - start, x


def probe(model, update, x):
    y = torch.arange(len(x)) % 3
    copy = deepcopy(model)
    with torch.no_grad():
        return Probe(copy, update, x, y, copy(x))


def slow_residual(model, update, x, layer):
    """|h - P h| / |h| by least squares, sample by sample; ``layer``: position in the network."""
    state = nn.utils.parameters_to_vector(model.parameters()).detach() - update
    before = [0, 0, 8 * 48 + 48, 0, 8 * 48 + 48 + 48 * 20 + 20][layer]
    weight = model[layer].weight
    rows = update[before : before + weight.numel()].view_as(weight).double().numpy()
    nn.utils.vector_to_parameters(state, model.parameters())
    embeddings = model[:layer](x).detach().double().numpy()
    out = []
    for h in embeddings:
        part = np.linalg.lstsq(rows.T, h, rcond=1e-5)[0]
        out.append(float(np.linalg.norm(h - rows.T @ part) / np.linalg.norm(h)))
    return out


def test_embeddings_of_one_step_lie_in_the_rows_of_its_update_and_others_do_not():
    model, update, x = stepped(10)
    with torch.no_grad():
        found = ProjectionResidual().measure(probe(model, update, x))
    assert found[:10].max() < 1e-3 and found[10:].min() > 0.05
    assert_allclose(found[10:], slow_residual(model, update, x, 2)[10:], rtol=1e-3)


def test_a_span_of_full_rank_holds_everything_and_a_cut_one_less():
    model, update, x = stepped(10, steps=3)
    with torch.no_grad():
        full, cut = (
            ProjectionResidual(**params).measure(probe(model, update, x))
            for params in ({"layer": 0}, {"rank": 3})
        )
    assert full.max() < 1e-6 and cut.min() > 0.05


def test_the_received_model_has_the_statistics_that_it_was_received_with():
    clients = [replace(data, x=3 * data.x + k) for k, data in enumerate(tiny_clients())]
    setup = tiny_setup(module=normed(), clients=clients, rounds=2)
    x, y = clients[0].x, clients[0].y
    signals = {"received-metrics": ReceivedMetrics()}
    recorder, results = record_all(setup, x, y, signals, [0, 1, COALITION])
    u = results[-1].uploads
    expected = cross_entropy(setup.flat.logits(u.starts[0], x), y, reduction="none")
    assert (u.buffers[0] - u.starts.buffers[0]).abs().max() > 0.1
    for row in recorder.arrays()["received-metrics"][-1]:
        assert_allclose(row[:, 0], expected, rtol=1e-4)


def test_a_layer_that_is_not_there_is_named():
    model, update, x = stepped(4)
    with pytest.raises(ValueError, match="layer 3 is not among the model's 3 linear layers"):
        ProjectionResidual(layer=3).measure(probe(model, update, x))
    with pytest.raises(ValueError, match="no linear layer"):
        ProjectionResidual().measure(probe(nn.Sequential(nn.ReLU()), update[:0], x))


# --- DSM-MIA --------------------------------------------------------------------------------------


def test_received_metrics_are_seqmias_at_the_model_before_the_update():
    model, update, x = stepped(10)
    seen = probe(model, update, x)
    with torch.no_grad():
        found = ReceivedMetrics().measure(seen)
        logits = seen.model(x)  # the signal has left the received model in it
    assert (logits - seen.logits).abs().max() > 1e-3
    wanted = torch.stack([measured(name, logits, seen.y) for name in FEATURES], dim=1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def leaky():
    """A federation that leaks, with five metrics of a global model that say nothing."""
    w = world(2.0, 100, 400, seed=2)
    shape = (*w.observations["loss"].shape, 5)
    return with_signals(w, received_metrics=np.random.default_rng(0).normal(size=shape))


def test_dsm_mia_finds_a_leak_and_does_not_ask_who_the_other_clients_are():
    w = leaky()
    one = taught(attack("dsm-mia", epochs=20), w)
    score = w.score(one)
    assert auc(score, w.member) > 0.5 + chance_band(w.member)
    loss = w.observations["loss"].copy()
    loss[:, [0, 1, 3]] = loss[:, [3, 0, 1]]
    assert_array_equal(with_signals(w, loss=loss).score(one), score)


def test_dsm_mia_puts_the_targets_loss_before_those_of_the_others_in_order():
    w = with_absence(leaky(), 4, 1, 2)
    loss = w.observations["loss"]
    found = attack("dsm-mia")._features(w.observations, w.y)
    for i, t in [(0, 0), (7, 1), (11, 5)]:
        others = [loss[t, k, i] for k in (0, 1, 3, 5)]
        others.append(np.mean(others) if t in (1, 2) else loss[t, 4, i])
        assert_allclose(found[i, t, 5:], [loss[t, TARGET, i], *sorted(others)], 1e-6)


# --- PROLIN ---------------------------------------------------------------------------------------


def sums(shares, parts):
    """The mean of members' outputs ``parts`` [K, n] by ``shares`` [R, K]."""
    lengths = np.linspace(0.5, 2.0, parts.shape[1])  # of the gradients
    products = (shares @ parts) * lengths
    squares = np.broadcast_to(lengths**2, products.shape)
    signals = {
        "grad-dot": products[:, None].astype(np.float32),
        "grad-sq": squares[:, None].astype(np.float32),
    }
    return Observations(
        view="coalition",
        rounds=np.arange(len(shares)),
        clients=np.array([COALITION]),
        target=0,
        signals=signals,
        shares=shares,
    )


def cohorts(rounds, clients, size):
    """Equal shares of changing cohorts."""
    rng = np.random.default_rng(1)
    shares = np.zeros((rounds, clients))
    for row in shares:
        row[rng.choice(clients, size, replace=False)] = 1 / size
    return shares


def test_prolin_takes_a_members_part_out_of_sums_of_changing_cohorts_alone():
    w = world(1.0, 20, 40)
    parts = np.random.default_rng(0).normal(size=(5, 60))
    changing = cohorts(40, 5, 3)
    found = Prolin(ridge=1e-6).score(sums(changing, parts), w.audit())
    assert_allclose(found, parts[TARGET], atol=1e-4)
    same = Prolin().score(sums(np.full((4, 5), 0.2), parts), w.audit())
    assert_allclose(same, 4 * parts.sum(axis=0) / (4 * 5 + 5), rtol=1e-4)
    with pytest.raises(SkipCell, match="took part in no audited round"):
        Prolin().score(sums(changing * (np.arange(5) != TARGET), parts), w.audit())


def test_the_shares_of_a_coalitions_mean_are_those_of_its_products_with_gradients():
    setup = tiny_setup(members=(0, 1, 2), participation=0.5)
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    rows, sizes = [0, 1, 2, 3, COALITION], [3.0, 1.0, 2.0, 5.0]
    recorder, _ = record_all(setup, x, y, {}, rows, gradients=True, sizes=sizes)
    products = recorder.arrays()["grad-dot"]
    shares = recorder.shares[0]
    assert shares[:, 3].max() == 0 and 0 < (shares > 0).sum() < 9
    seen = shares.any(axis=1)
    mean = np.einsum("rk,rkn->rn", shares, np.nan_to_num(products[:, :4]))
    assert_allclose(mean[seen], products[seen, 4], rtol=1e-3, atol=1e-6)
