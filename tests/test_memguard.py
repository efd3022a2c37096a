"""MemGuard: its noise against the paper's algorithm, its promises, and what its members know and
when.
"""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import pytest
import torch
from defense_cases import made
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from parties import generator
from tiny import drawn, tiny_clients, tiny_setup, train_all
from torch import nn

from fedbench.core import Defense, MemberData
from fedbench.core.federation.loop import answered
from fedbench.core.run.measurements import evaluated
from fedbench.plugins.defenses.memguard import phase_one, phase_two, train_classifier

SMALL = {"hidden": (16, 8), "epochs": 400, "steps": 40}


def lessons(classes: int = 4, n: int = 60, seed: int = 0) -> torch.Tensor:
    """[2n, C]: an overfitted model's logits: sure of what it was trained on, less so of what it was
    not.
    """
    g = generator(seed)
    z = torch.randn(2 * n, classes, generator=g, dtype=torch.float64)
    return z.scatter_add(
        1,
        torch.randint(0, classes, (2 * n, 1), generator=g),
        torch.cat([6 + z[:n, :1], 2 + z[n:, :1]]),
    )


def learnt(taught: list[torch.Tensor], key: int = 5, **params):
    return train_classifier(taught, made("memguard", **SMALL, **params).params, key)


@functools.cache
def classifier(classes: int = 4):
    return learnt([lessons(classes)])


def decision(g, logits: torch.Tensor) -> torch.Tensor:
    return g.h(logits.double().softmax(1)).sigmoid()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double().softmax(1) - b.double().softmax(1)).abs().sum(1)


# --- phase I --------------------------------------------------------------------------------------


def algorithm_1(z: torch.Tensor, g, steps: int) -> torch.Tensor:
    """The paper's, one sample [C] after the other, as it is printed: c2 = 10, c3 from .1 to
    100,000, steps of .1.
    """
    label, s = int(z.argmax()), z.softmax(0)
    before = g.h(s[None])[0]
    best = z
    if abs(float(before.sigmoid()) - 0.5) <= 1e-5:
        return best
    for c3 in (0.1, 1, 10, 100, 1e3, 1e4, 1e5):
        e = torch.zeros_like(z)
        succeeded = False
        for _ in range(steps):
            e = e.detach().requires_grad_()
            p = (z + e).softmax(0)
            others = torch.cat([(z + e)[:label], (z + e)[label + 1 :]])
            l1, l2 = g.h(p[None])[0].abs(), (others.max() - (z + e)[label]).relu()
            (u,) = torch.autograd.grad(l1 + 10 * l2 + c3 * (p - s).abs().sum(), e)
            e = (e - 0.1 * u / u.norm()).detach()
            if (
                int((z + e).argmax()) == label
                and float(g.h((z + e).softmax(0)[None])[0] * before) <= 0
            ):
                succeeded = True
                break
        if not succeeded:
            break
        best = z + e
    return best


def test_phase_one_is_the_papers_algorithm_for_all_samples_at_once():
    z = torch.cat([lessons(seed=3)[:6], lessons(seed=3)[-6:]])
    found = phase_one(z, classifier(), 60)
    expected = torch.stack([algorithm_1(row, classifier(), 60) for row in z])
    assert torch.allclose(found, expected, atol=1e-8)
    assert int((distance(found, z) > 0).sum()) >= 6


# --- what holds of every answer -------------------------------------------------------------------


@st.composite
def asked(draw):
    """(logits [n, C] float32, with ties and large ones among them; budget)"""
    classes = draw(st.sampled_from([2, 4]))
    values = st.floats(-40, 40, width=32) | st.sampled_from([0.0, 1.0, 5.0])
    z = draw(hnp.arrays("float32", st.tuples(st.integers(1, 4), st.just(classes)), elements=values))
    return torch.from_numpy(z), draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]))


@given(asked(), st.integers(0, 2**64 - 1))
@settings(max_examples=10)
def test_the_label_stays_the_answer_is_valid_g_comes_nearer_and_each_sample_is_answered_alone(
    case, key
):
    z, budget = case
    g = classifier(z.shape[1])
    noisy = phase_one(z, g, 15)
    said = phase_two(z, noisy, g, budget, key)
    assert said.shape == z.shape and said.dtype == z.dtype
    assert torch.equal(said.argmax(1), z.argmax(1)) and torch.equal(
        said.softmax(1).argmax(1), z.softmax(1).argmax(1)
    )
    assert bool(torch.isfinite(said).all())
    assert bool(((decision(g, said) - 0.5).abs() <= (decision(g, z) - 0.5).abs()).all())
    changed = (said != z).any(1)
    assert torch.equal(said[changed], noisy[changed]) and not (budget == 0 and changed.any())
    alone = torch.cat([phase_two(row, phase_one(row, g, 15), g, budget, key) for row in z.split(1)])
    assert torch.allclose(said, alone, atol=1e-5)


def test_the_distance_met_on_average_is_the_budgets_and_who_asks_again_gets_the_same_answer():
    z = lessons(seed=4).float()
    noisy, keys, budget = phase_one(z, classifier(), 60), range(600), 0.3
    d, off = distance(noisy, z), (decision(classifier(), z) - 0.5).abs()
    helps = (decision(classifier(), noisy) - 0.5).abs() < off
    p = torch.where(helps, (budget / d.clamp(min=1e-30)).clamp(max=1), 0.0)
    answers = torch.stack([phase_two(z, noisy, classifier(), budget, key) for key in keys])
    met = torch.stack([distance(a, z) for a in answers]).mean(0)
    assert int(((p > 0) & (p < 0.9)).sum()) > 5
    assert bool(((met - p * d).abs() <= 4.5 * (p * (1 - p) / 600).sqrt() * d + 1e-9).all())
    assert torch.equal(phase_two(z, noisy, classifier(), budget, 7), answers[7])


# --- in a federation ------------------------------------------------------------------------------

WIDE = 30  # inputs of the federation's model


def with_references() -> list[MemberData]:
    """Clients with every third sample as validation part; noise in many dimensions, memorised."""
    g = generator(3)
    held = torch.arange(24) % 3 == 0
    drawn = [
        (torch.randn(24, WIDE, generator=g), torch.randint(0, 3, (24,), generator=g))
        for _ in range(4)
    ]
    return [MemberData(x, y, held_out=held) for x, y in drawn]


def wide() -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(WIDE, 48), nn.ReLU(), nn.Linear(48, 3)), scale=0.2)


def federation(defense: Defense, **changes):
    given = {
        "clients": with_references(),
        "members": (0, 1, 2, 3),
        "local_epochs": 20,
        "module": wide(),
        "lr": 0.05,
    }
    return train_all(tiny_setup(defense, **{**given, **changes}))


def test_the_server_sees_plain_training_and_the_leak_is_gone_from_the_answers():
    (plain, before), (guarded, after) = federation(Defense()), federation(made("memguard", **SMALL))
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a.uploads.updates, b.uploads.updates) and torch.equal(a.models, b.models)
    x = torch.cat([d.x for d in guarded.clients])
    inside = torch.cat([~d.held_out for d in guarded.clients])
    y = torch.cat([d.y for d in guarded.clients])
    assert (evaluated(plain, x, y)[1] == evaluated(guarded, x, y)[1]).all()
    logits = guarded.setup.flat.logits(guarded.state[0], x)
    said = answered(guarded, 0, logits)
    assert torch.equal(said, answered(guarded, 0, logits))
    # what each member learnt in its last round makes the classifier again
    g = learnt(
        [guarded.parties.memory(k)["lessons"] for k in range(4)],
        key=guarded.parties.answer_context(3, 0, ()).key,
    )
    was, is_ = decision(g, logits), decision(g, said)
    assert float(was[inside].mean() - was[~inside].mean()) > 0.08
    assert float((is_ - 0.5).abs().mean()) < 0.5 * float((was - 0.5).abs().mean())
    assert abs(float(is_[inside].mean() - is_[~inside].mean())) < 0.03


def test_members_learn_from_the_new_global_model_as_many_own_samples_as_references():
    training, results = federation(
        made("memguard", **SMALL), members=(0, 1), rounds=2, local_epochs=2
    )
    flat = training.setup.flat
    for k in (0, 1):
        kept, data = training.parties.memory(k), training.clients[k]
        assert torch.equal(data.held_out, with_references()[k].held_out) and kept[
            "lessons"
        ].shape == (16, 3)
        known = flat.logits(results[-1].state[0], data.x).double()
        rows = (kept["lessons"][:, None] - known[None]).abs().amax(2).argmin(1)
        assert (
            data.held_out[rows].tolist() == [False] * 8 + [True] * 8
            and len(set(rows.tolist())) == 16
        )
    assert "lessons" not in training.parties.memory(2)


@pytest.mark.parametrize(("n", "share", "held"), [(12, 0.01, 1), (40, 0.1, 4), (1, 0.5, 0)])
def test_a_member_without_a_validation_part_holds_one_out_and_without_samples_answers_plainly(
    n, share, held
):
    clients = [MemberData(d.x[:n], d.y[:n]) for d in tiny_clients(samples=40)]
    training = train_all(
        tiny_setup(made("memguard", **SMALL, validation=share), clients=clients, rounds=1)
    )[0]
    parts = [d.held_out for d in training.clients]
    assert [0 if part is None else int(part.sum()) for part in parts] == [held, held, 0, 0]
    z = lessons(classes=3).float()
    assert torch.equal(answered(training, 0, z), z) == (held == 0)


def test_members_that_were_away_do_not_speak_for_an_older_model():
    training, results = federation(made("memguard", **SMALL), participation=0.5, local_epochs=2)
    present = list(results[-1].uploads.participants)
    assert len(present) == 2 and sum("lessons" in training.parties.memory(k) for k in range(4)) > 2
    z = lessons(classes=3, seed=6).float()
    found = answered(training, 0, z)
    for k in range(4):
        if k not in present:
            training.parties.memory(k).pop("lessons", None)
    training.defense.begin(None)  # forgets the classifier
    assert torch.equal(answered(training, 0, z), found) and not torch.equal(found, z)
