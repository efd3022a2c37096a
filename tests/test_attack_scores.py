"""Scores of attacks without a teacher, and the signals of logits that they read, against slow references."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from worlds import (
    SMALL,
    TARGET,
    World,
    attack,
    measured,
    of_logits,
    slow_fedmia,
    with_absence,
    with_signals,
)  # fmt: skip

from fedbench.core import Observations, SkipCell
from fedbench.plugins.attacks.trajectory import within_class

few = settings(max_examples=25, deadline=None)


def observed(view: str = "server", target: int = 0, rounds: int | np.ndarray = 1, **signals: np.ndarray) -> Observations:
    """Observations of these signals [R, M, n]."""
    clients = next(iter(signals.values())).shape[1]
    times = np.arange(1, rounds + 1) if isinstance(rounds, int) else rounds
    names = {name.replace("_", "-"): a for name, a in signals.items()}
    who = np.arange(clients) if view == "server" else np.array([-1])
    return Observations(view=view, rounds=times, clients=who, target=target, signals=names)


def one_round(measure: np.ndarray) -> Observations:
    """``measure``: [M, n] in one round, row 0 the target's, as a negative loss."""
    return observed(loss=-np.asarray(measure, float)[None])


# --- logit signals ----------------------------------------------------------------------------------------------------


def test_signals_of_logits_equal_their_definitions():
    g = torch.Generator().manual_seed(0)
    logits, y = 2 * torch.randn(50, 4, generator=g, dtype=torch.float64), torch.arange(50) % 4
    for z, label, logit in zip(logits.softmax(1).tolist(), y.tolist(), logits.tolist(), strict=True):
        own, others = z[label], [q for j, q in enumerate(z) if j != label]
        wanted = {
            "loss": -math.log(own), "confidence": own, "max-prob": max(z), "logit-confidence": math.log(own / (1 - own)),
            "std-prob": statistics.pstdev(z), "entropy": -sum(q * math.log(q) for q in z),
            "modified-entropy": -(1 - own) * math.log(own) - sum(q * math.log(1 - q) for q in others),
            "margin": logit[label] - max(v for j, v in enumerate(logit) if j != label),
        }  # fmt: skip
        found = {name: measured(name, torch.tensor([logit]).double(), torch.tensor([label])) for name in wanted}
        assert {name: v.item() for name, v in found.items()} == pytest.approx(wanted, rel=1e-5)
        assert all(v.dtype == torch.float32 and v.shape == (1,) for v in found.values())


def test_signals_of_saturated_predictions_are_finite_and_keep_their_order():
    logits, y = torch.tensor([[200.0, 0, 0, 0]] * 2), torch.tensor([0, 1])
    found = {name: measured(name, logits, y) for name in of_logits()}
    assert all(torch.isfinite(v).all() for v in found.values())
    assert found["modified-entropy"].tolist() == [0, pytest.approx(400 - math.log(3))]  # -ln p_y - ln(1 - p_0), p_0 = 1
    assert found["loss"].tolist() == [0, 200] and found["entropy"].tolist() == [0, 0]
    assert measured("logit-confidence", logits, y).tolist() == pytest.approx([200 - math.log(3), -200])


# --- trajectories -----------------------------------------------------------------------------------------------------


def slow_class_scores(row: list[float], y: list[int]) -> list[float]:
    """A round of one client, each value standardised among those of its class."""
    out = []
    for value, label in zip(row, y, strict=True):
        own = [v for v, other in zip(row, y, strict=True) if other == label]
        mean = sum(own) / len(own)
        spread = math.sqrt(sum((v - mean) ** 2 for v in own) / len(own))
        out.append(0.0 if len(set(own)) == 1 else (value - mean) / spread)
    return out


def slow_cosine(w: World) -> np.ndarray:
    s = w.observations.signals
    return np.asarray(s["grad-dot"], float) / np.sqrt(np.asarray(s["grad-sq"], float) * np.asarray(s["update-sq"], float))


def slow_slope(a: np.ndarray) -> np.ndarray:
    return np.polyfit(SMALL.observations.rounds, a[:, TARGET], 1)[0]


def mean(a: np.ndarray) -> np.ndarray:
    return a[:, TARGET].mean(axis=0)


CLASS = {"normalise": "class"}
DEFINITIONS = [
    *((name, params, measure, of) for params in ({}, CLASS) for name, measure, of in (
        ("loss-series", "loss", mean), ("avg-cosine", "cosine", mean), ("fta-c", "confidence", slow_slope),
        ("fta-l", "loss", slow_slope), ("fedmia-i", "loss", slow_fedmia), ("fedmia-ii", "cosine", slow_fedmia),
    )),
    ("grad-norm", {"average": True}, "gradient", mean),
    ("grad-norm", {"average": True, "inverted": True}, "gradient", lambda a: -mean(a)),
    ("grad-norm", {}, "gradient", lambda a: a[-1, TARGET]), ("blackbox-loss", {}, "loss", lambda a: a[-1, TARGET]),
    ("passive", {}, "margin", lambda a: a[-1, TARGET]), ("fedpoisonmia", {}, "margin", lambda a: a[-1, TARGET]),
    ("grad-cosine", {}, "cosine", lambda a: a[-1, TARGET]), ("fta", {"signal": "loss"}, "loss", slow_slope),
    ("fta", {"signal": "confidence"}, "confidence", slow_slope), ("fta", {"signal": "rescaled"}, "log odds", slow_slope),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "measure", "wanted"), DEFINITIONS)
def test_a_score_is_its_definition(name, params, measure, wanted):
    seen, p = SMALL.observations, np.exp(-SMALL.observations["loss"].astype(np.float64))
    a = {
        "loss": np.log(p), "confidence": p, "log odds": np.log(p / (1 - p)), "cosine": slow_cosine(SMALL),
        "margin": seen["margin"],
        "gradient": -np.broadcast_to(seen["grad-sq"], p.shape).astype(np.float64),
    }[measure]  # fmt: skip
    if params == CLASS:
        a = np.array([[slow_class_scores(row, SMALL.y.tolist()) for row in of_round] for of_round in a.tolist()])
    one = attack(name, **params)
    assert one.view == ("client" if name in ("fta", "passive", "fedpoisonmia") else "server")
    np.testing.assert_allclose(SMALL.score(one), wanted(a), rtol=1e-4, atol=1e-6)


@few
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_values_are_standardised_within_their_class_and_zero_where_equal_or_alone(rows, n, classes, random):
    y = [random.randrange(classes) for _ in range(n)]
    a = [[0.1 * random.randrange(-3, 4) for _ in range(n)] for _ in range(rows)]  # with ties
    found = within_class(np.array([*a, [np.nan] * n]), np.array(y))
    np.testing.assert_allclose(found[:-1], [slow_class_scores(row, y) for row in a], atol=1e-9)
    assert np.isnan(found[-1]).all()


def test_gradient_scores_of_vectors_ignore_their_lengths_where_they_are_cosines():
    rng = np.random.default_rng(0)
    g, update = rng.normal(size=(5, 7)), rng.normal(size=(1, 3, 7))

    def score(name, g=g, update=update):
        sq = (g**2).sum(1)[None, None]
        seen = observed(target=1, grad_dot=update @ g.T, grad_sq=sq, update_sq=(update**2).sum(2)[..., None])
        return attack(name).score(seen, SMALL.audit())

    mine = update[-1, 1]
    cosine = [v @ mine / np.linalg.norm(v) / np.linalg.norm(mine) for v in g]
    np.testing.assert_allclose(score("grad-cosine"), cosine)
    np.testing.assert_allclose(score("grad-cosine", 1e3 * g, 1e-3 * update), cosine)
    np.testing.assert_allclose(score("grad-diff"), [np.linalg.norm(mine) ** 2 - np.linalg.norm(mine - v) ** 2 for v in g])
    np.testing.assert_allclose(score("fedmia-ii", 1e3 * g, 1e-3 * update), score("fedmia-ii"), rtol=1e-3)
    assert (score("avg-cosine", g, 0 * update) == 0).all() and (score("avg-cosine", 0 * g) == 0).all()


@pytest.mark.parametrize("name", ["loss-series", "blackbox-loss", "fedmia-i"])
def test_loss_attacks_read_the_loss_before_the_defense_where_asked(name):
    before = SMALL.observations["loss"][:, ::-1] + 0.1
    w, asked = with_signals(SMALL, **{"loss@pre_defense": before}), attack(name, loss_on="pre_defense")
    assert asked.needs == {"loss@pre-defense"} and attack(name).needs == {"loss"}
    np.testing.assert_array_equal(w.score(asked), with_signals(SMALL, loss=before).score(attack(name)))
    np.testing.assert_array_equal(w.score(attack(name)), SMALL.score(attack(name)))
    assert not np.array_equal(w.score(asked), SMALL.score(attack(name)))


# --- FedMIA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "ddof"), [("none", 0), ("none", 1), ("3sigma_pop", 0), ("mad", 1), ("loo", 1)])
def test_fedmia_is_its_equations_under_every_filter_with_absent_clients(kind, ddof):
    a = np.random.default_rng(0).normal(size=(3, 15, 40))
    a[:, 5, :20] += 15  # a client that trained on these candidates: every filter leaves it out
    a[1, 4:6], a[2, TARGET] = np.nan, np.nan
    score = attack("fedmia-i", filter=kind, ddof=ddof).score(observed(target=TARGET, rounds=3, loss=-a), SMALL.audit())
    np.testing.assert_allclose(score, slow_fedmia(a[:2], kind, ddof), rtol=1e-6)
    others = observed(target=TARGET, rounds=3, loss=-np.repeat(a[:, :1], 5, axis=1))  # all alike: one half at their mean
    np.testing.assert_allclose(attack("fedmia-i", filter=kind, ddof=ddof).score(others, SMALL.audit()), 0.5)


@few
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=9), st.integers(-1000, 1000))
def test_the_published_filter_never_fires_with_nine_others(others, target):
    seen = one_round(np.array([[target], *([s] for s in others)]) / 100)
    scores = [attack("fedmia-i", filter=f).score(seen, SMALL.audit()) for f in ("3sigma_pop", "none")]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-9)


@pytest.mark.parametrize(("n", "trained", "kind"), [(2, 0, "loo"), (4, 0, "3sigma_pop"), (12, 1, "3sigma_pop")])
def test_students_tail_is_the_predictive_distribution_of_the_clients_kept(n, trained, kind):
    rng = np.random.default_rng(1)
    others, target = rng.normal(size=(n, 50)), rng.normal(size=50)
    wanted = stats.t.cdf(target, n - 1, others.mean(axis=0), others.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n))
    one = attack("fedmia-i", tail="student", guard=1e-30, filter=kind)
    seen = one_round(np.vstack([target, others, np.full((trained, 50), 99.0)]))  # left out, and not counted
    np.testing.assert_allclose(one.score(seen, SMALL.audit()), wanted, rtol=1e-9)


@pytest.mark.parametrize(("measure", "paper"), [("loss", "fedmia-i"), ("grad-cosine", "fedmia-ii")])
def test_lifting_the_papers_measurements_gives_the_papers_attacks(measure, paper):
    params = {"filter": "loo", "tail": "student", "normalise": "class"}
    lifted, own = attack("fedmia", measure=measure, **params), attack(paper, **params)
    assert lifted.needs == own.needs
    np.testing.assert_array_equal(SMALL.score(lifted), SMALL.score(own))


def test_a_third_partys_signal_is_lifted_by_its_name_sign_and_guard():
    depth = 3 * SMALL.observations["loss"].astype(np.float64) + 1
    w, down = with_signals(SMALL, their_depth=depth), attack("fedmia", measure="their-depth", sign=-1, guard=1e-9)
    up, wanted = attack("fedmia", measure="their-depth", guard=1e-9), slow_fedmia(-depth)
    assert down.needs == {"their-depth"}
    np.testing.assert_allclose(w.score(down), wanted, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(w.score(up), 1 - wanted, atol=1e-6)  # Phi(-z) = 1 - Phi(z)
    drowned = w.score(attack("fedmia", measure="their-depth", guard=1e6))
    assert np.ptp(drowned) < 0.1 < np.ptp(wanted)


def alone(view: str) -> Observations:
    signals = {name: a[:, :1] for name, a in SMALL.observations.signals.items()}
    return replace(SMALL.observations, view=view, clients=np.array([-2]), target=0, signals=signals)


SKIPPED = {
    "a signal that is not there": ("loss-series", {}, replace(SMALL.observations, signals={}), "no signal 'loss'"),
    "an unknown measurement": ("fedmia", {"measure": "their-depth"}, SMALL.observations, "no signal .their-depth.* it has conf"),
    "the same for all clients": ("fedmia", {"measure": "grad-norm"}, SMALL.observations, "does not depend on the client"),
    "all in the coalition": ("fedmia-ii", {}, alone("coalition"), "every client is in the coalition"),
    "a participant's view": ("fedmia-i", {}, alone("client"), "view 'client' shows no other client"),
    "one other client": ("fedmia-i", {}, one_round(np.zeros((2, 20))), "two other clients"),
    "one round, no slope": ("fta-l", {}, with_absence(SMALL, TARGET, 0, 1, 2, 3, 4).observations, "at least two"),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_a_view_that_an_attack_cannot_use_is_skipped_with_the_reason(case):
    name, params, seen, reason = SKIPPED[case]
    with pytest.raises(SkipCell, match=reason):
        attack(name, **params).score(seen, SMALL.audit())


REFUSED = [
    ("grad-norm", {"inverted": True}, "belongs to the average"), ("fedmia", {"measure": "Not A Name"}, "measure"),
    ("fedmia-i", {"tail": "student", "ddof": 0}, "needs ddof 1"), ("threshold-loss", {"classes": True, "teacher": "none"},
     "set teacher"), ("stacked", {"teacher": "half", "colluders": 2}, "belongs to teacher colluder"),
    ("adaptive-membershield", {"form": "trained", "teacher": "none"}, "learns from a teacher"),
    ("adaptive-membershield", {"form": "trained", "classes": True}, "'classes' belongs to"),
    ("adaptive-membershield", {"theta": 1.0}, "less than 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "said"), REFUSED)
def test_parameters_that_contradict_each_other_are_refused(name, params, said):
    with pytest.raises(ValidationError, match=said):
        attack(name, **params)
