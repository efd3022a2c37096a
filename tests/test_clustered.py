"""IFCA, IFCA-MIR and local training next to slow references, in the engine and in contexts made by
hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from defense_cases import installed, made
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU, facts_of, generator, member_context
from pydantic import ValidationError
from tiny import tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.testing import assert_close

from fedbench.core import MemberData, ServerContext, UserError
from fedbench.core.federation.compose import allied

EVERYONE = (0, 1, 2, 3)


def draws(seed, *shape):
    return torch.randn(*shape, generator=generator(seed))


def labels(seed, n):
    return torch.randint(0, 3, (n,), generator=generator(seed))


def member(data, key=1, threshold=None):
    return member_context(tiny_module(), data, facts_of(51), key=key, privacy_threshold=threshold)


def module_with(params):
    module = tiny_module()
    vector_to_parameters(params.clone(), module.parameters())
    return module


def models_of(*seeds):
    modules = [tiny_module(seed=s) for s in seeds]
    return torch.stack([parameters_to_vector(m.parameters()).detach() for m in modules])


def slow_losses(models, data):
    """[models, samples] in float64."""
    with torch.no_grad():
        logits = [module_with(m).double()(data.x.double()) for m in models]
    return np.array(
        [
            [-float(z.log_softmax(0)[y]) for z, y in zip(of_model, data.y, strict=True)]
            for of_model in logits
        ]
    )


# -- ifca ------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(4, 30), st.booleans())
@settings(max_examples=15)
def test_a_member_picks_the_model_of_least_loss_on_what_it_trains_on(seed, s, n, diverged):
    data = MemberData(draws(seed, n, 4), labels(seed, n), held_out=torch.arange(n) < n // 2)
    models = models_of(*range(seed + 1, seed + 1 + s))
    expected = slow_losses(models, data)[:, n // 2 :].mean(1)
    if diverged:
        # a model without a finite loss is never picked
        models[0], expected[0] = float("nan"), np.inf
    assert made("ifca", models=s).assign(models, member(data)) == int(np.argmin(expected))


@pytest.mark.parametrize("batch", [3, 99])
def test_a_batch_is_drawn_by_key_from_the_own_samples_the_same_for_all_models(batch):
    data, models = MemberData(draws(1, 20, 4), labels(1, 20)), models_of(1, 2)
    # positive where the first model is the better one
    apart = np.diff(slow_losses(models, data), axis=0)[0]
    drawn = [member(data, key).rng.choice(20, min(batch, 20), replace=False) for key in range(12)]
    picked = [made("ifca", batch=batch).assign(models, member(data, key)) for key in range(12)]
    assert picked == [int(apart[d].mean() < 0) for d in drawn]
    assert len(set(picked)) == (2 if batch == 3 else 1)


def descended(params, data, steps, rate):
    """[P] after full-batch gradient steps."""
    module = module_with(params)
    for _ in range(steps):
        module.zero_grad()
        cross_entropy(module(data.x), data.y).backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= rate * p.grad
    return parameters_to_vector(module.parameters()).detach()


def full_batch(defense, n_models=2, **changes):
    """Plain gradient descent, so that a reference needs no shuffle."""
    recipe = {
        "batch_size": 200,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "lr": 0.3,
        "rounds": 6,
        "clients": two_groups(),
    }
    return tiny_setup(defense, EVERYONE, n_models, **{**recipe, **changes})


def two_groups():
    """Even clients label by the largest of three coordinates, odd ones by the smallest: no one
    model serves both.
    """
    xs = [draws(100 + k, 20 if k == 0 else 60, 4) for k in EVERYONE]
    return [
        MemberData(x, x[:, :3].argmax(1) if k % 2 == 0 else x[:, :3].argmin(1))
        for k, x in enumerate(xs)
    ]


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_a_whole_training_is_the_papers_algorithm(weights):
    clients = two_groups()
    federation, results = train_all(full_batch(made("ifca", weights=weights)))
    models = list(models_of(0, 1))
    for result in results:
        picked = [
            int(np.argmin([slow_losses([m], data).mean() for m in models])) for data in clients
        ]
        assert result.uploads.model_of == picked
        local = [
            descended(models[j], data, steps=2, rate=0.3)
            for j, data in zip(picked, clients, strict=True)
        ]
        for j in range(2):
            mine = [k for k in EVERYONE if picked[k] == j]
            share = np.array([len(clients[k].y) if weights == "size" else 1.0 for k in mine])
            if mine:
                models[j] = sum(
                    float(w) * local[k] for w, k in zip(share / share.sum(), mine, strict=True)
                )
    assert set(picked) == {0, 1}
    assert_close(federation.models, torch.stack(models), rtol=1e-4, atol=1e-5)


def test_local_training_shares_nothing():
    federation, _ = train_all(full_batch(made("local-only"), 4, rounds=3))
    assert federation.assignment == {k: k for k in EVERYONE}
    for k, start in enumerate(models_of(*EVERYONE)):
        assert_close(
            federation.models[k], descended(start, two_groups()[k], 6, 0.3), rtol=1e-4, atol=1e-5
        )


def test_data_is_prepared_beside_the_model_that_the_client_trains():
    starts = {}

    class Notes(installed("local-only")):
        def prepare(self, data, ctx):
            assert torch.equal(ctx.params, ctx.start)
            starts[ctx.client] = ctx.start.clone()
            return data

    train_all(full_batch(Notes(), 4, rounds=1))
    assert_close(torch.stack([starts[k] for k in EVERYONE]), models_of(*EVERYONE))


# -- ifca-mir: the choice --------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.5, 1), min_size=3, max_size=3),
    st.sampled_from([0.4, 0.5, 0.6, 0.65, 0.75, 0.8, 0.9]),
    st.sampled_from(["relative", "raw"]),
    st.sampled_from([1.0, 0.5, 1.0, 0.0]),
    st.sampled_from([3, 3, 3, 3, 2, 0]),
    st.integers(0, 999),
)
@settings(max_examples=60)
def test_a_member_weighs_loss_against_announced_risk_by_what_it_tolerates(
    risks, threshold, scale, beta_max, announced, seed
):
    data, models = MemberData(draws(seed, 12, 4), labels(seed, 12)), models_of(1, 2, 3)
    defense = made("ifca-mir", models=3, scale=scale, beta_max=beta_max)
    defense.announced = {j: risks[j] for j in range(announced)}
    losses, risks = slow_losses(models, data).mean(1), np.array(risks)
    # before that the loss alone decides
    beta = beta_max * min(1, max(0, (0.8 - threshold) / 0.3)) if announced == 3 else 0
    if scale == "relative" and beta:
        losses, risks = losses / losses.max(), risks / risks.max()
    costs = (1 - beta) * losses + beta * risks
    picked = defense.assign(models, member(data, threshold=threshold))
    assert costs[picked] <= costs.min() + 1e-6


def test_a_member_that_the_server_cannot_tell_a_risk_is_refused():
    """Of several groups only the first one's instance acts at the server."""
    groups = ((0, 1), (2, 3))
    root = MemberData(draws(11, 12, 4), labels(12, 12))
    params = {"every": 2, "shadows": 1, "shadow_samples": 12}

    def trained(**changes):
        defense = allied(groups, lambda: made("ifca-mir", **params, **changes))
        return train_all(replace(full_batch(defense, root=root), thresholds=(0.6,) * 4))

    with pytest.raises(UserError, match="first group of clients alone, and client 2 is of"):
        trained()
    trained(beta_max=0)


@given(
    st.lists(st.sampled_from([0.5, 0.6, 0.7, 0.8]), min_size=3, max_size=3),
    st.sampled_from([0.5, 0.55, 0.65, 0.7, 0.9]),
    st.integers(0, 999),
)
@settings(max_examples=40)
def test_a_member_takes_the_least_loss_it_tolerates_else_the_least_risk(risks, threshold, seed):
    data, models = MemberData(draws(seed, 12, 4), labels(seed, 12)), models_of(1, 2, 3)
    defense = made("ifca-mir", models=3, rule="tolerated")
    defense.announced = dict(enumerate(risks))
    losses = slow_losses(models, data).mean(1)
    expected = min(range(3), key=lambda j: (risks[j] > threshold, losses[j]))
    if min(risks) > threshold:
        expected = risks.index(min(risks))
    assert defense.assign(models, member(data, threshold=threshold)) == expected


@pytest.mark.parametrize(("recipes", "asked"), [(200, None), (5, 12)])
def test_the_server_trains_by_the_federations_recipe_and_leaves_the_clients_training_as_it_was(
    recipes, asked
):
    shadows = []

    class Examines(installed("ifca")):
        def aggregate(self, updates, weights, ctx):
            found = ctx.train(ctx.params, ctx.root.x, ctx.root.y, 2, asked)
            assert ctx.sizes == tuple(20 if k == 0 else 60 for k in ctx.participants)
            shadows.append((found, descended(ctx.params, ctx.root, 2, 0.3)))
            return super().aggregate(updates, weights, ctx)

    root = MemberData(draws(11, 12, 4), labels(12, 12))
    examined, plain = (
        train_all(full_batch(d, root=root, rounds=3, batch_size=recipes))[0]
        for d in (Examines(), made("ifca"))
    )
    assert torch.equal(examined.models, plain.models) and len(shadows) >= 3
    for found, expected in shadows:
        assert_close(found, expected, rtol=1e-4, atol=1e-6)


# -- ifca-mir: the red team ------------------------------------------------------------------------


class Shadows:
    """A server with a training that records its samples: the shadow's parameters are its training
    set.
    """

    def __init__(self, n, memorises=lambda call: True):
        # the first coordinate is the sample's number
        x = torch.cat([torch.arange(n).float()[:, None], draws(5, n, 3)], dim=1)
        self.root, self.n, self.memorises = MemberData(x, labels(6, n)), n, memorises
        self.calls = []

    def train(self, params, x, y, epochs, batch_size):
        seen = torch.zeros(self.n)
        seen[x[:, 0].long()] = 1.0
        self.calls.append((params, seen, epochs, batch_size))
        return seen if self.memorises(len(self.calls)) else torch.zeros(self.n)

    def logits(self, params, x):
        i = x[:, 0].long()
        return draws(8, self.n, 3)[i] * 0.5 + 4 * params[i, None] * torch.eye(3)[self.root.y[i]]

    def examine(self, defense, t=5, j=0, key=3, memory=None, sizes=(999, 999), **facts):
        """One aggregation of two rows of ones, after which the model may be examined."""
        ctx = ServerContext(
            key=key,
            device=CPU,
            federation=facts_of(51, rounds=20, **facts),
            round=t,
            params=torch.full((self.n,), 7.0),
            participants=(0, 1),
            sizes=sizes,
            memory={} if memory is None else memory,
            model_index=j,
            root=self.root,
            logits=self.logits,
            train=self.train,
        )
        return defense.aggregate(torch.ones(2, self.n), torch.tensor([0.25, 0.75]), ctx)


def risk(memorises=lambda call: True, key=3):
    defense = made("ifca-mir", shadows=3)
    Shadows(300, memorises).examine(defense, key=key)
    return defense.history[5, 0]


def test_the_red_team_tells_a_model_that_memorises_judged_on_a_shadow_that_its_attack_never_saw():
    assert risk() > 0.95
    assert abs(np.mean([risk(lambda call: False, key) for key in range(5)]) - 0.5) < 0.05
    # the fourth, held-out one gives nothing away
    assert abs(risk(lambda call: call <= 3) - 0.5) < 0.1


@pytest.mark.parametrize(
    ("sizes", "facts", "samples", "epochs"),
    [
        ((4, 3), {}, 7, 6),
        ((40, 20), {}, 20, 6),  # half of the server's
        ((4, 4), {"local_epochs": 3}, 8, 18),
        ((16, 16), {"local_batches": 1}, 20, 3),  # one batch of 8 is half of an epoch
        ((4, 4), {"participation": 0.5}, 16, 3),
    ],
)
def test_shadows_have_as_many_samples_passes_and_steps_as_the_models_clients_together(
    sizes, facts, samples, epochs
):
    server, defense = Shadows(41), made("ifca-mir", every=2, shadows=3)
    server.examine(defense, 6, sizes=sizes, **facts)
    halves = {tuple(seen.tolist()) for _, seen, _, _ in server.calls}
    assert len(server.calls) == 4 and len(halves) == 4
    for params, seen, passes, batch in server.calls:
        assert bool((params == 7.0).all())  # where the model started
        assert (int(seen.sum()), passes, batch) == (samples, epochs, 16)


def test_shadows_go_on_with_their_halves_until_the_models_samples_change_in_number():
    server, defense, memory = Shadows(41), made("ifca-mir", every=2, shadows=1), {}
    for t, sizes in ((2, (4, 3)), (3, (4, 3)), (4, (3, 4)), (6, (4, 2))):
        server.examine(defense, t, memory=memory, sizes=sizes)
    first, second, third = server.calls[:2], server.calls[2:4], server.calls[4:]
    assert [passes for _, _, passes, _ in server.calls] == [2, 2, 2, 2, 6, 6]
    for (_, before, _, _), (params, seen, _, _) in zip(first, second, strict=True):
        assert torch.equal(seen, before) and torch.equal(params, before)
    assert all(bool((params == 7.0).all()) and int(seen.sum()) == 6 for params, seen, *_ in third)


def regressed(params, x, y, epochs, batch_size):
    """Softmax regression [P] by plain gradient descent."""
    w = params.clone()
    for _ in range(epochs):
        for rows in torch.arange(len(y)).split(batch_size):
            p = (x[rows] @ w.reshape(60, 3)).softmax(1) - torch.eye(3)[y[rows]]
            w -= 0.5 * (x[rows].T @ p / len(rows)).reshape(-1)
    return w


def best_accuracy(inside, outside):
    """Balanced accuracy of the best threshold of a loss."""
    cuts = torch.cat([inside, outside])
    return float(
        ((inside <= cuts[:, None]).float().mean(1) / 2 + 0.5)
        .sub((outside <= cuts[:, None]).float().mean(1) / 2)
        .max()
    )


def test_the_announced_risk_is_that_of_the_models_clients_where_one_model_memorises():
    announced, truth = {}, {}
    defense = made("ifca-mir", every=20, shadows=3, confidences="true-first", shadow_samples=4)
    root = MemberData(draws(1, 1200, 60), labels(2, 1200))
    for j, clients in enumerate((5, 60)):  # of ten samples each, with labels by chance
        ctx = ServerContext(
            key=j,
            device=CPU,
            federation=facts_of(180, rounds=200, batch_size=5),
            round=100,
            params=torch.zeros(180),
            participants=tuple(range(clients)),
            sizes=(10,) * clients,
            memory={},
            model_index=j,
            root=root,
            logits=lambda params, x: x @ params.reshape(60, 3),
            train=regressed,
        )
        defense.aggregate(torch.zeros(clients, 180), torch.full((clients,), 1 / clients), ctx)
        announced[j] = defense.announced[j]
        x, y = draws(3, 1200, 60), labels(4, 1200)
        n = 10 * clients
        model = regressed(torch.zeros(180), x[:n], y[:n], 100, 5 * clients).reshape(60, 3)
        losses = cross_entropy(x @ model, y, reduction="none")
        truth[j] = best_accuracy(losses[:n], losses[n:])
    assert truth[0] > 0.9 and truth[1] < 0.65
    for j in (0, 1):
        assert abs(announced[j] - truth[j]) < 0.12, (announced, truth)


def test_models_are_examined_every_so_many_rounds_and_late_when_idle():
    defense, server, memories = (
        made("ifca-mir", every=5, shadows=1),
        Shadows(40),
        ({}, {}),
    )
    for t in range(1, 21):
        for j in (0, 1):
            if j == 0 or t not in (5, 6, 15):  # no member picks model 1 in these rounds
                server.examine(defense, t, j, key=t, memory=memories[j])
        if t == 7:
            assert defense.announced == {0: defense.history[5, 0], 1: defense.history[7, 1]}
    # not after the last round, when no client is left to tell
    assert set(defense.history) == {(5, 0), (10, 0), (15, 0), (7, 1), (10, 1), (16, 1)}
    assert defense.announced == {0: defense.history[15, 0], 1: defense.history[16, 1]}


def test_announcements_begin_in_the_first_round_that_is_asked_for():
    defense, server, memory = made("ifca-mir", every=5, first_round=12), Shadows(40), {}
    for t in range(1, 20):
        server.examine(defense, t, memory=memory)
    assert set(defense.history) == {(12, 0), (15, 0)}


# -- what is stated and refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda: made("ifca", models=3, least_share=0.4),
            r"3 models cannot each be picked by 0\.4 of the members",
        ),
        (lambda: made("ifca-mir", sensitive=0.8, tolerant=0.8), "below tolerant"),
        (
            lambda: made("ifca", models=5).check(facts_of(9)),
            "5 clusters need as many clients, and the federation has 4",
        ),
        (lambda: train_all(full_batch(made("ifca-mir"), rounds=1)), r"thresholds: \[0.5, 0.8\]"),
        (
            lambda: made("ifca-mir", first_round=10).check(facts_of(9, thresholds=True)),
            "after round 10, and the federation has 10 rounds",
        ),
    ],
    ids=["shares", "order", "clusters", "thresholds", "late"],
)
def test_what_cannot_be_clustered_is_refused(refused, says):
    made("ifca", models=4).check(facts_of(9))
    made("ifca-mir", beta_max=0).check(facts_of(9))
    made("ifca-mir", first_round=9).check(facts_of(9, thresholds=True))
    with pytest.raises((UserError, ValidationError), match=says):
        refused()
