"""Groups of clients, several global models and shadow models through the real engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import judge
from tiny import tiny_setup
from torch.nn.functional import cross_entropy

from fedbench.core import MEMBER, OFL, Attack, Defense, Diverged, ShadowModels, UserError
from fedbench.core.execution.forked import analysed
from fedbench.core.execution.plan import make_plan
from fedbench.core.experiment.cache import load, save
from fedbench.core.experiment.job import Job, Look
from fedbench.core.experiment.pack import pack, pack_labels
from fedbench.core.experiment.parts import Parts, build
from fedbench.core.experiment.run import Run, made_of
from fedbench.core.experiment.scene import Scene, set_scene
from fedbench.core.experiment.shadow_models import load_shadow_models, save_shadow_models, train_shadow_models
from fedbench.core.experiment.train import Trained, train
from fedbench.core.experiment.wanted import models_of
from fedbench.core.federation.loop import Training
from fedbench.core.population.groups import rotate
from fedbench.core.population.target import group
from fedbench.core.registry.components import Registry
from fedbench.core.signals.logits import Loss
from fedbench.core.signals.measure import Recorder, global_row
from fedbench.core.signals.observe import observe
from fedbench.core.spec.resolve import load_and_check

SUITE = """
schema: 1
name: groups
seeds: [0]
settings:
  - name: digits
    dataset: {name: digits, params: {test: 300, holdout: 500}}
    model: {name: mlp, params: {hidden: [24]}}
    federation: {clients: 8, rounds: 4, local_epochs: 2, batch_size: 20, optimizer: {name: sgd, lr: 0.1}}
    groups:
      - {name: upright, fraction: 0.25, rotation: [0, 10]}
      - {name: turned, rotation: [80, 100]}
    thresholds: [0.4, 0.6]
    audit: {targets: groups, members: 60, nonmembers: 60, every: 2, shadow: {samples: 100, models: 3, epochs: 5}}
coalitions: [uniform]
defenses:
  - none
  - {name: ifca, params: {least_share: 0.1}}
  - local-only
floors: []
attacks: [shadow, lira-offline, rmia, passive]
"""


def jobs(tmp_path: Path, text: str = SUITE) -> dict[str, Job]:
    """Defense -> its job."""
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    registry = Registry.discover()
    loaded, resolved = load_and_check(path, registry, ())
    return {j.defense.name: j for j in make_plan(loaded, resolved, registry, tmp_path / "results", "cpu").jobs}


def run_of(job: Job, parts: Parts, scene: Scene, trained: Trained) -> Run:
    """As the analyses get to see it."""
    return Run(scene=scene, trained=trained, shadows=None, n_models=models_of(parts.defense, job.clients))


def scene_of(job: Job) -> tuple[Parts, Scene]:
    """What the run begins with."""
    parts = build(job)
    return parts, set_scene(job, parts)


def test_a_groups_outsiders_look_like_its_members_and_nothing_is_shared(tmp_path):
    _, scene = scene_of(jobs(tmp_path)["none"])
    assert [a.target for a in scene.audits] == [group(0), group(1)]
    taken = np.concatenate([a.ids for a in scene.audits])
    assert not np.isin(scene.shadow, np.concatenate([taken, *scene.shards])).any() and len(scene.shadow) == 100
    for g, audit in enumerate(scene.audits):
        clients = np.flatnonzero(scene.groups.of_client == g)
        assert set(scene.client_of(audit)) <= set(clients)
        assert np.isin(audit.owner[audit.kind == MEMBER], clients).all()
        outside = (audit.ids[audit.kind == OFL] - len(scene.data.train_y)) % len(scene.shards)
        assert np.isin(outside, clients).all()


def test_images_are_turned_by_their_own_clients_angle(tmp_path):
    job = jobs(tmp_path)["none"]
    parts, scene = scene_of(job)
    raw = parts.dataset.load(job.seed)
    for k in (0, 5):
        expected = rotate(raw.train_x[scene.shards[k]], float(scene.groups.rotation[k]))
        np.testing.assert_allclose(scene.data.train_x[scene.shards[k]], expected, atol=1e-6)
    assert not np.allclose(raw.test_x[1], scene.data.test_x[1])  # client 1 mod 8 turns its test images too


class Picks(Defense):
    """Client k takes model k mod 2."""

    n_models = 2

    def assign(self, models, ctx):
        return ctx.client % 2


def test_global_views_look_at_each_candidate_through_its_clients_model():
    setup = tiny_setup(Picks(), members=(0, 1, 2, 3), n_models=2, rounds=2)
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    federation = Training(setup)
    recorder = Recorder(setup.flat, x, y, {"loss": Loss()}, False, 4, (), {"client"}, [12] * 4, n_models=2)
    for result in federation.rounds():
        recorder.record(result)
    assert recorder.rows == [global_row(0), global_row(1)] and result.assignment == (0, 1, 0, 1)
    served = np.array([[0, 1, 0, 1, 1, 0]] * 2)
    seen = observe("client", None, recorder.rows, np.array([1, 2]), recorder.arrays(), np.arange(6), served)
    assert seen["loss"].shape == (2, 1, 6) and len(seen.clients) == 1
    for i in range(6):
        setup.flat.params.copy_(federation.models[served[1, i]])
        with torch.no_grad():
            expected = cross_entropy(setup.flat.module(x[i : i + 1]), y[i : i + 1])
        np.testing.assert_allclose(seen["loss"][1, 0, i], float(expected), rtol=1e-4, atol=1e-5)


def test_shadow_models_know_half_of_their_data_and_none_of_the_candidates(tmp_path):
    job = jobs(tmp_path)["none"]
    parts, scene = scene_of(job)
    made = train_shadow_models(job, parts, scene)
    assert made.logits.shape == (3, len(scene.pool) + 100, 10) and made.member.sum(1).tolist() == [50, 50, 50]
    assert len({m.tobytes() for m in made.member}) == 3
    assert load_shadow_models(job) is None
    save_shadow_models(job, made)
    assert np.array_equal(load_shadow_models(job).logits, made.logits)
    for path in (tmp_path / "results" / "cache").glob("shadow-*"):
        path.write_bytes(b"damaged")
    assert load_shadow_models(job) is None
    y = scene.y_of(scene.shadow)
    right = made.logits[:, len(scene.pool) :].argmax(2) == y
    assert right[made.member].mean() > right[~made.member].mean()


class Keeps(Attack):
    view = "external"
    needs_shadow_models = True
    threshold = 0.0
    seen: list[ShadowModels]

    def score(self, observations, audit):
        self.seen.append(observations.shadow_models)
        return audit.rng.standard_normal(len(audit.ids))


def test_an_attack_gets_the_target_that_serves_each_candidate(tmp_path):
    job = jobs(tmp_path)["local-only"]
    (parts, scene), attack = scene_of(job), Keeps()
    attack.seen = []
    trained = train(job, parts, scene, [attack], lambda t: None)
    verdict = judge(job, job.cells[0], attack, scene, trained, train_shadow_models(job, parts, scene))
    assert trained.assignment.tolist() == [list(range(8))] * 2  # a model for every client
    for audit, seen in zip(scene.audits, attack.seen, strict=True):
        assert np.array_equal(seen.model_of, scene.client_of(audit))
        pick = np.searchsorted(scene.pool, audit.ids)
        assert np.array_equal(seen.target_logits, trained.logits[seen.model_of, pick])
        assert seen.target_shadow_logits.shape == (8, 100, 10) and seen.logits.shape == (3, len(pick), 10)
    assert [t.target for t in verdict.judgement.targets] == [group(0).code, group(1).code]
    found, vectors, notes = analysed(job, run_of(job, parts, scene, trained), verdict.judgement)
    assert notes == [] and found["violations"].numbers["clients"].value == 8
    assert vectors["violations:accuracy_of_model"].shape == (8,)
    told, arrays = pack_labels(scene)
    meta, kept = pack(trained)
    save(job, (told | meta | {"n_models": 8}, arrays | kept))
    cell = replace(job.cells[0], look=Look.of(attack))
    again = made_of(job, load(replace(job, cells=(cell,))), None)
    assert np.array_equal(again.trained.logits, trained.logits)
    assert np.array_equal(again.trained.assignment, trained.assignment)
    for mine, first in zip(again.scene.audits, scene.audits, strict=True):
        assert np.array_equal(mine.ids, first.ids) and np.array_equal(mine.kind, first.kind)


def test_group_accuracy_and_violations_against_a_naive_count(tmp_path):
    job = jobs(tmp_path)["ifca"]
    (parts, scene), attack = scene_of(job), Keeps()
    attack.seen = []
    trained = train(job, parts, scene, [attack], lambda t: None)
    verdict = judge(job, job.cells[0], attack, scene, trained, train_shadow_models(job, parts, scene))
    found, _, notes = analysed(job, run_of(job, parts, scene, trained), verdict.judgement)
    assert notes == []
    fair, accuracies = found["group-fairness"].numbers, []
    for g, name in enumerate(("upright", "turned")):
        mine = [i for i in range(len(scene.data.test_y)) if scene.groups.of_client[i % 8] == g]
        accuracies.append(np.mean([trained.test_correct[i] for i in mine]))
        assert fair[f"accuracy:{name}"].value == pytest.approx(accuracies[g]) and fair[f"n_test:{name}"].value == len(mine)
    assert [fair[f"clients:{name}"].value for name in ("upright", "turned")] == [2, 6]
    assert all(row["clusters"] and sum(row["clusters"]) == 8 for row in trained.history)
    assert trained.history[-1]["group_accuracy"] == pytest.approx(accuracies)
    said = [
        (verdict.arrays[f"t{a.target.code}_scores"] > 0, a.kind, trained.assignment[-1][scene.client_of(a)]) for a in scene.audits
    ]  # fmt: skip
    count = 0
    for k in range(8):
        j = trained.assignment[-1][k]
        rows = [row for one in said for row in zip(*one, strict=True)]
        pairs = [(d, kind == MEMBER) for d, kind, m in rows if m == j]
        tpr = np.mean([d for d, m in pairs if m]) if any(m for _, m in pairs) else None
        tnr = np.mean([not d for d, m in pairs if not m]) if any(not m for _, m in pairs) else None
        if tpr is not None and tnr is not None and (tpr + tnr) / 2 > scene.thresholds[k]:
            count += 1
    violations = found["violations"].numbers
    assert violations["violated"].value == count and violations["clients"].value == 8


def test_a_good_start_gives_every_model_its_clients(tmp_path):
    with_share = jobs(tmp_path, SUITE.replace("least_share: 0.1", "least_share: 0.25"))["ifca"]
    trained = train(with_share, *scene_of(with_share), [], lambda t: None)
    assert trained.assignment.shape == (2, 8)
    impossible = jobs(tmp_path, SUITE.replace("least_share: 0.1", "least_share: 0.33, models: 3"))["ifca"]
    with pytest.raises(Diverged, match="none of 100 draws of 3 initial models"):
        train(impossible, *scene_of(impossible), [], lambda t: None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("samples: 100", "samples: 500", r"audit\.shadow wants 500 samples"),
        ("members: 60", "members: 9999", r"audit\.members = 9999, but group 'upright' together"),
        ("name: digits, params: {test: 300, holdout: 500}", "name: toy-flat", "toy-flat"),
        ("test: 300, holdout: 500", "test: 7, holdout: 500", "7 are fewer than 8 clients"),
        ("fraction: 0.25", "fraction: 0.01", "each group needs one"),
        ("thresholds: [0.4, 0.6]", "thresholds: [0.4, 1.6]", "thresholds"),
        ("    groups:\n      - {name: upright, fraction: 0.25, rotation: [0, 10]}\n      - {name: turned, rotation: [80, 100]}\n",
         "", "audit.targets: groups needs groups"),
        ("{name: ifca, params: {least_share: 0.1}}", "{name: ifca, params: {models: 9}}", "9"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_is_refused_when_planned(tmp_path, old, new, message):
    assert old in SUITE
    with pytest.raises(UserError, match=message):
        jobs(tmp_path, SUITE.replace(old, new))




def test_groups_that_share_no_class_of_test_samples_cost_nothing_but_the_gaps(tmp_path):
    """Two test samples for two clients: each group has one, of a class of its own."""
    text = SUITE.replace("{test: 300, holdout: 500}", "{test: 2, holdout: 500}").replace("clients: 8", "clients: 2")
    text = text.replace("fraction: 0.25", "fraction: 0.5").replace("members: 60, nonmembers: 60", "members: 30, nonmembers: 30")
    job = jobs(tmp_path, text.replace("seeds: [0]", "seeds: [1]"))["none"]
    parts, scene = scene_of(job)
    assert len(set(scene.data.test_y)) == 2
    trained = train(job, parts, scene, [], lambda t: None)
    found, _, complaints = analysed(job, run_of(job, parts, scene, trained), None)
    assert complaints == []
    numbers = found["group-fairness"].numbers
    assert numbers["equal_opportunity"].value is None and numbers["equalised_odds"].value is None
    assert numbers["accuracy:upright"].value == float(trained.test_correct[0]) and numbers["n_test:turned"].value == 1
