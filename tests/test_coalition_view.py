"""The view of who knows the coalition: its mean, then the clients outside; and the undefended row beside each coalition."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import invoke, outcomes, records, suite
from tiny import tiny_setup
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from fedbench.core import Attack, Defense, Observations
from fedbench.core.cli.run import build_plan
from fedbench.core.experiment.job import Look
from fedbench.core.experiment.judge import _by_colluders, ask
from fedbench.core.experiment.samples import samples_of
from fedbench.core.experiment.train import _setup, train
from fedbench.core.federation.loop import Training
from fedbench.core.signals.logits import Loss
from fedbench.core.signals.measure import COALITION, GLOBAL, Recorder, rows_of
from fedbench.core.signals.observe import observe
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.build import build_sections
from fedbench.testing.trials.world import job_of, setting_of, world

COALITION_VIEW = {"name": "loss-series", "label": "on-mean", "params": {"view": "coalition"}}


class Cancels(Defense):
    """Noise that is in both uploads of the pair, and not in their sum."""

    def coordinate(self, updates, ctx):
        noise = torch.zeros_like(updates)
        noise[0] = 5.0
        noise[1] = -noise[0] * ctx.sizes[0] / ctx.sizes[1]
        return updates + noise


def recorded(defense=None, views=("server", "coalition"), sizes=(12, 12, 12, 12), rounds=2):
    setup = tiny_setup(defense, (0, 1), rounds=rounds)
    x, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3
    recorder = Recorder(setup.flat, x, y, {"loss": Loss()}, True, 4, (0, 1), views, sizes)
    for result in Training(setup).rounds():
        recorder.record(result)
    return recorder, result.uploads, setup, (x, y)


# -- what is measured and shown ------------------------------------------------------------------------------------------------


def test_the_view_measures_the_mean_and_who_is_outside_and_nobody_else():
    assert rows_of({"coalition"}, 5, (1, 3)) == [0, 2, 4, COALITION]
    assert rows_of({"coalition", "client"}, 5, (1, 3)) == [0, 2, 4, GLOBAL, COALITION]
    assert rows_of({"coalition", "server"}, 3, (0, 1, 2)) == [0, 1, 2, COALITION]
    assert rows_of({"coalition"}, 3, (0, 1, 2)) == [COALITION]
    assert rows_of({"coalition"}, 3, ()) == []


def test_the_mean_is_weighted_by_the_numbers_of_samples():
    recorder, u, setup, (x, y) = recorded(sizes=(30, 10, 12, 12))
    setup.flat.params.copy_(u.starts[0] + 0.75 * u.updates[0] + 0.25 * u.updates[1])
    setup.flat.buffers.copy_(0.75 * u.buffers[0] + 0.25 * u.buffers[1])
    setup.flat.module.eval()
    wanted = cross_entropy(setup.flat.module(x), y, reduction="none").detach().numpy()
    at = recorder.rows.index(COALITION)
    np.testing.assert_allclose(recorder.arrays()["loss"][-1, at], wanted, rtol=1e-5)
    assert not np.allclose(recorder.arrays()["loss"][-1, 0], wanted, rtol=1e-3)


def test_noise_that_cancels_is_in_every_upload_and_not_in_what_the_view_shows():
    noisy, plain = (recorded(defense)[0].arrays() for defense in (Cancels(), Defense()))
    at = 4
    np.testing.assert_allclose(noisy["loss"][:, at], plain["loss"][:, at], rtol=1e-3, atol=1e-4)
    assert np.abs(noisy["loss"][:, :2] - plain["loss"][:, :2]).mean(axis=2).min() > 0.1


@pytest.mark.parametrize("served", [None, np.zeros((2, 3), int)])
def test_the_targets_row_is_the_mean_and_the_others_are_the_clients_outside(served):
    rows, a = [0, 1, 2, 3, GLOBAL, COALITION], np.arange(2 * 6 * 9, dtype=np.float32).reshape(2, 6, 9)
    b, pick = a[:, :, :1], np.array([7, 0, 3])
    seen = observe("coalition", 1, rows, np.array([1, 2]), {"loss": a, "update-sq": b}, pick, served, (1, 2))
    assert seen.clients.tolist() == [-2, 0, 3] and seen.target == 0
    np.testing.assert_array_equal(seen.of_target("loss"), a[:, 5, pick])
    np.testing.assert_array_equal(seen.of_others("loss"), a[:, [0, 3]][:, :, pick])
    np.testing.assert_array_equal(seen["update-sq"], b[:, [5, 0, 3]])
    everyone = observe("coalition", 1, rows, np.array([1, 2]), {"loss": a}, pick, served, (0, 1, 2, 3))
    assert everyone.clients.tolist() == [-2] and everyone["loss"].shape == (2, 1, 3)


def test_nobodys_row_is_shown_twice_whatever_else_was_measured():
    alone, both = recorded(views=("coalition",))[0], recorded()[0]
    rounds, pick = np.array([1, 2]), np.arange(9)
    one, other = (observe("coalition", 0, r.rows, rounds, r.arrays(), pick, None, (0, 1)) for r in (alone, both))
    assert one.clients.tolist() == other.clients.tolist() == [-2, 2, 3]
    for name in one.signals:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6)


class Taught(Attack):
    """Notes its lessons."""

    needs = frozenset({"loss"})
    colluders = 1

    def __init__(self, view):
        self.view, self.lessons = view, []

    def fit(self, shadows, audit):
        self.lessons += shadows

    def score(self, observations: Observations, audit):
        self.seen = observations
        return np.zeros(len(audit.ids))


def test_a_colluder_teaches_with_its_own_uploads_in_the_view_of_the_mean():
    w = world()
    by_view = {}
    for view in ("server", "coalition"):
        attack = by_view[view] = Taught(view)
        ask(w.job, attack, w.scene, w.trained)
    one, other = by_view["server"].lessons, by_view["coalition"].lessons
    assert [c.client for c in one] == [c.client for c in other] and not {c.client for c in other} & {0, 1}
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.observations.of_target("loss"), b.observations.of_target("loss"))
        np.testing.assert_array_equal(a.member, b.member)
    seen = by_view["coalition"].seen
    assert seen.clients[seen.target] == -2 and not np.allclose(seen.of_target("loss"), by_view["server"].seen.of_target("loss"))


def test_whoever_is_outside_an_observed_coalition_colludes_first():
    """Nobody defends there: the highest ids would be the coalition's own."""
    job, _, scene = job_of(setting_of(), members=(2, 3))
    undefended = replace(job, members=(), observed=(2, 3))
    assert {who for who in _by_colluders(undefended, Taught("coalition"), scene.audits)} == {(1,)}


class Follows(Attack):
    """Notes what it is shown of each target."""

    needs, view = frozenset({"loss"}), "coalition"

    def __init__(self):
        self.seen = {}

    def score(self, observations: Observations, audit):
        self.seen[audit.target_client] = observations.of_target("loss")
        return np.zeros(len(audit.ids))


def test_the_undefended_mean_beside_several_coalitions_is_the_one_made_by_hand():
    """Every observed group's mean, upload by upload and parameter by parameter, then its loss on one sample after the other."""
    groups = ((1, 4), (2, 3))
    setting = setting_of(
        partition={"name": "dirichlet-sizes", "beta": 3},
        federation={"clients": 5, "rounds": 4, "local_epochs": 2, "batch_size": 20, "optimizer": {"lr": 0.3}},
    )
    job, parts, scene = job_of(setting, members=(1, 2, 3, 4))
    job, attack = replace(job, members=(), observed=(1, 2, 3, 4), coalitions=groups), Follows()
    trained = train(job, parts, scene, [Look.of(attack)], lambda t: None)
    ask(job, attack, scene, trained)

    _, again, _ = job_of(setting, members=(1, 2, 3, 4))
    setup = _setup(job, again, scene, [], set(), torch.device("cpu"))
    sizes = [len(data.y) for data in setup.clients]
    assert len(set(sizes)) > 2  # else any weights would do
    model, (x, y) = deepcopy(setup.flat.module).eval(), samples_of(scene, scene.pool, torch.device("cpu"))
    wanted = {group: [] for group in groups}
    for result in Training(setup).rounds():
        u = result.uploads
        for group in groups if u.round in job.audited_rounds else ():
            mean = np.zeros(u.updates.shape[1])
            for k in group:
                i = u.participants.index(k)
                mean += sizes[k] * (u.starts[u.start_of[i]] + u.updates[i]).double().numpy()
            vector_to_parameters(torch.from_numpy(mean / sum(sizes[k] for k in group)).float(), model.parameters())
            losses = [cross_entropy(model(x[i : i + 1]), y[i : i + 1]).item() for i in range(len(y))]
            wanted[group].append(losses)
    assert [len(losses) for losses in wanted.values()] == [2, 2]
    assert not np.allclose(wanted[groups[0]], wanted[groups[1]], rtol=1e-2)
    assert set(attack.seen) == {1, 2, 3, 4}
    at = {int(k): i for i, k in enumerate(scene.pool)}
    for audit in scene.audits:
        (group,) = (g for g in groups if audit.target.index in g)
        own = [at[int(k)] for k in audit.ids]
        np.testing.assert_allclose(attack.seen[audit.target.index], np.array(wanted[group])[:, own], rtol=2e-4, atol=1e-5)


# -- the undefended row beside a coalition's -----------------------------------------------------------------------------------


def planned(folder, **changes):
    path = suite(folder, **{"defenses": ["none", "mixup", "median"], "attacks": ["loss-series", COALITION_VIEW]} | changes)
    return path, build_plan(path, (), folder / "results", "cpu")


def test_an_undefended_row_is_planned_beside_every_coalition(tmp_path):
    _, plan = planned(tmp_path, coalitions=["none", "pair", {"name": "last", "clients": [2, 3]}])
    found = {
        (j.coalition, j.defense.label): (j.members, j.observed, [t.index for t in j.targets], [c.attack.label for c in j.cells])
        for j in plan.jobs
    }  # fmt: skip
    for nobody in ("none", "median"):
        assert found.pop(("none", nobody)) == ((), (), [0, 1, 2, 3], ["loss-series"])
        assert found.pop(("pair", nobody)) == ((), (0, 1), [0, 1], ["on-mean"])
        assert found.pop(("last", nobody)) == ((), (2, 3), [2, 3], ["on-mean"])
    assert found.pop(("pair", "mixup")) == ((0, 1), (), [0, 1], ["loss-series", "on-mean"])
    assert found.pop(("last", "mixup")) == ((2, 3), (), [2, 3], ["loss-series", "on-mean"])
    assert set(found) == {("none", "mixup")}  # nobody uses it there
    assert {j.coalition for j in plan.only(coalition={"pair"}).jobs} == {"none", "pair"}


def test_a_suite_without_a_coalition_has_one_cell_that_says_so(tmp_path):
    path, _ = planned(tmp_path, coalitions=["none"], defenses=["none"])
    invoke(path, "--results", tmp_path / "results")
    assert outcomes(tmp_path / "results")["on-mean"] == (
        "skipped", "the view 'coalition' is empty in this run (coalition: none)"
    )  # fmt: skip


def test_a_board_has_the_undefended_and_the_servers_rows_of_the_same_mean(tmp_path):
    path, _ = planned(tmp_path, coalitions=["pair", {"name": "three", "clients": [1, 2, 3]}])
    invoke(path, "--results", tmp_path / "results")
    sections = {(s.coalition, s.view): s for s in build_sections(load_records(tmp_path / "results"))}
    assert set(sections) == {(c, v) for c in ("pair", "three") for v in ("server", "coalition")}
    for (coalition, view), section in sections.items():
        assert {r.label for r in section.rows} == {"none", "mixup", "median"}, (coalition, view)
        assert section.targets == {0: (0, 1) if coalition == "pair" else (1, 2, 3)}
        assert all(entry.complete for row in section.rows for entry in row.entries.values())
    undefended = sorted((tmp_path / "results" / "records").glob("*none--on-mean*.npz"))
    assert len(undefended) == 2
    with np.load(undefended[0]) as a, np.load(undefended[1]) as b:
        assert a["t1_ids"].tolist() == b["t1_ids"].tolist() and not np.allclose(a["t1_scores"], b["t1_scores"])


def test_where_everyone_defends_only_fedmia_is_skipped_and_says_why(tmp_path):
    names = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")
    attacks = [{"name": n, "params": {"view": "coalition", **({"epochs": 1} if n == "seqmia" else {})}} for n in names]
    path = suite(tmp_path, coalitions=["uniform"], defenses=["mixup"], attacks=attacks)
    invoke(path, "--results", tmp_path / "results")
    found = outcomes(tmp_path / "results")
    for name in names:
        outcome, reason = found[name]
        assert outcome == ("skipped" if name.startswith("fedmia") else "ok"), (name, reason)
    assert "every client is in the coalition" in found["fedmia-ii"][1] and "several other clients" in found["fedmia-i"][1]
    for record in records(tmp_path / "results").values():
        assert record["view"] == "coalition"


def test_where_some_are_outside_all_seven_score(tmp_path):
    names = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")
    more = {"seqmia": {"epochs": 1}}
    attacks = [
        {"name": n, "label": f"{n}-{how}", "params": {"view": "coalition", "normalise": how, **more.get(n, {})}}
        for n in names for how in ("none", "class")
    ]  # fmt: skip
    path = suite(tmp_path, coalitions=["pair"], defenses=["none", "mixup"], attacks=attacks)
    invoke(path, "--results", tmp_path / "results")
    found = records(tmp_path / "results")
    assert {(d, a): r["outcome"] for (d, a, _), r in found.items()} == {
        (d, a["label"]): "ok" for d in ("none", "mixup") for a in attacks
    }  # fmt: skip
    assert "colluding with client 3" in found["none", "seqmia-none", 0]["notes"]
