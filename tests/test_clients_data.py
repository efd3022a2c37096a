"""Clients' own parts and groups in the whole engine: who trains on what, who is asked about, and
through which model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import judge
from running import suite
from worlds import chance_band

from fedbench.core import IFL, MEMBER, OFL, Attack, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.metrics import auc
from fedbench.core.population.audit import EVERYBODY, client, group, pool_of
from fedbench.core.population.groups import deform
from fedbench.core.run.job import SignalRequest
from fedbench.core.run.scene import build, client_data, make_scene, set_scene
from fedbench.core.run.scoring import ask
from fedbench.core.run.shadow_models import train_shadow_models
from fedbench.core.run.train import Run, kinds_of, train
from fedbench.core.spec.setting import Adversary
from fedbench.plugins.datasets.handwriting import Digits
from fedbench.plugins.defenses.uploads import FreeRider
from fedbench.testing.worlds import given_use, job_of, setting_of

PARTS = {"validation": 0.1, "test": 0.3}
RELEASED = {"test": 0.3, "validation_on": "nonmembers", "weights": "equal"}
BOTH = pytest.mark.parametrize("parts", [PARTS, RELEASED], ids=["own", "nonmembers"])


def setting(parts, audit=None, **more):
    federation = {"rounds": 2, "local_epochs": 1, "batch_size": 10, "optimizer": {"lr": 0.1}}
    changes = {"partition": {"name": "dirichlet", "beta": 1.0}, **more}
    return setting_of(federation | parts, audit={"nonmembers": 40, **(audit or {})}, **changes)


# -- parts -----------------------------------------------------------------------------------------


@BOTH
def test_a_client_gets_its_own_samples_and_trains_on_no_validation_or_test_part(parts):
    _, _, scene = job_of(setting(parts), dataset=given_use(Digits, {}))
    for k in range(4):
        data, split = client_data(scene, k, torch.device("cpu")), scene.split
        for found, of in ((data.x, scene.data.train_x), (data.y, scene.data.train_y)):
            assert torch.equal(found, torch.from_numpy(of[split.own(k)]))
            assert torch.equal(found[data.trainable], torch.from_numpy(of[split.train[k]]))
        assert len(split.test[k]) and np.isin(split.test[k], split.own(k)).any() == (
            parts is RELEASED
        )


GROUPS = [{"name": "a", "fraction": 0.5, "rotation": [0, 5]}, {"name": "b", "rotation": [80, 90]}]
IMAGES = Digits(test=100, holdout=300, label_noise=0.2).load(0)
MANY = {"members": 30, "nonmembers": 30}
ASKED = {
    # audit, the setting's other fields, outside candidates of the first target or why it is refused
    "an equal share": ({"nonmembers": 40}, {}, 10),
    "more than there are": ({"nonmembers": 40, "outside": 5000}, {}, 105),
    "all honest clients": ({"targets": "honest", **MANY, "shadow": {"samples": 300}}, {}, 30),
    "groups": ({"targets": "groups", **MANY}, {"groups": GROUPS}, 30),
    "the null, images alike": (
        {"nonmembers": 40, "members_from": "holdout"},
        {"groups": GROUPS, "root": 300},
        20,
    ),
    "too many": (
        {"targets": "honest", "members": 30, "nonmembers": 5000},
        {},
        "has 315 samples: .* raise federation.test",
    ),
    "too few": (
        {"nonmembers": 3},
        {},
        "client 0 of 105 samples leaves none; raise .* federation.test",
    ),
}


def scene_with(parts, audit, more):
    given = setting(
        parts,
        audit,
        **{"partition": {"name": "iid"}, **{k: v for k, v in more.items() if k != "root"}},
    )
    targets = {"honest": (EVERYBODY,), "groups": (group(0), group(1))}.get(
        audit.get("targets", ""), (client(0), client(2))
    )
    inside = Adversary(clients=1, mask_set=20)
    return make_scene(
        IMAGES, given, targets, 0, adversary=inside, poisoned=True, root=more.get("root", 0)
    )


@pytest.mark.parametrize("case", ASKED)
def test_the_test_part_stands_in_for_the_hold_out_in_every_audit(case):
    audit, more, expected = ASKED[case]
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            scene_with(PARTS, audit, more)
        return
    scene = scene_with(PARTS, audit, more)
    split, null = scene.split, audit.get("members_from") == "holdout"
    assert (scene.audits[0].kind == OFL).sum() == expected
    for listed in scene.audits:
        of_group = [[0, 1], [2]]  # the last client of group b is the adversary's
        kind, index = listed.target.kind, listed.target.index
        asked = (
            [index] if kind == "client" else [0, 1, 2] if kind == "everybody" else of_group[index]
        )
        tests, own = (
            np.concatenate([part[k] for k in asked]) for part in (split.test, split.train)
        )
        outside = listed.ids[listed.kind == OFL]
        assert np.isin(outside, tests).all() and (listed.owner[listed.kind == OFL] == -1).all()
        assert np.isin(listed.ids[listed.kind == MEMBER], tests if null else own).all()
        assert np.isin(listed.ids[listed.kind == IFL], np.concatenate(split.train)).all()
        assert (
            len(np.unique(listed.ids)) == len(listed.ids)
            and not np.isin(listed.ids, split.validated()).any()
        )
        if kind != "client":
            clients = scene.client_of(listed)
            assert all(
                i in split.test[k] or i in split.train[k]
                for i, k in zip(listed.ids, clients, strict=True)
            )
    assert np.isin(scene.mask, split.train[3]).all()
    beside = np.concatenate([scene.root, scene.shadow])
    assert (beside >= len(IMAGES.train_y)).all() and not np.isin(beside, scene.pool).any()
    # mislabelled samples of the test part are the outside's canaries
    if case == "more than there are":
        listed, of_part = scene.audits[0], IMAGES.train_canary[split.test[0]]
        assert scene.canary_of(listed.ids[listed.kind == OFL]).sum() == of_part.sum() > 0


@pytest.mark.parametrize("groups", [True, False])
def test_candidates_are_drawn_again_from_what_they_were_drawn_from(groups):
    """From the hold-out of the client's site or deformed like its images, and not from what server
    and attacker train on.
    """
    audit = {"nonmembers": 40, "align_nonmembers": False, "shadow": {"samples": 20}}
    more = {"groups": GROUPS} if groups else {}
    given = setting({}, audit, partition={"name": "iid"}, **more)
    sites = None if groups else np.arange(300) % 3
    scene = make_scene(replace(IMAGES, holdout_client=sites), given, (client(0),), 0, root=20)
    own = np.flatnonzero(np.arange(300) % 4 < 2 if groups else sites == 0) + len(IMAGES.train_y)
    spared = np.concatenate([scene.root, scene.shadow])
    owners = scene.redrawn_from(scene.audits[0])[scene.pool]
    assert len(spared) == 40 and not np.isin(spared, scene.asked).any()
    assert scene.pool[owners == -1].tolist() == np.setdiff1d(own, spared).tolist()


def test_every_part_is_deformed_as_its_own_client_is():
    given = setting(PARTS, {"nonmembers": 40}, groups=GROUPS, partition={"name": "iid"})
    _, parts, scene = job_of(given, dataset=given_use(Digits, {"test": 100, "holdout": 300}))
    raw = parts.dataset.load(0)
    for k in range(4):
        for part in (scene.split.train[k], scene.split.validation[k], scene.split.test[k]):
            expected = deform(raw.train_x[part], np.full(len(part), k), scene.groups)
            assert len(part) and np.array_equal(scene.data.train_x[part], expected)
    assert np.array_equal(scene.data.test_x, deform(raw.test_x, np.arange(100) % 4, scene.groups))


def loss_aucs(parts, members):
    """Each target's AUC of a loss attack on its first upload, with four standard deviations of one
    without a leak.
    """
    audit = {"nonmembers": 4000, "outside": 4000, "targets": [0, 1, 2, 3]}
    federation = {"rounds": 1, "batch_size": 50, "optimizer": {"lr": 0.2}, **parts}
    given = setting(
        federation, audit, partition={"name": "dirichlet", "beta": 0.1, "min_samples": 20}
    )
    defense = given_use(FreeRider) if members else None
    job, made, scene = job_of(
        given, defense=defense, dataset=given_use(Digits, {}), members=members
    )
    done = train(
        job,
        made,
        scene,
        [SignalRequest(needs=frozenset({"loss"}), view="server", needs_shadow_models=False)],
        lambda t, measured: None,
    )
    found = []
    for listed in scene.audits:
        kind = kinds_of(listed, done)
        counted = np.isin(kind, (MEMBER, OFL))
        member, row = kind[counted] == MEMBER, done.rows.index(listed.target.index)
        score = -done.signals["loss"][0, row, np.searchsorted(scene.pool, listed.ids[counted])]
        found.append((auc(score, member), chance_band(member)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("members", [(), (0, 1, 2, 3)], ids=["undertrained", "free-rider"])
def test_under_label_skew_a_hold_out_is_told_apart_by_its_labels_and_the_own_test_part_is_not(
    members,
):
    """Both federations train on the very same samples; nothing is learnt by heart in one epoch, and
    free-riders learn nothing.
    """
    of_holdout, of_own = loss_aucs({"validation": 0.3}, members), loss_aucs({"test": 0.3}, members)
    assert all(abs(found - 0.5) < band for found, band in of_own)
    assert max(found - 0.5 - band for found, band in of_holdout) > 0.1
    if not members:
        assert min(found for found, _ in of_holdout) > 0.7


LESSONS = []


class Pupil(Attack):
    """Keeps its lessons."""

    needs, colluders = frozenset({"loss"}), 2

    def fit(self, shadows, audit):
        LESSONS.extend(shadows)

    def score(self, observations, audit):
        return observations.of_target("loss")[-1].astype(np.float64)


class GlobalPupil(Pupil):
    view = "client"


@pytest.mark.parametrize("attack", [Pupil(), GlobalPupil()], ids=["server", "client"])
def test_a_colluders_lessons_are_its_own_samples_against_its_own_test_part(attack):
    LESSONS.clear()
    job, parts, scene = job_of(setting_of(federation=PARTS), attack=attack)
    trained = train(job, parts, scene, [attack], lambda t, measured: None)
    ask(Run(job=job, scene=scene, trained=trained), attack)
    # some are not asked about
    assert {c.client for c in LESSONS} - {audit.target.client for audit in scene.audits}
    for c in LESSONS:
        assert c.member.any() and set(c.ids[c.member]) <= set(
            scene.names[scene.split.train[c.client]]
        )
        assert sorted(c.ids[~c.member]) == sorted(scene.names[scene.split.test[c.client]])
        assert c.observations.signals["loss"].shape[2] == len(c.ids) == len(c.y)
    assert np.array_equal(np.sort(scene.asked), pool_of(scene.audits)) and len(scene.pool) > len(
        scene.asked
    )


# -- groups and several global models --------------------------------------------------------------

GROUPED = {
    "name": "digits",
    "dataset": {"name": "digits", "params": {"test": 300, "holdout": 500}},
    "model": {"name": "mlp", "params": {"hidden": [24]}},
    "federation": {
        "clients": 8,
        "rounds": 4,
        "local_epochs": 2,
        "batch_size": 20,
        "optimizer": {"lr": 0.1},
    },
    "groups": [
        {"name": "upright", "fraction": 0.25, "rotation": [0, 10]},
        {"name": "turned", "rotation": [80, 100]},
    ],
    "thresholds": [0.4, 0.6],
    "audit": {
        "targets": "groups",
        "members": 60,
        "nonmembers": 60,
        "every": 2,
        "shadow": {"samples": 100, "models": 3, "epochs": 2},
    },
}


class Keeps(Attack):
    view, needs_shadow_models, threshold = "external", True, 0.0

    def __init__(self):
        self.seen = []

    def score(self, observations, audit):
        self.seen.append(observations.shadow_models)
        return audit.rng.standard_normal(len(audit.ids))


def test_an_attack_gets_the_model_that_serves_each_candidate(tmp_path):
    ifca = {"name": "ifca", "params": {"least_share": 0.1}}
    path = suite(
        tmp_path, settings=[GROUPED], coalitions=["uniform"], defenses=[ifca], attacks=["shadow"]
    )
    (job,), attack = build_plan(str(path), (), tmp_path / "results", "cpu").jobs, Keeps()
    parts = build(job)
    scene = set_scene(job, parts)
    done = train(job, parts, scene, [attack], lambda t, measured: None)
    verdict = judge(job, job.cells[0], attack, scene, done, train_shadow_models(job, parts, scene))
    assert done.assignment.shape == (2, 8) and len({*done.assignment[-1]}) == 2
    for audit, seen in zip(scene.audits, attack.seen, strict=True):
        served = done.assignment[-1][scene.client_of(audit)]
        assert np.array_equal(seen.model_of, served)
        assert np.array_equal(
            seen.target_logits, done.logits[served, np.searchsorted(scene.pool, audit.ids)]
        )
        assert seen.target_shadow_logits.shape == (2, 100, 10) and seen.logits.shape == (
            3,
            len(audit.ids),
            10,
        )
    assert [t.target for t in verdict.judgement.targets] == [group(0).code, group(1).code]
