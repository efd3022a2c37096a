"""CoFedMID: the part held out, what a member trains on, and the confidence penalty."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from coalitions import CLASSES, ONLY_PARTITION, begun, member, own_data, started
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedbench.core import Batch
from fedbench.plugins.defenses.cofedmid import CoFedMID, compensation, partition

ONE = 1 / CLASSES  # the share of all classes that one of them is

# -- held-out part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "held"), [(5000, 250), (1000, 100), (400, 80), (120, 24), (4, 0)])
def test_validation_part_is_five_percent_at_least_100_at_most_a_fifth(n, held):
    data = CoFedMID().prepare(own_data(n), member(own_data(n)))
    assert int(data.held_out.sum()) == held
    assert CoFedMID(compensation=False).prepare(own_data(n), member(own_data(n))).held_out is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data(), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_hold_out_takes_its_share_of_every_class(labels, data, seed):
    y = np.array(labels)
    count = data.draw(st.integers(0, len(y)))
    held = partition.hold_out(y, count, np.random.default_rng(seed))
    assert held.sum() == count
    for c in np.unique(y):
        assert abs(held[y == c].sum() - count * (y == c).sum() / len(y)) < 1


# -- selection -------------------------------------------------------------------------------------------------------


def test_before_recycling_a_member_trains_on_its_assigned_classes_alone():
    defense, data = started(own_data(), m_max=2, m_min=2, val_min=10, min_assigned=1)
    for client, row in ((0, 0), (2, 1)):
        chosen = defense.select(member(data, client=client, round=3))
        classes = set(np.flatnonzero(defense.classes[2, row]))
        expected = [i for i in range(100) if int(data.y[i]) in classes and not data.held_out[i]]
        assert chosen.index.tolist() == expected
        assert not chosen.flag.any()


@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_recycled_samples_are_unassigned_ones_of_the_drawn_loss_interval(limit):
    params = dict(m_max=2, m_min=2, val_min=10, recycle_limit=limit, min_assigned=1)
    defense, data = started(own_data(200), **params)
    ctx = member(data, round=10)
    chosen = defense.select(ctx)
    usable = [i for i in range(200) if not data.held_out[i]]
    losses = cross_entropy(ctx.model(data.x), data.y, reduction="none").tolist()
    arm = ctx.memory["recycler"].rounds[0].arm
    ranked = sorted(usable, key=lambda i: losses[i])
    interval = ranked[arm * len(usable) // 10 : (arm + 1) * len(usable) // 10]
    classes = set(np.flatnonzero(defense.classes[9, 0]))
    candidates = {i for i in interval if int(data.y[i]) not in classes}
    recycled = set(chosen.index[chosen.flag].tolist())
    most = int(limit * len(usable))
    assert recycled == candidates if limit == 1 else recycled < candidates and len(recycled) == most
    assigned = {i for i in usable if int(data.y[i]) in classes}
    assert set(chosen.index[~chosen.flag].tolist()) == assigned


def test_recycling_starts_in_round_t_prime():
    defense, data = started(own_data(), m_max=ONE, m_min=ONE, recycle_from=7)
    memory: dict = {}
    for t in range(1, 8):
        flags = defense.select(member(data, round=t, memory=memory)).flag
        assert ("recycler" in memory) == (t >= 7)
    assert memory["recycler"].bounds is not None and flags.dtype == torch.bool


@given(st.lists(st.floats(0, 50), min_size=10, max_size=80, unique=True), st.integers(2, 10))
@settings(max_examples=100, deadline=None)
def test_intervals_are_equal_at_first_and_every_loss_falls_in_one(losses, intervals):
    normalised = compensation.normalise(np.array(losses))
    assert normalised.min() == 0 and normalised.max() == 1
    bounds = compensation.interval_bounds(normalised, intervals)
    counts = np.bincount(compensation.buckets(normalised, bounds), minlength=intervals)
    if len(np.unique(normalised)) == len(losses):  # normalising may merge neighbours
        assert counts.sum() == len(losses) and np.ptp(counts) <= 1
    assert compensation.buckets(np.array([-1.0, 2.0]), bounds).tolist() == [0, intervals - 1]


def test_interval_bounds_stay_fixed_unless_asked():
    for intervals, same in (("fixed_bounds", True), ("requantile", False)):
        defense, data = started(own_data(), m_max=2, m_min=2, intervals=intervals)
        memory: dict = {}
        defense.select(member(data, round=10, memory=memory))
        first = memory["recycler"].bounds.copy()
        defense.select(member(data, round=11, memory=memory, seed=5))
        assert np.array_equal(memory["recycler"].bounds, first) == same


def test_equal_losses_make_one_interval():
    assert compensation.normalise(np.full(4, 3.0)).tolist() == [0, 0, 0, 0]


def test_too_few_assigned_samples_leave_the_recycled_or_none():
    data = replace(own_data(), y=torch.zeros(100, dtype=torch.int64))  # owns class 0 alone
    defense, data = started(data, m_max=ONE, m_min=ONE)
    without = [t for t in range(1, 21) if not defense.classes[t - 1, 0, 0]]
    early, late = min(without), max(without)
    assert early < 10 <= late
    assert len(defense.select(member(data, round=early)).index) == 0
    chosen = defense.select(member(data, round=late))
    assert len(chosen.index) > 0 and chosen.flag.all()


def test_fewer_than_a_batch_of_assigned_samples_are_dropped_by_default():
    data = own_data(40)
    sizes = {}
    for fewest in (None, 1):
        defense = begun(**ONLY_PARTITION, m_max=ONE, m_min=ONE, min_assigned=fewest)
        sizes[fewest] = [len(defense.select(member(data, round=t)).index) for t in range(1, 21)]
    assert min(sizes[1]) < 8 <= max(sizes[1])
    assert sizes[None] == [n if n >= 8 else 0 for n in sizes[1]]


def test_equal_keys_equal_rounds():
    def select(key: int) -> tuple[torch.Tensor, torch.Tensor]:
        defense, data = started(own_data(), m_max=2, m_min=2)
        chosen = defense.select(member(data, round=12, key=key))
        return chosen.index, chosen.flag

    assert all(torch.equal(a, b) for a, b in zip(select(1), select(1), strict=True))
    assert len({tuple(select(key)[0].tolist()) for key in range(1, 9)}) > 1


# -- confidence regularisation ---------------------------------------------------------------------------------------


def slow_penalty(z: torch.Tensor, label: int, mu: float) -> float:
    p = (z.exp() / z.exp().sum()).tolist()
    n = len(p)
    soft = [p[label] if j == label else (1 - p[label]) / (n - 1) for j in range(n)]
    return sum(q * math.log(q / v) for q, v in zip(soft, p, strict=True)) + mu * sum(v * math.log(v) for v in p)


def test_loss_is_cross_entropy_plus_the_penalty_of_recycled_samples():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(6, CLASSES, generator=g, dtype=torch.float64), torch.randint(0, CLASSES, (6,), generator=g)
    flag = torch.tensor([False, True, False, True, True, False])
    batch = Batch(torch.zeros(6, 3), y, torch.arange(6), flag=flag)
    defense, ctx = CoFedMID(mu=0.3), member(own_data())
    ce = sum(-math.log(float(z.softmax(0)[c])) for z, c in zip(logits, y.tolist(), strict=True))
    penalty = sum(slow_penalty(logits[i], int(y[i]), 0.3) for i in (1, 3, 4))
    assert defense.loss(logits, batch, ctx).item() == pytest.approx((ce + penalty) / 6)
    assert defense.loss(logits, replace(batch, flag=None), ctx).item() == pytest.approx(ce / 6)
    none_recycled = replace(batch, flag=torch.zeros(6, dtype=torch.bool))
    assert defense.loss(logits, none_recycled, ctx).item() == pytest.approx(ce / 6)


def test_penalty_only_levels_the_wrong_classes():
    logits = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 2, 4, 1])
    penalty = compensation.confidence_regulariser(logits, y, 0.0, True, "sum").sum()
    gradient = torch.autograd.grad(penalty, logits)[0]
    p = logits.detach().softmax(1)
    for i, label in enumerate(y.tolist()):
        expected = p[i] - (1 - p[i, label]) / (CLASSES - 1)
        expected[label] = 0
        torch.testing.assert_close(gradient[i], expected)
    flowing = compensation.confidence_regulariser(logits, y, 0.0, False, "sum").sum()
    assert flowing.item() == pytest.approx(penalty.item())
    assert not torch.allclose(torch.autograd.grad(flowing, logits)[0], gradient)
    mean = compensation.confidence_regulariser(logits, y, 0.0, True, "mean").sum()
    assert mean.item() == pytest.approx(penalty.item() / CLASSES)


@pytest.mark.parametrize("detach", [True, False])
def test_penalty_stays_finite_for_certain_predictions(detach):
    logits = torch.tensor([[200.0, 0, 0], [0, 200.0, 0]]).requires_grad_()
    penalty = compensation.confidence_regulariser(logits, torch.tensor([0, 0]), 0.005, detach, "sum").sum()
    penalty.backward()
    assert torch.isfinite(penalty) and torch.isfinite(logits.grad).all()
