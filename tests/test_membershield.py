"""MemberShield and the baselines of its paper: soft labels, early stopping, distillation,
adversarial regularisation.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from defense_cases import installed, made, member
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import generator
from tiny import normed, tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import Batch, Defense, MemberData, UserError
from fedbench.core.federation.compose import composed

SMALL = {"of_prediction": [16, 8], "of_label": [8], "shared": [8]}
HALF = {"validation": 0.5}


def clients(samples: int = 40) -> list[MemberData]:
    """Noise with labels drawn at random: what is learnt of it is learnt by heart."""
    g = generator(3)
    return [
        MemberData(
            torch.randn(samples, 4, generator=g), torch.randint(0, 3, (samples,), generator=g)
        )
        for _ in range(4)
    ]


def shielded(defense, **changes):
    """The finished training and its rounds, on clients of 40 samples."""
    given = {
        "clients": clients(),
        "members": (0,),
        "rounds": 1,
        "local_epochs": 6,
        "batch_size": 10,
    }
    return train_all(tiny_setup(defense, **{**given, **changes}))


# --- soft labels


@given(st.floats(0, 0.999))
@settings(max_examples=10)
def test_membershields_soft_labels_are_those_of_equation_2(theta):
    data = clients(20)[0]
    ctx = member(tiny_module(), data, classes=3)
    found = made("membershield", theta=theta, **HALF).prepare(data, ctx)
    before = [[float(c == y) for c in range(3)] for y in data.y.tolist()]
    # algorithm 2, line by line
    expected = [[(1 - theta) * p + theta / 3 for p in row] for row in before]
    torch.testing.assert_close(found.soft, torch.tensor(expected))
    assert int(found.held_out.sum()) == 10


# --- early stopping within a round


class Ruin(Defense):
    """A loss that rises with every step: no epoch can beat the model it starts from."""

    def loss(self, logits, batch, ctx):
        return -super().loss(logits, batch, ctx)


def by_hand(losses: list[float], patience: int, bar: float) -> tuple[int, int]:
    """(epochs trained, the best of them or -1) of a rule that stops after ``patience`` epochs in a
    row above the lowest loss.
    """
    for trained in range(1, len(losses) + 1):
        seen = [bar, *losses[:trained]]
        best = max(i for i in range(trained + 1) if all(seen[i] < seen[j] for j in range(i)))
        if trained - best >= patience:
            break
    return trained, best - 1


@pytest.mark.parametrize(
    ("name", "params", "ruined"),
    [
        ("membershield", {"patience": 50}, False),
        ("membershield", {"patience": 3}, True),
        ("membershield", {"patience": 3, "guard": "none"}, True),
        ("membershield", {"patience": 3, "keep": "last"}, True),
        ("early-stopping", {"patience": 1}, False),
    ],
)
def test_what_is_uploaded_is_the_epoch_of_least_validation_loss_with_its_batch_statistics(
    name, params, ruined
):
    """One training notes the loss and the model after every epoch; by these the stopping rule is
    worked out by hand.
    """
    states, losses = [], []

    class Noted(installed(name)):
        def local_train(self, ctx):
            held, data = ctx.data.held_out, ctx.data
            target = data.y if data.soft is None else data.soft

            def note():
                losses.append(cross_entropy(ctx.logits(data.x[held]), target[held]).item())
                buffers = [b.reshape(-1) for b in ctx.model.buffers() if b.is_floating_point()]
                states.append((ctx.params - ctx.start, torch.cat(buffers)))

            note()
            for _ in ctx.epochs():
                note()

    def trained(defense):
        parts = [Ruin(), defense] if ruined else [defense]
        federation, [result] = shielded(composed(parts), module=normed(), local_epochs=8)
        return federation.facts(), result.uploads.updates[0], result.uploads.buffers[0]

    trained(Noted(**HALF))
    facts, update, buffers = trained(made(name, **params, **HALF))
    guarded = name == "membershield" and "guard" not in params
    epochs, best = by_hand(losses[1:], params["patience"], losses[0] if guarded else math.inf)
    kept = states[epochs if params.get("keep") == "last" else best + 1]
    assert torch.equal(update, kept[0]) and torch.equal(buffers, kept[1])
    assert facts["mean epochs trained a round"] == epochs
    assert facts["share of rounds stopped early"] == (epochs < 8)
    received = guarded and best == -1 and "keep" not in params
    assert facts.get("share of rounds that kept the global model", 0) == received
    assert received == (not update.any())


def test_who_stopped_for_good_uploads_the_received_model_and_the_rounds_before_are_untouched():
    rounds, patience = 12, 3

    def federation(patience_rounds):
        defense = made("early-stopping", patience=1, patience_rounds=patience_rounds, **HALF)
        return shielded(defense, members=(0, 1), rounds=rounds, local_epochs=2)

    (_, everything), (stopped, results) = federation(None), federation(patience)
    last, flat = stopped.facts()["last round trained of each member"], stopped.setup.flat
    received = [stopped.setup.initial[0], *(r.models[0] for r in results[:-1])]
    for k in (0, 1):
        data = stopped.clients[k]
        x, y = data.x[data.held_out], data.y[data.held_out]
        states = [replace(results[0].state[0], params=params) for params in received]
        losses = [cross_entropy(flat.logits(state, x), y).item() for state in states]
        spent, _ = by_hand(losses, patience, math.inf)
        assert last[k] == spent - 1 < rounds
        sent = [bool(r.uploads.updates[k].any()) for r in results]
        assert sent == [t <= last[k] for t in range(1, rounds + 1)]
    assert all(torch.equal(results[t].models, everything[t].models) for t in range(min(last)))


@pytest.mark.parametrize("name", ["membershield", "early-stopping", "adv-reg"])
def test_a_validation_part_of_the_setting_is_kept_and_one_too_small_to_judge_by_is_refused(name):
    def prepared(held: int) -> MemberData:
        data = clients()[0]
        data = replace(data, held_out=torch.arange(40) < held) if held else data
        return made(name).prepare(data, member(tiny_module(), data, classes=3))

    assert prepared(10).held_out.tolist() == [i < 10 for i in range(40)]
    said = f"{name}: client 0 has 4 validation samples of its 40.*: raise {name}'s `validation`"
    with pytest.raises(UserError, match=said):
        prepared(0)


# --- distillation


@pytest.mark.parametrize(
    ("divergence", "temperature"), [("teacher-student", 3.0), ("student-teacher", 2.0)]
)
def test_the_students_loss_is_its_definition_and_reaches_the_student_alone(divergence, temperature):
    defense = made("kd", alpha=0.3, temperature=temperature, divergence=divergence)
    data = clients()[0]
    ctx = member(normed(), data, weights=1)
    batch = Batch(data.x[:8], data.y[:8], torch.arange(8))
    teacher = {
        name: t.detach().clone() + (0.3 if t.is_floating_point() else 0)
        for name, t in (*ctx.model.named_parameters(), *ctx.model.named_buffers())
    }
    ctx.memory["teacher"] = {
        name: t.clone().requires_grad_(t.is_floating_point()) for name, t in teacher.items()
    }
    logits = ctx.model(batch.x)
    loss = defense.loss(logits, batch, ctx)
    assert ctx.model.training
    ctx.model.eval()
    taught = torch.func.functional_call(ctx.model, teacher, (batch.x,)).detach()
    p, q = (taught / temperature).softmax(1), (logits / temperature).softmax(1)
    p, q = (q, p) if divergence == "student-teacher" else (p, q)
    kl = sum(p[i, c] * (p[i, c] / q[i, c]).log() for i in range(8) for c in range(3)) / 8
    expected = 0.7 * cross_entropy(logits, batch.y) + 0.3 * temperature**2 * kl
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(t.grad is None for t in ctx.memory["teacher"].values())


def test_teacher_and_student_both_start_from_what_was_received():
    """With alpha 0 the student learns from the labels alone: it is a plain model, trained in the
    order of a second pass.
    """

    class TwoPasses(Defense):
        def local_train(self, ctx):
            ctx.train()
            ctx.restart()
            ctx.train()

    ours, plain = (
        shielded(d, rounds=2)[1][1].uploads.updates for d in (made("kd", alpha=0), TwoPasses())
    )
    assert torch.equal(ours, plain)


# --- the inference game


def game(module=None, data=None, **params):
    """(defense, its context, a batch of trained samples): half of the samples are held out as
    references.
    """
    data = data or replace(clients()[0], held_out=torch.arange(40) >= 20)
    ctx = member(module or tiny_module(), data, weights=1, classes=3, facts={"local_epochs": 2})
    return made("adv-reg", **SMALL, **params), ctx, Batch(data.x[:8], data.y[:8], torch.arange(8))


@pytest.mark.parametrize(("epoch", "acts"), [(2, False), (3, True)])
def test_the_loss_is_cross_entropy_plus_lambda_mean_log_h_and_trains_the_model_alone(epoch, acts):
    defense, ctx, batch = game(weight=3.0, from_epoch=1)  # of two local epochs
    logits = ctx.model(batch.x)
    loss = defense.loss(logits, batch, replace(ctx, epoch=epoch))
    network, _ = ctx.memory["network"]
    h = torch.sigmoid(network(logits.softmax(1), batch.y))
    expected = cross_entropy(logits, batch.y)
    if acts:
        expected = expected + 3 * h.log().mean()
    torch.testing.assert_close(loss, expected)
    assert not any(p.requires_grad for p in network.parameters())


def test_the_network_takes_its_steps_up_the_likelihood_of_own_samples_and_references():
    """h is asked about as many training samples as references, and learns as an Adam of the test
    does.
    """
    asked: list[torch.Tensor] = []
    module = tiny_module()
    module.register_forward_hook(
        lambda m, x, y: None if m.training else asked.append(x[0].detach())
    )
    defense, ctx, batch = game(module, steps=3, rate=0.5)
    twin = game(tiny_module(), steps=1, rate=1e-30)
    twin[0].loss(twin[1].model(batch.x), batch, twin[1])
    fresh, _ = twin[1].memory["network"]  # as it was drawn
    defense.loss(ctx.model(batch.x), batch, ctx)
    data, optimizer = ctx.data, torch.optim.Adam(fresh.parameters(), 0.5)
    fresh.requires_grad_(True)

    def places(rows):
        """Which samples these are."""
        return [int((data.x == row).all(1).nonzero()) for row in rows]

    assert len(asked) == 2 * 3
    for inside, outside in zip(asked[::2], asked[1::2], strict=True):
        trained, references = places(inside), places(outside)
        assert len({*trained}) == len({*references}) == 8
        assert not data.held_out[trained].any() and data.held_out[references].all()
        own, others = (
            fresh(ctx.model(data.x[at]).softmax(1).detach(), data.y[at])
            for at in (trained, references)
        )
        optimizer.zero_grad()
        (-(own.sigmoid().log().mean() + (1 - others.sigmoid()).log().mean())).backward()
        optimizer.step()
    network, _ = ctx.memory["network"]
    for found, wanted in zip(network.parameters(), fresh.parameters(), strict=True):
        # of steps of one half
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-3, atol=1e-3)
