"""The round loop: plain FedAvg against torch.optim, and a toy plugin for every phase of the design."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import tiny_clients, tiny_federation, tiny_insider, tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import ActiveAttack, Defense, Diverged, Selection, UserError
from fedbench.core.federation.guard import PhaseError
from fedbench.core.federation.schedule import lr_at
from fedbench.core.numerics.rng import key_for


def slow_fedavg(setup, rounds):
    """FedAvg the obvious way: torch.optim.SGD, a module per client, state dicts averaged by |D_k|."""
    c, module = setup.config, tiny_module()
    rule = c.optimizer
    for t in range(1, rounds + 1):
        sent, sizes = [], []
        for k, data in enumerate(setup.clients):
            local = tiny_module()
            local.load_state_dict(module.state_dict())
            optimizer = torch.optim.SGD(local.parameters(), lr_at(c, t), rule.momentum, weight_decay=rule.weight_decay)
            shuffle = torch.Generator().manual_seed(key_for(setup.seed, "shuffle", t, k) >> 1)
            for _ in range(c.local_epochs):
                order = torch.randperm(len(data.y), generator=shuffle)
                for pick in order.split(c.batch_size):
                    optimizer.zero_grad()
                    cross_entropy(local(data.x[pick]), data.y[pick]).backward()
                    optimizer.step()
            sent.append(local.state_dict())
            sizes.append(len(data.y))
        mean = {n: sum(s[n] * w for s, w in zip(sent, sizes, strict=True)) / sum(sizes) for n in sent[0]}
        module.load_state_dict(mean)
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_plain_training_is_fedavg_with_sgd():
    clients = tiny_clients()
    clients[2] = dataclasses.replace(clients[2], x=clients[2].x[:7], y=clients[2].y[:7])  # unequal weights
    setup = tiny_setup(clients=clients, schedule={"name": "exponential", "factor": 0.9})
    federation, _ = train_all(setup)
    torch.testing.assert_close(federation.models[0], slow_fedavg(setup, 3), rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    a, b, c = (train_all(tiny_setup(seed=s))[0].models for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_member_without_phases_trains_like_everybody_else():
    assert torch.equal(train_all(tiny_setup(members=()))[0].models, train_all(tiny_setup(members=(0, 1, 2)))[0].models)


def test_a_defense_that_changes_nothing_changes_no_bit():
    class Same(Defense):
        def select(self, ctx):
            return None

        def transform(self, batch, ctx):
            return batch

        def protect(self, update, ctx):
            return update

    assert torch.equal(train_all(tiny_setup(Same()))[0].models, train_all(tiny_setup())[0].models)


def test_partial_participation_takes_keyed_cohorts():
    _, results = train_all(tiny_setup(participation=0.5, rounds=8, members=()))
    cohorts = [r.uploads.participants for r in results]
    assert all(len(c) == 2 for c in cohorts) and len(set(cohorts)) > 1
    _, again = train_all(tiny_setup(participation=0.5, rounds=8, members=()))
    assert [r.uploads.participants for r in again] == cohorts


def test_dropout_does_not_depend_on_what_was_drawn_before():
    def run():
        module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3))
        with torch.no_grad():
            for p in module.parameters():
                p.fill_(0.1)
        return train_all(tiny_setup(module=module))[0].models

    first = run()
    torch.rand(17)
    assert torch.equal(first, run())


def test_buffers_are_averaged_and_not_part_of_the_update():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(0.1)
    setup = tiny_setup(module=module, rounds=1, members=())
    federation, (result,) = train_all(setup)
    assert setup.flat.params.numel() == sum(p.numel() for p in module.parameters())
    torch.testing.assert_close(federation.buffers[0], result.uploads.buffers.mean(0))
    assert not torch.equal(federation.buffers[0], torch.cat([torch.zeros(6), torch.ones(6)]))


# -- a toy plugin for every phase ------------------------------------------------------------------------------------


def test_begin_sees_public_facts_only_and_runs_once():
    seen = []

    class Toy(Defense):
        def begin(self, ctx):
            seen.append(ctx)

    train_all(tiny_setup(Toy(), members=(1, 3)))
    (ctx,) = seen
    assert (ctx.members, ctx.present, ctx.sizes, ctx.round) == ((1, 3), (1, 3), (12, 12), 0)
    assert ctx.weights == (0.25, 0.25) and ctx.federation.clients == 4 and ctx.federation.n_classes == 3
    names = {f.name for f in dataclasses.fields(ctx)}
    assert not names & {"data", "x", "y", "model", "params", "audit"}


def test_prepare_holds_samples_out_of_plain_training():
    class Toy(Defense):
        def prepare(self, data, ctx):
            held = torch.zeros(len(data.y), dtype=torch.bool)
            held[:6] = True
            return dataclasses.replace(data, held_out=held)

    clients = tiny_clients()
    _, results = train_all(tiny_setup(Toy(), members=(0,), rounds=1))
    clients[0] = dataclasses.replace(clients[0], x=clients[0].x[6:], y=clients[0].y[6:])
    _, expected = train_all(tiny_setup(clients=clients, members=(), rounds=1))
    assert torch.equal(results[0].uploads.updates[1:], expected[0].uploads.updates[1:])
    assert torch.equal(results[0].uploads.updates[0], expected[0].uploads.updates[0])


def test_prepare_may_give_soft_labels():
    class Toy(Defense):
        def prepare(self, data, ctx):
            return dataclasses.replace(data, soft=torch.nn.functional.one_hot(data.y, 3).float())

    soft, hard = train_all(tiny_setup(Toy()))[0].models, train_all(tiny_setup())[0].models
    torch.testing.assert_close(soft, hard, rtol=1e-5, atol=1e-6)


def test_select_trains_on_the_selection_with_its_flags():
    flags = []

    class Toy(Defense):
        def select(self, ctx):
            index = torch.arange(0, len(ctx.data.y), 2)
            return Selection(index, flag=index * 10)

        def loss(self, logits, batch, ctx):
            flags.append((batch.index, batch.flag))
            return super().loss(logits, batch, ctx)

    train_all(tiny_setup(Toy(), members=(2,), rounds=1))
    assert {int(i) for index, _ in flags for i in index} == {0, 2, 4, 6, 8, 10}
    assert all(torch.equal(index * 10, flag) for index, flag in flags)


def test_an_empty_selection_uploads_the_received_model():
    class Toy(Defense):
        def select(self, ctx):
            return Selection(torch.zeros(0, dtype=torch.int64))

    _, results = train_all(tiny_setup(Toy(), members=(2,), rounds=1))
    assert not results[0].uploads.updates[2].any() and results[0].uploads.updates[1].any()


def test_transform_changes_what_the_model_sees():
    class Toy(Defense):
        def transform(self, batch, ctx):
            return dataclasses.replace(batch, x=torch.zeros_like(batch.x))

    _, results = train_all(tiny_setup(Toy(), members=(0,), rounds=1, weight_decay=0.0))
    first_layer = results[0].uploads.updates[0][: 6 * 4]
    assert not first_layer.any() and results[0].uploads.updates[1][: 6 * 4].any()


def test_local_step_hands_its_gradient_to_the_optimiser():
    class Toy(Defense):
        def local_step(self, batch, ctx):
            return torch.ones_like(ctx.params)

    setup = tiny_setup(Toy(), members=(0,), rounds=1, local_epochs=1, batch_size=12, weight_decay=0.0)
    _, results = train_all(setup)
    torch.testing.assert_close(results[0].uploads.updates[0], torch.full((setup.flat.params.numel(),), -0.1))


def test_local_step_with_mean_per_sample_gradients_is_the_default_step():
    class Toy(Defense):
        def local_step(self, batch, ctx):
            return ctx.per_sample_gradients(batch.x, batch.y).mean(0)

    ours, plain = train_all(tiny_setup(Toy()))[0].models, train_all(tiny_setup())[0].models
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def test_local_train_may_wrap_the_standard_loop():
    class Toy(Defense):
        def local_train(self, ctx):
            ctx.train()
            ctx.params.lerp_(ctx.start, 0.5)  # go back half the way

    _, half = train_all(tiny_setup(Toy(), members=(0,), rounds=1))
    _, whole = train_all(tiny_setup(members=(), rounds=1))
    torch.testing.assert_close(half[0].uploads.updates[0], whole[0].uploads.updates[0] / 2, rtol=1e-4, atol=1e-6)


def test_epochs_are_counted_over_all_rounds():
    epochs = []

    class Toy(Defense):
        def loss(self, logits, batch, ctx):
            epochs.append(ctx.epoch)
            return super().loss(logits, batch, ctx)

    train_all(tiny_setup(Toy(), members=(0,), batch_size=12))
    assert epochs == [0, 1, 2, 3, 4, 5]


def test_randomness_of_a_phase_differs_by_client_round_and_epoch_and_is_reproducible():
    draws = {}

    class Toy(Defense):
        def transform(self, batch, ctx):
            draws.setdefault((ctx.client, ctx.round, ctx.epoch), []).append(float(ctx.rng.random()))
            return batch

    train_all(tiny_setup(Toy()))
    first = dict(draws)
    draws.clear()
    train_all(tiny_setup(Toy()))
    flat = [v for values in first.values() for v in values]
    assert first == draws and len(set(flat)) == len(flat)


def test_protect_and_coordinate_act_on_members_rows_in_order():
    order = []

    class Toy(Defense):
        def protect(self, update, ctx):
            order.append(f"protect{ctx.client}")
            return torch.full_like(update, float(ctx.client + 1))

        def coordinate(self, updates, ctx):
            order.append("coordinate")
            assert ctx.present == (1, 3)
            return updates * 10

    _, results = train_all(tiny_setup(Toy(), members=(1, 3), rounds=1))
    updates = results[0].uploads.updates
    assert order == ["protect1", "protect3", "coordinate"]
    assert (updates[1] == 20).all() and (updates[3] == 40).all()
    _, plain = train_all(tiny_setup(members=(), rounds=1))
    assert torch.equal(updates[[0, 2]], plain[0].uploads.updates[[0, 2]])


def test_aggregate_replaces_fedavg():
    class Toy(Defense):
        def aggregate(self, updates, weights, ctx):
            assert ctx.participants == (0, 1, 2, 3) and float(weights.sum()) == pytest.approx(1)
            return updates.median(0).values

    federation, results = train_all(tiny_setup(Toy(), members=(), rounds=1))
    expected = results[0].uploads.starts[0] + results[0].uploads.updates.median(0).values
    assert torch.equal(federation.models[0], expected)


def test_a_rule_that_writes_to_its_rows_or_keeps_them_changes_nothing_that_was_received():
    kept = []

    class Toy(Defense):
        def aggregate(self, updates, weights, ctx):
            step = weights @ updates
            updates.zero_()
            kept.append((updates, updates.clone()))
            return step

    federation, results = train_all(tiny_setup(Toy(), members=(), rounds=2))
    plain, expected = train_all(tiny_setup(members=(), rounds=2))
    assert torch.equal(federation.models, plain.models)
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours.uploads.updates, theirs.uploads.updates)
    assert all(torch.equal(now, then) for now, then in kept)


def test_assign_keeps_two_global_models_apart():
    class Toy(Defense):
        n_models = 2

        def assign(self, models, ctx):
            assert models.shape[0] == 2
            return ctx.client % 2

    federation, results = train_all(tiny_setup(Toy(), members=(0, 1, 2, 3), n_models=2, rounds=2))
    uploads = results[1].uploads
    assert uploads.model_of == [0, 1, 0, 1]
    for j in (0, 1):
        torch.testing.assert_close(federation.models[j], uploads.starts[j] + uploads.updates[[j, j + 2]].mean(0))
    assert not torch.equal(federation.models[0], federation.models[1])


def test_a_model_that_nobody_chose_keeps_still():
    class Toy(Defense):
        n_models = 2

        def assign(self, models, ctx):
            return 0

    federation, results = train_all(tiny_setup(Toy(), members=(0, 1, 2, 3), n_models=2))
    assert torch.equal(federation.models[1], results[0].uploads.starts[1])


def test_after_round_sees_the_members_own_trained_model():
    seen = {}

    class Toy(Defense):
        def protect(self, update, ctx):
            ctx.memory["trained"] = ctx.params.clone()
            return torch.zeros_like(update)

        def after_round(self, ctx):
            seen[ctx.client] = torch.equal(ctx.params, ctx.memory["trained"]) and not torch.equal(ctx.params, ctx.start)

    train_all(tiny_setup(Toy(), rounds=1))
    assert seen == {0: True, 1: True}


class Flip(ActiveAttack):
    """Sends the opposite of what its clients would."""

    knowledge = "own"
    seen: list

    def craft(self, round, knowledge):
        self.seen.append(knowledge)
        return -knowledge.own


@pytest.mark.parametrize("level", ["none", "own", "honest", "rule"])
def test_a_malicious_client_crafts_its_rows_and_knows_no_more_than_its_level(level):
    attack = Flip()
    attack.seen, attack.knowledge = [], level
    if level == "none":
        attack.craft = lambda round, k: (attack.seen.append(k), torch.ones(2, len(k.start)))[1]
    _, results = train_all(tiny_setup(members=(0,), insider=tiny_insider(attack, malicious=2, start_round=2)))
    _, honest = train_all(tiny_setup(members=(0,)))
    assert torch.equal(results[0].uploads.updates, honest[0].uploads.updates)  # before start_round
    k = attack.seen[0]
    assert (k.round, k.clients) == (2, (2, 3)) and len(attack.seen) == 2
    known = {"own": k.own is not None, "honest": k.honest is not None, "rule": k.rule is not None}
    levels = ["own", "honest", "rule"]
    assert known == {name: levels.index(name) < ["none", *levels].index(level) for name in levels}
    if level == "rule":
        torch.testing.assert_close(k.rule(k.honest), k.honest.mean(0))
    sent = results[1].uploads.updates[2:]
    expected = torch.ones_like(sent) if level == "none" else -honest[1].uploads.updates[2:]
    torch.testing.assert_close(sent, expected)
    assert torch.equal(results[1].uploads.updates[:2], honest[1].uploads.updates[:2])


def test_a_client_cannot_defend_and_attack():
    with pytest.raises(UserError, match="client 3 cannot both defend and attack"):
        train_all(tiny_setup(members=(3,), insider=tiny_insider(Flip())))


# -- plugins that misbehave ------------------------------------------------------------------------------------------


def test_a_failing_phase_names_plugin_phase_client_and_round():
    class Broken(Defense):
        def protect(self, update, ctx):
            raise ValueError("no idea")

    with pytest.raises(PhaseError, match=r"Broken\.protect \(client 0, round 1\): ValueError: no idea"):
        train_all(tiny_setup(Broken()))


def test_a_wrong_shape_says_what_was_found_and_expected():
    class Broken(Defense):
        def protect(self, update, ctx):
            return update[:-1]

    with pytest.raises(PhaseError, match=r"returned a tensor of shape \[50\]; expected a tensor of shape \[51\]"):
        train_all(tiny_setup(Broken()))


def test_a_nan_upload_is_a_divergence_that_names_the_client():
    class Broken(Defense):
        def protect(self, update, ctx):
            return update * (torch.nan if ctx.round == 2 and ctx.client == 1 else 1.0)

    with pytest.raises(Diverged, match=r"^round 2: Broken\.protect made the upload of client 1 not finite; mend it$"):
        train_all(tiny_setup(Broken()))


def test_contexts_are_frozen():
    class Greedy(Defense):
        def protect(self, update, ctx):
            ctx.client = 3
            return update

    with pytest.raises(PhaseError, match="FrozenInstanceError"):
        train_all(tiny_setup(Greedy()))


def test_learning_rate_schedules():
    def rates(**schedule):
        config = tiny_federation(rounds=4, lr=0.8, schedule=schedule or "constant")
        return [round(lr_at(config, t), 6) for t in (1, 2, 3, 4)]

    assert rates() == [0.8] * 4
    assert rates(name="exponential", factor=0.5) == [0.8, 0.4, 0.2, 0.1]
    assert rates(name="milestones", factor=0.1, rounds=[1, 3]) == [0.8, 0.08, 0.08, 0.008]
    assert rates(name="cosine") == [0.8, 0.8, round(0.4 * (1 + 2**-0.5), 6), 0.4]
