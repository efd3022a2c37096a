"""Where clients have a test part, a colluder teaches with its own samples against that part, and with nobody else's."""

from __future__ import annotations

import numpy as np
import pytest

from fedbench.core import Attack
from fedbench.core.experiment.judge import ask
from fedbench.core.experiment.train import train
from fedbench.core.population.audit import pool_of
from fedbench.plugins.attacks.trained import stacked
from fedbench.plugins.attacks.trained.stacked import Stacked
from fedbench.testing.jobs import use
from fedbench.testing.trials.world import job_of, setting_of

LESSONS = []
PARTS = {"clients": 4, "rounds": 4, "local_epochs": 2, "batch_size": 20, "optimizer": {"lr": 0.3}, "test": 0.3, "validation": 0.1}


class Pupil(Attack):
    """Keeps its lessons."""

    needs = frozenset({"loss"})
    colluders = 2

    def fit(self, shadows, audit):
        LESSONS.append(list(shadows))

    def score(self, observations, audit):
        return observations.of_target("loss")[-1].astype(np.float64)


class GlobalPupil(Pupil):
    view = "client"


def asked(attack, **params):
    LESSONS.clear()
    job, parts, scene = job_of(setting_of(federation=PARTS), attack=use(type(attack), **params), made=attack)
    return ask(job, attack, scene, train(job, parts, scene, [attack], lambda t: None)), scene


@pytest.mark.parametrize("attack", [Pupil(), GlobalPupil()], ids=["server", "client"])
def test_the_lessons_are_its_own_samples_against_its_own_test_part(attack):
    _, scene = asked(attack)
    colluders = [c for lesson in LESSONS for c in lesson]
    assert {c.client for c in colluders} - {audit.target.client for audit in scene.audits}  # some are not asked about
    for c in colluders:
        assert c.member.any() and set(c.ids[c.member]) <= set(scene.names[scene.split.train[c.client]])
        np.testing.assert_array_equal(np.sort(c.ids[~c.member]), np.sort(scene.names[scene.split.test[c.client]]))
        assert c.observations.signals["loss"].shape[2] == len(c.ids) == len(c.y)


def test_an_adversary_inside_is_asked_about_the_audited_samples_alone():
    _, scene = asked(Pupil())
    np.testing.assert_array_equal(np.sort(scene.asked), pool_of(scene.audits))
    assert set(np.concatenate(scene.split.test)) <= set(scene.pool) and len(scene.pool) > len(scene.asked)


@pytest.mark.parametrize("view", ["server", "client"])
def test_the_lessons_of_several_colluders_keep_their_membership(view, monkeypatch):
    """Each teaches with samples of its own, as many as it has: flags of one must not land on another's samples."""
    seen = []

    def watched(x, bins, member, seed):
        seen.append((len(x), int(member.sum())))
        return [_Constant(), _Constant()]

    monkeypatch.setattr(stacked, "_ensemble", watched)
    answers, scene = asked(Stacked(view=view, colluders=2), view=view, colluders=2)
    assert all(len(s) == len(a.ids) for s, a in zip(answers.scores, scene.audits, strict=True))
    pool = set(scene.pool.tolist())
    for first, second in zip(seen[::2], seen[1::2], strict=True):  # two folds of one fit
        n, members = first[0] + second[0], first[1] + second[1]
        tests = [len(t) for t in scene.split.test]
        owned = [len(pool & set(t.tolist())) for t in scene.split.train]
        assert (n, members) in {
            (tests[a] + owned[a] + tests[b] + owned[b], owned[a] + owned[b]) for a in range(4) for b in range(a)
        }


class _Constant:
    """A model that says nothing of its samples."""

    def decision_function(self, x):
        return np.arange(len(x), dtype=np.float64)
