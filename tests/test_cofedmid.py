"""CoFedMID: the plan of classes, recycled samples and their bandit, noise that cancels, and what a
run reports of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from defense_cases import (
    CLASSES,
    ONLY_NOISE,
    ONLY_PARTITION,
    begun,
    coalition,
    coalition_facts,
    in_coalition,
    made,
    own_data,
    started,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import facts_of, generator
from pydantic import ValidationError
from tiny import tiny_clients, tiny_setup, train_all
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedbench.core import Batch, MemberData, ReportContext, UserError
from fedbench.core.federation.guard import remarks_of
from fedbench.plugins.defenses.cofedmid import recycling

# -- the plan of classes ---------------------------------------------------------------------------


def sizes(rounds, classes=10, **params):
    """Classes of a member in each round."""
    return (
        begun({"rounds": rounds, "n_classes": classes}, **ONLY_PARTITION, **params)
        .classes.sum(2)[:, 0]
        .tolist()
    )


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, [10, 8, 7, 5, 3]),
        ({"m_round": "floor"}, [10, 8, 6, 4, 3]),
        ({"decay": "cosine"}, [10, 9, 7, 4, 3]),
        ({"decay": "exponential"}, [10, 7, 5, 4, 3]),
        ({"decay": "polynomial"}, [10, 7, 5, 3, 3]),
    ],
)
def test_the_number_of_classes_falls_from_m_max_to_m_min(params, wanted):
    assert sizes(5, m_max=10, m_min=3, **params) == wanted  # linear: 10, 8.25, 6.5, 4.75, 3


@pytest.mark.parametrize(
    ("given_", "classes", "found"),
    [(0.5, 5, 3), (0.001, 10, 1), (1, 7, 7), (2, 10, 2), (0.29, 100, 29)],
)
def test_up_to_one_is_a_share_of_all_classes_rounded_half_up_and_from_two_on_a_number(
    given_, classes, found
):
    assert sizes(1, classes, m_max=given_, m_min=0.001) == [found]


@given(
    st.sampled_from(["balanced", "random"]),
    st.integers(1, 24),
    st.integers(2, 6),
    st.data(),
    st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_each_round_has_a_plan_of_its_own_which_balanced_has_least_overlap(
    assign, classes, members, data, key
):
    m = data.draw(st.integers(1, classes))
    changes = {"members": tuple(range(members)), "n_classes": classes, "rounds": 4, "key": key}
    params = {
        "m_max": max(m, 2) if m > 1 else 1 / classes,
        "decay": "constant",
        "m_min": 1 / classes,
        "assign": assign,
    }
    plan = begun(changes, **ONLY_PARTITION, **params).classes
    assert plan.shape == (4, members, classes) and (plan.sum(2) == m).all()
    assert np.array_equal(plan, begun(changes, **ONLY_PARTITION, **params).classes)
    if math.comb(classes, m) ** members > 10**9:
        assert len({round_.tobytes() for round_ in plan}) == 4
    if assign == "balanced":
        held = plan.sum(1)
        assert (np.ptp(held, axis=1) <= 1).all() and (
            (held > 0).sum(1) == min(classes, members * m)
        ).all()


# -- what a member trains on -----------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=25)
def test_a_share_of_every_class_is_held_out_to_validate_on(labels, fewest, key):
    n, y = len(labels), torch.tensor(labels)
    data = made("cofedmid", val_min=fewest).prepare(
        MemberData(torch.zeros(n, 3), y), in_coalition(own_data(), key=key)
    )
    count = min(max(round(0.05 * n), fewest), n // 5)
    assert int(data.held_out.sum()) == count
    assert all(
        abs(int(data.held_out[y == c].sum()) - count * int((y == c).sum()) / n) < 1
        for c in range(5)
    )
    assert made("cofedmid", compensation=False).prepare(data, in_coalition(data)) is data


@pytest.mark.parametrize(("t", "limit"), [(9, 1.0), (10, 0.05), (10, 1.0)])
def test_a_member_trains_on_assigned_classes_and_from_round_ten_on_the_drawn_loss_interval(
    t, limit
):
    defense, data = started(
        own_data(200), m_max=2, m_min=2, val_min=10, recycle_limit=limit, min_assigned=1
    )
    for client, row in ((0, 0), (2, 1)):
        ctx = in_coalition(data, t=t, client=client)
        chosen = defense.select(ctx)
        usable = [i for i in range(200) if not data.held_out[i]]
        assigned = {i for i in usable if defense.classes[t - 1, row, data.y[i]]}
        assert set(chosen.index[~chosen.flag].tolist()) == assigned
        recycled = set(chosen.index[chosen.flag].tolist())
        if t < 10:
            assert not recycled
            continue
        losses = cross_entropy(ctx.model(data.x), data.y, reduction="none").tolist()
        arm = ctx.memory["recycler"].rounds[0].arm
        ranked = sorted(usable, key=lambda i: losses[i])
        candidates = set(ranked[arm * len(usable) // 10 : (arm + 1) * len(usable) // 10]) - assigned
        assert recycled <= candidates and len(recycled) == min(
            int(limit * len(usable)), len(candidates)
        )


@pytest.mark.parametrize(("intervals", "equal"), [("fixed_bounds", False), ("requantile", True)])
def test_interval_bounds_cut_equal_intervals_at_first_and_are_kept_unless_asked(intervals, equal):
    defense, data = started(own_data(), m_max=2, m_min=2, intervals=intervals, val_min=10)
    memory = {}
    for t, weights in ((10, 0), (11, 5)):
        defense.select(in_coalition(data, t=t, memory=memory, weights=weights))
    first, second = (r.proportions for r in memory["recycler"].rounds)
    assert first == pytest.approx([0.1] * 10) and sum(second) == pytest.approx(1)
    assert np.allclose(second, 0.1) == equal


def test_too_few_assigned_samples_leave_the_recycled_ones_or_none():
    for fewest, least in ((None, 8), (1, 1)):
        defense, data = started(
            own_data(40), m_max=1 / CLASSES, m_min=1 / CLASSES, min_assigned=fewest, val_min=1
        )
        for t in range(1, 21):
            assigned = (~data.held_out.numpy()) & defense.classes[t - 1, 0][data.y]
            chosen = defense.select(in_coalition(data, t=t))
            assert int((~chosen.flag).sum()) == (assigned.sum() if assigned.sum() >= least else 0)
            assert bool(chosen.flag.any()) == (t >= 10)


@pytest.mark.parametrize("recycle", ["random", "sequential"])
def test_rivals_of_the_bandit_recycle_a_tenth_at_random_or_going_round_the_losses(recycle):
    params = {"m_max": 2, "m_min": 2, "val_min": 10, "recycle_from": 1, "min_assigned": 1}
    defense, data = started(own_data(200), recycle=recycle, **params)
    memory, place, usable = {}, 0, set(np.flatnonzero(~data.held_out.numpy()).tolist())
    for t in range(1, 21):
        # the same model, hence losses, in every round
        ctx = in_coalition(data, t=t, key=t, memory=memory)
        chosen = defense.select(ctx)
        took = set(chosen.index[chosen.flag].tolist())
        could = {i for i in usable if not defense.classes[t - 1, 0, data.y[i]]}
        assert took <= could and len(took) == int(0.1 * len(usable))
        defense.after_round(ctx)
        if recycle == "sequential":
            losses = cross_entropy(ctx.model(data.x), data.y, reduction="none").tolist()
            order = sorted(usable, key=lambda i: losses[i])
            walk = [*order[place:], *order[:place]]
            expected = [i for i in walk if i in could][: len(took)]
            assert took == set(expected)
            place = (place + walk.index(expected[-1]) + 1) % len(order)


# -- the bandit over loss intervals ----------------------------------------------------------------


def test_exp3_step_by_hand():
    b = recycling.Exp3(0.2, np.full(4, 5000.0), 0.5)  # no run is too long for the weights
    b.rewards = [0.0, 1.0, 2.0, 3.0, 4.0]  # r20 = .8, r80 = 3.2
    assert b.probabilities().tolist() == pytest.approx([0.25] * 4)
    b.learn(2, 2.6)  # scaled: 2 * 1.8 / 2.4 - 1 = .5; p .25
    w = math.exp(0.5 * 0.5 / (0.25 * 4))
    assert b.probabilities().tolist() == pytest.approx(
        [0.8 * v / (3 + w) + 0.05 for v in (1, 1, w, 1)]
    )
    assert b.rewards[-1] == 2.6


def test_rewards_are_scaled_by_percentiles_and_clipped():
    history = [0.0, 1.0, 2.0, 3.0, 4.0]
    scaled = [recycling.scale_reward(r, history) for r in (-9.0, 0.8, 2.0, 3.2, 9.0)]
    assert scaled == pytest.approx([-1, -1, 0, 1, 1])
    # too short, or no spread
    assert recycling.scale_reward(9.0, history[:4]) == recycling.scale_reward(9.0, [1.0] * 8) == 0


def test_the_bandit_is_paid_the_fall_of_the_validation_loss_with_the_step_of_auer_et_al():
    # of 20 rounds eleven recycle
    defense, data = started(own_data(), m_max=2, m_min=2, exp3_step=None, n_intervals=3)
    ctx = in_coalition(data, t=10)
    x, y = data.x[data.held_out], data.y[data.held_out]
    defense.select(ctx)
    before = cross_entropy(ctx.model(x), y).item()
    ctx.params.mul_(0.1)
    defense.after_round(ctx)
    defense.after_round(replace(ctx, round=11))  # nothing was pulled in that round
    found = ctx.memory["recycler"].bandit
    assert found.rewards == pytest.approx(
        [before - cross_entropy(ctx.model(x), y).item()], rel=1e-5
    )
    assert found.step == pytest.approx(math.sqrt(3 * math.log(3) / ((math.e - 1) * 11)))


# -- confidence regularisation ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recycled_ones", "params"),
    [
        ((1, 3, 4), {}),
        (None, {}),
        ((1, 3), {"kl_reduction": "mean"}),
        ((0, 5), {"detach_soft": False}),
        ((1, 3), {"confidence": False}),
    ],
)
def test_the_loss_is_cross_entropy_plus_the_penalty_of_recycled_samples(recycled_ones, params):
    def penalty(z, label):
        p = z.softmax(0)
        soft = torch.stack(
            [p[label] if j == label else (1 - p[label]) / (CLASSES - 1) for j in range(CLASSES)]
        )
        soft = soft if "detach_soft" in params else soft.detach()
        divergence = (soft * (soft.log() - p.log())).sum() / (
            CLASSES if "kl_reduction" in params else 1
        )
        return divergence + 0.3 * (p * p.log()).sum()

    g = generator(0)
    logits = torch.randn(6, CLASSES, generator=g, dtype=torch.float64).requires_grad_()
    y = torch.randint(0, CLASSES, (6,), generator=g)
    flag = (
        None if recycled_ones is None else torch.isin(torch.arange(6), torch.tensor(recycled_ones))
    )
    batch = Batch(torch.zeros(6, 3), y, torch.arange(6), flag=flag)
    found = made("cofedmid", mu=0.3, **params).loss(logits, batch, in_coalition(own_data()))
    of_recycled = (
        []
        if "confidence" in params
        else [penalty(logits[i], int(y[i])) for i in recycled_ones or ()]
    )
    wanted = cross_entropy(logits, y) + sum(of_recycled) / 6
    assert_close(found, wanted)
    assert_close(*(torch.autograd.grad(value, logits)[0] for value in (found, wanted)))


# -- noise -----------------------------------------------------------------------------------------


@given(
    st.sampled_from(["scalar", "vector"]),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    st.sampled_from([0.3, 0.29, 0.01, 1.0]),
    st.integers(0, 999),
)
@settings(max_examples=30)
def test_noise_on_the_tail_is_projected_so_that_it_cancels_under_the_weights(
    noise, weights, ratio, key
):
    members, P = tuple(range(len(weights))), 50
    defense = made("cofedmid", sigma=0.5, noise=noise, ratio=ratio, **ONLY_NOISE)
    defense.begin(coalition(members, tuple(weights), key=key))
    updates = torch.randn(len(members), P, generator=generator(0), dtype=torch.float64)
    untouched, tail = updates.clone(), int(ratio * P + 1e-9)
    for t in (1, 2):
        ctx = coalition(members, tuple(weights), t=t, key=key + t)
        added = defense.coordinate(updates, ctx) - updates
        assert torch.equal(updates, untouched) and not added[:, : P - tail].any()
        drawn = coalition(key=key + t).generator
        raw = 0.5 * torch.randn(
            len(members), 1 if noise == "scalar" else tail, generator=drawn, dtype=torch.float64
        )
        for k, row in enumerate(added[:, P - tail :]):
            slow = raw[k] - weights[k] / sum(w * w for w in weights) * sum(
                w * raw[j] for j, w in enumerate(weights)
            )
            assert_close(row, slow.expand(tail), rtol=1e-6, atol=1e-9)


def test_the_noise_of_absent_members_is_left_out():
    defense = begun(ratio=1.0, allow_absent=True, **ONLY_NOISE)
    full = defense.coordinate(torch.zeros(2, 50), coalition(t=1))
    late = defense.coordinate(torch.zeros(1, 50), coalition(t=1, present=(2,)))
    assert torch.equal(late[0], full[1]) and late.abs().max() > 0.001


NOISE = {"sigma": 0.1, "ratio": 0.8}
THREE = (0, 1, 2)


def uneven():
    """Clients of 40 samples that train on 36, 30, 24 and 18 of them."""
    return [
        MemberData(d.x, d.y, held_out=torch.arange(40) < 6 * k + 4)
        for k, d in enumerate(tiny_clients(samples=40))
    ]


@pytest.mark.parametrize(
    ("changes", "params", "cancels"),
    [
        ({}, {}, True),
        ({"weights": "equal"}, {}, True),
        ({"weight_order": "shuffled"}, {}, False),
        ({"participation": 0.75, "rounds": 6}, {}, False),
        ({}, {"mode": "independent"}, False),
    ],
)
def test_noise_leaves_the_global_model_as_it_is_where_it_cancels_and_a_remark_says_where_not(
    changes, params, cancels
):
    found = []
    for perturbed in (True, False):
        ours = {**NOISE, **ONLY_NOISE, "perturbation": perturbed, "allow_absent": True}
        setup = tiny_setup(made("cofedmid", **ours, **params), THREE, clients=uneven(), **changes)
        training, results = train_all(setup)
        assert ("noise" in " ".join(remarks_of(setup.defense, setup.facts))) == (
            perturbed and not cancels
        )
        assert ("noise" in " ".join(training.facts().get("remarks", []))) == (
            perturbed and not cancels
        )
        found.append(torch.cat([r.models for r in results]))
    apart = float((found[0] - found[1]).abs().max())
    assert (apart < 1e-5, apart > 1e-3) == (cancels, not cancels)


# -- every member on its own -----------------------------------------------------------------------


def test_alone_a_member_draws_its_own_classes_as_many_as_in_the_coalition():
    data, seen = own_data(400), set()
    alone, together = (
        begun(m_max=1.0, m_min=0.4, mode=m, **ONLY_PARTITION)
        for m in ("independent", "collaborative")
    )
    for key in range(1, 41):
        for t in (1, 10, 20):
            chosen = alone.select(in_coalition(data, t=t, key=key))
            classes = frozenset(data.y[chosen.index].tolist())
            assert len(classes) == together.classes[t - 1, 0].sum()
            assert len(chosen.index) == sum(int(c) in classes for c in data.y)
        seen.add(classes)
    assert len(seen) == 10  # all pairs of five classes


@pytest.mark.parametrize(
    ("params", "between_rounds", "between_parameters"),
    [
        ({}, 0.5, 0),
        ({"noise": "vector"}, 0.5, 0.5),
        ({"perturbation": False}, 0, 0),
    ],
)
def test_alone_a_members_noise_on_the_tail_is_its_own_and_not_projected(
    params, between_rounds, between_parameters
):
    defense = begun(sigma=0.5, ratio=0.5, mode="independent", **ONLY_NOISE, **params)
    update, data = torch.zeros(20, dtype=torch.float64), own_data()
    added = torch.stack(
        [defense.protect(update, in_coalition(data, key=key)) for key in range(400)]
    )
    assert not added[:, :10].any() and added[:, 10:].any() == ("perturbation" not in params)
    assert torch.equal(defense.coordinate(added, coalition(t=1)), added)
    assert added[:, -1].std().item() == pytest.approx(between_rounds, rel=0.15, abs=1e-9)
    assert added[:, 10:].std(1).mean().item() == pytest.approx(
        between_parameters, rel=0.15, abs=1e-9
    )


# -- what a run reports ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "perturbed", "within"), [(10.5 / 51, 10, 10), (0.8, 40, 21)])
def test_a_run_reports_how_many_perturbed_parameters_lie_in_the_final_linear_layer(
    ratio, perturbed, within
):
    reported = train_all(tiny_setup(made("cofedmid", ratio=ratio, **ONLY_NOISE)))[0].facts()
    assert reported["perturbed parameters"] == perturbed
    assert reported["perturbed parameters in the final linear layer"] == within
    assert ("remarks" in reported) == (perturbed == within)


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({}, 5 + 3 * 2),
        ({"noise": "vector", "ratio": 0.5}, 5 + 3 * 26),
        ({"mode": "independent"}, 0),
    ],
)
def test_what_the_coordinator_sends_is_counted_item_by_item(params, sent):
    """Three rounds of three classes, of which a member has two, two (1.5 rounded up) and one."""
    reported = train_all(tiny_setup(made("cofedmid", val_min=2, **params)))[0].facts()
    assert reported["bytes from the coordinator a member"] == sent
    bound = reported.get("bytes from the coordinator a member, (N + 2) T of section 5.5")
    assert bound == (None if params.get("mode") else (3 + 2) * 3)


def test_recycled_shares_are_of_the_first_and_the_last_third_of_the_recycling_rounds():
    defense = made("cofedmid", recycle="random", recycle_from=4, perturbation=False)
    recycler = recycling.Recycler(recycling.Exp3(0.1, np.zeros(1), 1.0))
    recycler.rounds = [recycling.Recycled(t, share=t / 100) for t in range(4, 13)]
    facts = defense.report(
        ReportContext(
            federation=facts_of(1, rounds=12),
            members=(0,),
            coalition={},
            of_member={0: {"recycler": recycler}},
            of_server={},
        )
    )
    assert facts["recycled share early"] == pytest.approx(0.05)  # rounds 4 to 6
    assert facts["recycled share late"] == pytest.approx(0.11)  # rounds 10 to 12


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"partition": False}, "switch it off too, or partition on"),
        ({"m_max": 2, "m_min": 3}, "m_min 3 exceeds m_max 2"),
        ({"m_max": 1.5}, "1.5 is neither a share"),
    ],
)
def test_inconsistent_params_are_refused(params, said):
    with pytest.raises(ValidationError, match=said):
        made("cofedmid", **params)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"m_max": 50}, "m_max 50 asks for 50 classes, and there are 5"),
        ({"m_max": 2, "m_min": 0.9}, r"of 5 classes m_min 0\.9 is 5 and m_max 2 is 2"),
        ({"recycle_from": 21}, "recycle_from 21 is after the last round, 20"),
        ({}, r"participation 0\.5 members can be absent"),
    ],
)
def test_what_the_federation_does_not_have_is_refused_before_anything_is_trained(params, said):
    facts = coalition_facts() if params else coalition_facts(participation=0.5)
    with pytest.raises(UserError, match=f"cofedmid: .*{said}"):
        made("cofedmid", **params).check(facts)
    made("cofedmid", recycle_from=20).check(coalition_facts())
