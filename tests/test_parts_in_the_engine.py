"""Parts of a client's samples in the whole engine: who trains on what, who is asked about, what weighs how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from running import changed, invoke, records
from tiny import tiny_clients, tiny_setup, train_all
from torch import nn

from fedbench.core import IFL, MEMBER, OFL, Data, Dataset, Defense, MemberData, Model, UserError
from fedbench.core.experiment.judge import _positions
from fedbench.core.experiment.scene import Scene, make_scene, set_scene
from fedbench.core.experiment.train import Trained, kinds_of, train
from fedbench.core.federation.compose import Composite
from fedbench.core.metrics import auc
from fedbench.core.population.audit import split_digest
from fedbench.core.population.groups import deform
from fedbench.core.population.target import EVERYBODY, client, group
from fedbench.core.spec.suite import Adversary, Setting
from fedbench.plugins.datasets.digits import Digits
from fedbench.plugins.defenses.cofedmid import CoFedMID
from fedbench.plugins.defenses.free_rider import FreeRider
from fedbench.plugins.defenses.placebo import Placebo
from fedbench.testing.jobs import given_use
from fedbench.testing.trials.world import job_of

PARTS = {"validation": 0.1, "test": 0.3}
RELEASED = {"test": 0.3, "validation_on": "nonmembers", "weights": "equal"}
BOTH = pytest.mark.parametrize("parts", [PARTS, RELEASED], ids=["own", "nonmembers"])
N_TRAIN = 240
TAUGHT: list[int] = []


class Numbered(Dataset):
    """The first feature of a sample is its id in train ++ hold-out."""

    name = "numbered"

    def load(self, seed):
        rng = np.random.default_rng(seed)

        def some(first, n):
            x = rng.standard_normal((n, 4)).astype(np.float32)
            x[:, 0] = np.arange(first, first + n)
            return x, np.arange(n, dtype=np.int64) % 3

        (train_x, train_y), (test_x, test_y), (holdout_x, holdout_y) = some(0, N_TRAIN), some(9000, 30), some(N_TRAIN, 90)
        return Data(
            train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, holdout_x=holdout_x, holdout_y=holdout_y, n_classes=3
        )


class Notes(nn.Module):
    """Remembers whom it was trained on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            TAUGHT.extend(x[:, 0].long().tolist())
        return self.linear(x[:, 1:])


class Watched(Model):
    def build(self, input_shape, n_classes):
        return Notes()


class ReadsLoss:
    needs, view, colluders, needs_shadow_models = frozenset({"loss"}), "server", 0, False


def setting(parts: dict[str, Any], audit: dict[str, Any] | None = None, **more: Any) -> Setting:
    federation = {"clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 10, "optimizer": {"lr": 0.1}, **parts}
    return Setting.model_validate({
        "name": "s", "dataset": {"name": "d"}, "federation": federation, "audit": {"nonmembers": 40, **(audit or {})},
        "partition": {"name": "dirichlet", "beta": 1.0}, **more,
    })  # fmt: skip


def trained(given: Setting, defense: Defense, members: tuple[int, ...], dataset: type = Numbered) -> tuple[Scene, Trained]:
    """The federation, trained here."""
    use = given_use(type(defense), defense.params.model_dump() if defense.params else {}, "d")
    model = given_use(Watched, {}) if dataset is Numbered else None
    job, parts, scene = job_of(given, defense=use, dataset=given_use(dataset, {}), model=model, members=members)
    return scene, train(job, parts, scene, [ReadsLoss()], lambda t: None)


# -- nobody trains on them ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("defense", "members"), [(Defense(), ()), (Placebo(), (0, 1)), (CoFedMID(recycle_from=1, perturbation=False), (0, 1))]
)
def test_no_test_or_validation_sample_is_ever_trained_on(parts, defense, members):
    TAUGHT.clear()
    scene, done = trained(setting(parts), defense, members)
    expected = np.concatenate(scene.split.train)
    seen = np.unique(TAUGHT)
    assert len(seen) > N_TRAIN / 3 and np.isin(seen, expected).all()
    if not members:
        assert np.array_equal(seen, np.sort(expected))
    every = [k for k in range(4) if k not in members or type(defense) is Placebo]
    assert all(np.isin(scene.split.train[k], seen).all() for k in every)
    assert np.array_equal(done.held_out, scene.split.validated())
    assert (len(done.held_out) > 0) == (parts is PARTS)


class Sees(Defense):
    """Keeps what it is given; ``more``: holds out more of it, and forgets what is held out already."""

    seen: dict[int, MemberData]
    more = True

    def prepare(self, data, ctx):
        self.seen[ctx.client] = data
        mask = torch.zeros(len(data.y), dtype=torch.bool)
        mask[data.trainable[:2]] = True
        return MemberData(data.x, data.y, held_out=mask if self.more else None)


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("composed", [True, False])
def test_a_defense_gets_the_validation_part_and_can_only_add_to_it(more, composed):
    clients = [MemberData(d.x, d.y, held_out=torch.arange(12) < 3) for d in tiny_clients()]
    sees = Sees()
    sees.seen, sees.more = {}, more
    federation, _ = train_all(tiny_setup(Composite([sees, Placebo()]) if composed else sees, (0, 1), clients=clients))
    assert all(torch.equal(sees.seen[k].held_out, torch.arange(12) < 3) for k in (0, 1))
    for k in range(4):
        assert int(federation.clients[k].held_out.sum()) == (5 if more and k < 2 else 3)


def test_cofedmid_validates_on_the_part_that_is_there():
    clients = [MemberData(d.x, d.y, held_out=torch.arange(12) < 3) for d in tiny_clients()]
    federation, _ = train_all(tiny_setup(CoFedMID(perturbation=False), (0, 1), clients=clients))
    assert all(torch.equal(c.held_out, torch.arange(12) < 3) for c in federation.clients)


# -- weights -----------------------------------------------------------------------------------------------------------


def uneven() -> list[MemberData]:
    """Clients of 12 samples that train on 10, 8, 6 and 4."""
    return [MemberData(d.x, d.y, held_out=torch.arange(12) < 2 * k + 2) for k, d in enumerate(tiny_clients())]


@pytest.mark.parametrize(("weights", "expected"), [("size", [10, 8, 6, 4]), ("equal", [1, 1, 1, 1])])
def test_the_server_weighs_by_the_samples_trained_on_or_all_alike(weights, expected):
    (first, *_) = train_all(tiny_setup(members=(), clients=uneven(), weights=weights))[1]
    share = torch.tensor(expected, dtype=torch.float32) / sum(expected)
    torch.testing.assert_close(first.steps[0], share @ first.uploads.updates)


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_noise_that_cancels_cancels_with_the_weights_of_the_server(weights):
    setup = tiny_setup(
        CoFedMID(partition=False, compensation=False, sigma=10.0), (0, 1), clients=uneven(), weights=weights,
        keep_unprotected=True, rounds=1,
    )  # fmt: skip
    (first, *_) = train_all(setup)[1]
    noise = first.uploads.updates - first.uploads.unprotected
    share = torch.tensor(setup.weighing) / sum(setup.weighing)
    assert noise[:2].abs().max() > 0.1 and (share @ noise).abs().max() < 1e-6
    torch.testing.assert_close(first.steps[0], share @ first.uploads.unprotected, atol=1e-6, rtol=0)


class Told(Defense):
    def begin(self, ctx):
        self.told = ctx.sizes, ctx.weights


@pytest.mark.parametrize(("weights", "expected"), [("size", (10 / 28, 8 / 28)), ("equal", (0.25, 0.25))])
def test_a_coalition_is_told_the_real_sizes_and_weights(weights, expected):
    told = Told()
    train_all(tiny_setup(told, (0, 1), clients=uneven(), weights=weights))
    assert told.told[0] == (10, 8) and told.told[1] == pytest.approx(expected)


# -- who is asked about ------------------------------------------------------------------------------------------------


GROUPS = [{"name": "a", "fraction": 0.5, "rotation": [0, 5]}, {"name": "b", "rotation": [80, 90]}]
IMAGES = Digits(test=100, holdout=300, label_noise=0.2).load(0)
MANY = {"members": 30, "nonmembers": 30}
INSIDE = Adversary(clients=1, mask_set=20)
COMBINATIONS: list[tuple[dict[str, Any], dict[str, Any], int | str]] = [
    # audit, the setting's other fields, outside candidates of the first target or why it is refused
    ({"nonmembers": 40}, {}, 10),  # an equal share of a client
    ({"nonmembers": 100_000}, {}, 105),  # cut to what exists: all of it
    ({"nonmembers": 40, "outside": 50}, {}, 50),
    ({"nonmembers": 40, "outside": 5000}, {}, 105),
    ({"nonmembers": 40, "members_from": "holdout"}, {}, 10),
    ({"targets": "honest", **MANY}, {}, 30),
    ({"targets": "honest", **MANY, "members_from": "holdout"}, {}, 30),
    ({"targets": "honest", "members": 30, "nonmembers": 5000}, {},
     "the test part of all honest clients has 315 samples: lower it, or raise federation.test"),
    ({"targets": "groups", **MANY}, {"groups": GROUPS}, 30),
    ({"targets": "groups", "members": 30, "nonmembers": 200}, {"groups": GROUPS}, "the test part of group 'b' has 105 samples"),
    ({"nonmembers": 40}, {"groups": GROUPS}, 20),  # of two clients, whose images are alike
    ({"nonmembers": 40, "align_nonmembers": False}, {}, 10),
    ({"nonmembers": 40, "shadow": {"samples": 300}}, {}, 10),  # the whole hold-out is free for shadow models
    ({"nonmembers": 40, "shadow": {"samples": 301}}, {}, "only 300 of the hold-out are not asked about or taken"),
    ({"nonmembers": 40}, {"root": 300}, 10),  # and for a server's root set
    ({"nonmembers": 3}, {}, "client 0 of 105 samples leaves none; raise audit.nonmembers, audit.outside or federation.test"),
]  # fmt: skip


def scene_of(parts: dict[str, Any], audit: dict[str, Any], more: dict[str, Any]) -> Scene:
    more = dict(more)
    root = more.pop("root", 0)
    given = setting(parts, audit, **{"partition": {"name": "iid"}, **more})
    targets = {"honest": (EVERYBODY,), "groups": (group(0), group(1))}.get(audit.get("targets", ""), (client(0), client(2)))
    return make_scene(IMAGES, given, targets, 0, adversary=INSIDE, poisoned=True, root=root)


@BOTH
@pytest.mark.parametrize(("audit", "more", "expected"), COMBINATIONS)
def test_the_test_part_stands_in_for_the_hold_out_in_every_audit(parts, audit, more, expected):
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            scene_of(parts, audit, more)
        return
    scene = scene_of(parts, audit, more)
    split, null = scene.split, audit.get("members_from") == "holdout"
    assert (scene.audits[0].kind == OFL).sum() == expected
    for audit_set in scene.audits:
        whose = scene.client_of(audit_set)
        asked = {"client": [audit_set.target.index], "everybody": [0, 1, 2]}.get(audit_set.target.kind) or {
            0: [0, 1], 1: [2]  # of group b the last client is the adversary's
        }[audit_set.target.index]
        tests, own = (np.concatenate([part[k] for k in asked]) for part in (split.test, split.train))
        outside = audit_set.ids[audit_set.kind == OFL]
        assert np.isin(outside, tests).all() and (audit_set.owner[audit_set.kind == OFL] == -1).all()
        assert np.isin(audit_set.ids[audit_set.kind == MEMBER], tests if null else own).all()
        assert np.isin(audit_set.ids[audit_set.kind == IFL], np.concatenate(split.train)).all()
        assert len(np.unique(audit_set.ids)) == len(audit_set.ids) and not np.isin(audit_set.ids, split.validated()).any()
        if audit_set.target.kind != "client":
            assert all(i in split.test[k] or i in split.train[k] for i, k in zip(audit_set.ids, whose, strict=True))
    assert np.isin(scene.mask, split.train[3]).all()
    beside = np.concatenate([scene.root, scene.shadow])
    assert (beside >= len(IMAGES.train_y)).all() and not np.isin(beside, scene.pool).any()


def test_mislabelled_samples_of_the_test_part_are_the_canaries_of_the_outside():
    scene = scene_of(PARTS, {"nonmembers": 100_000}, {})
    audit = scene.audits[0]
    of_part = IMAGES.train_canary[scene.split.test[0]]
    assert scene.canary_of(audit.ids[audit.kind == OFL]).sum() == of_part.sum() > 0


def test_a_redrawn_outsider_comes_from_the_targets_own_test_part():
    given = setting(PARTS, {"nonmembers": 40, "align_nonmembers": False, "targets": [1]})
    job, parts, scene = job_of(given, dataset=given_use(Numbered, {}), model=given_use(Watched, {}))
    done = train(job, parts, scene, [ReadsLoss()], lambda t: None)
    (audit,) = scene.audits
    drawn = scene.pool[_positions(job, scene, done, scene.pool, audit)]  # [R, M, n]
    assert not np.isin(scene.pool, scene.split.validated()).any()
    assert np.isin(drawn[..., audit.kind == OFL], scene.split.test[1]).all()
    assert (drawn[..., audit.kind == MEMBER] == audit.ids[audit.kind == MEMBER]).all()
    for k in (0, 2, 3):
        assert np.isin(drawn[..., audit.owner == k], scene.split.train[k]).all()
    assert len(np.unique(drawn[..., audit.kind == OFL])) > (audit.kind == OFL).sum()


def test_every_part_is_deformed_as_its_own_client_is():
    given = setting(PARTS, {"nonmembers": 40}, groups=GROUPS, partition={"name": "iid"})
    use = given_use(Digits, {"test": 100, "holdout": 300})
    job, parts, scene = job_of(given, dataset=use)
    raw = parts.dataset.load(0)
    for k in range(4):
        for part in (scene.split.train[k], scene.split.validation[k], scene.split.test[k]):
            expected = deform(raw.train_x[part], np.full(len(part), k), scene.groups)
            assert len(part) and np.array_equal(scene.data.train_x[part], expected)
    assert split_digest(set_scene(job, parts).split, scene.audits) == job.digests["split"]


def test_the_released_validation_samples_stay_non_members_and_the_records_say_so(tmp_path):
    federation = {"clients": 4, "rounds": 2, "batch_size": 50, "optimizer": {"lr": 0.2}}
    counted = {}
    for name, parts in (("own", PARTS), ("released", RELEASED)):
        suite = changed(tmp_path, {"name": name, "federation": federation | parts})
        invoke(suite, "--results", tmp_path / name)
        (record,) = records(tmp_path / name).values()
        counted[name] = record["targets"][0]["groups"]["ofl"]["n_nonmembers"], record["notes"]
    assert counted["own"][0] == counted["released"][0] == 20
    assert not any("validation saw the non-members" in note for note in counted["own"][1])
    assert any("validation saw the non-members" in note for note in counted["released"][1])


# -- why ---------------------------------------------------------------------------------------------------------------


def loss_aucs(parts: dict[str, Any], lr: float, members: tuple[int, ...]) -> Iterator[tuple[float, float]]:
    """Each target's AUC of a loss attack on its first upload, with four standard deviations of one without a leak."""
    audit = {"nonmembers": 4000, "outside": 4000, "targets": [0, 1, 2, 3]}
    federation = {"clients": 4, "rounds": 1, "local_epochs": 1, "batch_size": 50, "optimizer": {"lr": lr}, **parts}
    given = setting(federation, audit, partition={"name": "dirichlet", "beta": 0.1, "min_samples": 20})
    scene, done = trained(given, FreeRider() if members else Defense(), members, Digits)
    for audit_set in scene.audits:
        kind = kinds_of(audit_set, done)
        counted = np.isin(kind, (MEMBER, OFL))
        pick = np.searchsorted(scene.pool, audit_set.ids[counted])
        score = -done.signals["loss"][0, done.rows.index(audit_set.target.index), pick]
        member = kind[counted] == MEMBER
        m, n = member.sum(), (~member).sum()
        yield auc(score, member), 4 * float(np.sqrt((m + n + 1) / 12 / m / n))


@pytest.mark.parametrize(("lr", "members"), [(0.2, ()), (0.2, (0, 1, 2, 3))], ids=["undertrained", "free-rider"])
def test_under_label_skew_a_hold_out_is_told_apart_by_its_labels_and_the_own_test_part_is_not(lr, members):
    """Both federations train on the very same samples; nothing is learnt by heart in one epoch, and free-riders learn nothing."""
    of_holdout = list(loss_aucs({"validation": 0.3}, lr, members))
    of_own = list(loss_aucs({"test": 0.3}, lr, members))
    assert all(abs(found - 0.5) < band for found, band in of_own)
    far = [found - 0.5 - band for found, band in of_holdout]
    assert max(far) > 0.1
    if not members:
        assert min(found for found, _ in of_holdout) > 0.7
