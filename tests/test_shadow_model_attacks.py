"""Attacks on shadow models: each next to an obvious reference, chance without a leak, better with one."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedbench.core import Audit, Observations, ShadowModels, SkipCell
from fedbench.plugins.attacks import fedbench_attacks
from fedbench.plugins.attacks.shadow_models.attack_net import BATCH, AttackNet, ShadowModelAttack, balanced, train
from fedbench.plugins.attacks.shadow_models.confidence import log_confidence, rescaled_confidence
from fedbench.plugins.attacks.shadow_models.lira_offline import LiRAOffline
from fedbench.plugins.attacks.shadow_models.rmia import RMIA

ATTACKS = [ShadowModelAttack, LiRAOffline, RMIA]
INPUTS, CLASSES, TRAINED = 120, 4, 150
few = settings(max_examples=60, deadline=None)


def seen(shadows: ShadowModels | None) -> Observations:
    return Observations(
        view="external", rounds=np.array([9]), clients=np.array([-1]), target=0, signals={}, shadow_models=shadows
    )


def audit(y: np.ndarray, key: int = 5) -> Audit:
    return Audit(key=key, device=torch.device("cpu"), ids=np.arange(len(y)), y=y, n_classes=CLASSES, target_client=0)


def ridge(x: np.ndarray, y: np.ndarray, strength: float = 1.0) -> np.ndarray:
    """[d, C] the least-squares classifier; with nearly as many inputs as samples it overfits badly."""
    return 12 * np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ np.eye(CLASSES)[y])


def draw(rng: np.random.Generator, n: int, teacher: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(n, INPUTS))
    return x, (x @ teacher + 4 * rng.normal(size=(n, CLASSES))).argmax(1)


def world(leak: bool, models: int = 10, strangers: int = 1200, seed: int = 0) -> tuple[ShadowModels, np.ndarray, np.ndarray]:
    """(shadows, labels, membership) of real, overfitted models; without ``leak`` the target trained on other samples."""
    rng = np.random.default_rng(seed)
    teacher = rng.normal(size=(INPUTS, CLASSES))
    shadow_x, shadow_y = draw(rng, 2 * TRAINED, teacher)
    inside = np.stack([rng.permutation(2 * TRAINED) < TRAINED for _ in range(models)])
    fits = [ridge(shadow_x[half], shadow_y[half]) for half in inside]
    x, y = draw(rng, TRAINED + strangers, teacher)
    member = np.arange(len(y)) < TRAINED
    target = ridge(x[member], y[member]) if leak else ridge(*draw(rng, TRAINED, teacher))
    shadows = ShadowModels(
        logits=np.stack([x @ w for w in fits]).astype(np.float32),
        shadow_logits=np.stack([shadow_x @ w for w in fits]).astype(np.float32),
        shadow_y=shadow_y, shadow_member=inside, target_logits=(x @ target).astype(np.float32),
        model_of=np.zeros(len(y), np.int64), target_shadow_logits=(shadow_x @ target)[None].astype(np.float32),
    )  # fmt: skip
    return shadows, y, member


def noise(seed: int, models: int = 3, n: int = 40, samples: int = 30, globals_: int = 1, scale: float = 3.0):
    """(shadows, labels) without meaning, for comparing formulas."""
    rng = np.random.default_rng(seed)

    def logits(*shape: int) -> np.ndarray:
        return rng.normal(0, scale, (*shape, CLASSES)).astype(np.float32)

    shadows = ShadowModels(
        logits=logits(models, n),
        shadow_logits=logits(models, samples),
        shadow_y=np.arange(samples) % CLASSES,
        shadow_member=rng.random((models, samples)) < 0.5,
        target_logits=logits(n),
        model_of=rng.integers(0, globals_, n),
        target_shadow_logits=logits(globals_, samples),
    )
    return shadows, rng.integers(0, CLASSES, n)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(np.asarray(logits, np.float64) - logits.max())
    return e / e.sum()


@pytest.fixture(scope="module")
def leaky():
    return world(True)


@pytest.fixture(scope="module")
def silent():
    return world(False)


def chance_band(member: np.ndarray) -> float:
    """Four standard errors of the AUC without any signal (Hanley & McNeil, 1982)."""
    m, n = member.sum(), (~member).sum()
    return 4 * math.sqrt((m + n + 1) / (12 * m * n))


# --- all three -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_overfitted_target_leaks(attack, leaky):
    shadows, y, member = leaky
    assert roc_auc_score(member, attack().score(seen(shadows), audit(y))) > 0.5 + 2 * chance_band(member)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_target_that_never_saw_the_candidates_yields_chance(attack, silent):
    shadows, y, member = silent
    score = attack().score(seen(shadows), audit(y))
    assert abs(roc_auc_score(member, score) - 0.5) < chance_band(member)


@pytest.mark.parametrize("attack", [lambda: ShadowModelAttack(epochs=2), LiRAOffline, RMIA])
def test_the_same_key_gives_the_same_bits_and_nothing_is_written_to(attack):
    shadows, y = noise(0)
    for field in vars(shadows).values():
        field.flags.writeable = False
    y.flags.writeable = False
    before = torch.random.get_rng_state()
    first, again = (attack().score(seen(shadows), audit(y)) for _ in range(2))
    assert first.tobytes() == again.tobytes() and first.dtype == np.float64 and first.shape == y.shape
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_candidate_that_moves_takes_its_score_along(attack):
    shadows, y = noise(1, globals_=2)
    made = attack(epochs=1) if attack is ShadowModelAttack else attack()
    order = np.random.default_rng(0).permutation(len(y))
    moved = replace(
        shadows, logits=shadows.logits[:, order], target_logits=shadows.target_logits[order],
        model_of=shadows.model_of[order],
    )  # fmt: skip
    expected = made.score(seen(shadows), audit(y))[order]
    np.testing.assert_allclose(made.score(seen(moved), audit(y[order])), expected, rtol=1e-6)


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_usable_shadow_models_the_cell_is_skipped_with_the_reason(attack):
    shadows, y = noise(0)
    one = replace(
        shadows, logits=shadows.logits[:1], shadow_logits=shadows.shadow_logits[:1],
        shadow_member=shadows.shadow_member[:1],
    )  # fmt: skip
    broken = shadows.logits.copy()
    broken[2, 0, 0] = np.nan
    empty = replace(
        shadows, shadow_logits=shadows.shadow_logits[:, :0], shadow_y=shadows.shadow_y[:0],
        shadow_member=shadows.shadow_member[:, :0], target_shadow_logits=shadows.target_shadow_logits[:, :0],
    )  # fmt: skip
    for given_, reason in (
        (None, "give the setting audit.shadow"), (one, "at least 2 shadow models; audit.shadow gives 1"),
        (replace(shadows, logits=broken), "shadow model 2 diverged"), (empty, "no shadow samples"),
    ):  # fmt: skip
        with pytest.raises(SkipCell, match=reason):
            attack().score(seen(given_), audit(y))


def test_they_are_announced_as_attacks_on_the_final_model():
    targets = {c.name: c.target for c in fedbench_attacks()}
    for name, attack in zip(("shadow", "lira-offline", "rmia"), ATTACKS, strict=True):
        assert targets[name] == f"{attack.__module__}:{attack.__name__}"
        assert attack.view == "external" and attack.needs_shadow_models and not attack.needs and not attack.colluders
    assert [a.threshold for a in ATTACKS] == [0.5, None, None]


# --- confidences -----------------------------------------------------------------------------------------------


@few
@given(st.integers(0, 10_000), st.floats(-1e4, 1e4))
def test_rescaled_confidence_is_the_log_odds_and_ignores_a_constant(seed, constant):
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(0, 3, (20, CLASSES)), rng.integers(0, CLASSES, 20)
    p = np.array([softmax(row)[label] for row, label in zip(logits, y, strict=True)])
    phi = rescaled_confidence(logits, y)
    np.testing.assert_allclose(phi, np.log(p / (1 - p)), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(log_confidence(logits, y), np.log(p), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rescaled_confidence(logits + constant, y), phi, atol=1e-10)


def test_confidences_stay_finite_and_apart_where_the_softmax_saturates():
    logits, y = np.array([[800.0, 0, 0], [900.0, 0, 0], [-800.0, 0, 0]]), np.zeros(3, np.int64)
    phi = rescaled_confidence(logits, y)
    np.testing.assert_allclose(phi, np.array([800, 900, -800]) - math.log(2))
    np.testing.assert_allclose(log_confidence(logits, y), [0, 0, -800 - math.log(2)], atol=1e-300)


# --- LiRA ------------------------------------------------------------------------------------------------------


def slow_phi(logits: np.ndarray, label: int) -> float:
    p = softmax(logits)
    return math.log(p[label]) - math.log(sum(p[c] for c in range(CLASSES) if c != label))


def slow_lira(shadows: ShadowModels, y: np.ndarray, per_sample: bool) -> np.ndarray:
    out = [[slow_phi(model[i], y[i]) for model in shadows.logits] for i in range(len(y))]
    variance = [sum((v - sum(o) / len(o)) ** 2 for v in o) / (len(o) - 1) for o in out]
    shared = sum(variance) / len(variance)
    return np.array([
        (slow_phi(shadows.target_logits[i], y[i]) - sum(out[i]) / len(out[i])) / math.sqrt(variance[i] if per_sample else shared)
        for i in range(len(y))
    ])  # fmt: skip


@pytest.mark.parametrize("variance", ["global", "per-sample"])
@pytest.mark.parametrize("models", [2, 7])
def test_lira_is_the_z_value_among_the_out_models(variance, models):
    shadows, y = noise(3, models=models)
    score = LiRAOffline(variance=variance).score(seen(shadows), audit(y))
    np.testing.assert_allclose(score, slow_lira(shadows, y, variance == "per-sample"), rtol=1e-6)


@pytest.mark.parametrize(("models", "variance"), [(63, "global"), (64, "per-sample")])
def test_lira_estimates_a_variance_per_sample_from_64_shadow_models_on(models, variance):
    shadows, y = noise(4, models=models, n=10)
    expected = LiRAOffline(variance=variance).score(seen(shadows), audit(y))
    np.testing.assert_array_equal(LiRAOffline().score(seen(shadows), audit(y)), expected)


def test_lira_does_not_see_a_constant_added_to_all_logits_of_a_model():
    shadows, y = noise(5)
    shift = np.array([100, -50, 7], np.float32)[:, None, None]
    shifted = replace(shadows, logits=shadows.logits + shift, target_logits=shadows.target_logits - 30)
    np.testing.assert_allclose(
        LiRAOffline().score(seen(shifted), audit(y)), LiRAOffline().score(seen(shadows), audit(y)), atol=1e-4
    )


def test_lira_ranks_members_where_the_tail_probability_is_one():
    shadows, y = noise(6, scale=0.1)
    sure = shadows.target_logits.copy()
    sure[np.arange(len(y)), y] += np.linspace(20, 60, len(y), dtype=np.float32)
    score = LiRAOffline(variance="per-sample").score(seen(replace(shadows, target_logits=sure)), audit(y))
    assert score.min() > 8.3 and len(np.unique(score)) == len(y)


def test_lira_is_finite_where_all_shadow_models_agree():
    shadows, y = noise(7)
    same = np.repeat(shadows.logits[:1], 3, axis=0)
    score = LiRAOffline(variance="per-sample").score(seen(replace(shadows, logits=same)), audit(y))
    assert np.isfinite(score).all()


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("models", [2, 7])
def test_released_lira_is_minus_the_log_density_about_the_median(per_sample, models):
    shadows, y = noise(8, models=models)
    out = [[slow_phi(model[i], y[i]) for model in shadows.logits] for i in range(len(y))]
    pooled = statistics.pstdev([v for o in out for v in o])
    wanted = [
        -stats.norm.logpdf(slow_phi(logits, label), statistics.median(o), statistics.pstdev(o) if per_sample else pooled)
        for logits, label, o in zip(shadows.target_logits, y, out, strict=True)
    ]
    attack = LiRAOffline(form="released", variance="per-sample" if per_sample else "global")
    np.testing.assert_allclose(attack.score(seen(shadows), audit(y)), wanted, rtol=1e-6)


def test_released_lira_calls_a_confidence_far_below_the_shadow_models_a_members():
    shadows, y = noise(9, scale=0.1)
    low, high = shadows.target_logits.copy(), shadows.target_logits.copy()
    low[np.arange(len(y)), y] -= 30
    high[np.arange(len(y)), y] += 30
    for form, sides in (("one-sided", (-1, 1)), ("released", (1, 1))):
        as_it_is, *moved = (
            LiRAOffline(form=form).score(seen(replace(shadows, target_logits=t)), audit(y))
            for t in (shadows.target_logits, low, high)
        )
        assert [float(np.sign(m - as_it_is).mean()) for m in moved] == list(sides)
    assert LiRAOffline().params.form == "one-sided"
    same = replace(shadows, logits=np.repeat(shadows.logits[:1], 3, axis=0))
    assert np.isfinite(LiRAOffline(form="released", variance="per-sample").score(seen(same), audit(y))).all()


# --- RMIA ------------------------------------------------------------------------------------------------------


def slow_rmia(shadows: ShadowModels, y: np.ndarray, a: float, gamma: float) -> np.ndarray:
    """The definition, one pair (x, z) at a time."""

    def evidence(p_out):
        return ((1 + a) * p_out + (1 - a)) / 2

    def ratio_z(j, z):
        label = shadows.shadow_y[z]
        out = [softmax(m[z])[label] for m, inside in zip(shadows.shadow_logits, shadows.shadow_member, strict=True)
               if not inside[z]]  # fmt: skip
        return softmax(shadows.target_shadow_logits[j, z])[label] / evidence(np.mean(out)) if out else None

    score = []
    for i, label in enumerate(y):
        p_out = np.mean([softmax(m[i])[label] for m in shadows.logits])
        ratio_x = softmax(shadows.target_logits[i])[label] / evidence(p_out)
        population = [ratio_z(shadows.model_of[i], z) for z in range(len(shadows.shadow_y))]
        score.append(np.mean([ratio_x / r >= gamma for r in population if r is not None]))
    return np.array(score)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1.0, 2.0]), st.integers(1, 3))
def test_rmia_is_its_definition_pair_by_pair(seed, a, gamma, globals_):
    shadows, y = noise(seed, n=12, samples=15, globals_=globals_)
    shadows.shadow_member[:, 0] = True  # nobody's out-sample: left out
    shadows.shadow_member[0, 1:] &= False
    score = RMIA(a=a, gamma=gamma).score(seen(shadows), audit(y))
    np.testing.assert_allclose(score, slow_rmia(shadows, y, a, gamma), atol=1e-12)
    assert score.min() >= 0 and score.max() <= 1


def test_rmia_compares_a_candidate_with_the_population_under_its_own_model():
    """A model that is sure of everything is no evidence: its population is just as sure."""
    shadows, y = noise(8, n=30, globals_=2)
    surer = shadows.target_shadow_logits.copy()
    surer[1, np.arange(30), shadows.shadow_y] += 50
    before = RMIA().score(seen(shadows), audit(y))
    after = RMIA().score(seen(replace(shadows, target_shadow_logits=surer)), audit(y))
    second = shadows.model_of == 1
    assert 0 < second.sum() < 30
    np.testing.assert_array_equal(after[~second], before[~second])
    assert (after[second] <= before[second]).all() and (after[second] < before[second]).any()


def test_rmia_takes_p_of_z_from_models_that_did_not_train_on_it():
    shadows, y = noise(9)
    other = shadows.shadow_logits.copy()
    other[shadows.shadow_member] = 77 * np.arange(CLASSES)  # whatever the in-models say
    changed = RMIA().score(seen(replace(shadows, shadow_logits=other)), audit(y))
    np.testing.assert_array_equal(changed, RMIA().score(seen(shadows), audit(y)))


@few
@given(st.integers(0, 1000), st.floats(0.01, 20))
def test_rmia_rises_with_the_target_models_confidence(seed, more):
    shadows, y = noise(seed)
    sure = shadows.target_logits.copy()
    sure[np.arange(len(y)), y] += np.float32(more)
    before, after = (RMIA().score(seen(r), audit(y)) for r in (shadows, replace(shadows, target_logits=sure)))
    assert (after >= before).all()


def test_rmia_counts_ties_and_gamma_asks_for_more():
    """Every ratio is 1: all z are dominated at gamma 1, none above it."""
    shadows, y = noise(10, scale=0.0)
    assert (RMIA().score(seen(shadows), audit(y)) == 1).all()
    assert (RMIA(gamma=1.01).score(seen(shadows), audit(y)) == 0).all()


def test_rmia_is_finite_where_confidences_underflow():
    shadows, y = noise(11, scale=2000.0)
    assert np.isfinite(RMIA(a=1.0).score(seen(shadows), audit(y))).all()


def test_rmia_without_a_population_is_skipped():
    shadows, y = noise(12)
    with pytest.raises(SkipCell, match="no population"):
        RMIA().score(seen(replace(shadows, shadow_member=np.ones_like(shadows.shadow_member))), audit(y))


# --- shadow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top", "per_class"), [(None, False), (2, False), (None, True), (3, True), (99, False)])
def test_shadow_reads_the_sorted_prediction_and_the_label(top, per_class):
    shadows, y = noise(0, n=8)
    x = ShadowModelAttack(top=top, per_class=per_class)._features(shadows.target_logits, y).numpy()
    for row, logits, label in zip(x, shadows.target_logits, y, strict=True):
        expected = sorted(softmax(logits), reverse=True)[: top or CLASSES]
        expected += [] if per_class else [float(c == label) for c in range(CLASSES)]
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_shadow_learns_every_models_prediction_with_that_models_membership():
    shadows, _ = noise(2)
    x, labels, member = ShadowModelAttack()._lessons(shadows)
    samples = len(shadows.shadow_y)
    for m, logits in enumerate(shadows.shadow_logits):
        for s in range(samples):
            row = m * samples + s
            np.testing.assert_allclose(x[row, :CLASSES], sorted(softmax(logits[s]), reverse=True), atol=1e-6)
            assert labels[row] == shadows.shadow_y[s] and member[row] == shadows.shadow_member[m, s]


def test_shadow_trains_like_plain_pytorch():
    """The same weights and batches under ``torch.optim.Adam`` and the cross-entropy written out."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((3 * BATCH + 10, 5), np.float32))
    member = torch.from_numpy(rng.random(len(x)) < 0.5)
    net = train(x, member, 3, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    slow = AttackNet(5, generator)
    adam = torch.optim.Adam(slow.parameters(), lr=1e-3)
    for _ in range(3):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            p = torch.sigmoid(slow.out(torch.relu(slow.hidden(x[batch]))))[:, 0]
            loss = -torch.where(member[batch], p.log(), (1 - p).log()).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    torch.testing.assert_close(net(x), slow(x), rtol=1e-4, atol=1e-5)


@few
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 100))
def test_shadow_learns_from_as_many_members_as_non_members(flags, seed):
    member = torch.tensor(flags, dtype=torch.bool)
    chosen = balanced(member, torch.Generator().manual_seed(seed))
    assert len(chosen.unique()) == len(chosen) == 2 * min(int(member.sum()), int((~member).sum()))
    assert int(member[chosen].sum()) * 2 == len(chosen)


@pytest.mark.parametrize("per_class", [False, True])
def test_shadow_learns_which_way_membership_points(per_class):
    """Training makes class 0 surer and class 1 less sure; a fixed rule would be wrong about one of them."""
    rng = np.random.default_rng(3)

    def logits(member: np.ndarray, y: np.ndarray) -> np.ndarray:
        sure = 2 + np.where(y == 0, 1.5, -1.5) * member + 0.3 * rng.normal(size=y.shape)
        return np.stack([np.where(y == c, sure, 0) for c in range(2)], axis=-1).astype(np.float32)

    shadow_y, y, member = np.arange(400) % 2, np.arange(300) % 2, np.arange(300) < 100
    inside = rng.random((4, 400)) < 0.7  # unbalanced on purpose: the threshold stays at one half
    shadows = ShadowModels(
        logits=logits(np.zeros((4, 300)), np.broadcast_to(y, (4, 300))),
        shadow_logits=logits(inside, np.broadcast_to(shadow_y, (4, 400))),
        shadow_y=shadow_y,
        shadow_member=inside,
        target_logits=logits(member, y),
        model_of=np.zeros(300, int),
        target_shadow_logits=logits(np.zeros((1, 400)), shadow_y[None]),
    )
    score = ShadowModelAttack(per_class=per_class).score(seen(shadows), audit(y))
    assert score.min() >= 0 and score.max() <= 1
    for c in range(2):
        assert roc_auc_score(member[y == c], score[y == c]) > 0.95
    assert ((score > ShadowModelAttack.threshold) == member).mean() > 0.9


def test_shadow_per_class_learns_from_that_class_alone():
    shadows, y = noise(4, samples=60)
    last = shadows.shadow_y == CLASSES - 1
    other = shadows.shadow_logits.copy()
    other[:, last] = other[:, last][..., ::-1] * 3
    made = ShadowModelAttack(per_class=True, epochs=3)
    before, after = (made.score(seen(r), audit(y)) for r in (shadows, replace(shadows, shadow_logits=other)))
    np.testing.assert_array_equal(after[y < CLASSES - 1], before[y < CLASSES - 1])
    assert (after[y == CLASSES - 1] != before[y == CLASSES - 1]).all()


def test_shadow_says_which_class_it_cannot_learn():
    shadows, y = noise(5)
    y[0] = 3
    with pytest.raises(SkipCell, match="no shadow sample has the label 3"):
        ShadowModelAttack().score(seen(replace(shadows, shadow_y=shadows.shadow_y % 3)), audit(y))
    inside = shadows.shadow_member.copy()
    inside[:, shadows.shadow_y == 3] = True
    with pytest.raises(SkipCell, match="no sample of class 3 both inside and outside"):
        ShadowModelAttack(per_class=True, epochs=1).score(seen(replace(shadows, shadow_member=inside)), audit(y))
    with pytest.raises(SkipCell, match="no sample both inside and outside"):
        ShadowModelAttack().score(seen(replace(shadows, shadow_member=np.ones_like(inside))), audit(y))
