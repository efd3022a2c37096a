"""The round loop: FedAvg against torch.optim, and what every phase of a defense does to it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from fedavg import mean_of, slow_fedavg
from parties import generator
from tiny import tiny_clients, tiny_federation, tiny_module, tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from fedbench.core import Defense, MemberData, Selection
from fedbench.core.federation.loop import Training
from fedbench.core.federation.optimizer import lr_at
from fedbench.core.signals.builtin import Loss
from fedbench.core.signals.measure import COALITION, GLOBAL, Recorder


def uneven() -> list[MemberData]:
    """Clients of 12 samples that train on 10, 8, 6 and 4."""
    return [replace(d, held_out=torch.arange(12) < 2 * k + 2) for k, d in enumerate(tiny_clients())]


class Same(Defense):
    """Goes through a member's own loop, and changes nothing."""

    def select(self, ctx):
        return None

    def transform(self, batch, ctx):
        return batch

    def protect(self, update, ctx):
        return update


RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {"schedule": {"name": "exponential", "factor": 0.9}},
    "equal weights": {"weights": "equal", "momentum": 0.0},
    "adam": {"name": "adam", "betas": [0.8, 0.95], "weight_decay": 0.01},
    "kept moments": {"name": "adam", "keep_state": True, "participation": 0.5, "rounds": 5},
    "cohorts": {"participation": 0.5, "rounds": 6, "weight_decay": 0.0},
    "one batch": {"local_batches": 1},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_is_fedavg_for_members_and_plain_clients(recipe):
    setup = tiny_setup(Same(), clients=uneven(), **RECIPES[recipe])
    results = train_all(setup)[1]
    sent = [r.uploads.participants for r in results]
    cohort = 2 if "participation" in RECIPES[recipe] else 4
    assert {len(c) for c in sent} == {cohort} and (len(set(sent)) > 1) == (cohort == 2)
    for result, states in zip(results, slow_fedavg(setup, sent, tiny_module), strict=True):
        expected = torch.cat([state.flatten() for state in states[-1].values()])
        torch.testing.assert_close(result.models[0], expected.float(), rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_bits_whether_members_do_nothing_or_are_none():
    a, b, same, other = (
        train_all(tiny_setup(d, members=m, seed=s))[0].models
        for d, m, s in ((None, (), 0), (None, (0, 1, 2), 0), (Same(), (0, 1), 0), (None, (), 1))
    )
    assert torch.equal(a, b) and torch.equal(a, same) and not torch.equal(a, other)


class Counting(nn.Module):
    """Trains and answers by integer buffers: batches seen, a switch, and constants that no float32
    holds.
    """

    def __init__(self):
        super().__init__()
        self.net, self.scale = tiny_module(), nn.Parameter(torch.tensor(1.5))
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int32))
        self.register_buffer("odd", torch.tensor([False, True]))
        self.register_buffer("large", torch.tensor([2**62 + 1, -3]))

    def forward(self, x):
        if self.training:
            self.batches += 1
            self.odd.logical_not_()
        return self.net(self.norm(x)) * self.scale * (1 + 0.1 * self.batches + self.odd[0])


def test_every_buffer_starts_each_client_as_received_and_integers_are_averaged_to_the_nearest():
    setup = tiny_setup(module=Counting(), clients=uneven(), members=(), batch_size=4)
    x, y, sizes = torch.randn(5, 4), torch.arange(5) % 3, [10, 8, 6, 4]
    rows = [0, 1, 2, 3, GLOBAL, COALITION]
    recorder = Recorder(
        setup.flat, x, y, {"loss": Loss()}, False, rows, ((0, 1),), sizes, n_rounds=3
    )
    rounds = slow_fedavg(setup, [(0, 1, 2, 3)] * 3, Counting)
    for result, states in zip(Training(setup).rounds(), rounds, strict=True):
        assert len({int(state["batches"]) for state in states[:4]}) == 3
        recorder.record(result)
        states.append(mean_of(states[:2], sizes[:2]))
        for state, losses in zip(states, recorder.arrays()["loss"][-1], strict=True):
            module = Counting().eval()
            module.load_state_dict(state)
            expected = cross_entropy(module(x), y, reduction="none").detach()
            torch.testing.assert_close(torch.from_numpy(losses), expected, rtol=1e-4, atol=1e-5)
        integers = [b.reshape(-1).long() for b in states[4].values() if not b.is_floating_point()]
        assert torch.equal(result.state.counts[0], torch.cat(integers))


def test_learning_rate_schedules():
    def rates(**schedule):
        config = tiny_federation(rounds=4, lr=0.8, schedule=schedule or "constant")
        return [round(lr_at(config, t), 6) for t in (1, 2, 3, 4)]

    assert rates() == [0.8] * 4
    assert rates(name="exponential", factor=0.5) == [0.8, 0.4, 0.2, 0.1]
    assert rates(name="milestones", factor=0.1, rounds=[1, 3]) == [0.8, 0.08, 0.08, 0.008]
    assert rates(name="cosine") == [0.8, 0.8, round(0.4 * (1 + 2**-0.5), 6), 0.4]


def test_shuffled_weights_are_the_clients_weights_in_another_order():
    results = train_all(
        tiny_setup(members=(), clients=uneven(), weight_order="shuffled", rounds=6)
    )[1]
    orders = []
    for r in results:
        found = torch.linalg.lstsq(r.uploads.updates.T.double(), r.steps[0].double()).solution * 28
        orders.append(tuple(found.round().int().tolist()))
        torch.testing.assert_close(found, found.round(), rtol=1e-3, atol=1e-3)
    assert {tuple(sorted(order)) for order in orders} == {(4, 6, 8, 10)} and len(set(orders)) > 2


# -- delays ----------------------------------------------------------------------------------------


def test_delayed_clients_train_on_older_models_within_the_bound():
    setup = tiny_setup(members=(), rounds=8, max_delay=2, local_epochs=1)
    models, seen = [setup.initial[0]], set()
    for result in train_all(setup)[1]:
        u = result.uploads
        starts = u.starts.params
        assert torch.equal(starts[0], models[-1])
        for j in u.start_of:
            ages = [age for age in range(len(models)) if torch.equal(starts[j], models[-1 - age])]
            assert ages and min(ages) <= min(2, u.round - 1)
            seen.add(min(ages))
        torch.testing.assert_close(result.models[0], models[-1] + u.updates.mean(0))
        models.append(result.models[0])
    assert seen == {0, 1, 2}


# -- what each phase does --------------------------------------------------------------------------


def test_a_coalition_is_told_the_real_sizes_and_weights_once_and_no_data():
    seen = []

    class Toy(Defense):
        def begin(self, ctx):
            seen.append(ctx)

    for weights in ("size", "equal"):
        train_all(tiny_setup(Toy(), members=(1, 3), clients=uneven(), weights=weights))
    (sized, equal) = seen
    assert (sized.members, sized.present, sized.sizes, sized.round) == ((1, 3), (1, 3), (8, 4), 0)
    assert sized.weights == pytest.approx((8 / 28, 4 / 28))
    assert (equal.sizes, equal.weights) == ((8, 4), (0.25, 0.25))
    assert not {f.name for f in fields(sized)} & {"data", "x", "y", "model", "params", "audit"}


def test_the_server_is_told_how_many_samples_clients_train_on():
    told = []

    class Toy(Defense):
        def aggregate(self, updates, weights, ctx):
            told.append(ctx.sizes)
            return weights @ updates

    train_all(tiny_setup(Toy(), clients=uneven(), rounds=1))
    assert told == [(10, 8, 6, 4)]


def test_prepare_holds_samples_out_of_training_and_can_only_add_to_the_validation_part():
    class Toy(Defense):
        more = True

        def prepare(self, data, ctx):
            assert data.held_out[:3].all() and not data.held_out[3:].any()
            return MemberData(data.x, data.y, held_out=torch.arange(12) == 5 if self.more else None)

    def trained(held: list[int], defense=None):
        held_out = torch.isin(torch.arange(12), torch.tensor(held))
        clients = [replace(d, held_out=held_out) for d in tiny_clients()]
        setup = tiny_setup(defense, members=(0,), clients=clients, rounds=1)
        return train_all(setup)[1][0].uploads.updates[0]

    toy, three = Toy(), trained([0, 1, 2])
    assert torch.equal(trained([0, 1, 2], toy), trained([0, 1, 2, 5]))
    assert not torch.equal(three, trained([]))
    toy.more = False
    assert torch.equal(trained([0, 1, 2], toy), three)


def test_prepare_may_give_soft_labels_and_local_step_the_gradient_of_the_mean():
    class Soft(Defense):
        def prepare(self, data, ctx):
            return replace(data, soft=one_hot(data.y, 3).float())

    class Mean(Defense):
        def local_step(self, batch, ctx):
            return ctx.per_sample_gradients(batch.x, batch.y).mean(0)

    plain = train_all(tiny_setup())[0].models
    for made in (Soft(), Mean()):
        torch.testing.assert_close(
            train_all(tiny_setup(made))[0].models, plain, rtol=1e-4, atol=1e-6
        )


def test_select_trains_on_the_selection_with_its_flags():
    class Toy(Defense):
        n = 12

        def select(self, ctx):
            index = torch.arange(0, self.n, 2)
            return Selection(index, flag=index * 10)

        def transform(self, batch, ctx):
            seen.extend(zip(batch.index.tolist(), batch.flag.tolist(), strict=True))
            assert torch.equal(batch.x, ctx.data.x[batch.index])
            assert torch.equal(batch.y, ctx.data.y[batch.index])
            return replace(batch, x=torch.zeros_like(batch.x))

    seen: list = []
    toy = Toy()
    (result,) = train_all(
        tiny_setup(toy, members=(2,), rounds=1, local_epochs=1, weight_decay=0.0)
    )[1]
    assert sorted(seen) == [(i, 10 * i) for i in range(0, 12, 2)]
    first_layer = result.uploads.updates[:, : 6 * 4]
    assert not first_layer[2].any() and first_layer[1].any()  # the model saw zeros
    toy.n = 0
    (result,) = train_all(tiny_setup(toy, members=(2,), rounds=1))[1]
    assert not result.uploads.updates[2].any() and result.uploads.updates[1].any()


def test_held_out_samples_cannot_be_selected():
    class Toy(Defense):
        def select(self, ctx):
            return Selection(torch.tensor([0, 11]))

    said = r"Toy\.select \(client 0, round 1\) selected samples that `prepare` held out"
    with pytest.raises(RuntimeError, match=said):
        train_all(tiny_setup(Toy(), clients=uneven()))


def test_epochs_are_counted_over_all_rounds_and_draws_differ_by_client_round_and_epoch():
    class Toy(Defense):
        def transform(self, batch, ctx):
            drawn.setdefault((ctx.client, ctx.round, ctx.epoch), []).append(float(ctx.rng.random()))
            return batch

    drawn: dict = {}
    train_all(tiny_setup(Toy()))
    values = [v for found in drawn.values() for v in found]
    assert len({*values}) == len(values) == 2 * 3 * 2 * 3
    assert sorted(drawn) == [
        (k, t, 2 * (t - 1) + e) for k in (0, 1) for t in (1, 2, 3) for e in (0, 1)
    ]


def test_protect_coordinate_and_after_round_act_on_members_rows_in_order():
    class Toy(Defense):
        def protect(self, update, ctx):
            order.append(f"protect{ctx.client}")
            ctx.memory["trained"] = ctx.params.clone()
            return torch.full_like(update, float(ctx.client + 1))

        def coordinate(self, updates, ctx):
            order.append("coordinate")
            assert ctx.present == (1, 3)
            return updates * 10

        def after_round(self, ctx):
            order.append(f"after{ctx.client}")
            # its own model
            assert torch.equal(ctx.params, ctx.memory["trained"]) and not torch.equal(
                ctx.params, ctx.start
            )

    order: list[str] = []
    setup = tiny_setup(Toy(), members=(1, 3), rounds=1, keep_unprotected=True)
    uploads, plain = (train_all(s)[1][0].uploads for s in (setup, tiny_setup(members=(), rounds=1)))
    assert order == ["protect1", "protect3", "coordinate", "after1", "after3"]
    assert (uploads.updates[1] == 20).all() and (uploads.updates[3] == 40).all()
    assert torch.equal(uploads.updates[[0, 2]], plain.updates[[0, 2]])
    assert torch.equal(uploads.unprotected, plain.updates)


def test_aggregate_replaces_fedavg_and_sees_the_servers_own_samples():
    class Toy(Defense):
        root_samples = 5

        def aggregate(self, updates, weights, ctx):
            assert (ctx.participants, ctx.input_shape) == ((0, 1, 2, 3), (4,))
            assert weights.tolist() == [0.25] * 4
            weight, bias = ctx.layers[-2:]
            assert (weight.name, weight.shape, bias.shape) == ("2.weight", (3, 6), (3,))
            assert bias.stop == updates.shape[1]
            assert torch.equal(bias.of(updates), updates[:, -3:])
            module = tiny_module()
            nn.utils.vector_to_parameters(ctx.params, module.parameters())
            torch.testing.assert_close(
                ctx.logits(ctx.params, ctx.root.x), module(ctx.root.x).detach()
            )
            return updates.median(0).values

    root = MemberData(torch.randn(5, 4, generator=generator(2)), torch.arange(5) % 3)
    federation, (result,) = train_all(tiny_setup(Toy(), members=(), rounds=1, root=root))
    uploads = result.uploads
    step = uploads.updates.median(0).values
    assert torch.equal(federation.models[0], uploads.starts.params[0] + step)


def test_a_global_model_that_no_client_chose_is_not_changed():
    class Toy(Defense):
        n_models = 2

        def assign(self, models, ctx):
            return 1

    setup = tiny_setup(Toy(), members=(0, 1, 2, 3), n_models=2)
    models = train_all(setup)[0].models
    assert torch.equal(models[0], setup.initial[0])
    assert not torch.equal(models[1], setup.initial[1])
