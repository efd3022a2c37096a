"""Scores of attacks without a teacher, and the signals of logits that they read, against slow
references.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from pydantic import ValidationError
from scipy import stats
from worlds import (
    SMALL,
    TARGET,
    attack,
    measured,
    of_logits,
    slow_fedmia,
    with_absence,
    with_signals,
)

from fedbench.core import Observations, SkipCell
from fedbench.plugins.attacks.trajectory import within_class


def observed(measure, target=0):
    """``measure``: [R, M, n], as a negative loss."""
    rounds, clients = (np.arange(n) for n in measure.shape[:2])
    return Observations(
        view="server", rounds=rounds, clients=clients, target=target, signals={"loss": -measure}
    )


# --- logit signals --------------------------------------------------------------------------------


def test_signals_of_logits_equal_their_definitions():
    g = torch.Generator().manual_seed(0)
    logits, y = 2 * torch.randn(50, 4, generator=g, dtype=torch.float64), torch.arange(50) % 4
    for z, label, logit in zip(
        logits.softmax(1).tolist(), y.tolist(), logits.tolist(), strict=True
    ):
        own, others = z[label], [q for j, q in enumerate(z) if j != label]
        wanted = {
            "loss": -math.log(own),
            "confidence": own,
            "max-prob": max(z),
            "logit-confidence": math.log(own / (1 - own)),
            "std-prob": statistics.pstdev(z),
            "entropy": -sum(q * math.log(q) for q in z),
            "modified-entropy": -(1 - own) * math.log(own)
            - sum(q * math.log(1 - q) for q in others),
            "margin": logit[label] - max(v for j, v in enumerate(logit) if j != label),
        }
        found = {
            name: measured(name, torch.tensor([logit]).double(), torch.tensor([label]))
            for name in wanted
        }
        assert {name: v.item() for name, v in found.items()} == pytest.approx(wanted, rel=1e-5)
        assert all(v.dtype == torch.float32 and v.shape == (1,) for v in found.values())


def test_signals_of_saturated_predictions_are_finite_and_keep_their_order():
    logits, y = torch.tensor([[200.0, 0, 0, 0]] * 2), torch.tensor([0, 1])
    found = {name: measured(name, logits, y) for name in of_logits()}
    assert all(torch.isfinite(v).all() for v in found.values())
    # -ln p_y - ln(1 - p_0), p_0 = 1
    assert found["modified-entropy"].tolist() == [0, pytest.approx(400 - math.log(3))]
    assert found["loss"].tolist() == [0, 200] and found["entropy"].tolist() == [0, 0]
    assert measured("logit-confidence", logits, y).tolist() == pytest.approx(
        [200 - math.log(3), -200]
    )


# --- trajectories ---------------------------------------------------------------------------------


def slow_class_scores(row, y):
    """A round of one client, each value standardised among those of its class."""
    out = []
    for value, label in zip(row, y, strict=True):
        own = [v for v, other in zip(row, y, strict=True) if other == label]
        mean = sum(own) / len(own)
        spread = math.sqrt(sum((v - mean) ** 2 for v in own) / len(own))
        out.append(0.0 if len(set(own)) == 1 else (value - mean) / spread)
    return out


def slow_cosine(w):
    s = w.observations.signals
    return np.asarray(s["grad-dot"], float) / np.sqrt(
        np.asarray(s["grad-sq"], float) * np.asarray(s["update-sq"], float)
    )


def slow_slope(a):
    return np.polyfit(SMALL.observations.rounds, a[:, TARGET], 1)[0]


def mean(a):
    return a[:, TARGET].mean(axis=0)


CLASS = {"normalise": "class"}
DEFINITIONS = [
    *(
        (name, params, measure, of)
        for params in ({}, CLASS)
        for name, measure, of in (
            ("loss-series", "loss", mean),
            ("avg-cosine", "grad-cosine", mean),
            ("fta-c", "confidence", slow_slope),
            ("fta-l", "loss", slow_slope),
            ("fedmia-i", "loss", slow_fedmia),
            ("fedmia-ii", "grad-cosine", slow_fedmia),
        )
    ),
    *(
        ("fedmia", {"measure": measure}, measure, slow_fedmia)
        for measure in (
            "loss",
            "confidence",
            "rescaled",
            "modified-entropy",
            "entropy",
            "max-prob",
            "std-prob",
            "grad-cosine",
            "grad-diff",
        )
    ),
    ("grad-norm", {"average": True}, "gradient", mean),
    ("grad-diff", {}, "grad-diff", lambda a: a[-1, TARGET]),
    ("grad-norm", {"average": True, "inverted": True}, "gradient", lambda a: -mean(a)),
    ("grad-norm", {}, "gradient", lambda a: a[-1, TARGET]),
    ("blackbox-loss", {}, "loss", lambda a: a[-1, TARGET]),
    ("passive", {}, "margin", lambda a: a[-1, TARGET]),
    ("fedpoisonmia", {}, "margin", lambda a: a[-1, TARGET]),
    ("grad-cosine", {}, "grad-cosine", lambda a: a[-1, TARGET]),
    ("fta", {"signal": "loss"}, "loss", slow_slope),
    ("fta", {"signal": "confidence"}, "confidence", slow_slope),
    ("fta", {"signal": "rescaled"}, "rescaled", slow_slope),
]


@pytest.mark.parametrize(("name", "params", "measure", "wanted"), DEFINITIONS)
def test_a_score_is_its_definition(name, params, measure, wanted):
    seen, p = SMALL.observations, np.exp(-SMALL.observations["loss"].astype(np.float64))
    a = {
        "loss": np.log(p),
        "confidence": p,
        "rescaled": np.log(p / (1 - p)),
        "grad-cosine": slow_cosine(SMALL),
        "grad-diff": 2 * seen["grad-dot"].astype(np.float64) - seen["grad-sq"],
        "max-prob": seen["max-prob"],
        "margin": seen["margin"],
        "std-prob": seen["std-prob"],
        "entropy": -seen["entropy"],
        "modified-entropy": -seen["modified-entropy"],
        "gradient": -np.broadcast_to(seen["grad-sq"], p.shape).astype(np.float64),
    }[measure]
    if params == CLASS:
        a = np.array(
            [
                [slow_class_scores(row, SMALL.y.tolist()) for row in of_round]
                for of_round in a.tolist()
            ]
        )
    one = attack(name, **params)
    assert one.view == ("client" if name in ("fta", "passive", "fedpoisonmia") else "server")
    assert_allclose(SMALL.score(one), wanted(a), rtol=1e-4, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_values_are_standardised_within_their_class_and_zero_where_equal_or_alone(
    rows, n, classes, random
):
    y = [random.randrange(classes) for _ in range(n)]
    a = [[0.1 * random.randrange(-3, 4) for _ in range(n)] for _ in range(rows)]  # with ties
    found = within_class(np.array([*a, [np.nan] * n]), np.array(y))
    assert_allclose(found[:-1], [slow_class_scores(row, y) for row in a], atol=1e-9)
    assert np.isnan(found[-1]).all()


@pytest.mark.parametrize("zero", ["grad_sq", "update_sq"])
def test_the_cosine_with_a_vector_of_no_length_is_zero(zero):
    w = with_signals(
        SMALL,
        **{name: 0 * SMALL.observations[name.replace("_", "-")] for name in (zero, "grad_dot")},
    )
    assert (w.score(attack("avg-cosine")) == 0).all()


@pytest.mark.parametrize("name", ["loss-series", "blackbox-loss", "fedmia-i"])
def test_loss_attacks_read_the_loss_before_the_defense_where_asked(name):
    before = SMALL.observations["loss"][:, ::-1] + 0.1
    w, asked = (
        with_signals(SMALL, **{"loss@pre_defense": before}),
        attack(name, loss_on="pre_defense"),
    )
    assert asked.needs == {"loss@pre-defense"} and attack(name).needs == {"loss"}
    assert_array_equal(w.score(asked), with_signals(SMALL, loss=before).score(attack(name)))


# --- FedMIA ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ddof"), [("none", 0), ("none", 1), ("3sigma_pop", 0), ("mad", 1), ("loo", 1)]
)
def test_fedmia_is_its_equations_under_every_filter_with_absent_clients(kind, ddof):
    a = np.random.default_rng(0).normal(size=(3, 15, 40))
    a[:, 5, :20] += 15  # a client that trained on these candidates: every filter leaves it out
    a[1, 4:6], a[2, TARGET] = np.nan, np.nan
    score = attack("fedmia-i", filter=kind, ddof=ddof).score(observed(a, TARGET), SMALL.audit())
    assert_allclose(score, slow_fedmia(a[:2], kind, ddof), rtol=1e-6)
    others = observed(np.repeat(a[:, :1], 5, axis=1), TARGET)  # all alike: one half at their mean
    assert_allclose(attack("fedmia-i", filter=kind, ddof=ddof).score(others, SMALL.audit()), 0.5)


@pytest.mark.parametrize(
    ("n", "trained", "kind"), [(2, 0, "loo"), (4, 0, "3sigma_pop"), (12, 1, "3sigma_pop")]
)
def test_students_tail_is_the_predictive_distribution_of_the_clients_kept(n, trained, kind):
    rng = np.random.default_rng(1)
    others, target = rng.normal(size=(n, 50)), rng.normal(size=50)
    wanted = stats.t.cdf(
        target, n - 1, others.mean(axis=0), others.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n)
    )
    one = attack("fedmia-i", tail="student", guard=1e-30, filter=kind)
    # left out, and not counted
    seen = observed(np.vstack([target, others, np.full((trained, 50), 99.0)])[None])
    assert_allclose(one.score(seen, SMALL.audit()), wanted, rtol=1e-9)


def test_a_third_partys_signal_is_lifted_by_its_name_sign_and_guard():
    depth = 3 * SMALL.observations["loss"].astype(np.float64) + 1
    w, down = (
        with_signals(SMALL, their_depth=depth),
        attack("fedmia", measure="their-depth", sign=-1, guard=1e-9),
    )
    up, wanted = attack("fedmia", measure="their-depth", guard=1e-9), slow_fedmia(-depth)
    assert down.needs == {"their-depth"}
    assert_allclose(w.score(down), wanted, rtol=1e-5, atol=1e-8)
    assert_allclose(w.score(up), 1 - wanted, atol=1e-6)  # Phi(-z) = 1 - Phi(z)
    drowned = w.score(attack("fedmia", measure="their-depth", guard=1e6))
    assert np.ptp(drowned) < 0.1 < np.ptp(wanted)


def alone(view):
    signals = {name: a[:, :1] for name, a in SMALL.observations.signals.items()}
    return replace(SMALL.observations, view=view, clients=np.array([-2]), target=0, signals=signals)


SKIPPED = [
    (
        "loss-series",
        {},
        replace(SMALL.observations, signals={}, hidden=frozenset({"loss"})),
        "no signal 'loss'",
    ),
    (
        "fedmia",
        {"measure": "grad-norm"},
        SMALL.observations,
        "does not depend on the client",
    ),
    (
        "fedmia-ii",
        {},
        alone("coalition"),
        "every client is in the coalition",
    ),
    (
        "fedmia-i",
        {},
        alone("client"),
        "view 'client' shows no other client",
    ),
    ("fedmia-i", {}, observed(np.zeros((1, 2, 20))), "two other clients"),
    (
        "fta-l",
        {},
        with_absence(SMALL, TARGET, 0, 1, 2, 3, 4).observations,
        "at least two",
    ),
]


@pytest.mark.parametrize(("name", "params", "seen", "reason"), SKIPPED)
def test_a_view_that_an_attack_cannot_use_is_skipped_with_the_reason(name, params, seen, reason):
    with pytest.raises(SkipCell, match=reason):
        attack(name, **params).score(seen, SMALL.audit())


REFUSED = [
    ("grad-norm", {"inverted": True}, "belongs to the average"),
    ("fedmia", {"measure": "Not A Name"}, "measure"),
    ("fedmia-i", {"tail": "student", "ddof": 0}, "needs ddof 1"),
    ("threshold-loss", {"classes": True, "teacher": "none"}, "set teacher"),
    ("stacked", {"teacher": "half", "colluders": 2}, "belongs to teacher colluder"),
    ("adaptive-membershield", {"form": "trained", "teacher": "none"}, "learns from a teacher"),
    ("adaptive-membershield", {"form": "trained", "classes": True}, "'classes' belongs to"),
    ("adaptive-membershield", {"theta": 1.0}, "less than 1"),
]


@pytest.mark.parametrize(("name", "params", "said"), REFUSED)
def test_parameters_that_contradict_each_other_are_refused(name, params, said):
    with pytest.raises(ValidationError, match=said):
        attack(name, **params)
