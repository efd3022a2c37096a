"""CoFedMID's comparisons: every member on its own, other ways to recycle, no confidence regularisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from coalitions import CLASSES, ONLY_NOISE, ONLY_PARTITION, begun, facts, member, own_data, started
from tiny import tiny_clients, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import Batch
from fedbench.core.federation.loop import Training
from fedbench.plugins.defenses.cofedmid import CoFedMID

ALONE = {"mode": "independent"}

# -- every member on its own -----------------------------------------------------------------------------------------


def test_alone_a_member_draws_its_own_classes_anew_every_round():
    data, seen = own_data(400), {}
    defense = begun(m_max=0.4, m_min=0.4, min_assigned=1, **ALONE, **ONLY_PARTITION)
    for key in range(1, 41):  # another key for every member and round, as the engine has it
        chosen = defense.select(member(data, key=key))
        seen[key] = frozenset(data.y[chosen.index].tolist())
        again = defense.select(member(data, key=key))
        assert len(seen[key]) == 2 and torch.equal(chosen.index, again.index)
        assert len(chosen.index) == sum(int(c) in seen[key] for c in data.y)
    assert len(set(seen.values())) == 10  # all pairs of five classes


def test_alone_the_number_of_classes_falls_as_in_the_coalition():
    data, defense = own_data(400), begun(m_max=1.0, m_min=0.2, **ALONE, **ONLY_PARTITION)
    counts = [len(set(data.y[defense.select(member(data, round=t, key=t)).index].tolist())) for t in range(1, 21)]
    assert counts == begun(m_max=1.0, m_min=0.2, **ONLY_PARTITION).classes.sum(2)[:, 0].tolist()


@pytest.mark.parametrize(("mode", "same"), [("independent", True), ("collaborative", False)])
def test_alone_nothing_depends_on_who_else_defends(mode, same):
    def upload(members):
        defense = CoFedMID(mode=mode, recycle_from=1, val_min=2, min_assigned=1)
        return train_all(tiny_setup(defense, members, clients=tiny_clients(samples=30)))[1][0].uploads.updates[0]

    assert torch.equal(upload((0,)), upload((0, 1, 2))) == same


def added(setup) -> list[torch.Tensor]:
    """[members, P] of each round: what was added to the updates before they were uploaded."""
    return [result.uploads.updates - result.uploads.unprotected for result in Training(setup).rounds()]


@pytest.mark.parametrize("noise", ["scalar", "vector"])
def test_alone_each_members_noise_is_its_own_and_nobody_cancels_it(noise):
    ours = CoFedMID(sigma=0.5, ratio=0.5, noise=noise, **ALONE, **ONLY_NOISE)
    rounds = added(tiny_setup(ours, (0, 1), keep_unprotected=True, rounds=200, local_epochs=1))
    tail = torch.stack([a[:2, 51 - 25 :] for a in rounds])
    assert (torch.stack(rounds)[:, 2:] == 0).all() and all((a[:2, : 51 - 25] == 0).all() for a in rounds)
    spread = tail.std(2).max()
    assert spread < 1e-5 if noise == "scalar" else spread > 0.1
    first = tail[:, :, 0].double().numpy()  # [rounds, members]
    assert first.std(0) == pytest.approx([0.5, 0.5], rel=0.15)  # raw: not projected
    assert abs(np.corrcoef(first.T)[0, 1]) < 0.2 and np.abs(first.sum(1)).max() > 0.1


def test_alone_there_can_be_no_noise_and_it_can_stay_the_same():
    none = CoFedMID(independent_noise="none", **ALONE, **ONLY_NOISE)
    assert all((a == 0).all() for a in added(tiny_setup(none, (0, 1), keep_unprotected=True)))
    fixed = added(tiny_setup(CoFedMID(noise_resample=False, **ALONE, **ONLY_NOISE), (0, 1), keep_unprotected=True))
    assert all(torch.allclose(a, fixed[0], atol=1e-6) for a in fixed[1:]) and (fixed[0][:2, -1].abs() > 1e-4).all()


def test_alone_client_sampling_is_no_mistake():
    CoFedMID(**ALONE).check(facts(participation=0.5))
    setup = tiny_setup(CoFedMID(val_min=2, **ALONE), (0, 1), clients=tiny_clients(samples=30), participation=0.5, rounds=4)
    assert len(train_all(setup)[1]) == 4


# -- ways to recycle -------------------------------------------------------------------------------------------------


def recycled(recycle: str, rounds, limit=0.1, **params) -> tuple[list[set[int]], list[set[int]], list[float], int]:
    """What is recycled in each round, what could be, the losses, and the number of training samples."""
    defense, data = started(own_data(200), m_max=0.4, m_min=0.4, val_min=10, recycle=recycle, recycle_limit=limit,
                            recycle_from=1, min_assigned=1, **params)  # fmt: skip
    memory: dict = {}
    usable = set(np.flatnonzero(~data.held_out.numpy()).tolist())
    took, could = [], []
    for t in rounds:
        ctx = member(data, round=t, key=t, memory=memory)
        chosen = defense.select(ctx)
        classes = set(np.flatnonzero(defense.classes[t - 1, 0]).tolist())
        took.append(set(chosen.index[chosen.flag].tolist()))
        could.append({i for i in usable if int(data.y[i]) not in classes})
        before = memory["recycler"].bandit.log_weights.copy()
        defense.after_round(ctx)
        assert np.array_equal(before, memory["recycler"].bandit.log_weights)  # nobody pays the bandit
    losses = cross_entropy(ctx.model(data.x), data.y, reduction="none").tolist()
    return took, could, losses, len(usable)


@pytest.mark.parametrize("recycle", ["random", "sequential"])
@pytest.mark.parametrize("limit", [0.0, 0.05, 0.1])
def test_rivals_of_the_bandit_recycle_a_fixed_share_of_what_is_left(recycle, limit):
    took, could, _, n = recycled(recycle, range(1, 8), limit)
    assert all(t <= c for t, c in zip(took, could, strict=True))
    assert {len(t) for t in took} == {int(limit * n)}


def test_random_recycling_takes_any_of_what_is_left():
    took, could, losses, _ = recycled("random", range(1, 21))
    assert len(set.union(*took)) > 100
    ranks = [sorted(c, key=lambda i: losses[i]).index(i) / len(c) for t, c in zip(took, could, strict=True) for i in t]
    assert np.mean(ranks) == pytest.approx(0.5, abs=0.06)  # 380 ranks: a deviation of .015


def test_sequential_recycling_goes_through_the_losses_from_low_to_high_and_begins_again():
    took, could, losses, n = recycled("sequential", range(1, 21))  # the same model, hence losses, in every round
    order = sorted(set.union(*could), key=lambda i: losses[i])
    assert len(order) == n  # every sample is left out in some round
    place = 0
    for t, c in zip(took, could, strict=True):
        walk = [*order[place:], *order[:place]]
        expected = [i for i in walk if i in c][: int(0.1 * n)]
        assert t == set(expected)
        place = (place + walk.index(expected[-1]) + 1) % n
    assert min(losses[i] for i in took[0]) < min(losses[i] for i in took[1]) < min(losses[i] for i in took[2])


def test_sequential_recycling_takes_all_where_fewer_are_left():
    took, could, _, _ = recycled("sequential", range(1, 5), limit=1.0)
    assert took == could


def test_rivals_of_the_bandit_report_no_draws_but_what_they_recycled():
    setup = tiny_setup(CoFedMID(recycle="random", recycle_from=1, val_min=2), (0, 1), clients=tiny_clients(samples=30))
    said = train_all(setup)[0].facts()
    assert not [name for name in said if "loss interval" in name]
    assert said["recycled share early"] == said["recycled share late"] == pytest.approx(2 / 28)


# -- confidence regularisation ---------------------------------------------------------------------------------------


def test_without_confidence_regularisation_recycled_samples_cost_their_cross_entropy_alone():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(6, CLASSES, generator=g), torch.randint(0, CLASSES, (6,), generator=g)
    batch = Batch(torch.zeros(6, 3), y, torch.arange(6), flag=torch.ones(6, dtype=torch.bool))
    ctx = member(own_data())
    assert CoFedMID(confidence=False).loss(logits, batch, ctx).item() == pytest.approx(cross_entropy(logits, y).item())
    assert CoFedMID().loss(logits, batch, ctx).item() != pytest.approx(cross_entropy(logits, y).item(), abs=1e-3)
    without = CoFedMID().loss(logits, replace(batch, flag=None), ctx).item()
    assert without == pytest.approx(cross_entropy(logits, y).item())
