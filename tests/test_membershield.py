"""MemberShield and the baselines of its paper: soft labels, the stopping rule, distillation, the inference game."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import facts_of, generator, member_context
from pydantic import ValidationError
from tiny import tiny_module, tiny_setup, train_all
from torch import nn

from fedbench.core import EXCLUDED, Batch, Defense, MemberData, UserError
from fedbench.core.experiment.train import kinds_of, train
from fedbench.core.federation.compose import composed
from fedbench.plugins.defenses import adv_reg
from fedbench.plugins.defenses.adv_reg import AdvReg, InferenceNetwork
from fedbench.plugins.defenses.early_stopping import EarlyStopping
from fedbench.plugins.defenses.kd import SelfDistillation, distillation
from fedbench.plugins.defenses.membershield import MemberShield, soft_labels
from fedbench.plugins.defenses.stopping import Patience
from fedbench.testing.jobs import given_use
from fedbench.testing.trials.data import TinyPictures
from fedbench.testing.trials.world import job_of, setting_of

SMALL = {"of_prediction": [16, 8], "of_label": [8], "shared": [8]}
HALF = {"validation": 0.5}


def clients(samples: int = 40, count: int = 4, fresh: int = 0) -> list[MemberData]:
    """Noise with labels drawn at random: what is learnt of it is learnt by heart."""
    g = generator(fresh + 3)
    return [MemberData(torch.randn(samples, 4, generator=g), torch.randint(0, 3, (samples,), generator=g)) for _ in range(count)]


def normed() -> nn.Module:
    """With batch statistics."""
    inner = tiny_module()
    return nn.Sequential(inner[0], nn.BatchNorm1d(6), inner[1], inner[2])


def shielded(defense, **changes):
    """The finished training and its rounds, on clients of 40 samples."""
    given = {"clients": clients(), "members": (0,), "rounds": 1, "local_epochs": 6, "batch_size": 10}
    return train_all(tiny_setup(defense, **{**given, **changes}))


# --- the soft labels of Eq. 2


@settings(max_examples=40)
@given(st.integers(2, 12), st.floats(0, 0.999), st.integers(0, 2**20))
def test_soft_labels_are_those_of_equation_2(classes, theta, seed):
    y = np.random.default_rng(seed).integers(0, classes, 9)
    expected = np.zeros((9, classes))
    for i, label in enumerate(y):  # algorithm 2, line by line
        for c in range(classes):
            expected[i, c] = (1 - theta) * float(c == label) + theta / classes
    found = soft_labels(MemberData(torch.zeros(9, 1), torch.from_numpy(y)), classes, theta, torch.float64)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(found.sum(1).numpy(), 1, atol=1e-12)
    assert (found.argmax(1).numpy() == y).all()


def test_soft_labels_are_made_once_also_of_the_validation_part_and_of_earlier_targets():
    federation, _ = shielded(MemberShield(theta=0.6, **HALF), rounds=2)
    data = federation.clients[0]
    assert int(data.held_out.sum()) == 20
    torch.testing.assert_close(data.soft, 0.4 * nn.functional.one_hot(data.y, 3).float() + 0.2)
    before = torch.tensor([[0.5, 0.5, 0.0]])
    mixed = soft_labels(MemberData(torch.zeros(1, 1), torch.tensor([0]), soft=before), 3, 0.6)
    torch.testing.assert_close(mixed, 0.4 * before + 0.2)


@pytest.mark.parametrize("theta", [-0.1, 1.0, 1.5, math.nan])
def test_theta_lies_in_0_to_1(theta):
    with pytest.raises(ValidationError, match="theta"):
        MemberShield(theta=theta)


# --- the stopping rule


def by_hand(losses, patience, bar):
    """(epochs trained, the best of them or -1), counted anew from the beginning for every epoch."""
    for trained in range(1, len(losses) + 1):
        seen = [bar, *losses[:trained]]
        best = max(i for i in range(trained + 1) if all(seen[i] < seen[j] for j in range(i)))
        if trained - best >= patience:
            return trained, best - 1
    return len(losses), max([i for i in range(len(losses)) if all(losses[i] < x for x in [bar, *losses[:i]])], default=-1)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 6), st.sampled_from([0, 3, 5, math.inf]))
def test_the_stopping_rule_is_the_slow_one(losses, patience, bar):
    rule, best, trained = Patience(patience, bar), -1, 0
    for e, loss in enumerate(losses):
        trained = e + 1
        if rule.improves(loss):
            best = e
        if rule.spent:
            break
    assert (trained, best) == by_hand(losses, patience, bar)
    assert rule.best == min([bar, *losses[:trained]])


def test_a_loss_that_is_no_number_is_no_improvement():
    rule = Patience(2, 1.0)
    assert [rule.improves(x) for x in (math.nan, 0.5, math.nan)] == [False, True, False] and rule.best == 0.5
    assert not rule.spent and not rule.improves(math.nan) and rule.spent


# --- the guard and what is uploaded


class Ruin(Defense):
    """A loss that rises with every step: no epoch can beat the model it starts from."""

    def loss(self, logits, batch, ctx):
        return -super().loss(logits, batch, ctx)


@pytest.mark.parametrize(("changes", "moves", "kept"), [
    ({}, False, 1.0), ({"guard": "none"}, True, 0.0), ({"keep": "last"}, True, 0.0),
], ids=["corrected", "released code", "algorithm 1, line 22"])  # fmt: skip
def test_the_guard_keeps_a_global_model_that_no_epoch_beats(changes, moves, kept):
    federation, results = shielded(composed([Ruin(), MemberShield(patience=3, **HALF, **changes)]), module=normed(), rounds=2)
    for result in results:
        update, buffers = result.uploads.updates[0], result.uploads.buffers[0]
        assert bool(update.any()) == moves  # exactly zero, or not
        assert torch.equal(buffers, result.uploads.start_buffers[0]) == (not moves)
    facts = federation.facts()
    assert facts["share of rounds that kept the global model"] == kept and facts["share of rounds stopped early"] == 1
    # the first epoch is an improvement where nothing guards: patience counts from there
    assert facts["mean epochs trained a round"] == (4 if "guard" in changes else 3)


def test_early_stopping_always_keeps_an_epoch():
    federation, results = shielded(composed([Ruin(), EarlyStopping(patience=2, **HALF)]))
    once = shielded(composed([Ruin(), EarlyStopping(patience=2, **HALF)]), local_epochs=1)[1]
    assert torch.equal(results[0].uploads.updates[0], once[0].uploads.updates[0]) and results[0].uploads.updates[0].any()
    assert federation.facts() == {"mean epochs trained a round": 3, "share of rounds stopped early": 1}


@pytest.mark.parametrize("defense", [MemberShield, EarlyStopping])
def test_what_is_uploaded_is_the_best_epoch_with_its_batch_statistics(defense):
    """Trained to every number of epochs by itself, the one of least validation loss is the upload."""
    patient = defense(patience=50, **HALF)
    federation, [result] = shielded(patient, module=normed(), local_epochs=8)
    data, flat = federation.clients[0], federation.setup.flat
    target = data.soft if defense is MemberShield else data.y
    losses, states = [], []

    class Stop(defense):  # the same data and the same draws, but trained for so many epochs whatever their losses
        until = 0

        def local_train(self, ctx):
            for e in ctx.epochs():
                if e == self.until:
                    break

    for n in range(8):
        made = Stop(**HALF)
        made.until = n
        _, [one] = shielded(made, module=normed(), local_epochs=8)
        states.append((one.uploads.updates[0], one.uploads.buffers[0]))
        logits = flat.logits(one.uploads.starts[0] + one.uploads.updates[0], one.uploads.buffers[0], data.x[data.held_out])
        losses.append(float(nn.functional.cross_entropy(logits, target[data.held_out])))
    best = int(np.argmin(losses))
    assert best < 7  # or the last epoch would do
    assert torch.equal(result.uploads.updates[0], states[best][0]) and torch.equal(result.uploads.buffers[0], states[best][1])
    last = shielded(MemberShield(patience=50, keep="last", **HALF), module=normed(), local_epochs=8)[1][0]
    if defense is MemberShield:
        assert torch.equal(last.uploads.updates[0], states[-1][0])


def test_a_setting_that_holds_samples_out_is_taken_at_its_word():
    own = [replace(d, held_out=torch.arange(40) < 15) for d in clients()]
    for made in (MemberShield(), EarlyStopping(), AdvReg(**SMALL)):
        federation, _ = shielded(made, clients=own)
        assert torch.equal(federation.clients[0].held_out, own[0].held_out)


def test_a_class_that_the_validation_part_lacks_is_no_obstacle():
    own = clients()
    own[0] = replace(own[0], held_out=(own[0].y != 2))
    for made in (MemberShield(), EarlyStopping()):
        assert torch.isfinite(shielded(made, clients=own)[1][0].uploads.updates).all()


@pytest.mark.parametrize(("made", "who"), [
    (MemberShield(), "membershield"), (EarlyStopping(), "early-stopping"), (AdvReg(), "adv-reg"),
])  # fmt: skip
def test_a_validation_part_too_small_to_judge_is_refused_with_the_remedies(made, who):
    with pytest.raises(UserError, match=rf"^\w+\.prepare \(client 0, before round 1\): {who}: client 0 has 4 validation samples "
                       rf"of its 40, at least 10 .*: raise {who}'s "
                       r"`validation` \(now 0\.1\) or federation\.validation, or give clients more samples"):  # fmt: skip
        shielded(made)
    few = [replace(d, held_out=torch.arange(40) < 9) for d in clients()]
    with pytest.raises(UserError, match=rf"{who}: client 0 has 9 validation samples of its 40.*: raise federation\.validation,"):
        shielded(made, clients=few)


STOPS = "patience {} is not below the 6 local epochs of a round: training never stops early ({}); lower patience to stop"


@pytest.mark.parametrize(("made", "said"), [
    (MemberShield(patience=6), STOPS.format(6, "the best epoch is still kept")),
    (MemberShield(patience=9, keep="last"), STOPS.format(9, "the last epoch is uploaded")),
    (EarlyStopping(patience=6), STOPS.format(6, "the best epoch is still kept")),
    (AdvReg(from_epoch=20), "from_epoch 20 is not below the 6 local epochs of a round: the term never acts"),
])  # fmt: skip
def test_what_never_happens_is_remarked_on(made, said):
    assert list(made.remarks(facts_of(9, local_epochs=6))) == [said]
    assert list(made.remarks(facts_of(9, local_epochs=21))) == []


# --- distillation


@settings(max_examples=40)
@given(st.integers(0, 2**20), st.sampled_from([1.0, 3.0, 10.0]), st.booleans())
def test_the_divergence_is_that_of_its_definition(seed, temperature, reverse):
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, 5, 4)) * 3

    def softened(z):
        e = np.exp(z / temperature - (z / temperature).max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    p, q = (softened(student), softened(teacher)) if reverse else (softened(teacher), softened(student))
    expected = temperature**2 * sum(p[i, c] * math.log(p[i, c] / q[i, c]) for i in range(5) for c in range(4)) / 5
    found = distillation(torch.from_numpy(student), torch.from_numpy(teacher), temperature, reverse)
    assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("divergence", ["teacher-student", "student-teacher"])
def test_the_students_loss_reaches_the_student_alone(divergence):
    defense = SelfDistillation(alpha=0.3, temperature=2.0, divergence=divergence)
    data = clients()[0]
    ctx = member_context(normed(), data, weights=1)
    batch = Batch(data.x[:8], data.y[:8], torch.arange(8))
    teacher = {name: t.detach().clone() + (0.3 if t.is_floating_point() else 0)
               for name, t in (*ctx.model.named_parameters(), *ctx.model.named_buffers())}  # fmt: skip
    ctx.memory["teacher"] = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in teacher.items()}
    logits = ctx.model(batch.x)
    buffers = [b.clone() for b in ctx.model.buffers()]
    loss = defense.loss(logits, batch, ctx)
    assert ctx.model.training and all(torch.equal(b, was) for b, was in zip(ctx.model.buffers(), buffers, strict=True))
    ctx.model.eval()
    taught = torch.func.functional_call(ctx.model, teacher, (batch.x,)).detach()
    expected = 0.7 * nn.functional.cross_entropy(logits, batch.y) + 0.3 * distillation(
        logits, taught, 2.0, divergence == "student-teacher"
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in list(ctx.model.parameters())[-2:])
    assert all(t.grad is None for t in ctx.memory["teacher"].values())


def test_teacher_and_student_both_start_from_what_was_received():
    """With alpha 0 the student learns from the labels alone: it is a plain model, trained in the order of a second pass."""

    class TwoPasses(Defense):
        def local_train(self, ctx):
            ctx.train()
            ctx.restart()
            ctx.train()

    ours, plain = (shielded(d, rounds=2)[1][1].uploads.updates for d in (SelfDistillation(alpha=0), TwoPasses()))
    assert torch.equal(ours, plain)
    taught = shielded(SelfDistillation(alpha=1), rounds=2)
    assert not torch.equal(taught[1][1].uploads.updates[0], plain[0])
    assert "teacher" not in taught[0].parties.memory(0)


# --- the inference game


def test_the_inference_network_has_the_papers_parts():
    network = InferenceNetwork(100, (1024, 512, 64), (512, 64), (256, 64))
    network.draw(generator(0))
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")]
    assert shapes == [(1024, 100), (512, 1024), (64, 512), (512, 100), (64, 512), (256, 128), (64, 256), (1, 64)]
    weights = torch.cat([p.reshape(-1) for name, p in network.named_parameters() if name.endswith("weight")])
    assert float(weights.detach().std()) == pytest.approx(0.01, rel=0.02)
    x, y = torch.rand(2, 100, generator=generator(1)), torch.tensor([3, 9])
    assert network(x, y).shape == (2,)
    bare = InferenceNetwork(3, (4,), (5,), ())  # without a shared part the output reads both
    assert bare.out.weight.shape == (1, 9)


def test_sorting_makes_the_network_blind_to_the_order_of_the_classes():
    found = []
    for sort in (False, True):
        network = InferenceNetwork(5, (8,), (4,), (4,), sort)
        network.draw(generator(2))
        with torch.no_grad():
            for p in network.parameters():
                p.mul_(100)
        x, y = torch.rand(6, 5, generator=generator(3)), torch.zeros(6, dtype=torch.int64)
        found.append(torch.allclose(network(x, y), network(x[:, [4, 2, 3, 0, 1]], y)))
    assert found == [False, True]


def test_the_loss_is_cross_entropy_plus_lambda_mean_log_h_and_trains_the_model_alone():
    data = replace(clients()[0], held_out=torch.arange(40) < 20)
    losses = {}
    for weight in (0.0, 3.0):
        ctx = member_context(tiny_module(), data, facts_of(9, local_epochs=2), weights=1)
        batch = Batch(data.x[20:28], data.y[20:28], torch.arange(20, 28))
        logits = ctx.model(batch.x)
        loss = AdvReg(weight=weight, **SMALL).loss(logits, batch, ctx)
        network, _ = ctx.memory["network"]
        h = torch.sigmoid(network(logits.softmax(1), batch.y))
        torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, batch.y) + weight * h.log().mean())
        was = [p.grad for p in network.parameters()]
        loss.backward()
        assert [p.grad for p in network.parameters()] == was and not any(p.requires_grad for p in network.parameters())
        losses[weight] = loss
    assert losses[0.0] != losses[3.0]


def test_the_network_learns_to_tell_its_own_samples_from_the_reference_set():
    """A model that knows its training samples by heart: h finds them, and finds nothing where both sets are strangers."""
    data = replace(clients(60)[0], held_out=torch.arange(60) >= 30)
    gains = {}
    for fitted in (True, False):
        ctx = member_context(tiny_module(64), data, facts_of(9, batch_size=30), weights=1)
        optimizer = torch.optim.Adam(ctx.model.parameters(), 0.02)
        for _ in range(400 if fitted else 0):
            optimizer.zero_grad()
            nn.functional.cross_entropy(ctx.model(data.x[:30]), data.y[:30]).backward()
            optimizer.step()
        defense = AdvReg(weight=0, steps=100, rate=0.01, **SMALL)
        batch = Batch(data.x[:8], data.y[:8], torch.arange(8))
        for _ in range(4):
            defense.loss(ctx.model(batch.x), batch, ctx)
        network, _ = ctx.memory["network"]
        told = torch.sigmoid(network(ctx.logits(data.x).softmax(1), data.y))
        gains[fitted] = float(told[:30].mean() - told[30:].mean())
    assert gains[True] > 0.4 and gains[True] > gains[False] + 0.2


def test_the_gate_of_the_released_code_leaves_the_term_out_before_its_epoch():
    late, never, always = (
        shielded(AdvReg(from_epoch=n, weight=1e6, **SMALL, **HALF), rounds=2, local_epochs=3)[1] for n in (2, 3, 0)
    )
    without = shielded(AdvReg(weight=0, **SMALL, **HALF), rounds=2, local_epochs=3)[1]
    assert torch.equal(never[1].uploads.updates, without[1].uploads.updates)
    for one, other in ((late, never), (late, always)):  # in each round anew
        assert not torch.equal(one[0].uploads.updates[0], other[0].uploads.updates[0])
        assert not torch.equal(one[1].uploads.updates[0], other[1].uploads.updates[0])


def test_the_reference_set_is_disjoint_from_what_is_trained_on_and_from_what_is_asked_about(monkeypatch):
    used: dict[int, dict[str, set[int]]] = {}

    class Watched(AdvReg):
        """Notes which of a member's positions each side of the game is given."""

        def loss(self, logits, batch, ctx):
            mine = used.setdefault(ctx.client, {"trained": set(), "reference": set()})
            mine["trained"] |= set(batch.index.tolist())
            return super().loss(logits, batch, ctx)

    pools, draw = [], adv_reg._some

    def noted(pool, count, ctx):
        pools.append((ctx.client, draw(pool, count, ctx)))
        return pools[-1][1]

    monkeypatch.setattr(adv_reg, "_some", noted)
    use = given_use(Watched, {"validation": 0.1, **SMALL}, "watched")
    pictures = given_use(TinyPictures, {"train": 480}, "tiny-pictures")
    job, parts, scene = job_of(setting_of(), defense=use, dataset=pictures)
    trained = train(job, parts, scene, [job.cells[0].look], lambda t: None)
    for i, (client, positions) in enumerate(pools):
        used[client]["trained" if i % 2 == 0 else "reference"] |= set(positions.tolist())
    assert set(used) == {0, 1}
    reference = {int(scene.shards[k][i]) for k, mine in used.items() for i in mine["reference"]}
    learnt = {int(scene.shards[k][i]) for k, mine in used.items() for i in mine["trained"]}
    assert len(reference) == 24 and not reference & learnt and reference == set(trained.held_out.tolist())
    asked = {int(i) for audit in scene.audits for i in audit.ids[kinds_of(audit, trained) != EXCLUDED]}
    assert asked and not asked & reference
