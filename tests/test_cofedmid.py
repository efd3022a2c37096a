"""CoFedMID: the class plan, the bandit and its intervals, the confidence penalty, and noise that cancels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU, facts_of, member_context
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Batch, CoalitionContext, Federation, MemberContext, MemberData, UserError
from fedbench.core.numerics.flat import FlatModel
from fedbench.plugins.defenses.cofedmid import CoFedMID, compensation, partition, perturbation

CLASSES = 5
ONLY_PARTITION = dict(compensation=False, perturbation=False)
ONLY_NOISE = dict(partition=False, compensation=False)


def facts(**given) -> Federation:
    return facts_of(50, **{"rounds": 20, "n_classes": CLASSES, **given})


def coalition(members=(0, 2), weights=None, t=0, key=1, present=None, **given) -> CoalitionContext:
    weights = weights or (1 / 4,) * len(members)
    sizes = tuple(round(400 * w) for w in weights)
    return CoalitionContext(
        key=key,
        device=CPU,
        federation=facts(**given),
        members=members,
        present=present or members,
        sizes=sizes,
        weights=weights,
        round=t,
    )


def own_data(n: int = 100, seed: int = 0) -> MemberData:
    g = torch.Generator().manual_seed(seed)
    return MemberData(torch.randn(n, 3, generator=g), torch.randint(0, CLASSES, (n,), generator=g))


def member(data: MemberData, *, client=0, round=1, key=1, memory=None, seed=0, **given) -> MemberContext:
    memory = {} if memory is None else memory
    return member_context(
        nn.Linear(3, CLASSES), data, facts(**given), weights=seed, key=key, client=client, round=round, epoch=round - 1,
        memory=memory,
    )  # fmt: skip


def begun(given=None, **params) -> CoFedMID:
    defense = CoFedMID(**params)
    defense.begin(coalition(**(given or {})))
    return defense


def started(data: MemberData, **params) -> tuple[CoFedMID, MemberData]:
    defense = begun(**params)
    return defense, defense.prepare(data, member(data))


# -- class plan ------------------------------------------------------------------------------------------------------


def overlap_bound(classes: int, members: int, m: int) -> int:
    """lambda_theo: no assignment has a smaller largest pairwise overlap.

    ``classes`` N, ``members`` d >= 2, ``m`` classes each: ceil((d m^2 - N m) / (N (d - 1))), at least 0.
    Source: CoFedMID section 4.1 and appendix A.
    """
    return max(0, -((classes * m - members * m * m) // (classes * (members - 1))))


@pytest.mark.parametrize(
    ("classes", "members", "m", "bound"),
    [(100, 2, 50, 0), (100, 5, 50, 19), (100, 10, 50, 23), (100, 10, 20, 3), (10, 2, 10, 10), (10, 10, 10, 10),
     (10, 10, 2, 1), (200, 10, 40, 5), (100, 5, 20, 0)],
)  # fmt: skip
def test_overlap_bound_of_known_cases(classes, members, m, bound):
    assert overlap_bound(classes, members, m) == bound


@given(st.integers(1, 24), st.integers(2, 8), st.data(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_balanced_assignment_has_least_total_overlap_and_covers_what_it_can(classes, members, data, seed):
    m = data.draw(st.integers(1, classes))
    held = partition.assign_balanced(classes, members, m, np.random.default_rng(seed))
    assert (held.sum(1) == m).all()
    multiplicity = held.sum(0)
    assert np.ptp(multiplicity) <= 1
    assert (multiplicity > 0).sum() == min(classes, members * m)
    pairs = [int((held[i] & held[j]).sum()) for i in range(members) for j in range(i)]
    assert max(pairs) >= overlap_bound(classes, members, m)
    random = partition.assign_random(classes, members, m, np.random.default_rng(seed))
    assert (random.sum(1) == m).all()
    assert sum(pairs) <= sum(int((random[i] & random[j]).sum()) for i in range(members) for j in range(i))


def test_balanced_assignment_keeps_the_largest_overlap_near_its_bound():
    for classes, members, m in [(100, 5, 50), (100, 10, 50), (100, 10, 20), (10, 10, 2), (200, 10, 40)]:
        held = partition.assign_balanced(classes, members, m, np.random.default_rng(0)).astype(int)
        shared = held @ held.T
        np.fill_diagonal(shared, 0)
        assert shared.max() <= 1.25 * overlap_bound(classes, members, m) + 2


@pytest.mark.parametrize("decay", ["linear", "cosine", "exponential", "polynomial"])
def test_subsets_shrink_from_m_max_to_m_min(decay):
    sizes = [partition.subset_size(t, 100, 50, 20, decay, "nearest") for t in range(1, 101)]
    assert sizes[0] == 50 and sizes[-1] == 20
    assert sizes == sorted(sizes, reverse=True)


def test_subset_sizes_are_linear_and_round_a_half_up():
    assert [partition.subset_size(t, 11, 10, 2, "linear", "nearest") for t in (1, 2, 6, 10, 11)] == [10, 9, 6, 3, 2]
    sizes = {how: partition.subset_size(2, 3, 4, 1, "linear", how) for how in ("nearest", "floor", "ceil")}
    assert sizes == {"nearest": 3, "floor": 2, "ceil": 3}  # 2.5 classes
    assert partition.subset_size(1, 1, 10, 2, "linear", "nearest") == 10


@pytest.mark.parametrize(
    ("classes", "m_max", "m_min", "rounding", "first"),
    [(100, 50, 20, "floor", 2), (100, 50, 20, "nearest", 3), (200, 200, 40, "floor", 63), (200, 200, 40, "nearest", 64),
     (10, 10, 2, "floor", 63), (10, 10, 2, "nearest", 70)],
)  # fmt: skip
def test_two_members_stop_covering_all_classes_where_expected(classes, m_max, m_min, rounding, first):
    sizes = [partition.subset_size(t, 100, m_max, m_min, "linear", rounding) for t in range(1, 101)]
    assert next(t for t, m in enumerate(sizes, 1) if 2 * m < classes) == first
    plan = dict(m_max=m_max, m_min=m_min, m_round=rounding, **ONLY_PARTITION)
    given = dict(rounds=100, n_classes=classes)
    with pytest.raises(UserError, match=f"from round {first} on"):
        begun(given, coverage="strict", **plan)
    a, b = begun(given, **plan).classes[first - 1]
    assert not (a & b).any()  # infeasible: disjoint is the widest cover


def test_the_plan_is_fresh_each_round_and_repeatable():
    plans = [begun(m_max=3, m_min=3, **ONLY_PARTITION).classes for _ in range(2)]
    assert np.array_equal(*plans)
    assert len({p.tobytes() for p in plans[0]}) > 10
    other = CoFedMID(m_max=3, m_min=3, **ONLY_PARTITION)
    other.begin(coalition(key=2))
    assert not np.array_equal(other.classes, plans[0])


def test_default_sizes_go_from_all_classes_to_a_fifth():
    classes = begun(dict(n_classes=10)).classes
    assert classes[0].sum(1).tolist() == [10, 10] and classes[-1].sum(1).tolist() == [2, 2]
    with pytest.raises(UserError, match="m_max 50"):
        begun(m_max=50)


@pytest.mark.parametrize("wrong", [dict(partition=False), dict(m_max=2, m_min=3), dict(ratio=0), dict(sigmas=1)])
def test_inconsistent_params_are_refused(wrong):
    with pytest.raises(ValidationError):
        CoFedMID(**wrong)


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
    arm = ctx.memory["pull"][1]
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
    defense, data = started(own_data(), m_max=1, m_min=1, recycle_from=7)
    memory: dict = {}
    for t in range(1, 8):
        flags = defense.select(member(data, round=t, memory=memory)).flag
        assert bool(memory) == (t >= 7)
    assert "bounds" in memory and flags.dtype == torch.bool


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
        first = memory["bounds"].copy()
        defense.select(member(data, round=11, memory=memory, seed=5))
        assert np.array_equal(memory["bounds"], first) == same


def test_equal_losses_make_one_interval():
    assert compensation.normalise(np.full(4, 3.0)).tolist() == [0, 0, 0, 0]


def test_too_few_assigned_samples_leave_the_recycled_or_none():
    data = replace(own_data(), y=torch.zeros(100, dtype=torch.int64))  # owns class 0 alone
    defense, data = started(data, m_max=1, m_min=1)
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
        defense = begun(**ONLY_PARTITION, m_max=1, m_min=1, min_assigned=fewest)
        sizes[fewest] = [len(defense.select(member(data, round=t)).index) for t in range(1, 21)]
    assert min(sizes[1]) < 8 <= max(sizes[1])
    assert sizes[None] == [n if n >= 8 else 0 for n in sizes[1]]


# -- bandit ----------------------------------------------------------------------------------------------------------


def bandit(arms: int = 4, gamma: float = 0.1) -> compensation.Exp3:
    return compensation.Exp3(gamma, np.zeros(arms))


def test_exp3_step_by_hand():
    b = bandit(4, 0.2)
    b.rewards = [0.0, 1.0, 2.0, 3.0, 4.0]  # r20 = .8, r80 = 3.2
    assert b.probabilities().tolist() == pytest.approx([0.25] * 4)
    b.learn(2, 2.6)  # scaled: 2 * 1.8 / 2.4 - 1 = .5; exponent .2 * (.5 / .25) / 4 = .1
    w = math.exp(0.1)
    expected = [0.8 * v / (3 + w) + 0.05 for v in (1, 1, w, 1)]
    assert b.probabilities().tolist() == pytest.approx(expected)
    assert b.rewards[-1] == 2.6


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3)), max_size=60), st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_exp3_probabilities_sum_to_one_and_keep_exploring(pulls, gamma):
    b = bandit(4, gamma)
    for arm, reward in pulls:
        before = b.log_weights.copy()
        b.learn(arm, reward)
        assert np.abs(b.log_weights - before).max() <= 1 + 1e-9  # the exponent is at most 1
    p = b.probabilities()
    assert p.sum() == pytest.approx(1) and (p >= gamma / 4 - 1e-12).all()


def test_exp3_survives_long_runs_and_prefers_the_paying_arm():
    b, rng = bandit(), np.random.default_rng(0)
    for _ in range(5000):
        arm = b.draw(rng)
        b.learn(arm, arm + rng.normal(0, 0.1))
    assert b.probabilities().argmax() == 3 and b.probabilities()[3] > 0.8
    assert np.isfinite(b.probabilities()).all()


def test_rewards_are_scaled_by_percentiles_and_clipped():
    history = [0.0, 1.0, 2.0, 3.0, 4.0]
    scaled = [compensation.scale_reward(r, history) for r in (-9.0, 0.8, 2.0, 3.2, 9.0)]
    assert scaled == pytest.approx([-1, -1, 0, 1, 1])
    assert compensation.scale_reward(9.0, history[:4]) == 0  # too short a history
    assert compensation.scale_reward(9.0, [1.0] * 8) == 0  # no spread


def test_reward_is_the_fall_of_the_validation_loss():
    defense, data = started(own_data(), m_max=2, m_min=2)
    ctx = member(data, round=10)
    x, y = data.x[data.held_out], data.y[data.held_out]
    defense.select(ctx)
    before = cross_entropy(ctx.model(x), y).item()
    ctx.params.mul_(0.1)
    defense.after_round(ctx)
    assert ctx.memory["exp3"].rewards == pytest.approx([before - cross_entropy(ctx.model(x), y).item()], rel=1e-5)
    defense.after_round(replace(ctx, round=11))  # nothing was pulled in that round
    assert len(ctx.memory["exp3"].rewards) == 1


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


# -- noise -----------------------------------------------------------------------------------------------------------


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


def test_equal_keys_equal_rounds():
    def select(key: int) -> tuple[torch.Tensor, torch.Tensor]:
        defense, data = started(own_data(), m_max=2, m_min=2)
        chosen = defense.select(member(data, round=12, key=key))
        return chosen.index, chosen.flag

    assert all(torch.equal(a, b) for a, b in zip(select(1), select(1), strict=True))
    assert len({tuple(select(key)[0].tolist()) for key in range(1, 9)}) > 1
