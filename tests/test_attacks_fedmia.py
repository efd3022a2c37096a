"""FedMIA's baselines, its extension property, CS-MIA, FTA on the global model, and the choice of a round."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from worlds import (
    COLLUDER,
    SMALL,
    TARGET,
    World,
    assert_chance,
    auc,
    chance_band,
    measured,
    one_round,
    slow_fedmia,
    with_absence,
    with_signals,
    without_round,
    world,
)  # fmt: skip

from fedbench.core import Attack, Observations, SkipCell
from fedbench.core.metrics import auc as metric_auc
from fedbench.core.metrics import tf01
from fedbench.core.metrics.bestround import round_report
from fedbench.plugins.attacks import fedbench_attacks
from fedbench.plugins.attacks.avg_cosine import AvgCosine
from fedbench.plugins.attacks.blackbox_loss import BlackboxLoss
from fedbench.plugins.attacks.crossfit import folds
from fedbench.plugins.attacks.cs_mia import CSMIA, SeriesNet, carried
from fedbench.plugins.attacks.fedmia import FedMIAI, FedMIAII, normal_tail, student_tail
from fedbench.plugins.attacks.fedmia_lifted import LiftedFedMIA
from fedbench.plugins.attacks.fta_global import FTA
from fedbench.plugins.attacks.grad_single import GradCosine, GradDiff, GradNorm
from fedbench.plugins.attacks.loss_series import LossSeries
from fedbench.plugins.attacks.measures import MEASURES
from fedbench.plugins.attacks.shadow_models.confidence import rescaled_confidence

SINGLE = [BlackboxLoss, GradCosine, GradDiff, GradNorm]
LIFTABLE = [name for name in MEASURES if name != "grad-norm"]
few = settings(max_examples=60, deadline=None)


def with_fitted_members(w: World, factor: float) -> World:
    """Gradients of the target's members are ``factor`` times as large as the others'."""
    s = w.observations.signals
    scale = np.where(w.member, factor, 1.0)
    return with_signals(w, grad_sq=s["grad-sq"] * scale**2, grad_dot=s["grad-dot"] * scale)


@pytest.fixture(scope="module")
def silent() -> World:
    return world(0.0, 1500, 7500)


@pytest.fixture(scope="module")
def leaky() -> World:
    return with_fitted_members(world(2.0, 1500, 7500), 0.6)


def as_participant(w: World) -> World:
    """What a participant sees: one global model, here one that shows every client's training equally."""
    logits = w.observations["loss"]
    trained = w.owner >= 0
    source = np.where(trained, w.owner, 1)  # the row on which the sample's own leak is planted
    pick = {n: a[:, source, np.arange(len(w.ids))][:, None] for n, a in w.observations.signals.items() if a.shape == logits.shape}
    return replace(
        w, observations=Observations(view="client", rounds=w.observations.rounds, clients=np.array([-1]), target=0, signals=pick)
    )


# --- announcements --------------------------------------------------------------------------------------------------


def test_the_papers_attacks_are_announced_once():
    names = Counter(c.name for c in fedbench_attacks())
    wanted = ("blackbox-loss", "grad-cosine", "grad-diff", "grad-norm", "fedmia", "cs-mia", "fta", "fta-c", "fta-l")
    assert {names[name] for name in wanted} == {1}


# --- chance and better than chance ----------------------------------------------------------------------------------

SIMPLE = [
    *((cls, {}) for cls in SINGLE),
    (GradNorm, {"average": True}),
    *((LiftedFedMIA, {"measure": m}) for m in LIFTABLE),
    (LiftedFedMIA, {"measure": "loss", "tail": "student"}),
]


@pytest.mark.parametrize(("cls", "params"), SIMPLE)
def test_without_a_leak_at_chance(cls, params, silent):
    assert_chance(cls(**params).score(silent.observations, silent.audit()), silent.member)


@pytest.mark.parametrize(("cls", "params"), SIMPLE)
def test_with_a_leak_better_than_chance_and_with_shuffled_membership_at_chance(cls, params, leaky):
    score = cls(**params).score(leaky.observations, leaky.audit())
    assert auc(score, leaky.member) > 0.5 + 2 * chance_band(leaky.member)
    assert_chance(score, np.random.default_rng(3).permutation(leaky.member))


@pytest.mark.parametrize("signal", ["loss", "confidence", "rescaled"])
def test_fta_tells_the_federations_samples_from_outsiders_but_not_a_client_from_another(signal, silent, leaky):
    quiet, loud = as_participant(silent), as_participant(leaky)
    assert_chance(FTA(signal=signal).score(quiet.observations, quiet.audit()), quiet.member)
    score = FTA(signal=signal).score(loud.observations, loud.audit())
    outsiders, others = loud.owner == -1, (loud.owner >= 0) & ~loud.member
    ofl, ifl = loud.member | outsiders, loud.member | others
    assert auc(score[ofl], loud.member[ofl]) > 0.5 + 2 * chance_band(loud.member[ofl])
    assert abs(auc(score[ifl], loud.member[ifl]) - 0.5) < chance_band(loud.member[ifl])


# --- single-round attacks -------------------------------------------------------------------------------------------


def vectors(rng, rounds: int = 2, clients: int = 3, n: int = 5, p: int = 7):
    """Real gradients g [n, p] and updates I [R, M, p], and the signals the engine makes of them."""
    g, update = rng.normal(size=(n, p)), rng.normal(size=(rounds, clients, p))
    sq = np.broadcast_to((g**2).sum(1), (rounds, 1, n))
    signals = {"grad-dot": update @ g.T, "grad-sq": sq, "update-sq": (update**2).sum(2)[..., None]}
    return (
        g,
        update,
        Observations(view="server", rounds=np.arange(1, rounds + 1), clients=np.arange(clients), target=1, signals=signals),
    )


def test_gradient_scores_equal_their_definitions_on_vectors():
    g, update, seen = vectors(np.random.default_rng(0))
    last = update[-1, 1]
    wanted = {
        GradCosine: [v @ last / np.linalg.norm(v) / np.linalg.norm(last) for v in g],
        GradDiff: [np.linalg.norm(last) ** 2 - np.linalg.norm(last - v) ** 2 for v in g],
        GradNorm: [-np.linalg.norm(v) ** 2 for v in g],
    }
    for cls, expected in wanted.items():
        np.testing.assert_allclose(cls().score(seen, SMALL.audit()), expected)


@pytest.mark.parametrize("cls", SINGLE)
def test_the_score_is_the_last_round_with_the_target(cls):
    w = with_absence(SMALL, TARGET, 5)
    rounds = cls().score_rounds(w.observations, w.audit())
    assert rounds.shape == (6, len(w.ids))
    if cls is GradNorm:  # reads the global model, for which the target need not be there
        assert not np.isnan(rounds).any()
    else:
        assert np.isnan(rounds[5]).all() and not np.isnan(rounds[:5]).any()
    np.testing.assert_array_equal(cls().score(w.observations, w.audit()), rounds[5 if cls is GradNorm else 4])
    alone = without_round(SMALL, 5)
    np.testing.assert_array_equal(rounds[:5], cls().score_rounds(alone.observations, w.audit()))


@pytest.mark.parametrize("cls", [BlackboxLoss, GradCosine, GradDiff])
def test_a_target_that_never_takes_part_is_skipped(cls):
    w = SMALL
    for r in range(6):
        w = with_absence(w, TARGET, r)
    with pytest.raises(SkipCell, match="no audited round"):
        cls().score(w.observations, w.audit())


def test_blackbox_loss_is_one_term_of_the_loss_series():
    np.testing.assert_array_equal(
        BlackboxLoss().score_rounds(SMALL.observations, SMALL.audit()), -SMALL.observations["loss"][:, TARGET].astype(float)
    )


def test_the_mean_over_rounds_of_grad_cosine_is_avg_cosine():
    rounds = GradCosine().score_rounds(SMALL.observations, SMALL.audit())
    np.testing.assert_allclose(rounds.mean(axis=0), AvgCosine().score(SMALL.observations, SMALL.audit()))


def test_averaged_grad_norm_and_its_faithful_inversion():
    wanted = [-np.mean([float(v) for v in SMALL.observations["grad-sq"][:, 0, i]]) for i in range(len(SMALL.ids))]
    plain, faithful = GradNorm(average=True), GradNorm(average=True, inverted=True)
    np.testing.assert_allclose(plain.score(SMALL.observations, SMALL.audit()), wanted)
    np.testing.assert_allclose(faithful.score(SMALL.observations, SMALL.audit()), np.negative(wanted))
    assert plain.score_rounds(SMALL.observations, SMALL.audit()) is None
    with pytest.raises(ValidationError, match="belongs to the average"):
        GradNorm(inverted=True)


# --- FedMIA on any measurement --------------------------------------------------------------------------------------


class Depth:
    """A third party's signal on the same federation: lower for members."""

    name = "their-depth"

    @classmethod
    def on(cls, w: World) -> World:
        signals = dict(w.observations.signals) | {cls.name: 3 * w.observations["loss"] + 1}
        return replace(w, observations=replace(w.observations, signals=signals))


def test_lifting_the_papers_measurements_gives_the_papers_attacks():
    audit = SMALL.audit()
    for name, paper in (("loss", FedMIAI), ("grad-cosine", FedMIAII)):
        for params in ({}, {"filter": "none", "ddof": 0}, {"tail": "student"}):
            lifted, own = LiftedFedMIA(measure=name, **params), paper(**params)
            assert lifted.needs == own.needs
            np.testing.assert_array_equal(lifted.score(SMALL.observations, audit), own.score(SMALL.observations, audit))


def test_a_third_partys_signal_is_lifted_by_its_name_and_sign():
    w = Depth.on(SMALL)
    attack = LiftedFedMIA(measure="their-depth", sign=-1, filter="none")
    assert attack.needs == {"their-depth"}
    wanted = slow_fedmia(-w.observations["their-depth"].astype(float), "none", 1)
    np.testing.assert_allclose(attack.score(w.observations, w.audit()), wanted, rtol=1e-6, atol=1e-9)
    up = LiftedFedMIA(measure="their-depth", filter="none").score(w.observations, w.audit())
    np.testing.assert_allclose(up, 1 - np.array(wanted), atol=1e-9)  # without a filter, Phi(-z) = 1 - Phi(z)


def test_an_unknown_measurement_is_skipped_with_the_names_there_are():
    with pytest.raises(SkipCell, match=r"no signal .their-depth.; of the attack.s `needs` it has confidence, entropy"):
        LiftedFedMIA(measure="their-depth").score(SMALL.observations, SMALL.audit())
    with pytest.raises(ValidationError, match="measure"):
        LiftedFedMIA(measure="Not A Name")


def test_what_is_the_same_for_every_client_cannot_be_lifted():
    attack = LiftedFedMIA(measure="grad-norm")
    with pytest.raises(SkipCell, match="does not depend on the client"):
        attack.score(SMALL.observations, SMALL.audit())
    own = np.random.default_rng(0).lognormal(size=SMALL.observations["loss"].shape)  # one global model a client
    own[:, TARGET] -= 20
    w = with_signals(SMALL, grad_sq=own)
    assert (attack.score(w.observations, w.audit()) > 0.99).all()


def test_the_guard_decides_for_measurements_of_a_small_scale():
    """A signal a million times smaller is told apart with a guard as small, and drowns in the default one."""
    w = Depth.on(SMALL)
    tiny = with_signals(w, **{"their_depth": w.observations["their-depth"] * 1e-6})
    wanted = LiftedFedMIA(measure="their-depth").score(w.observations, w.audit())
    fitting = LiftedFedMIA(measure="their-depth", guard=1e-20).score(tiny.observations, w.audit())
    np.testing.assert_allclose(fitting, wanted, atol=1e-4)
    assert np.ptp(LiftedFedMIA(measure="their-depth").score(tiny.observations, w.audit())) < 0.1 < np.ptp(wanted)


def seen_by_a_participant(logits: np.ndarray, y: np.ndarray) -> Observations:
    """``logits``: [R, n, C] float32 of the global model, measured as the engine does."""
    flat, label = torch.from_numpy(logits).reshape(-1, logits.shape[2]), torch.from_numpy(np.tile(y, len(logits)))
    signals = {
        name: measured(name, flat, label).reshape(len(logits), 1, len(y)).numpy()
        for name in ("loss", "confidence", "logit-confidence")
    }
    rounds = np.arange(1, 1 + len(logits))
    return Observations(view="client", rounds=rounds, clients=np.array([-1]), target=0, signals=signals)


LOSS_ATTACKS = [LossSeries, BlackboxLoss, FedMIAI]


@pytest.mark.parametrize("cls", LOSS_ATTACKS)
def test_loss_attacks_read_the_loss_before_the_defense_where_asked(cls):
    before = SMALL.observations["loss"][:, ::-1] + 0.1
    w = with_signals(SMALL, **{"loss@pre_defense": before})
    attack, audit = cls(loss_on="pre_defense"), SMALL.audit()
    assert attack.needs == {"loss@pre-defense"} and cls().needs == {"loss"}
    wanted = cls().score(with_signals(SMALL, loss=before).observations, audit)
    np.testing.assert_array_equal(attack.score(w.observations, audit), wanted)
    np.testing.assert_array_equal(cls().score(w.observations, audit), cls().score(SMALL.observations, audit))
    assert not np.array_equal(wanted, cls().score(SMALL.observations, audit))


@few
@given(st.integers(0, 10_000), st.floats(0.1, 40))
def test_the_rescaled_confidence_is_liras(seed, scale):
    rng = np.random.default_rng(seed)
    logits, y = (scale * rng.normal(size=(2, 30, 7))).astype(np.float32), rng.integers(0, 7, 30)
    found = MEASURES["rescaled"].of(seen_by_a_participant(logits, y))
    for r in range(2):
        np.testing.assert_allclose(found[r, 0], rescaled_confidence(logits[r], y), rtol=1e-6, atol=1e-6)


def test_saturated_predictions_keep_their_order():
    """Margins of 20 to 100: in float32 every loss is 0, and the logit confidence still is the margin."""
    margin = np.linspace(20, 100, 81, dtype=np.float32)
    logits = np.zeros((1, 81, 4), np.float32)
    logits[0, :, 1] = margin
    seen = seen_by_a_participant(logits, np.ones(81, np.int64))
    assert (seen["loss"] < 3e-9).all()
    found = MEASURES["rescaled"].of(seen)[0, 0]
    np.testing.assert_allclose(found, margin - np.log(3), rtol=1e-6)
    assert (np.diff(found) > 0).all()


def test_fta_of_the_rescaled_confidence_sees_members_that_saturate():
    """A member's margin rises faster and beyond what float32 tells from certain: its slope stays the larger one."""
    rng, rounds, n = np.random.default_rng(0), np.arange(1, 11), 400
    member = np.arange(n) < n // 2
    rate = np.where(member, 6.0, 2.0) + 0.3 * rng.normal(size=n)
    logits = np.zeros((len(rounds), n, 5), np.float32)
    logits[:, :, 2] = rate * rounds[:, None]
    seen = seen_by_a_participant(logits, np.full(n, 2))
    score = FTA(signal="rescaled").score(seen, SMALL.audit())
    np.testing.assert_allclose(score, rate, rtol=0.05)
    assert metric_auc(score, member) > 0.99
    lifted = LiftedFedMIA(measure="rescaled")
    assert lifted.needs == FTA(signal="rescaled").needs == {"logit-confidence"}


# --- Student's tail -------------------------------------------------------------------------------------------------


def gaussian_null(others: int, candidates: int = 40_000) -> Observations:
    """Nobody trained on anything: each candidate has a mean and a spread of its own, which all clients share."""
    rng = np.random.default_rng(others)
    middle, spread = rng.normal(size=candidates), rng.lognormal(size=candidates)
    return one_round(middle + spread * rng.normal(size=(others + 1, candidates)))


@pytest.mark.parametrize("others", [4, 9, 29])
def test_under_the_null_students_tail_is_uniform_and_the_normal_one_is_not(others):
    seen = gaussian_null(others)
    student = FedMIAI(filter="none", tail="student").score(seen, None)
    normal = FedMIAI(filter="none").score(seen, None)
    assert stats.kstest(student, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "uniform").pvalue < 1e-3
    level, n = 0.001, len(student)
    four_sigma = 4 * np.sqrt(level * (1 - level) / n)
    assert abs((student > 1 - level).mean() - level) < four_sigma
    assert (normal > 1 - level).mean() > level + four_sigma  # 35, 9 and 2.5 times the level


def test_students_tail_is_the_predictive_distribution():
    rng = np.random.default_rng(1)
    for n in (2, 4, 9):
        others, target = rng.normal(size=(n, 50)), rng.normal(size=50)
        found = FedMIAI(filter="none", tail="student", guard=1e-30).score(one_round(-np.vstack([target, others])), None)
        wanted = [
            stats.t.cdf(target[i], n - 1, others[:, i].mean(), others[:, i].std(ddof=1) * np.sqrt(1 + 1 / n)) for i in range(50)
        ]
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_students_tail_counts_the_clients_the_filter_kept():
    others = np.array([0.1, -0.2, 0.3, 0.0, -0.1, 50.0])
    found = FedMIAI(filter="loo", tail="student").score(one_round(-np.append(0.4, others)[:, None]), None)
    kept = others[:-1]
    wanted = stats.t.cdf((0.4 - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8) / np.sqrt(1 + 1 / 5), 4)
    np.testing.assert_allclose(found, wanted)


def test_the_two_tails_rank_alike_in_one_round():
    z = np.random.default_rng(0).normal(size=300)  # within what Phi can tell apart
    nine = np.full(300, 9)
    np.testing.assert_array_equal(np.argsort(normal_tail(z, nine)), np.argsort(student_tail(z, nine)))
    assert normal_tail(np.array([1.0]), nine[:1])[0] == pytest.approx(NormalDist().cdf(1.0))
    assert normal_tail(np.array([10.0, 11.0]), nine[:2]).tolist() == [1, 1]  # and beyond it
    assert np.diff(student_tail(np.array([10.0, 11.0]), nine[:2])) > 0


def test_students_tail_takes_the_sample_variance_only():
    with pytest.raises(ValidationError, match="needs ddof 1"):
        FedMIAI(tail="student", ddof=0)


# --- CS-MIA ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> World:
    return world(2.0, 300, 1500, seed=2)


def fitted(w: World, member: np.ndarray | None = None, **params) -> CSMIA:
    attack, shadow = CSMIA(**params), w.shadow()
    attack.fit([shadow if member is None else replace(shadow, member=member)], replace(w.audit(), target_client=-1))
    return attack


@pytest.fixture(scope="module")
def trained(pool) -> CSMIA:
    return fitted(pool)


def test_cs_mia_without_a_leak_at_chance():
    w = world(0.0, 300, 1500, seed=2)
    score = fitted(w).score(w.observations, w.audit())
    assert abs(auc(score, w.member) - 0.5) < chance_band(w.member)


def test_cs_mia_with_a_leak_better_than_chance_and_with_shuffled_membership_at_chance(pool, trained):
    score = trained.score(pool.observations, pool.audit())
    assert auc(score, pool.member) > 0.5 + 2 * chance_band(pool.member)
    member = np.random.default_rng(0).permutation(pool.member)
    assert abs(auc(score, member) - 0.5) < chance_band(member)


def test_cs_mia_never_scores_a_sample_with_a_net_that_learnt_from_it(pool, trained):
    fold, member = folds(pool.ids, pool.audit().key), pool.owner == COLLUDER
    turned = fitted(pool, member=np.where(fold == 0, ~member, member))
    before, after = (a.score(pool.observations, pool.audit()) for a in (trained, turned))
    np.testing.assert_array_equal(before[fold == 0], after[fold == 0])
    assert (before[fold == 1] != after[fold == 1]).mean() > 0.99


def test_cs_mia_repeats_bit_by_bit_and_leaves_the_global_generator_alone(pool, trained):
    state = torch.get_rng_state()
    again = fitted(pool).score(pool.observations, pool.audit())
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(again, trained.score(pool.observations, pool.audit()))


def test_cs_mia_carries_the_last_upload_over_rounds_without_the_client(pool, trained):
    series = np.array([[np.nan], [1.0], [np.nan], [np.nan], [4.0]])
    np.testing.assert_array_equal(carried(series)[:, 0], [1, 1, 1, 1, 4])
    absent = with_absence(pool, TARGET, 3)
    held = pool.observations["modified-entropy"].copy()
    held[3, TARGET] = held[2, TARGET]
    wanted = trained.score(with_signals(pool, modified_entropy=held).observations, pool.audit())
    np.testing.assert_array_equal(trained.score(absent.observations, pool.audit()), wanted)
    for r in range(6):
        absent = with_absence(absent, TARGET, r)
    with pytest.raises(SkipCell, match="no audited round"):
        trained.score(absent.observations, pool.audit())


def test_the_series_net_is_two_layers_on_standardised_rounds():
    net = SeriesNet(4, torch.Generator().manual_seed(0))
    x = 3 + 2 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    assert sum(p.numel() for p in net.parameters()) == 4 * 64 + 64 + 64 + 1
    net.standardise_by(x)
    z = (x - x.mean(0)) / x.std(0, correction=0)
    wanted = [sum(net.out.weight[0] * torch.clamp(net.hidden.weight @ row + net.hidden.bias, min=0)) + net.out.bias for row in z]
    torch.testing.assert_close(net(x), torch.cat(wanted), rtol=1e-4, atol=1e-5)


def test_cs_mia_params(pool):
    plain = fitted(pool, epochs=1)
    assert all((net.mean == 0).all() and (net.std == 1).all() for net in plain._nets)
    scaled = fitted(pool, standardise=True, epochs=1)
    fold = folds(pool.ids, pool.audit().key)
    learnt_from = pool.observations["modified-entropy"][:, COLLUDER, fold != 0].mean(axis=1)
    np.testing.assert_allclose(scaled._nets[0].mean.numpy(), learnt_from, rtol=1e-4)


def test_cs_mia_without_a_colluder_is_skipped(pool):
    with pytest.raises(SkipCell, match="collude"):
        CSMIA().fit([], pool.audit())


# --- FTA on the global model ----------------------------------------------------------------------------------------


@few
@given(st.lists(st.integers(1, 300), min_size=2, max_size=8, unique=True), st.floats(-2, 2), st.floats(-5, 5))
def test_fta_of_a_straight_line_is_its_slope(rounds, slope, start):
    t = np.sort(np.array(rounds))
    line = (start + slope * t)[:, None, None] * np.ones((1, 1, 3))
    for signal, of in (("loss", {"loss": -line}), ("confidence", {"confidence": line})):
        seen = Observations(view="client", rounds=t, clients=np.array([-1]), target=0, signals=of)
        attack = FTA(signal=signal)
        assert attack.view == "client" and attack.needs == set(of)
        np.testing.assert_allclose(attack.score(seen, SMALL.audit()), slope, atol=1e-9)


def test_fta_of_the_rescaled_confidence_rises_with_the_margin():
    t = np.arange(1, 6)
    logits = np.zeros((5, 2, 2), np.float32)
    logits[:, :, 0] = 0.5 * t[:, None] - 1 + np.array([0.0, 0.3])  # two classes: the logit of p_y is the margin
    seen = seen_by_a_participant(logits, np.zeros(2, np.int64))
    np.testing.assert_allclose(FTA(signal="rescaled").score(seen, SMALL.audit()), 0.5, rtol=1e-6)


# --- which round ----------------------------------------------------------------------------------------------------


def flags(members: int, strangers: int) -> np.ndarray:
    return np.arange(members + strangers) < members


@pytest.mark.parametrize(("members", "strangers"), [(150, 2000), (40, 60)])
def test_the_report_equals_its_definition(members, strangers):
    rng = np.random.default_rng(0)
    member = flags(members, strangers)
    scores = np.round(rng.normal(size=(7, len(member))) + 0.2 * rng.random((7, 1)) * member, 1)  # with ties
    got = round_report(scores, member, np.random.default_rng(5), shuffles=21)
    aucs, tf01s = [metric_auc(row, member) for row in scores], [tf01(row, member) for row in scores]
    best = max(range(7), key=lambda r: (tf01s[r] or 0, aucs[r]))
    assert (got.last_auc, got.last_tf01) == (pytest.approx(aucs[-1]), tf01s[-1])
    assert (got.best_index, got.best_tf01) == (best, tf01s[best]) and got.best_auc == pytest.approx(aucs[best])
    assert (got.best_tf01 is None) == (strangers < 1999) == (got.null_best_tf01 is None)


def test_the_null_repeats_the_oracle_on_shuffled_membership():
    rng = np.random.default_rng(0)
    member = flags(100, 2000)
    scores = rng.normal(size=(30, 2100)) + 3 * member  # everything leaks, the null must not notice
    got = round_report(scores, member, rng, shuffles=40)
    wanted = [round_report(scores, rng.permutation(member), rng, shuffles=1) for _ in range(40)]
    for name, null in (("best_auc", got.null_best_auc), ("best_tf01", got.null_best_tf01)):
        each = [getattr(w, name) for w in wanted]
        assert abs(null - np.mean(each)) < 4 * np.std(each) * np.sqrt(2 / 40)
    assert got.best_tf01 > 40 > 5 > got.null_best_tf01 > 0.1


def test_in_noise_the_oracle_finds_what_its_null_says_and_a_calibrated_round_finds_nothing():
    rng = np.random.default_rng(1)
    member = flags(400, 4000)
    reports = [round_report(rng.normal(size=(30, 4400)), member, rng) for _ in range(20)]
    mean = {name: np.mean([getattr(r, name) for r in reports]) for name in vars(reports[0])}
    assert abs(mean["calibrated_auc"] - 0.5) < chance_band(flags(200, 2000)) / np.sqrt(20)
    assert abs(mean["last_auc"] - 0.5) < chance_band(member) / np.sqrt(20)
    # expected 0.1, of 4,000 and 8,000 members in all
    assert mean["calibrated_tf01"] < 0.3 and mean["last_tf01"] < 0.3
    assert mean["best_tf01"] > 0.4 and abs(mean["best_tf01"] - mean["null_best_tf01"]) < 0.3
    assert abs(mean["best_auc"] - mean["null_best_auc"]) < 0.01


def test_a_round_that_leaks_is_found_without_the_evaluated_half():
    rng = np.random.default_rng(2)
    member = flags(200, 4000)
    scores = rng.normal(size=(30, 4200))
    scores[11] += 3 * member
    got = round_report(scores, member, rng)
    assert got.best_index == 11 and got.calibrated_auc > 0.95 and got.calibrated_tf01 > 20
    assert abs(got.last_auc - 0.5) < chance_band(member)


def test_the_calibrated_round_is_judged_on_candidates_that_did_not_choose_it():
    """A round whose members lead in the choosing half and trail in the other one: calibration must report the latter."""
    member = flags(50, 50)
    outcomes = set()
    for seed in range(20):
        first = np.zeros(100, bool)
        rng = np.random.default_rng(seed)
        for group in (np.flatnonzero(member), np.flatnonzero(~member)):
            first[rng.permutation(group)[:25]] = True
        treacherous = np.where(first, member, ~member).astype(float)
        got = round_report(np.stack([treacherous, np.zeros(100)]), member, np.random.default_rng(seed))
        outcomes.add(got.calibrated_auc)
    assert outcomes == {0.0}


def test_rounds_without_the_target_are_left_out():
    rng = np.random.default_rng(3)
    member = flags(30, 60)
    scores = rng.normal(size=(4, 90))
    gaps = np.insert(scores, [0, 2, 4], np.nan, axis=0)  # rows 0, 3, 6
    got, dense = (round_report(s, member, np.random.default_rng(0)) for s in (gaps, scores))
    assert got == replace(dense, best_index=[1, 2, 4, 5][dense.best_index])
    with pytest.raises(ValueError, match="no round"):
        round_report(np.full((2, 90), np.nan), member, rng)
    gaps[1, 4] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        round_report(gaps, member, rng)


def test_the_report_repeats_and_needs_two_of_each_class_to_calibrate():
    scores, member = np.random.default_rng(4).normal(size=(3, 40)), flags(1, 39)
    got = [round_report(scores, member, np.random.default_rng(0)) for _ in range(2)]
    assert got[0] == got[1] and got[0].calibrated_auc is None and got[0].calibrated_tf01 is None
    with pytest.raises(ValueError, match="both classes"):
        round_report(scores, np.zeros(40, bool), np.random.default_rng(0))


def test_an_attack_on_the_trajectory_has_no_rounds():
    assert AvgCosine().score_rounds(SMALL.observations, SMALL.audit()) is None
    assert issubclass(LiftedFedMIA, Attack) and LiftedFedMIA().score_rounds(SMALL.observations, SMALL.audit()) is None
