"""`normalise: class`: a measurement within its round and class, and the attacks that read it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SMALL, TARGET, World, assert_chance, auc, chance_band, slow_fedmia, with_absence, with_signals, world

from fedbench.plugins.attacks.avg_cosine import AvgCosine
from fedbench.plugins.attacks.fedmia import FedMIAI, FedMIAII
from fedbench.plugins.attacks.fedmia_lifted import LiftedFedMIA
from fedbench.plugins.attacks.fta import FTAC, FTAL
from fedbench.plugins.attacks.loss_series import LossSeries
from fedbench.plugins.attacks.measures import grad_cosine
from fedbench.plugins.attacks.seqmia import FEATURES, SeqMIA, sequences
from fedbench.plugins.attacks.trajectory import within_class

ALL = [LossSeries, AvgCosine, FedMIAI, FedMIAII, FTAC, FTAL]
SIGNAL = {LossSeries: "loss", FedMIAI: "loss", FTAC: "confidence", FTAL: "loss"}


@pytest.fixture(scope="module")
def silent() -> World:
    return world(0.0)


@pytest.fixture(scope="module")
def leaky() -> World:
    return world(1.5)


def slow(row: list[float], y: list[int]) -> list[float]:
    out = []
    for value, label in zip(row, y, strict=True):
        own = [v for v, other in zip(row, y, strict=True) if other == label]
        mean = sum(own) / len(own)
        spread = math.sqrt(sum((v - mean) ** 2 for v in own) / len(own))
        out.append(0.0 if len(set(own)) == 1 else (value - mean) / spread)
    return out


def score(cls, w: World, **params) -> np.ndarray:
    return cls(normalise="class", **params).score(w.observations, w.audit())


# -- the arithmetic --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_it_is_the_slow_arithmetic_and_defined_for_lonely_and_equal_values(rows, n, classes, random):
    y = [random.randrange(classes) for _ in range(n)]
    a = [[float(random.randrange(-3, 4)) for _ in range(n)] for _ in range(rows)]  # with ties
    found = within_class(np.array(a), np.array(y))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, [slow(row, y) for row in a], atol=1e-12)


@given(st.floats(0.01, 100), st.floats(-100, 100), st.integers(0, 2**31))
def test_what_a_class_has_in_common_in_a_round_changes_nothing(scale, shift, seed):
    rng = np.random.default_rng(seed)
    y, a = rng.integers(0, 3, 30), rng.normal(size=(4, 2, 30))
    common = shift * rng.normal(size=(4, 2, 3))[..., y]
    times = scale * rng.uniform(0.5, 2, size=(4, 2, 3))[..., y]
    np.testing.assert_allclose(within_class(times * a + common, y), within_class(a, y), rtol=1e-6, atol=1e-7)


def test_equal_values_say_nothing_whatever_their_mean_rounds_to():
    a = np.full((2, 7), 0.1) * np.array([[1.0], [3.0]])
    assert (within_class(a, np.zeros(7, int)) == 0).all()
    assert (within_class(np.arange(5.0)[None], np.arange(5)) == 0).all()  # a class each


def test_an_absent_row_stays_absent_and_touches_no_other():
    y, a = np.array([0, 0, 1, 1]), np.arange(8.0).reshape(2, 4)
    a[1] = np.nan
    found = within_class(a, y)
    assert np.isnan(found[1]).all() and found[0].tolist() == [-1, 1, -1, 1]


def test_what_does_not_vary_over_samples_says_nothing():
    assert within_class(np.array([[3.0], [4.0]]), np.array([0, 1, 0])).tolist() == [[0, 0, 0], [0, 0, 0]]


# -- the attacks -----------------------------------------------------------------------------------------------------------------


def test_each_attack_is_its_own_arithmetic_on_the_standardised_measurement():
    seen, y = SMALL.observations, SMALL.y.tolist()
    slowly = {
        name: np.array([[slow(row, y) for row in rnd] for rnd in np.asarray(a, np.float64).tolist()])
        for name, a in (("loss", -seen["loss"]), ("confidence", seen["confidence"]), ("cosine", grad_cosine(seen)))
    }
    t = seen.rounds - seen.rounds.mean()
    slope = {n: (t[:, None] * a[:, TARGET]).sum(0) / (t**2).sum() for n, a in slowly.items()}
    wanted = {
        LossSeries: slowly["loss"][:, TARGET].mean(0), AvgCosine: slowly["cosine"][:, TARGET].mean(0), FTAC: slope["confidence"],
        FTAL: slope["loss"], FedMIAI: slow_fedmia(slowly["loss"], "none", 1), FedMIAII: slow_fedmia(slowly["cosine"], "none", 1),
    }  # fmt: skip
    for cls in ALL:
        np.testing.assert_allclose(score(cls, SMALL), wanted[cls], rtol=1e-6, atol=1e-9, err_msg=cls.__name__)
        assert not np.allclose(cls().score(SMALL.observations, SMALL.audit()), wanted[cls]), cls.__name__
    lifted = score(LiftedFedMIA, SMALL, measure="loss")
    np.testing.assert_allclose(lifted, wanted[FedMIAI], rtol=1e-6)


@pytest.mark.parametrize("cls", SIGNAL)
def test_a_defense_that_moves_a_class_in_a_round_moves_no_score(cls):
    """As a member does that trains on some classes this round, and on others the next."""
    w, name = SMALL, SIGNAL[cls]
    rng = np.random.default_rng(0)
    a = np.asarray(w.observations[name], np.float64)
    more = rng.normal(size=(*a.shape[:2], 4))[..., w.y]
    moved = replace(w, observations=replace(w.observations, signals=dict(w.observations.signals) | {name: a + more}))
    plain = replace(w, observations=replace(w.observations, signals=dict(w.observations.signals) | {name: a}))
    np.testing.assert_allclose(score(cls, moved), score(cls, plain), rtol=1e-6, atol=1e-9)
    assert not np.allclose(cls().score(moved.observations, w.audit()), cls().score(plain.observations, w.audit()), atol=1e-2)


@pytest.mark.parametrize("cls", ALL)
def test_without_a_leak_at_chance_and_with_one_better(cls, silent, leaky):
    assert_chance(score(cls, silent), silent.member)
    assert auc(score(cls, leaky), leaky.member) > 0.5 + chance_band(leaky.member)


def test_it_takes_back_what_a_class_hides():
    """Members of the classes of a round are easy as their class is: the plain attack ranks classes, this one samples."""
    w = world(1.0, seed=3)
    loss = np.asarray(w.observations["loss"], np.float64)
    hidden = with_signals(w, loss=(loss + 6 * np.random.default_rng(1).normal(size=(*loss.shape[:2], 4))[..., w.y]))
    plain = auc(LossSeries().score(hidden.observations, w.audit()), w.member)
    aware = auc(score(LossSeries, hidden), w.member)
    assert aware > plain + 0.05 and abs(aware - auc(score(LossSeries, w), w.member)) < 1e-3


@pytest.mark.parametrize("cls", ALL)
def test_a_round_without_the_target_does_not_count(cls):
    absent = with_absence(SMALL, TARGET, 2)
    keep = np.arange(6) != 2
    signals = {n: a[keep] for n, a in SMALL.observations.signals.items()}
    without = replace(SMALL, observations=replace(SMALL.observations, rounds=SMALL.observations.rounds[keep], signals=signals))
    np.testing.assert_allclose(score(cls, absent), score(cls, without), rtol=1e-9)


def test_seqmia_reads_each_signal_within_the_classes_of_what_it_is_shown():
    seen = SMALL.observations
    found = sequences(seen, SMALL.y)
    for j, name in enumerate(FEATURES):
        wanted = within_class(np.asarray(seen.of_target(name), np.float64), SMALL.y).T
        np.testing.assert_allclose(found[:, :, j], wanted, rtol=1e-5, atol=1e-6)


def test_seqmia_within_classes_learns_from_lessons_read_the_same_way():
    w = world(2.0, 200, 800, seed=2)
    common = 5 * np.random.default_rng(2).normal(size=(*w.observations["loss"].shape[:2], 4))[..., w.y]
    moved = with_signals(w, loss=np.asarray(w.observations["loss"], np.float64) + common)
    scores = []
    for here in (w, moved):
        attack = SeqMIA(normalise="class", epochs=3)
        attack.fit([here.shadow()], replace(here.audit(), target_client=-1))
        scores.append(attack.score(here.observations, here.audit()))
    assert auc(scores[0], w.member) > 0.5 + chance_band(w.member)
    assert abs(auc(scores[0], w.member) - auc(scores[1], w.member)) < 0.02
    silent = world(0.0, 200, 800, seed=2)
    attack = SeqMIA(normalise="class", epochs=3)
    attack.fit([silent.shadow()], replace(silent.audit(), target_client=-1))
    assert abs(auc(attack.score(silent.observations, silent.audit()), silent.member) - 0.5) < chance_band(silent.member)
