"""Passive attacks and logit signals: chance without a leak, better with one, and each method's defining property."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    SMALL,
    TARGET,
    World,
    assert_chance,
    auc,
    chance_band,
    component,
    measured,
    of_logits,
    one_round,
    slow_fedmia,
    tf01,
    with_absence,
    with_signals,
    without_round,
    world,
)  # fmt: skip

from fedbench.core import Attack, Colluder, Observations, SkipCell
from fedbench.core.signals import fedbench_signals
from fedbench.plugins.attacks import fedbench_attacks, fedmia
from fedbench.plugins.attacks.avg_cosine import AvgCosine
from fedbench.plugins.attacks.fedmia import FedMIAI, FedMIAII
from fedbench.plugins.attacks.fta import FTAC, FTAL
from fedbench.plugins.attacks.loss_series import LossSeries
from fedbench.plugins.attacks.seqmia import SeqMIA, folds, sequences

UNTRAINED = [LossSeries, AvgCosine, FedMIAI, FedMIAII, FTAC, FTAL]
few = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def silent() -> World:
    return world(0.0)


@pytest.fixture(scope="module")
def leaky() -> World:
    return world(1.5)


# --- announcements --------------------------------------------------------------------------------------------------


def test_announced_attacks_load_and_describe_their_parameters():
    names = [c.name for c in fedbench_attacks()]
    assert len(names) == len(set(names)) and "seqmia" in names
    known = {c.name for c in fedbench_signals()}
    for c in fedbench_attacks():
        cls = component(c)
        assert issubclass(cls, Attack) and c.paper and cls.__doc__
        assert all(field.description for field in cls.Params.model_fields.values())
        assert cls().needs <= known


def test_announcing_imports_no_torch():
    code = "import sys, fedbench.plugins.attacks as a, fedbench.core.signals as s; " \
           "list(a.fedbench_attacks()); list(s.fedbench_signals()); assert 'torch' not in sys.modules"  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True)


# --- logit signals --------------------------------------------------------------------------------------------------


def test_signals_equal_their_definitions():
    g = torch.Generator().manual_seed(0)
    logits, y = 2 * torch.randn(50, 4, generator=g, dtype=torch.float64), torch.arange(50) % 4
    for i, p in enumerate(logits.softmax(1).tolist()):
        label = int(y[i])
        wanted = {
            "loss": -math.log(p[label]),
            "confidence": p[label],
            "max-prob": max(p),
            "std-prob": math.sqrt(sum((q - 0.25) ** 2 for q in p) / 4),
            "entropy": -sum(q * math.log(q) for q in p),
            "modified-entropy": -(1 - p[label]) * math.log(p[label])
            - sum(q * math.log(1 - q) for j, q in enumerate(p) if j != label),
        }
        found = {name: measured(name, logits[i : i + 1], y[i : i + 1]) for name in wanted}
        assert {name: v.item() for name, v in found.items()} == pytest.approx(wanted, rel=1e-5)
        assert all(v.dtype == torch.float32 and v.shape == (1,) for v in found.values())


def test_signals_of_saturated_predictions_are_finite():
    logits = torch.tensor([[200.0, 0, 0, 0]] * 2)
    y = torch.tensor([0, 1])
    found = {c.name: measured(c.name, logits, y) for c in of_logits()}
    assert all(torch.isfinite(v).all() for v in found.values())
    right, wrong = found["modified-entropy"].tolist()
    assert right == 0 and wrong == pytest.approx(400 - math.log(3), rel=1e-6)  # -ln p_y - ln(1 - p_0), p_0 = 1
    assert found["loss"].tolist() == [0, 200] and found["entropy"].tolist() == [0, 0]


# --- chance and better than chance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", UNTRAINED)
def test_without_a_leak_at_chance(cls, silent):
    assert_chance(cls().score(silent.observations, silent.audit()), silent.member)


@pytest.mark.parametrize("cls", UNTRAINED)
def test_with_shuffled_membership_at_chance(cls, leaky):
    member = np.random.default_rng(3).permutation(leaky.member)
    assert_chance(cls().score(leaky.observations, leaky.audit()), member)


@pytest.mark.parametrize("filter", ["none", "3sigma_pop", "mad", "loo"])
@pytest.mark.parametrize("cls", [FedMIAI, FedMIAII])
def test_fedmia_without_a_leak_at_chance_under_every_filter(cls, filter, silent):
    assert_chance(cls(filter=filter).score(silent.observations, silent.audit()), silent.member)


@pytest.mark.parametrize("cls", UNTRAINED)
def test_with_a_leak_better_than_chance(cls, leaky):
    score = cls().score(leaky.observations, leaky.audit())
    assert score.shape == leaky.ids.shape
    assert auc(score, leaky.member) > 0.5 + 2 * chance_band(leaky.member)


@pytest.mark.parametrize(("lifted", "plain"), [(FedMIAI, LossSeries), (FedMIAII, AvgCosine)])
def test_fedmia_gains_over_the_measurement_it_lifts(lifted, plain, leaky):
    """The other clients' values remove what is common to all of them: how hard the sample is."""
    audit = leaky.audit()
    gain = auc(lifted().score(leaky.observations, audit), leaky.member) - auc(
        plain().score(leaky.observations, audit), leaky.member
    )
    assert gain > 0.02


def test_guessing_and_knowing(silent):
    assert_chance(silent.audit().rng.random(len(silent.ids)), silent.member)
    assert auc(silent.member.astype(float), silent.member) == 1.0 and tf01(silent.member * 1.0, silent.member) == 100.0


# --- alignment ------------------------------------------------------------------------------------------------------


def test_redrawn_non_members_fake_a_leak(silent):
    """Why a run has ONE list of non-members: without any leak, redrawing them each round yields TF01 far above 0.1 %.

    A redrawn position holds another sample every round, so its average varies less than a member's (docs/methods/quirks.md#f1).
    """
    rng, out = np.random.default_rng(1), ~silent.member
    redrawn = silent.observations["loss"].copy()
    for row in redrawn:
        row[:, out] = row[:, rng.permutation(np.flatnonzero(out))]
    audit = silent.audit()
    aligned = LossSeries().score(silent.observations, audit)
    faked = LossSeries().score(with_signals(silent, loss=redrawn).observations, audit)
    assert tf01(aligned, silent.member) < 0.5 < 1.5 < tf01(faked, silent.member)
    assert abs(auc(aligned, silent.member) - 0.5) < chance_band(silent.member)


# --- absent clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", UNTRAINED)
def test_a_round_without_the_target_does_not_count(cls):
    absent = cls().score(with_absence(SMALL, TARGET, 1).observations, SMALL.audit())
    np.testing.assert_allclose(absent, cls().score(without_round(SMALL, 1).observations, SMALL.audit()), rtol=1e-9)


@pytest.mark.parametrize("cls", [FedMIAI, FedMIAII])
def test_an_absent_shadow_leaves_the_estimate(cls):
    seen = SMALL.observations
    gone = cls().score(with_absence(SMALL, 4, 0).observations, SMALL.audit())
    first = {name: a[:1].copy() for name, a in seen.signals.items()}
    first = {name: np.delete(a, 4, axis=1) if a.shape[1] > 1 else a for name, a in first.items()}
    alone = cls().score(replace(seen, rounds=seen.rounds[:1], clients=np.delete(seen.clients, 4), signals=first), None)
    rest = cls().score(without_round(SMALL, 0).observations, None)
    np.testing.assert_allclose(gone, (alone + 5 * rest) / 6)


@pytest.mark.parametrize("cls", [*UNTRAINED, SeqMIA])
def test_a_target_that_never_takes_part_is_skipped(cls):
    w = SMALL
    for r in range(len(SMALL.observations.rounds)):
        w = with_absence(w, TARGET, r)
    attack = cls()
    attack.fit([], w.audit()) if attack.colluders == 0 else fit(attack, SMALL, epochs=1)
    with pytest.raises(SkipCell):
        attack.score(w.observations, w.audit())


def test_views_without_the_signal_or_without_other_clients_are_skipped():
    seen = SMALL.observations
    alone = replace(
        seen, view="coalition", clients=np.array([-2]), target=0,
        signals={name: a[:, :1] for name, a in seen.signals.items()},
    )  # fmt: skip
    for cls in (FedMIAI, FedMIAII):
        with pytest.raises(SkipCell, match="every client is in the coalition"):
            cls().score(alone, SMALL.audit())
    assert AvgCosine().score(alone, SMALL.audit()).shape == SMALL.ids.shape
    with pytest.raises(SkipCell, match="no signal 'loss'"):
        LossSeries().score(replace(seen, signals={}), SMALL.audit())


def test_fedmia_needs_two_other_clients():
    pair = world(0.0, 5, 20, clients=3)
    lonely = with_absence(pair, 0, 0)
    for r in range(1, 6):
        lonely = with_absence(lonely, 0, r)
    assert np.isfinite(FedMIAI().score(pair.observations, pair.audit())).all()
    with pytest.raises(SkipCell, match="two other clients"):
        FedMIAI().score(lonely.observations, pair.audit())


# --- Loss-Series, Avg-Cosine ----------------------------------------------------------------------------------------


def test_loss_series_is_the_mean_negative_loss():
    wanted = [-sum(map(float, SMALL.observations["loss"][:, TARGET, i])) / 6 for i in range(len(SMALL.ids))]
    np.testing.assert_allclose(LossSeries().score(SMALL.observations, SMALL.audit()), wanted)


@few
@given(scale=st.floats(1e-4, 1e4))
def test_cosine_ignores_the_scale_of_updates_and_gradients(scale):
    s = SMALL.observations.signals
    longer = with_signals(SMALL, grad_dot=s["grad-dot"] * scale, update_sq=s["update-sq"] * scale**2)
    steeper = with_signals(SMALL, grad_dot=s["grad-dot"] * scale, grad_sq=s["grad-sq"] * scale**2)
    for cls in (AvgCosine, FedMIAII):
        score = cls().score(SMALL.observations, SMALL.audit())
        for w in (longer, steeper):
            np.testing.assert_allclose(cls().score(w.observations, SMALL.audit()), score, rtol=1e-4, atol=1e-6)


def test_cosine_of_vectors():
    """From real vectors: grad-dot, grad-sq and update-sq as the engine defines them."""
    rng = np.random.default_rng(0)
    g, pseudo = rng.normal(size=(5, 7)), rng.normal(size=(1, 3, 7))
    sq, update_sq = (g**2).sum(1)[None, None], (pseudo**2).sum(2)[..., None]
    signals = {"grad-dot": pseudo @ g.T, "grad-sq": sq, "update-sq": update_sq}
    seen = Observations(view="server", rounds=np.array([1]), clients=np.arange(3), target=1, signals=signals)
    wanted = [np.dot(v, pseudo[0, 1]) / np.linalg.norm(v) / np.linalg.norm(pseudo[0, 1]) for v in g]
    np.testing.assert_allclose(AvgCosine().score(seen, SMALL.audit()), wanted)


def test_cosine_with_a_zero_vector_is_zero():
    s = SMALL.observations.signals
    still = s["update-sq"].copy(), s["grad-dot"].copy()
    still[0][:, TARGET], still[1][:, TARGET] = 0, 0
    w = with_signals(SMALL, update_sq=still[0], grad_dot=still[1])
    assert (AvgCosine().score(w.observations, SMALL.audit()) == 0).all()


# --- FedMIA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("kind", ["none", "3sigma_pop", "mad", "loo"])
def test_fedmia_equals_its_equations(kind, ddof):
    attack = FedMIAI(filter=kind, ddof=ddof)
    wanted = slow_fedmia(-SMALL.observations["loss"].astype(float), kind, ddof)
    np.testing.assert_allclose(attack.score(SMALL.observations, SMALL.audit()), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["none", "3sigma_pop", "mad", "loo"])
def test_identical_shadows_give_one_half_at_their_mean(kind):
    loss = np.array([[0.5, 0.4, 0.6]] + 9 * [[0.5, 0.5, 0.5]])
    np.testing.assert_allclose(FedMIAI(filter=kind).score(one_round(loss), SMALL.audit()), [0.5, 1.0, 0.0])


values = st.lists(st.integers(-1000, 1000), min_size=2, max_size=9)


@few
@given(values, st.integers(-1000, 1000))
def test_the_published_filter_never_fires_with_nine_shadows(shadows, target):
    loss = np.array([[target], *([s] for s in shadows)]) / 100
    scores = [FedMIAI(filter=f).score(one_round(loss), SMALL.audit()) for f in ("3sigma_pop", "none")]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-9)


def test_the_published_filter_fires_with_eleven_shadows():
    shadows = np.array([[0.0]] * 10 + [[1.0]])
    assert not fedmia.within_three_sigma(shadows)[-1] and fedmia.within_three_sigma(shadows[2:]).all()


@pytest.mark.parametrize("kind", ["loo", "mad"])
def test_the_corrected_filters_remove_the_one_trained_shadow_of_nine(kind):
    shadows = np.random.default_rng(0).normal(size=(9, 500))
    shadows[4] += 12
    keep = fedmia.FILTERS[kind](shadows)
    assert not keep[4].any() and keep[:4].mean() > 0.9 and keep[5:].mean() > 0.9


def test_filtering_pays_where_a_shadow_trained_on_the_candidate():
    """For another client's sample the unfiltered estimate is inflated; its score falls far less when filtered."""
    rng = np.random.default_rng(0)
    loss = rng.normal(size=(10, 4000))
    loss[0] -= 0.5
    loss[3] -= 15.0
    audit = SMALL.audit()
    clean = FedMIAI(filter="none").score(one_round(np.delete(loss, 3, axis=0)), audit)
    filtered, plain = (FedMIAI(filter=f).score(one_round(loss), audit) for f in ("loo", "none"))
    assert np.abs(filtered - clean).mean() < 0.1 * np.abs(plain - clean).mean()


# --- FTA ------------------------------------------------------------------------------------------------------------


@few
@given(st.lists(st.integers(1, 300), min_size=2, max_size=8, unique=True), st.floats(-2, 2), st.floats(-5, 5))
def test_fta_of_a_straight_line_is_its_slope(rounds, slope, start):
    t = np.sort(np.array(rounds))
    line = (start - slope * t)[:, None, None] * np.ones((1, 1, 3))
    seen = Observations(view="server", rounds=t, clients=np.array([0]), target=0, signals={"loss": line, "confidence": -line})
    for cls in (FTAL, FTAC):
        np.testing.assert_allclose(cls().score(seen, SMALL.audit()), slope, atol=1e-9)


def test_fta_is_the_least_squares_slope():
    t = SMALL.observations.rounds
    for cls, name, sign in ((FTAL, "loss", -1), (FTAC, "confidence", 1)):
        wanted = sign * np.polyfit(t, SMALL.observations[name][:, TARGET].astype(float), 1)[0]
        np.testing.assert_allclose(cls().score(SMALL.observations, SMALL.audit()), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("cls", [FTAC, FTAL])
def test_fta_needs_two_rounds(cls):
    w = SMALL
    for r in range(1, 6):
        w = with_absence(w, TARGET, r)
    with pytest.raises(SkipCell, match="at least two"):
        cls().score(w.observations, w.audit())


# --- SeqMIA ---------------------------------------------------------------------------------------------------------


def fit(attack: SeqMIA, w: World, epochs: int = 5, shadow: Colluder | None = None) -> SeqMIA:
    attack.params = attack.params.model_copy(update={"epochs": epochs})
    attack.fit([shadow or w.shadow()], replace(w.audit(), target_client=-1))
    return attack


@pytest.fixture(scope="module")
def pool() -> World:
    return world(2.0, 300, 1500, seed=2)


@pytest.fixture(scope="module")
def trained(pool) -> SeqMIA:
    return fit(SeqMIA(), pool)


def test_seqmia_without_a_leak_at_chance():
    w = world(0.0, 300, 1500, seed=2)
    score = fit(SeqMIA(), w).score(w.observations, w.audit())
    assert abs(auc(score, w.member) - 0.5) < chance_band(w.member)


def test_seqmia_with_shuffled_membership_at_chance(pool, trained):
    score = trained.score(pool.observations, pool.audit())
    member = np.random.default_rng(0).permutation(pool.member)
    assert abs(auc(score, member) - 0.5) < chance_band(member)


def test_seqmia_with_a_leak_better_than_chance(pool, trained):
    score = trained.score(pool.observations, pool.audit())
    assert auc(score, pool.member) > 0.5 + 2 * chance_band(pool.member)


def test_seqmia_never_scores_a_sample_with_a_net_that_learnt_from_it(pool, trained):
    """Turning the colluder's answers over in one fold leaves the scores of that fold's candidates untouched."""
    fold = folds(pool.ids, pool.audit().key)
    shadow = pool.shadow()
    turned = fit(SeqMIA(), pool, shadow=replace(shadow, member=np.where(fold == 0, ~shadow.member, shadow.member)))
    before, after = (a.score(pool.observations, pool.audit()) for a in (trained, turned))
    np.testing.assert_array_equal(before[fold == 0], after[fold == 0])
    assert (before[fold == 1] != after[fold == 1]).mean() > 0.99


def test_folds_depend_on_the_id_and_the_key_alone(pool):
    key = pool.audit().key
    fold = folds(pool.ids, key)
    assert set(fold) == {0, 1} and abs(fold.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(fold))
    order = np.random.default_rng(0).permutation(len(fold))
    np.testing.assert_array_equal(folds(pool.ids[order].astype(np.int32), key), fold[order])
    assert (folds(pool.ids, key + 1) != fold).mean() > 0.4


def test_seqmia_repeats_bit_by_bit_and_leaves_the_global_generator_alone(pool, trained):
    state = torch.get_rng_state()
    again = fit(SeqMIA(), pool).score(pool.observations, pool.audit())
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(again, trained.score(pool.observations, pool.audit()))
    other = SeqMIA(epochs=1)
    other.fit([pool.shadow()], pool.audit(key=8))
    assert not np.array_equal(other.score(pool.observations, pool.audit(key=8)), again)


def test_seqmia_reads_the_colluders_row_to_learn_and_the_targets_to_score(pool, trained):
    np.testing.assert_array_equal(sequences(pool.shadow().observations)[:, :, 0], pool.observations["loss"][:, 0].T)
    np.testing.assert_array_equal(sequences(pool.observations)[:, :, 4], pool.observations["modified-entropy"][:, 2].T)
    absent = with_absence(pool, TARGET, 3)
    score = trained.score(absent.observations, pool.audit())
    np.testing.assert_array_equal(score, trained.score(without_round(pool, 3).observations, pool.audit()))


def test_seqmia_params(pool, trained):
    faithful = fit(SeqMIA(score="logit1", standardise=False), pool, epochs=1)
    assert all((net.std == 1).all() and (net.mean == 0).all() for net in faithful._nets)
    x, fold = sequences(pool.observations), folds(pool.ids, pool.audit().key)
    for attack, column in ((faithful, lambda l: l[:, 1]), (trained, lambda l: l[:, 1] - l[:, 0])):
        wanted = np.where(fold == 0, *(column(net.logits(x)) for net in attack._nets))
        np.testing.assert_allclose(attack.score(pool.observations, pool.audit()), wanted, rtol=1e-4, atol=1e-5)


def test_seqmia_without_a_colluder_or_without_its_samples_is_skipped(pool):
    with pytest.raises(SkipCell, match="collude"):
        SeqMIA().fit([], pool.audit())
    with pytest.raises(SkipCell, match="too few samples"):
        SeqMIA().fit([replace(pool.shadow(), member=np.zeros(len(pool.ids), bool))], pool.audit())
