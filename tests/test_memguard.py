"""MemGuard: its noise against the paper's algorithm, its promises, and what its members know and when."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from torch import nn

from fedbench.core import Defense, MemberData
from fedbench.core.experiment.evaluate import predicted_by
from fedbench.core.federation.answering import answered
from fedbench.plugins.defenses.memguard import MemGuard
from fedbench.plugins.defenses.memguard_net import Classifier, trained
from fedbench.plugins.defenses.memguard_noise import C2, C3, RATE, chance, coins, crafted, used
from fedbench.testing.tiny import tiny_clients, tiny_setup, train_all

WIDE = 30  # inputs of the federation's model
SMALL = {"hidden": (16, 8), "epochs": 400, "steps": 60}
PARAMS = MemGuard.Params(**SMALL)


def lessons(classes: int = 4, n: int = 60, seed: int = 0) -> torch.Tensor:
    """[2n, C]: an overfitted model's logits: sure of what it was trained on, less so of what it was not."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(2 * n, classes, generator=g, dtype=torch.float64)
    return z.scatter_add(1, torch.randint(0, classes, (2 * n, 1), generator=g), torch.cat([6 + z[:n, :1], 2 + z[n:, :1]]))


@functools.cache
def classifier(classes: int = 4) -> Classifier:
    g = trained([lessons(classes)], PARAMS, key=5)
    assert g is not None
    return g


def decision(g: Classifier, logits: torch.Tensor) -> torch.Tensor:
    return g.h(logits.double().softmax(1)).sigmoid()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double().softmax(1) - b.double().softmax(1)).abs().sum(1)


# --- the classifier ---------------------------------------------------------------------------------------------------


def test_the_classifier_tells_members_from_references_and_begins_where_the_key_says():
    said = decision(classifier(), lessons(seed=1))
    assert float(said[:60].mean()) > 0.7 and float(said[60:].mean()) < 0.3
    one, again, other = (trained([lessons()], PARAMS, key=k).h(lessons().softmax(1)) for k in (5, 5, 6))
    assert torch.equal(one, again) and not torch.allclose(one, other)


def test_members_count_alike_however_much_each_knows():
    a, b = lessons(n=5), lessons(n=7, seed=2)
    twice = torch.cat([b[:7], b[:7], b[7:], b[7:]])
    once, doubled = (trained([a, other], PARAMS, key=5).h(a.softmax(1)) for other in (b, twice))
    assert torch.allclose(once, doubled, rtol=1e-6, atol=1e-8)
    assert trained([], PARAMS, key=5) is None


def test_sorted_confidences_know_no_classes():
    z = lessons()
    turned = z[:, [2, 0, 3, 1]]
    plain = trained([z], MemGuard.Params(**SMALL, order="plain"), key=5)
    assert torch.allclose(classifier().h(z.softmax(1)), classifier().h(turned.softmax(1)))
    assert not torch.allclose(plain.h(z.softmax(1)), plain.h(turned.softmax(1)))


# --- phase I ----------------------------------------------------------------------------------------------------------


def algorithm_1(z: torch.Tensor, g: Classifier, steps: int) -> torch.Tensor:
    """The paper's, one sample [C] after the other, as it is printed."""
    label, s = int(z.argmax()), z.softmax(0)
    before = g.h(s[None])[0]
    best = z
    if abs(float(before.sigmoid()) - 0.5) <= 1e-5:
        return best
    for c3 in C3:
        e = torch.zeros_like(z)
        succeeded = False
        for _ in range(steps):
            e = e.detach().requires_grad_()
            p = (z + e).softmax(0)
            others = torch.cat([(z + e)[:label], (z + e)[label + 1 :]])
            l1, l2 = g.h(p[None])[0].abs(), (others.max() - (z + e)[label]).relu()
            (u,) = torch.autograd.grad(l1 + C2 * l2 + c3 * (p - s).abs().sum(), e)
            e = (e - RATE * u / u.norm()).detach()
            if int((z + e).argmax()) == label and float(g.h((z + e).softmax(0)[None])[0] * before) <= 0:
                succeeded = True
                break
        if not succeeded:
            break
        best = z + e
    return best


def test_phase_one_is_the_papers_algorithm_for_all_samples_at_once():
    z = torch.cat([lessons(seed=3)[:12], lessons(seed=3)[-12:]])
    found = crafted(z, classifier(), 60)
    expected = torch.stack([algorithm_1(row, classifier(), 60) for row in z])
    assert torch.allclose(found, expected, atol=1e-8)
    assert int((distance(found, z) > 0).sum()) >= 12


def test_fewer_steps_find_less_and_the_search_ends():
    z = lessons(seed=3)
    few, many = ((distance(crafted(z, classifier(), steps), z) > 0).sum() for steps in (2, 60))
    assert int(few) < int(many)


# --- what holds of every answer ---------------------------------------------------------------------------------------


@st.composite
def asked(draw):
    """(logits [n, C] float32, with ties and large ones among them; budget)"""
    classes = draw(st.sampled_from([2, 4, 7]))
    values = st.floats(-40, 40, width=32) | st.sampled_from([0.0, 1.0, 5.0])
    z = draw(hnp.arrays("float32", st.tuples(st.integers(1, 6), st.just(classes)), elements=values))
    return torch.from_numpy(z), draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]))


@given(asked(), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_the_label_stays_the_answer_is_valid_g_comes_nearer_and_the_budget_holds(case, key):
    z, budget = case
    g = classifier(z.shape[1])
    noisy = crafted(z, g, 30)
    said, p = used(z, noisy, g, budget, key), chance(z, noisy, g, budget)
    assert said.shape == z.shape and said.dtype == z.dtype
    assert torch.equal(said.argmax(1), z.argmax(1)) and torch.equal(said.softmax(1).argmax(1), z.softmax(1).argmax(1))
    assert bool(torch.isfinite(said).all()) and torch.allclose(said.softmax(1).sum(1), torch.ones(len(z)), atol=1e-5)
    assert bool(((decision(g, said) - 0.5).abs() <= (decision(g, z) - 0.5).abs()).all())
    assert bool((p * distance(noisy, z) <= budget + 1e-9).all())
    changed = (said != z).any(1)
    assert torch.equal(said[changed], noisy[changed]) and bool((p[changed] > 0).all())


@given(asked(), st.integers(0, 2**64 - 1))
@settings(max_examples=15, deadline=None)
def test_an_answer_depends_on_no_other_sample(case, key):
    z, budget = case
    g = classifier(z.shape[1])
    together = used(z, crafted(z, g, 20), g, budget, key)
    alone = torch.cat([used(row, crafted(row, g, 20), g, budget, key) for row in z.split(1)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_distance_met_on_average_is_the_budgets():
    z = lessons(seed=4).float()
    noisy = crafted(z, classifier(), 60)
    d, p = distance(noisy, z), chance(z, noisy, classifier(), 0.3)
    tight = (d > 0.35) & (p > 0)
    assert int(tight.sum()) > 5
    met = torch.stack([distance(used(z, noisy, classifier(), 0.3, key), z) for key in range(400)]).mean(0)
    spread = 4 * (p * (1 - p) / 400).sqrt() * d
    assert bool(((met - p * d).abs() <= spread + 1e-9).all())
    assert torch.allclose((p * d)[tight], torch.full_like(d[tight], 0.3))


def test_a_coin_is_its_samples_and_its_keys_and_nothing_elses():
    z = lessons(seed=4).float()
    first = coins(z, 7)
    assert torch.equal(coins(z.flip(0), 7).flip(0), first) and not torch.equal(coins(z, 8), first)
    rounding = 1e-6 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))  # of a forward pass in other chunks
    assert float((coins(z + rounding, 7) == first).double().mean()) > 0.95
    everything = torch.cat([coins(z, key) for key in range(50)])
    assert abs(float(everything.mean()) - 0.5) < 4 * (1 / 12 / len(everything)) ** 0.5
    assert float(everything.min()) >= 0 and float(everything.max()) < 1


# --- in a federation --------------------------------------------------------------------------------------------------


def with_references(share: int = 3) -> list[MemberData]:
    """Clients to whom the setting gives a validation part, every ``share``-th sample; noise in many dimensions, to be learnt by
    heart."""
    g = torch.Generator().manual_seed(3)
    held = torch.arange(24) % share == 0
    drawn = [(torch.randn(24, WIDE, generator=g), torch.randint(0, 3, (24,), generator=g)) for _ in range(4)]
    return [MemberData(x, y, held_out=held) for x, y in drawn]


def wide() -> nn.Module:
    """A layer more than is needed."""
    g = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDE, 48), nn.ReLU(), nn.Linear(48, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.2)
    return module


def federation(defense: Defense, **changes):
    given = {"clients": with_references(), "members": (0, 1, 2, 3), "local_epochs": 20, "module": wide(), "lr": 0.05}
    return train_all(tiny_setup(defense, **{**given, **changes}))


def test_the_server_sees_what_it_sees_without_it_and_the_test_accuracy_is_the_same():
    (plain, before), (guarded, after) = federation(Defense()), federation(MemGuard(**SMALL))
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a.uploads.updates, b.uploads.updates) and torch.equal(a.models, b.models)
    x = torch.randn(200, WIDE, generator=torch.Generator().manual_seed(9))
    assert (predicted_by(plain, x) == predicted_by(guarded, x)).all()
    logits = guarded.setup.flat.logits(guarded.models[0], guarded.buffers[0], x)
    assert int((answered(guarded, 0, logits) != logits).any(1).sum()) > 20


def test_the_leak_that_its_classifier_sees_is_gone_from_the_answers():
    training, _ = federation(MemGuard(**SMALL))
    flat = training.setup.flat
    x = torch.cat([d.x for d in training.clients])
    inside = torch.cat([~d.held_out for d in training.clients])
    logits = flat.logits(training.models[0], training.buffers[0], x)
    said = answered(training, 0, logits)
    key, g = training.defense._latest
    assert key == training.parties.asked(3, 0, ()).key
    before, after = decision(g, logits), decision(g, said)
    assert float(before[inside].mean() - before[~inside].mean()) > 0.08
    assert float((after - 0.5).abs().mean()) < 0.5 * float((before - 0.5).abs().mean())
    assert abs(float(after[inside].mean() - after[~inside].mean())) < 0.03


def test_what_is_asked_twice_is_answered_once():
    training, _ = federation(MemGuard(**SMALL, budget=0.2), rounds=1)
    z = lessons(classes=3, seed=6).float()
    assert torch.equal(answered(training, 0, z), answered(training, 0, z))


def test_members_learn_from_the_new_global_model_as_many_of_each_and_train_nothing_till_somebody_asks():
    training, results = federation(MemGuard(**SMALL), members=(0, 1), rounds=2)
    assert training.defense._latest is None
    flat = training.setup.flat
    for k in (0, 1):
        kept, data = training.parties.memory(k), training.clients[k]
        assert kept["round"] == 2 and kept["lessons"].shape == (16, 3)
        known = flat.logits(results[-1].models[0], results[-1].buffers[0], data.x).double()
        rows = (kept["lessons"][:, None] - known[None]).abs().amax(2).argmin(1)
        assert data.held_out[rows].tolist() == [False] * 8 + [True] * 8 and len(set(rows.tolist())) == 16
    assert "lessons" not in training.parties.memory(2)
    assert training.facts() == {"protects": ["client", "external"], "distortion budget": 1.0, "references": 16}


@pytest.mark.parametrize(("n", "share", "held"), [(12, 0.1, 1), (40, 0.1, 4), (40, 0.5, 20), (2, 0.9, 1), (1, 0.5, 0)])
def test_a_member_without_a_validation_part_holds_one_out(n, share, held):
    clients = [MemberData(d.x[:n], d.y[:n]) for d in tiny_clients(samples=40)]
    training = train_all(tiny_setup(MemGuard(**SMALL, validation=share), clients=clients, rounds=1))[0]
    parts = [d.held_out for d in training.clients]
    assert [0 if part is None else int(part.sum()) for part in parts] == [held, held, 0, 0]


def test_a_validation_part_of_the_setting_is_left_as_it_is():
    training, _ = federation(MemGuard(**SMALL, validation=0.9), rounds=1, local_epochs=1)
    assert all(torch.equal(a.held_out, b.held_out) for a, b in zip(training.clients, with_references(), strict=True))


def test_without_references_there_is_nothing_to_answer_with():
    clients = [MemberData(d.x[:1], d.y[:1]) for d in tiny_clients()]
    training, _ = train_all(tiny_setup(MemGuard(**SMALL), clients=clients, rounds=1))
    z = lessons(classes=3).float()
    assert torch.equal(answered(training, 0, z), z) and training.facts()["references"] == 0


def test_members_that_were_away_do_not_speak_for_an_older_model():
    training, results = federation(MemGuard(**SMALL), participation=0.5, local_epochs=2)
    present = list(results[-1].uploads.participants)
    rounds = {k: training.parties.memory(k).get("round") for k in range(4)}
    assert [k for k in rounds if rounds[k] == 3] == present and len(present) == 2
    from fedbench.plugins.defenses.memguard import lessons_of

    told = lessons_of(training.parties.asked(3, 0, (0, 1, 2, 3)))
    assert len(told) == 2
    assert all(torch.equal(a, training.parties.memory(k)["lessons"]) for a, k in zip(told, present, strict=True))
