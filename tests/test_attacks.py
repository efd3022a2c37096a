"""Every passive attack: chance without a leak and with shuffled membership, better with a leak, absent clients, teachers."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from worlds import (
    SMALL,
    TARGET,
    assert_chance,
    attack,
    auc,
    chance_band,
    colluder,
    component,
    found,
    rich_world,
    scored,
    shown,
    taught,
    with_absence,
    with_fitted_members,
    with_signals,
    without_round,
    world,
)  # fmt: skip

from fedbench.core import Attack, SkipCell
from fedbench.core.experiment.job import Look
from fedbench.core.signals import fedbench_signals
from fedbench.plugins.attacks import fedbench_attacks
from fedbench.plugins.attacks.crossfit import folds

FOLLOWING = ["loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l"]  # the target's uploads, round by round
SINGLE = ["blackbox-loss", "grad-cosine", "grad-diff", "grad-norm"]
LIFTED = ["confidence", "rescaled", "modified-entropy", "entropy", "max-prob", "std-prob", "grad-diff"]
THRESHOLDS = ["threshold-confidence", "threshold-entropy", "threshold-loss", "threshold-modified-entropy", "label-only"]
TRAINED = ["logistic-regression", "knn", "random-forest", "mlp", "stacked"]
QUICK = {
    "random-forest": {"trees": 20}, "seqmia": {"epochs": 5}, "cs-mia": {"epochs": 10}, "adaptive-membershield": {"theta": 0.1},
}  # fmt: skip

UNTAUGHT = [
    *((name, {}) for name in (*FOLLOWING, *SINGLE)), ("fedmia-ii", {"normalise": "class"}), ("fta-l", {"normalise": "class"}),
    ("fedmia-i", {"filter": "3sigma_pop"}), ("fedmia-ii", {"filter": "mad"}), ("fedmia-i", {"filter": "loo"}),
    ("fedmia-i", {"tail": "student"}), *(("fedmia", {"measure": measure}) for measure in LIFTED),
]  # fmt: skip
HALF = {"teacher": "half", "view": "client"}
TAUGHT = [
    *((name, {}) for name in (*THRESHOLDS, *TRAINED, "adaptive-membershield", "seqmia", "cs-mia")), ("stacked", HALF),
    ("logistic-regression", HALF), ("threshold-loss", HALF | {"classes": True}), ("adaptive-membershield", {"form": "trained"}),
]  # fmt: skip


def made(name: str, form: dict | None = None) -> Attack:
    return attack(name, **QUICK.get(name, {}) | (form or {}))


def name_of(value: object) -> str:
    return "-".join(map(str, value.values())) or "plain" if isinstance(value, dict) else str(value)


@pytest.fixture(scope="module")
def silent():
    return rich_world(0.0, 160, 640, rounds=2)


@pytest.fixture(scope="module")
def leaky():
    return rich_world(6.0, 160, 640, rounds=2)


def test_announced_attacks_load_and_describe_their_parameters():
    known = {c.name for c in fedbench_signals()}
    names = [c.name for c in fedbench_attacks()]
    assert len(names) == len(set(names)) > 25
    for c in fedbench_attacks():
        cls = component(c)
        assert issubclass(cls, Attack) and c.paper and inspect.getdoc(cls), c.name
        assert all(field.description for field in cls.Params.model_fields.values()), c.name
        assert cls().needs <= known, c.name


# --- chance, and better than chance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), UNTAUGHT, ids=name_of)
def test_an_untaught_attack_is_at_chance_without_a_leak_and_better_with_one(name, form):
    silent, leaky = world(0.0, 1500, 7500), with_fitted_members(world(2.0, 1500, 7500), 0.6)
    assert_chance(silent.score(made(name, form)), silent.member)
    score = leaky.score(made(name, form))
    assert_chance(score, np.random.default_rng(3).permutation(leaky.member))
    assert auc(score, leaky.member) > 0.5 + 2 * chance_band(leaky.member)


@pytest.mark.parametrize(("name", "form"), TAUGHT, ids=name_of)
def test_a_taught_attack_is_at_chance_without_a_leak_and_better_with_one(name, form, silent, leaky):
    assert_chance(scored(made(name, form), silent), silent.member)
    score = scored(made(name, form), leaky)
    assert np.isfinite(score).all()
    assert_chance(score, np.random.default_rng(0).permutation(leaky.member))
    assert found(score, leaky) > 0.5 + chance_band(leaky.member)


def test_fta_tells_the_federations_samples_from_outsiders_but_not_a_client_from_another():
    silent, leaky, fta = world(0.0, 1500, 7500), world(2.0, 1500, 7500), attack("fta", signal="rescaled")
    assert_chance(fta.score(shown(silent, "client"), silent.audit()), silent.member)
    score, inside = fta.score(shown(leaky, "client"), leaky.audit()), leaky.owner >= 0
    assert found(score, leaky) > 0.5 + 2 * chance_band(leaky.member)
    assert abs(auc(score[inside], leaky.member[inside]) - 0.5) < chance_band(leaky.member[inside])


# --- absent clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FOLLOWING, "seqmia"])
def test_a_round_without_the_target_does_not_count(name):
    one, other = taught(made(name, {"normalise": "class"}), SMALL), without_round(SMALL, 1)
    absent = one.score(with_absence(SMALL, TARGET, 1).observations, SMALL.audit())
    np.testing.assert_allclose(absent, one.score(other.observations, SMALL.audit()), rtol=1e-9)


@pytest.mark.parametrize("name", ["blackbox-loss", "grad-diff", "logistic-regression"])
def test_a_single_round_attack_scores_every_round_and_the_last_with_the_target_counts(name, leaky):
    one, gone, audit = taught(made(name), leaky), with_absence(leaky, TARGET, 1), leaky.audit()
    every, rounds = (one.score_rounds(shown(w), audit) for w in (leaky, gone))
    assert every.shape == (2, len(leaky.ids)) and not np.array_equal(*every) and np.isnan(rounds[1]).all()
    np.testing.assert_array_equal(rounds[0], every[0])
    np.testing.assert_array_equal(one.score(shown(leaky), audit), every[1])
    np.testing.assert_array_equal(one.score(shown(gone), audit), every[0])


@pytest.mark.parametrize("name", ["loss-series", "fta-l", "fedmia-i", "blackbox-loss", "threshold-loss", "seqmia", "cs-mia"])
def test_a_target_that_never_takes_part_is_skipped(name, leaky):
    one, gone = taught(made(name), leaky), with_absence(leaky, TARGET, 0, 1)
    with pytest.raises(SkipCell, match="audited round"):
        one.score(shown(gone), leaky.audit())


def test_a_round_without_the_colluder_has_the_lessons_before_it_or_the_first_ones():
    w = rich_world(3.0, 160, 640, rounds=4)
    same = with_signals(w, **{n: a[[1, 1, 1, 1]] for n, a in w.observations.signals.items()})
    said = taught(attack("logistic-regression"), with_absence(w, 0, 0, 2)).score_rounds(shown(same), w.audit())
    assert (said[0] == said[1]).all() and (said[2] == said[1]).all() and (said[3] != said[1]).any()


# --- teachers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logistic-regression", "stacked", "seqmia"])
def test_no_candidate_is_scored_by_a_model_that_learnt_from_it(name, leaky):
    """Turning the colluder's answers over in one fold leaves the scores of that fold's candidates as they are."""
    fold, shadow, turned = folds(leaky.ids, 7), colluder(leaky), made(name)
    member = np.where(fold == 0, ~shadow.member, shadow.member)
    turned.fit([replace(shadow, member=member)], replace(leaky.audit(), target_client=-1))
    a, b = (one.score(shown(leaky), leaky.audit()) for one in (taught(made(name), leaky), turned))
    np.testing.assert_array_equal(a[fold == 0], b[fold == 0])
    assert (a[fold == 1] != b[fold == 1]).mean() > 0.9


def test_folds_depend_on_the_id_and_the_key_alone():
    ids = np.random.default_rng(0).permutation(9000)[:1800]
    fold = folds(ids, 7)
    assert set(fold) == {0, 1} and abs(fold.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(fold))
    order = np.random.default_rng(0).permutation(len(fold))
    np.testing.assert_array_equal(folds(ids[order].astype(np.int32), 7), fold[order])
    assert (folds(ids, 8) != fold).mean() > 0.4


def colluders(w, *absent, member=True):
    one = colluder(with_absence(w, 0, *absent))
    return [replace(one, member=one.member & member)]


NO_LESSON = [
    *((name, lambda w: [], "collude") for name in ("threshold-loss", "stacked", "cs-mia")),
    *((name, lambda w: colluders(w, member=False), "too few samples") for name in ("threshold-loss", "cs-mia")),
    *((name, lambda w: colluders(w, 0, 1), "took part in no") for name in ("threshold-loss", "cs-mia")),
]


@pytest.mark.parametrize(("name", "teachers", "reason"), NO_LESSON)
def test_a_teacher_without_a_lesson_skips_the_cell_with_the_reason(name, teachers, reason, leaky):
    with pytest.raises(SkipCell, match=reason):
        made(name).fit(teachers(leaky), leaky.audit())


@pytest.mark.parametrize("name", ["threshold-loss", "stacked"])
def test_what_it_declares_follows_its_parameters(name):
    look, plain = Look.of(attack(name, view="client", teacher="half")), attack(name)
    assert (look.view, look.colluders, look.knows_half) == ("client", 0, True)
    assert (Look.of(plain).view, plain.colluders, attack(name, teacher="half").threshold) == ("server", 1, None)
    assert plain.threshold == (None if name == "stacked" else 0)
