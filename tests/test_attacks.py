"""Passive attacks: rounds without a client, teachers, and learners that have no slow reference.

Of every registered attack tests/test_null_engine.py says that it is at chance without a leak and
better with one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from worlds import (
    SMALL,
    TARGET,
    attack,
    auc,
    chance_band,
    colluder,
    shown,
    taught,
    with_absence,
    with_signals,
    without_round,
    world,
)

from fedbench.core import SkipCell
from fedbench.plugins.attacks.taught import folds

# the target's uploads, round by round
FOLLOWING = ["loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l"]
PARAMS = {
    "seqmia": {"epochs": 5},
    "cs-mia": {"epochs": 10},
    "adaptive-membershield": {"form": "trained"},
}


def made(name, **params):
    return attack(name, **PARAMS.get(name, {}), **params)


@pytest.fixture(scope="module")
def leaky():
    return world(6.0, 160, 640, rounds=2)


@pytest.mark.parametrize("leak", [0.0, 6.0])
def test_a_learner_is_at_chance_without_a_leak_and_better_with_one(leak):
    w = world(leak, 160, 640, rounds=2)
    more = auc(w.score(taught(made("adaptive-membershield"), w)), w.member) - 0.5
    assert more > chance_band(w.member) if leak else abs(more) < chance_band(w.member)


# --- absent clients -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FOLLOWING, "seqmia"])
def test_a_round_without_the_target_does_not_count(name):
    one, other = taught(made(name, normalise="class"), SMALL), without_round(SMALL, 1)
    absent = one.score(with_absence(SMALL, TARGET, 1).observations, SMALL.audit())
    assert_allclose(absent, one.score(other.observations, SMALL.audit()), rtol=1e-9)


@pytest.mark.parametrize("name", ["blackbox-loss", "grad-diff", "logistic-regression"])
def test_a_single_round_attack_scores_every_round_and_the_last_with_the_target_counts(name, leaky):
    one, gone, audit = taught(made(name), leaky), with_absence(leaky, TARGET, 1), leaky.audit()
    every, rounds = (one.score_rounds(shown(w), audit) for w in (leaky, gone))
    assert (
        every.shape == (2, len(leaky.ids))
        and not np.array_equal(*every)
        and np.isnan(rounds[1]).all()
    )
    assert_array_equal(rounds[0], every[0])
    assert_array_equal(one.score(shown(leaky), audit), every[1])
    assert_array_equal(one.score(shown(gone), audit), every[0])


@pytest.mark.parametrize(
    "name",
    ["loss-series", "fta-l", "fedmia-i", "blackbox-loss", "threshold-loss", "seqmia", "cs-mia"],
)
def test_a_target_that_never_takes_part_is_skipped(name, leaky):
    one, gone = taught(made(name), leaky), with_absence(leaky, TARGET, 0, 1)
    with pytest.raises(SkipCell, match="audited round"):
        one.score(shown(gone), leaky.audit())


def test_a_round_without_the_colluder_has_the_lessons_before_it_or_the_first_ones():
    w = world(3.0, 160, 640, rounds=4)
    same = with_signals(w, **{n: a[[1, 1, 1, 1]] for n, a in w.observations.signals.items()})
    said = taught(attack("logistic-regression"), with_absence(w, 0, 0, 2)).score_rounds(
        shown(same), w.audit()
    )
    assert (said[0] == said[1]).all() and (said[2] == said[1]).all() and (said[3] != said[1]).any()


# --- teachers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logistic-regression", "stacked", "seqmia"])
def test_no_candidate_is_scored_by_a_model_that_learnt_from_it(name, leaky):
    """Turning the colluder's answers over in one fold leaves the scores of that fold's candidates
    as they are.
    """
    fold, shadow, turned = folds(leaky.ids, 7), colluder(leaky), made(name)
    member = np.where(fold == 0, ~shadow.member, shadow.member)
    turned.fit([replace(shadow, member=member)], replace(leaky.audit(), target_client=-1))
    a, b = (one.score(shown(leaky), leaky.audit()) for one in (taught(made(name), leaky), turned))
    assert_array_equal(a[fold == 0], b[fold == 0])
    assert (a[fold == 1] != b[fold == 1]).mean() > 0.9


def test_folds_depend_on_the_id_and_the_key_alone():
    ids = np.random.default_rng(0).permutation(9000)[:1800]
    fold = folds(ids, 7)
    assert set(fold) == {0, 1} and abs(fold.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(fold))
    order = np.random.default_rng(0).permutation(len(fold))
    assert_array_equal(folds(ids[order].astype(np.int32), 7), fold[order])
    assert (folds(ids, 8) != fold).mean() > 0.4


def colluders(w, *absent, member=True):
    one = colluder(with_absence(w, 0, *absent))
    return [replace(one, member=one.member & member)]


NO_LESSON = [
    *((name, lambda w: [], "collude") for name in ("threshold-loss", "stacked", "cs-mia")),
    *(
        (name, lambda w: colluders(w, member=False), "too few samples")
        for name in ("threshold-loss", "cs-mia")
    ),
    *(
        (name, lambda w: colluders(w, 0, 1), "took part in no")
        for name in ("threshold-loss", "cs-mia")
    ),
]


@pytest.mark.parametrize(("name", "teachers", "reason"), NO_LESSON)
def test_a_teacher_without_a_lesson_skips_the_cell_with_the_reason(name, teachers, reason, leaky):
    with pytest.raises(SkipCell, match=reason):
        made(name).fit(teachers(leaky), leaky.audit())
