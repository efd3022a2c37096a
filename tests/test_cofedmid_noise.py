"""CoFedMID's noise: what is perturbed, what cancels and where it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from coalitions import ONLY_NOISE, ONLY_PARTITION, begun, coalition
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU
from torch import nn

from fedbench.core import UserError
from fedbench.core.numerics.flat import FlatModel
from fedbench.plugins.defenses.cofedmid import CoFedMID, perturbation


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_projected_noise_cancels_under_the_weights(weights, columns, seed):
    w = torch.tensor(weights, dtype=torch.float64)
    noise = torch.randn(len(w), columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    delta = perturbation.project(noise, w)
    assert (w @ delta).abs().max() < 1e-12
    slow = noise.clone()
    for k in range(len(w)):
        slow[k] -= w[k] / sum(v * v for v in weights) * sum(w[j] * noise[j] for j in range(len(w)))
    torch.testing.assert_close(delta, slow, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", ["scalar", "vector"])
@pytest.mark.parametrize("resample", [True, False])
def test_aggregate_is_unchanged_and_only_the_tail_is_perturbed(noise, resample):
    weights, members = (0.1, 0.35, 0.2), (0, 2, 3)
    defense = CoFedMID(noise=noise, noise_resample=resample, ratio=0.3, **ONLY_NOISE)
    defense.begin(coalition(members, weights))
    updates = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    untouched = updates.clone()
    added = []
    for t in (1, 2):
        out = defense.coordinate(updates, coalition(members, weights, t=t, key=100 + t))
        assert torch.equal(updates, untouched)
        assert (torch.tensor(weights) @ (out - updates)).abs().max() < 1e-6
        added.append((out - updates).double())
        assert (added[-1][:, :35] == 0).all() and (added[-1][:, 35:] != 0).all()
    per_member = added[0][:, 35:].std(1)
    assert (per_member < 1e-6).all() if noise == "scalar" else (per_member > 0.01).all()
    assert torch.equal(*added) != resample


def test_two_equal_members_get_opposite_noise_of_deviation_sigma_over_root_two():
    defense = begun(sigma=0.5, ratio=1.0, **ONLY_NOISE)
    first = []
    for t in range(1, 2001):
        out = defense.coordinate(torch.zeros(2, 4, dtype=torch.float64), coalition(t=t, key=t))
        raw = torch.randn((2, 1), generator=coalition(key=t).generator, dtype=torch.float64) * 0.5
        torch.testing.assert_close(out[0], ((raw[0] - raw[1]) / 2).expand(4))
        torch.testing.assert_close(out[1], -out[0])
        first.append(float(out[0, 0]))
    assert np.std(first) == pytest.approx(0.5 / math.sqrt(2), rel=0.06)


def test_scalar_noise_on_the_final_layer_alone_changes_no_prediction():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    flat, x = FlatModel(model, CPU), torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(x).softmax(1)
        for ratio, same in ((15 / 43, True), (1.0, False)):  # the final layer holds 15 of 43 parameters
            defense = CoFedMID(sigma=2.0, ratio=ratio, **ONLY_NOISE)
            defense.begin(coalition())
            update = defense.coordinate(torch.zeros(2, 43), coalition(t=1))[0]
            assert int((update != 0).sum()) == (15 if same else 43)
            flat.params.add_(update)
            after = model(x).softmax(1)
            flat.params.sub_(update)
            assert torch.allclose(before, after, atol=1e-5) == same


def test_the_tail_is_the_floor_of_the_ratio():
    counts = [perturbation.tail(r, n) for r, n in [(0.29, 100), (0.2, 50), (0.01, 99), (1.0, 7), (0.3, 9)]]
    assert counts == [29, 10, 0, 7, 2]
    defense = CoFedMID(ratio=0.01, **ONLY_NOISE)
    defense.begin(coalition())
    assert torch.equal(defense.coordinate(torch.zeros(2, 99), coalition(t=1)), torch.zeros(2, 99))


def test_a_lone_member_and_a_switched_off_module_add_nothing():
    lone = CoFedMID(**ONLY_NOISE)
    lone.begin(coalition((1,)))
    assert lone.coordinate(torch.zeros(1, 50), coalition((1,), t=1)).abs().max() < 1e-12
    off = begun(**ONLY_PARTITION)
    updates = torch.ones(2, 50)
    assert torch.equal(off.coordinate(updates, coalition(t=1)), updates)


def test_client_sampling_is_refused_unless_allowed_and_then_does_not_cancel():
    with pytest.raises(UserError, match=r"participation 0\.5"):
        CoFedMID().check(coalition(participation=0.5).federation)
    CoFedMID(perturbation=False).check(coalition(participation=0.5).federation)
    defense = CoFedMID(allow_absent=True, ratio=1.0, **ONLY_NOISE)
    defense.check(coalition(participation=0.5).federation)
    defense.begin(coalition(participation=0.5))
    full = defense.coordinate(torch.zeros(2, 50), coalition(t=1))
    late = defense.coordinate(torch.zeros(1, 50), coalition(t=1, present=(2,)))
    assert torch.equal(late[0], full[1]) and late.abs().max() > 0.001
