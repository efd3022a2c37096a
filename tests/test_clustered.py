"""IFCA, IFCA-MIR and local training next to slow references, in the engine and in contexts made by hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU, member_context
from pydantic import ValidationError
from tiny import tiny_clients, tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, Federation, MemberContext, MemberData, ServerContext, UserError
from fedbench.core.federation.loop import Training
from fedbench.core.numerics.flat import FlatModel
from fedbench.plugins.defenses import fedbench_defenses
from fedbench.plugins.defenses.clustered import ifca_mir
from fedbench.plugins.defenses.clustered.ifca import IFCA, empirical_losses
from fedbench.plugins.defenses.clustered.ifca_mir import IFCAMIR, Announcement, costs, privacy_weight
from fedbench.plugins.defenses.clustered.local_only import LocalOnly
from fedbench.plugins.defenses.clustered.red_team import balanced_accuracy, features, fit, random_half, risk

EVERYONE = (0, 1, 2, 3)
FACTS = Federation(clients=4, rounds=20, local_epochs=1, batch_size=5, participation=1.0, n_classes=3, n_params=51)


def draws(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def member(data: MemberData, key: int = 1, threshold: float | None = None) -> MemberContext:
    return member_context(tiny_module(), data, FACTS, key=key, privacy_threshold=threshold)


def models_of(*seeds: int) -> torch.Tensor:
    return torch.stack([FlatModel(tiny_module(seed=s), CPU).params for s in seeds])


def module_with(params: torch.Tensor) -> torch.nn.Module:
    module = tiny_module()
    torch.nn.utils.vector_to_parameters(params.clone(), module.parameters())
    return module


def slow_loss(params: torch.Tensor, data: MemberData, keep=None) -> float:
    """Sample by sample, in float64."""
    module, rows = module_with(params).double(), range(len(data.y)) if keep is None else keep
    with torch.no_grad():
        losses = [float(cross_entropy(module(data.x[i : i + 1].double()), data.y[i : i + 1])) for i in rows]
    return sum(losses) / len(losses)


def descended(params: torch.Tensor, data: MemberData, steps: int, rate: float) -> torch.Tensor:
    """[P] after full-batch gradient steps."""
    module = module_with(params)
    for _ in range(steps):
        module.zero_grad()
        cross_entropy(module(data.x), data.y).backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= rate * p.grad
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def full_batch(defense: Defense, rounds: int = 6, clients=None, n_models: int = 2, **changes):
    """Plain gradient descent, so that a reference needs no shuffle."""
    recipe = dict(batch_size=200, momentum=0.0, weight_decay=0.0, lr=0.3, local_epochs=2, rounds=rounds)
    return tiny_setup(defense, EVERYONE, n_models, clients=clients or tiny_clients(), **{**recipe, **changes})


def two_groups(clients: int = 4, samples: int = 60) -> list[MemberData]:
    """Even clients label by the largest of three coordinates, odd ones by the smallest: no one model serves both."""
    out = []
    for k in range(clients):
        x = draws(100 + k, samples, 4)
        out.append(MemberData(x, x[:, :3].argmax(1) if k % 2 == 0 else x[:, :3].argmin(1)))
    return out


# -- announcements ---------------------------------------------------------------------------------------------------


def test_the_three_are_announced_documented_and_sized():
    found = {c.name: c for c in fedbench_defenses() if ".clustered." in c.target}
    assert set(found) == {"ifca", "ifca-mir", "local-only"}
    for component in found.values():
        module, cls = component.target.split(":")
        made = getattr(import_module(module), cls)()
        assert component.paper and component.summary
        assert all(f.description for f in type(made.params).model_fields.values()), component.name
    assert (IFCA().n_models, IFCA(models=4).n_models, IFCAMIR().n_models, LocalOnly().n_models) == (2, 4, 2, 0)
    assert (IFCA().root_samples, IFCAMIR().root_samples, IFCAMIR(shadow_samples=40).root_samples) == (0, 1000, 40)


def test_the_least_share_of_a_good_start():
    assert IFCA().least_share == pytest.approx(0.35) and IFCA(models=4).least_share == pytest.approx(0.175)
    assert IFCA(least_share=0).least_share == 0 and IFCA(least_share=0.1, models=4).least_share == 0.1
    with pytest.raises(ValidationError, match=r"3 models cannot each be picked by 0\.4 of the members"):
        IFCA(models=3, least_share=0.4)
    with pytest.raises(ValidationError, match="below tolerant"):
        IFCAMIR(sensitive=0.8, tolerant=0.5)


@pytest.mark.parametrize("defense", [IFCA, IFCAMIR])
def test_more_clusters_than_clients_are_refused(defense):
    facts = replace(FACTS, thresholds=True)
    defense(models=4).check(facts)
    with pytest.raises(UserError, match="5 clusters need as many clients, and the federation has 4"):
        defense(models=5).check(facts)


# -- ifca ------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 30))
def test_a_member_picks_the_model_of_least_loss(seed, s, n):
    data = MemberData(draws(seed, n, 4), torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(seed)))
    models = models_of(*range(seed + 1, seed + 1 + s))
    expected = [slow_loss(m, data) for m in models]
    np.testing.assert_allclose(empirical_losses(models, member(data)), expected, rtol=1e-5)
    assert IFCA(models=s).assign(models, member(data)) == int(np.argmin(expected))


def test_samples_held_out_of_training_do_not_count():
    data = tiny_clients(samples=20)[0]
    held = torch.arange(20) >= 12
    models = models_of(1, 2)
    found = empirical_losses(models, member(replace(data, held_out=held)))
    np.testing.assert_allclose(found, [slow_loss(m, data, range(12)) for m in models], rtol=1e-5)
    assert not np.allclose(found, [slow_loss(m, data) for m in models], rtol=1e-3)


def test_a_batch_is_drawn_from_the_own_samples_by_key():
    data = tiny_clients(samples=20)[0]
    models = models_of(1, 2)
    singles = np.array([[slow_loss(m, data, [i]) for m in models] for i in range(20)])
    seen = {}
    for key in range(12):
        found = empirical_losses(models, member(data, key), batch=1)
        np.testing.assert_array_equal(found, empirical_losses(models, member(data, key), batch=1))
        which = np.flatnonzero(np.isclose(singles, found, rtol=1e-4).all(1))  # the same sample for both models
        assert len(which) == 1
        seen[key] = which[0]
    assert len(set(seen.values())) > 3
    everything = empirical_losses(models, member(data))
    np.testing.assert_array_equal(empirical_losses(models, member(data), batch=20), everything)
    np.testing.assert_array_equal(empirical_losses(models, member(data), batch=99), everything)


def test_a_model_without_a_finite_loss_is_never_picked():
    data = tiny_clients()[0]
    models = models_of(1, 2, 3)
    models[0] = float("nan")
    assert IFCA(models=3).assign(models, member(data)) == 1 + int(np.argmin([slow_loss(m, data) for m in models[1:]]))


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_a_whole_training_is_the_papers_algorithm(weights):
    clients = two_groups()
    clients[0] = MemberData(clients[0].x[:20], clients[0].y[:20])  # sizes matter to one of the two means
    federation, results = train_all(full_batch(IFCA(weights=weights), clients=clients))
    models = list(models_of(0, 1))
    for result in results:
        picked = [int(np.argmin([slow_loss(m, data) for m in models])) for data in clients]
        assert result.uploads.model_of == picked
        local = [descended(models[j], data, steps=2, rate=0.3) for j, data in zip(picked, clients, strict=True)]
        for j in range(2):
            mine = [k for k in range(4) if picked[k] == j]
            share = np.array([len(clients[k].y) if weights == "size" else 1.0 for k in mine])
            if mine:
                models[j] = sum(float(w) * local[k] for w, k in zip(share / share.sum(), mine, strict=True))
    torch.testing.assert_close(federation.models, torch.stack(models), rtol=1e-4, atol=1e-5)


def test_clients_of_two_groups_separate_and_each_group_is_served():
    clients = two_groups(samples=150)
    changes = dict(clients=clients, rounds=15, batch_size=25, momentum=0.9, lr=0.1)
    federation, _ = train_all(full_batch(IFCA(), **changes))
    picked = federation.assignment
    assert picked[0] == picked[2] != picked[1] == picked[3]
    plain, _ = train_all(full_batch(Defense(), n_models=1, **changes))
    fresh = two_groups(samples=400)

    def accuracy(params, k):
        return float((module_with(params)(fresh[k].x).argmax(1) == fresh[k].y).float().mean())

    assert min(accuracy(federation.models[picked[k]], k) for k in EVERYONE) > 0.7
    assert np.mean([accuracy(plain.models[0], k) for k in EVERYONE]) < 0.6  # 0.5 is the most that one model can do


@pytest.mark.parametrize("make", [IFCA, lambda: IFCAMIR(every=1, shadow_samples=12, epochs=1)])
def test_a_model_that_nobody_picks_keeps_still(make):
    defense = make()
    setup = full_batch(defense, rounds=3, root=root_of(12))
    setup.initial[1] += 50.0
    setup = replace(setup, thresholds=(0.5,) * 4)
    federation, results = train_all(setup)
    assert {j for r in results for j in r.uploads.model_of} == {0}
    assert torch.equal(federation.models[1], setup.initial[1]) and not torch.equal(federation.models[0], setup.initial[0])
    if isinstance(defense, IFCAMIR):  # half the risks are nobody's to compare
        assert set(defense.announced) == {0}


# -- ifca-mir: the choice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "beta"), [(0.4, 0.9), (0.5, 0.9), (0.65, 0.45), (0.8, 0.0), (1.0, 0.0)])
def test_the_privacy_weight_follows_from_what_a_client_tolerates(threshold, beta):
    assert privacy_weight(threshold, 0.5, 0.8, beta_max=0.9) == pytest.approx(beta)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.5, 1)), min_size=2, max_size=5), st.floats(0, 1), st.floats(0.01, 100)
)
def test_costs_are_the_printed_equation_or_relative_to_the_worst_model(pairs, beta, unit):
    losses, risks = np.array(pairs).T
    raw = [(1 - beta) * f + beta * l for f, l in pairs]
    np.testing.assert_allclose(costs(losses, risks, beta, "raw"), raw)
    relative = [(1 - beta) * f / max(losses) + beta * l / max(risks) for f, l in pairs]
    np.testing.assert_allclose(costs(losses, risks, beta, "relative"), relative)
    np.testing.assert_allclose(costs(losses * unit, risks, beta, "relative"), relative)  # whatever the unit of the loss
    assert max(costs(losses, risks, beta, "relative")) <= 1 + 1e-12


def test_scales_can_decide_otherwise():
    losses, risks = np.array([2.0, 2.4]), np.array([0.9, 0.55])
    assert np.argmin(costs(losses, risks, 0.5, "raw")) == 0 and np.argmin(costs(losses, risks, 0.5, "relative")) == 1


def test_risks_move_the_sensitive_member_and_not_the_tolerant_one():
    data, models = tiny_clients()[0], models_of(1, 2)
    losses = [slow_loss(m, data) for m in models]
    best = int(np.argmin(losses))
    defense = IFCAMIR()
    for threshold in (0.5, 0.65, 0.8):  # before the first examination the loss alone decides
        assert defense.assign(models, member(data, threshold=threshold)) == best
    defense.announced = {best: Announcement(0.9, 5)}  # nor does half an announcement
    assert defense.assign(models, member(data, threshold=0.5)) == best
    defense.announced[1 - best] = Announcement(0.5, 5)
    picked = {t: defense.assign(models, member(data, threshold=t)) for t in (0.4, 0.5, 0.8, 0.9)}
    assert picked == {0.4: 1 - best, 0.5: 1 - best, 0.8: best, 0.9: best}
    assert IFCAMIR.assign(with_risks(IFCAMIR(beta_max=0), defense.announced), models, member(data)) == best
    gap = min(losses) / max(losses)  # the least beta at which they change: (1 - b) gap + b = (1 - b) + b (0.5 / 0.9)
    turn = (1 - gap) / ((1 - gap) + (1 - 0.5 / 0.9))
    for b, expected in ((turn - 0.02, best), (turn + 0.02, 1 - best)):
        assert defense.assign(models, member(data, threshold=0.8 - 0.3 * b)) == expected


def with_risks(defense: IFCAMIR, announced) -> IFCAMIR:
    defense.announced = dict(announced)
    return defense


def test_a_raised_risk_makes_the_sensitive_clients_migrate_in_a_running_federation():
    defense = IFCAMIR(every=100, shadow_samples=12)
    clients = two_groups()
    setup = full_batch(defense, rounds=4, clients=clients, root=root_of(12))
    good = torch.stack([descended(setup.initial[j], clients[j], 10, 0.3) for j in (0, 1)])
    training = Training(replace(setup, initial=good, thresholds=(0.8, 0.5, 0.8, 0.8)))
    rounds = training.rounds()
    for _ in range(2):
        next(rounds)
        assert training.assignment == {0: 0, 1: 1, 2: 0, 3: 1}
    defense.announced = {0: Announcement(0.5, 2), 1: Announcement(0.95, 2)}
    next(rounds)
    assert training.assignment == {0: 0, 1: 0, 2: 0, 3: 1}  # client 3 shares its data's kind, not its worries


def test_a_setting_without_thresholds_is_refused_in_the_first_round():
    with pytest.raises(UserError, match=r"thresholds: \[0.5, 0.8\]"):
        train_all(full_batch(IFCAMIR(), rounds=1))
    train_all(full_batch(IFCAMIR(beta_max=0), rounds=1))


@pytest.mark.parametrize(("params", "tolerates"), [({}, 0.8), ({"beta_max": 0.0}, 0.5)])
def test_without_privacy_weight_it_is_ifca_to_the_bit(params, tolerates):
    changes = dict(rounds=6, clients=two_groups(), batch_size=16, momentum=0.9, lr=0.1)
    defense = IFCAMIR(every=2, shadows=1, shadow_samples=12, epochs=1, batch=7, **params)
    setup = replace(full_batch(defense, root=root_of(12), **changes), thresholds=(tolerates,) * 4)
    ours, results = train_all(setup)
    theirs, expected = train_all(full_batch(IFCA(batch=7), **changes))
    assert len(defense.announced) == 2 and torch.equal(ours.models, theirs.models)
    assert [r.uploads.model_of for r in results] == [r.uploads.model_of for r in expected]


# -- ifca-mir: the red team ------------------------------------------------------------------------------------------


def root_of(n: int, classes: int = 3) -> MemberData:
    """Random labels: nothing to learn but by heart. The first coordinate is the sample's number."""
    x = torch.cat([torch.arange(n).float()[:, None], draws(5, n, 3)], dim=1)
    return MemberData(x, torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(6)))


class Shadows:
    """A server whose training writes down whom it saw: the shadow's parameters are its training set."""

    def __init__(self, n: int, memorises=lambda call: True) -> None:
        self.root, self.n, self.memorises = root_of(n), n, memorises
        self.calls: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def train(self, params, x, y, epochs):
        seen = torch.zeros(self.n)
        seen[x[:, 0].long()] = 1.0
        self.calls.append((params, seen, epochs))
        return seen if self.memorises(len(self.calls)) else torch.zeros(self.n)

    def logits(self, params, x):
        i = x[:, 0].long()
        noise = draws(8, self.n, 3)[i] * 0.5
        return noise + 4 * params[i, None] * torch.eye(3)[self.root.y[i]]

    def context(self, key: int = 3, round: int = 5, j: int = 0, memory=None, rounds: int = 20) -> ServerContext:
        return ServerContext(
            key=key,
            device=CPU,
            federation=replace(FACTS, rounds=rounds),
            round=round,
            params=torch.full((self.n,), 7.0),
            participants=(0, 1),
            memory={} if memory is None else memory,
            model_index=j,
            root=self.root,
            logits=self.logits,
            train=self.train,
        )


def test_the_red_team_tells_a_model_that_memorises_from_one_that_does_not():
    assert risk(torch.zeros(300), Shadows(300).context(), shadows=3, epochs=10) > 0.95
    blind = [risk(torch.zeros(300), Shadows(300, lambda call: False).context(key), 3, 10) for key in range(5)]
    assert abs(np.mean(blind) - 0.5) < 0.05


def test_the_red_team_is_judged_on_a_shadow_that_its_attack_never_saw():
    learnt_only = Shadows(300, lambda call: call <= 3)  # the fourth, held-out one gives nothing away
    assert abs(risk(torch.zeros(300), learnt_only.context(), 3, 10) - 0.5) < 0.1
    start = draws(9, 300)
    server = Shadows(300)
    risk(start, server.context(), shadows=3, epochs=7)
    assert len(server.calls) == 4 and all(torch.equal(p, start) and e == 7 for p, _, e in server.calls)
    assert all(int(seen.sum()) == 150 for _, seen, _ in server.calls)
    assert len({tuple(seen.tolist()) for _, seen, _ in server.calls}) == 4


def test_the_red_team_is_keyed():
    half = [risk(torch.zeros(60), Shadows(60, lambda call: call % 2 == 0).context(key), 2, 1) for key in (1, 1, 2, 3)]
    assert half[0] == half[1] and len(set(half)) > 1
    with pytest.raises(RuntimeError, match="no root samples"):
        risk(torch.zeros(60), replace(Shadows(60).context(), root=None), 2, 1)


def test_features_are_sorted_confidences_and_the_label():
    logits, y = draws(1, 6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    both = features(logits, y), features(logits, y, "true-first")
    for row, first, z, label in zip(*both, logits.double().tolist(), y.tolist(), strict=True):
        p = [np.exp(v) / sum(np.exp(u) for u in z) for v in z]
        one_hot = [float(c == label) for c in range(4)]
        np.testing.assert_allclose(row, [*sorted(p, reverse=True), *one_hot], rtol=1e-12)
        others = sorted((v for c, v in enumerate(p) if c != label), reverse=True)
        np.testing.assert_allclose(first, [p[label], *others, *one_hot], rtol=1e-12)


def test_halves_accuracy_and_the_attack_model():
    assert random_half(9, np.random.default_rng(0)).sum() == 4
    member_of = np.array([True, True, True, False])
    assert balanced_accuracy(np.array([True, False, True, True]), member_of) == pytest.approx((2 / 3 + 0) / 2)
    assert balanced_accuracy(member_of, member_of) == 1 and balanced_accuracy(~member_of, member_of) == 0
    x = np.random.default_rng(1).normal(size=(400, 3))
    attack = fit(x, np.abs(x[:, 0]) > 0.67, seed=1)  # no linear attack could do it
    assert balanced_accuracy(attack.predict(x).astype(bool), np.abs(x[:, 0]) > 0.67) > 0.85
    assert attack.n_iter_ == 50


def test_models_are_examined_every_so_many_rounds_and_late_when_idle():
    defense, server, memories = IFCAMIR(every=5, shadows=1, epochs=1), Shadows(40), ({}, {})
    for t in range(1, 21):
        for j in (0, 1):
            if j == 0 or t not in (5, 6, 15):  # nobody picks model 1 in these rounds
                ctx = server.context(key=t, round=t, j=j, memory=memories[j])
                step = defense.aggregate(torch.ones(2, 40), torch.tensor([0.25, 0.75]), ctx)
                torch.testing.assert_close(step, torch.ones(40))
        if t == 7:
            assert {j: a.round for j, a in defense.announced.items()} == {0: 5, 1: 7}
    # after the last round there is nobody left to tell
    assert set(defense.history) == {(5, 0), (10, 0), (15, 0), (7, 1), (10, 1), (16, 1)}
    assert {j: (a.risk, a.round) for j, a in defense.announced.items()} == {
        0: (defense.history[15, 0], 15), 1: (defense.history[16, 1], 16),
    }  # fmt: skip


@pytest.mark.parametrize(("start", "expected"), [("model", 9.0), ("initial", 7.0)])
def test_shadows_continue_the_new_model_or_start_where_it_did(start, expected):
    defense, server, memory = IFCAMIR(every=2, shadows=1, epochs=1, start=start), Shadows(40), {}
    ctx = server.context(round=1, memory=memory)
    defense.aggregate(torch.ones(1, 40), torch.ones(1), ctx)
    moved = replace(ctx, round=2, params=ctx.params + 1)
    defense.aggregate(torch.ones(1, 40), torch.ones(1), moved)
    assert len(server.calls) == 2 and all(bool((p == expected).all()) for p, _, _ in server.calls)


def test_an_adversary_that_tries_the_rule_changes_no_announcement():
    outcomes = []
    for tries in (0, 2):
        defense, server, memory = IFCAMIR(every=5, shadows=1, epochs=1), Shadows(40, lambda call: call % 2 == 0), {}
        for t in range(tries):
            probe = server.context(key=99 + t, memory=deepcopy(memory))
            defense.aggregate(torch.full((2, 40), float(t)), torch.ones(2) / 2, probe)
        server.calls.clear()
        defense.aggregate(torch.ones(2, 40), torch.ones(2) / 2, server.context(memory=memory))
        outcomes.append((defense.announced, defense.history))
    assert outcomes[0] == outcomes[1]


def test_in_the_engine_the_risk_grows_with_what_shadows_learn_by_heart():
    def found(epochs):
        defense = IFCAMIR(every=1, shadows=3, shadow_samples=200, epochs=epochs, confidences="true-first")
        setup = full_batch(
            defense, rounds=3, module=tiny_module(width=48), n_models=1, batch_size=16, momentum=0.9, lr=0.1, root=root_like(200)
        )  # fmt: skip
        train_all(replace(setup, initial=setup.initial.repeat(2, 1), thresholds=(0.5,) * 4))
        return list(defense.history.values())

    memorised, fresh = found(60), found(1)
    assert len(memorised) == len(fresh) == 2 and min(memorised) > 0.65 > np.mean(fresh)


def root_like(n: int) -> MemberData:
    return MemberData(draws(11, n, 4), torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(12)))


def test_the_examination_leaves_the_training_as_it_was(monkeypatch):
    changes = dict(rounds=4, batch_size=16, clients=two_groups(), root=root_like(12))
    thresholds = (0.8,) * 4
    examined, _ = train_all(replace(full_batch(IFCAMIR(every=1, shadow_samples=12, epochs=2), **changes), thresholds=thresholds))
    assert len(examined.defense.history) > 0
    monkeypatch.setattr(ifca_mir, "risk", lambda *_: 0.5)
    spared, _ = train_all(replace(full_batch(IFCAMIR(every=1, shadow_samples=12, epochs=2), **changes), thresholds=thresholds))
    assert torch.equal(examined.models, spared.models)


# -- local-only ------------------------------------------------------------------------------------------------------


def test_local_training_shares_nothing():
    clients = two_groups()
    federation, _ = train_all(full_batch(LocalOnly(), rounds=3, clients=clients, n_models=4))
    assert federation.assignment == {k: k for k in EVERYONE}
    for k, start in enumerate(models_of(*range(4))):
        torch.testing.assert_close(federation.models[k], descended(start, clients[k], 6, 0.3), rtol=1e-4, atol=1e-5)
    strangers = [MemberData(-c.x, c.y) if k else c for k, c in enumerate(clients)]
    others, _ = train_all(full_batch(LocalOnly(), rounds=3, clients=strangers, n_models=4))
    assert torch.equal(others.models[0], federation.models[0]) and not torch.equal(others.models[1], federation.models[1])


def test_who_does_not_defend_has_a_model_of_its_own_too():
    federation, _ = train_all(tiny_setup(LocalOnly(), (0,), 4))
    assert federation.assignment == {k: k for k in EVERYONE}
