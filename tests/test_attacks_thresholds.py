"""Threshold attacks, label-only and MemberShield's adaptive attack: thresholds chosen on samples that are not judged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attack_worlds import CLASSES, colluder, found, halved, rich_world, scored, shown, taught
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from worlds import TARGET, auc, chance_band, with_absence, without_round

from fedbench.core import SkipCell
from fedbench.core.experiment.job import Look
from fedbench.plugins.attacks.adaptive_membershield import AdaptiveMemberShield
from fedbench.plugins.attacks.crossfit import folds
from fedbench.plugins.attacks.thresholds.choose import best_threshold, class_thresholds
from fedbench.plugins.attacks.thresholds.label_only import LabelOnly
from fedbench.plugins.attacks.thresholds.signals import (
    ThresholdConfidence,
    ThresholdEntropy,
    ThresholdLoss,
    ThresholdModifiedEntropy,
)

MEASURED = {
    ThresholdConfidence: ("logit-confidence", 1), ThresholdEntropy: ("entropy", -1), ThresholdLoss: ("loss", -1),
    ThresholdModifiedEntropy: ("modified-entropy", -1), LabelOnly: ("robustness", 1),
}  # fmt: skip
ALL = [*MEASURED, partial(AdaptiveMemberShield, theta=0.1)]  # nobody trained on soft labels here
FORMS = [{}, {"view": "client"}, {"classes": True}, {"teacher": "half"}, {"teacher": "half", "classes": True, "view": "client"}]
values = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30)


@pytest.fixture(scope="module")
def silent():
    return rich_world(0.0)


@pytest.fixture(scope="module")
def leaky():
    return rich_world(5.0)


# --- the choice of a threshold ----------------------------------------------------------------------------------------


@given(values)
def test_the_threshold_has_the_largest_advantage_and_is_the_highest_such(drawn):
    value, member = (np.array(v) for v in zip(*drawn, strict=True))
    if member.all() or not member.any():
        member[0] = not member[0]
    advantage = {t: (value[member] > t).mean() - (value[~member] > t).mean() for t in [*value.tolist(), -99]}
    tau, most = best_threshold(value, member), max(advantage.values())
    assert (value[member] > tau).mean() - (value[~member] > tau).mean() == pytest.approx(most)
    said = int((value > tau).sum())
    assert said == min(int((value > t).sum()) for t, a in advantage.items() if a == pytest.approx(most))


def test_the_threshold_lies_between_what_it_parts():
    assert best_threshold(np.array([1.0, 2, 5, 6]), np.array([0, 0, 1, 1])) == 3.5
    assert best_threshold(np.array([1.0, 2, 5, 6]), np.array([1, 1, 0, 0])) == 6  # turned over: nobody is called a member


def test_a_class_with_too_few_lessons_has_no_threshold_of_its_own():
    value, member = np.array([0.0, 1, 2, 3, 4, 9]), np.array([0, 1, 0, 1, 0, 1], bool)
    y = np.array([0, 0, 1, 1, 1, 2])
    assert class_thresholds(value, member, y, np.arange(3), 1) == {0: 0.5, 1: 2.5}
    assert class_thresholds(value, member, y, np.arange(3), 2) == {}


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["server", "client"])
@pytest.mark.parametrize("cls", MEASURED)
def test_without_a_teacher_the_score_is_the_signal(cls, view, leaky):
    attack, (name, sign) = cls(teacher="none", view=view), MEASURED[cls]
    seen = shown(leaky, view)
    wanted = sign * seen.of_target(name).astype(float)
    np.testing.assert_array_equal(attack.score_rounds(seen, leaky.audit()), wanted)
    np.testing.assert_array_equal(attack.score(seen, leaky.audit()), wanted[-1])
    assert attack.threshold is None and attack.colluders == 0 and not attack.knows_half


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cls", ALL)
def test_at_chance_without_a_leak_and_with_shuffled_membership_and_above_it_with_one(cls, form, silent, leaky):
    assert abs(auc(scored(cls(**form), silent), silent.member) - 0.5) < chance_band(silent.member)
    score = scored(cls(**form), leaky)
    shuffled = np.random.default_rng(1).permutation(leaky.member)
    assert abs(auc(score, shuffled) - 0.5) < chance_band(shuffled)
    assert found(score, leaky) > 0.5 + chance_band(leaky.member)


@pytest.mark.parametrize("cls", [*MEASURED, AdaptiveMemberShield])
def test_what_it_declares_follows_its_parameters(cls):
    look = Look.of(cls(view="client", teacher="half"))
    assert (look.view, look.colluders) == ("client", 0) and cls(teacher="half").knows_half
    assert cls(teacher="half").threshold is None and look.knows_half
    assert Look.of(cls()).view == "server" and cls().colluders == 1 and cls().threshold == 0


@pytest.mark.parametrize("cls", [ThresholdLoss, LabelOnly])
def test_the_sign_of_a_score_is_what_the_threshold_of_the_other_fold_says(cls, leaky):
    attack, shadow = taught(cls(), leaky), colluder(leaky)
    fold = folds(leaky.ids, 7)
    name, sign = MEASURED[cls]
    for r, said in enumerate(attack.score_rounds(shown(leaky), leaky.audit()) > attack.threshold):
        lesson = sign * shadow.observations.of_target(name)[r].astype(float)
        asked = sign * shown(leaky).of_target(name)[r]
        taus = np.array([best_threshold(lesson[fold != f], shadow.member[fold != f]) for f in (0, 1)])
        np.testing.assert_array_equal(said, asked > taus[fold])


def test_a_choice_of_two_thresholds_leaves_the_rest_in_the_signals_order(leaky):
    attack = taught(ThresholdLoss(), leaky)
    score, value = attack.score(shown(leaky), leaky.audit()), -shown(leaky).of_target("loss")[-1].astype(float)
    low, high = sorted(t.everybody for t in attack._models[-1])
    assert low < high
    sure = (value <= low) | (value > high)
    np.testing.assert_array_equal(np.argsort(score[sure], kind="stable"), np.argsort(value[sure], kind="stable"))
    assert score[value > high].min() > score[value <= high].max() and score[value <= low].max() < score[value > low].min()


def test_thresholds_of_classes_find_what_one_threshold_hides():
    """Classes whose values lie apart: what separates members within each is lost between them."""
    w = rich_world(3.0)
    apart = w.observations["loss"] + 40 * w.y.astype(np.float32)
    w = replace(w, observations=replace(w.observations, signals=dict(w.observations.signals) | {"loss": apart}))
    one, each = (auc(scored(ThresholdLoss(classes=classes), w), w.member) for classes in (False, True))
    assert one < 0.65 and each > one + 0.15
    attack = taught(ThresholdLoss(classes=True, least=10**6), w)
    np.testing.assert_array_equal(attack.score(shown(w), w.audit()), taught(ThresholdLoss(), w).score(shown(w), w.audit()))


def test_no_candidate_has_chosen_the_threshold_that_judges_it(leaky):
    shadow, fold = colluder(leaky), folds(leaky.ids, 7)
    turned, plain = ThresholdLoss(), taught(ThresholdLoss(), leaky)
    turned.fit([replace(shadow, member=np.where(fold == 0, ~shadow.member, shadow.member))], leaky.audit())
    for before, after in zip(plain._models, turned._models, strict=True):
        assert before[0] == after[0] and before[1] != after[1]  # fold 0 is judged by what fold 1 has taught


def test_taught_by_a_half_the_other_half_is_judged_by_all_of_it(leaky):
    first = halved(leaky)
    score = scored(ThresholdLoss(teacher="half"), leaky)
    value = -shown(leaky).of_target("loss")[-1].astype(float)
    for half in (first, ~first):
        tau = best_threshold(value[half], leaky.member[half])
        np.testing.assert_allclose(score[~half], value[~half] - tau)


def test_rounds_without_the_target_are_left_out_and_rounds_without_the_colluder_have_the_lessons_before(leaky):
    seen = with_absence(leaky, TARGET, 3)
    attack = taught(ThresholdLoss(), leaky)
    rounds = attack.score_rounds(shown(seen), leaky.audit())
    assert np.isnan(rounds[3]).all() and np.isfinite(rounds[:3]).all()
    np.testing.assert_array_equal(attack.score(shown(seen), leaky.audit()), rounds[2])
    gone = taught(ThresholdLoss(), with_absence(with_absence(leaky, 0, 2), 0, 0))
    assert gone._models[2] == gone._models[1] == gone._models[0] == attack._models[1] and gone._models[3] == attack._models[3]
    nobody = leaky
    for r in range(4):
        nobody = with_absence(nobody, TARGET, r)
    with pytest.raises(SkipCell, match="no audited round"):
        attack.score(shown(nobody), leaky.audit())


def test_bad_parameters_and_teachers_are_refused(leaky):
    with pytest.raises(ValidationError, match="set teacher"):
        ThresholdLoss(classes=True, teacher="none")
    with pytest.raises(SkipCell, match="collude"):
        ThresholdLoss().fit([], leaky.audit())
    with pytest.raises(SkipCell, match="too few samples"):
        ThresholdLoss().fit([replace(colluder(leaky), member=np.zeros(len(leaky.ids), bool))], leaky.audit())
    absent = leaky
    for r in range(4):
        absent = with_absence(absent, 0, r)
    with pytest.raises(SkipCell, match="teacher took part in no"):
        taught(ThresholdLoss(), absent)


def test_one_audited_round_is_enough(leaky):
    w = without_round(without_round(without_round(leaky, 0), 0), 0)
    assert auc(scored(ThresholdLoss(classes=True), w), w.member) > 0.6


# --- the adversary who knows MemberShield -----------------------------------------------------------------------------


def test_the_loss_against_soft_labels_is_the_cross_entropy_with_them(leaky):
    seen, theta = shown(leaky), 0.7
    logits = seen.of_target("logits").astype(float)
    log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    soft = (1 - theta) * np.eye(CLASSES)[leaky.y] + theta / CLASSES
    score = AdaptiveMemberShield(theta=theta, teacher="none").score_rounds(seen, leaky.audit())
    np.testing.assert_allclose(score, (soft * log_p).sum(axis=2), rtol=1e-4)


def test_it_finds_members_whose_confidence_is_the_soft_label_among_those_more_and_less_sure():
    """Members at p = y', non-members on both sides of it: the plain loss sees no difference in the mean, the soft one does."""
    w, rng, theta = rich_world(0.0), np.random.default_rng(0), 0.8
    own, trained = 1 - theta + theta / CLASSES, w.owner == np.arange(6)[:, None]
    p = np.where(trained, own, np.clip(own + rng.choice([-0.25, 0.4], size=(6, len(w.ids))), 0.02, 0.98))
    p = np.clip(p + 0.02 * rng.normal(size=(4, *p.shape)), 0.01, 0.99)
    logits = np.log(np.broadcast_to(((1 - p) / (CLASSES - 1))[..., None], (*p.shape, CLASSES))).copy()
    np.put_along_axis(logits, np.broadcast_to(w.y, p.shape)[..., None], np.log(p)[..., None], axis=3)
    signals = {"logits": logits, "loss": -np.log(p), "uniform-loss": -logits.mean(axis=3)}
    w = replace(w, observations=replace(w.observations, signals={n: a.astype(np.float32) for n, a in signals.items()}))
    plain = auc(scored(ThresholdLoss(), w), w.member)
    adaptive = [auc(scored(AdaptiveMemberShield(theta=theta, form=form), w), w.member) for form in ("threshold", "trained")]
    assert plain < 0.7 and min(adaptive) > 0.95, (plain, adaptive)


def test_both_forms_declare_what_they_read_and_the_trained_one_its_teacher(silent, leaky):
    assert AdaptiveMemberShield().needs == {"loss", "uniform-loss"}
    trained = AdaptiveMemberShield(form="trained")
    assert trained.needs == {"loss", "uniform-loss", "logits"} and trained.threshold == 0
    assert abs(auc(scored(trained, silent), silent.member) - 0.5) < chance_band(silent.member)
    assert auc(scored(trained, leaky), leaky.member) > 0.5 + chance_band(leaky.member)
    with pytest.raises(ValidationError, match="learns from a teacher"):
        AdaptiveMemberShield(form="trained", teacher="none")
    with pytest.raises(ValidationError, match="'classes' belongs to"):
        AdaptiveMemberShield(form="trained", classes=True)
    with pytest.raises(ValidationError, match="less than 1"):
        AdaptiveMemberShield(theta=1.0)
