"""A signal may be a vector of each sample: measured, cut, kept and refused as one number is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_setup

from fedbench.core import Attack, Defense, Observations, Signal, UserError
from fedbench.core.execution.plugin_checks import declaration_mistake
from fedbench.core.experiment import cache
from fedbench.core.experiment.analyse import finished
from fedbench.core.experiment.judge import ask
from fedbench.core.experiment.pack import pack, unpack
from fedbench.core.experiment.run import Run
from fedbench.core.experiment.train import train
from fedbench.core.federation.loop import Training
from fedbench.core.signals import room
from fedbench.core.signals.logits import Logits, Loss
from fedbench.core.signals.measure import Recorder, global_row
from fedbench.core.signals.observe import observe
from fedbench.testing.jobs import use
from fedbench.testing.trials.world import job_of, setting_of

CLASSES = 3


class Grows(Signal):
    """Longer with every round."""

    vector = True

    def measure(self, probe):
        self.calls = getattr(self, "calls", 0) + 1
        return probe.logits[:, :1].repeat(1, self.calls)


class Flat(Signal):
    """Says that it is a vector and is a number."""

    vector = True

    def measure(self, probe):
        return probe.logits.amax(1)


class Empty(Signal):
    vector = True

    def measure(self, probe):
        return probe.logits[:, :0]


class Undeclared(Signal):
    """Is a vector and does not say so."""

    def measure(self, probe):
        return probe.logits


class PartlyNaN(Signal):
    vector = True

    def measure(self, probe):
        out = probe.logits.clone()
        out[3, 1] = torch.nan
        return out


class Picks(Defense):
    """Client k takes model k mod 2."""

    n_models = 2

    def assign(self, models, ctx):
        return ctx.client % 2


class ReadsLogits(Attack):
    """The largest logit in the last round."""

    needs = frozenset({"logits"})

    def score(self, observations, audit):
        return observations.of_target("logits")[-1].max(1)


class ReadsLoss(Attack):
    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return -observations.of_target("loss")[-1]


class ReadsBoth(ReadsLogits):
    needs = frozenset({"logits", "loss"})


def recorded(views=("server", "client"), defense=None, rounds=2, n_models=1, clients=4, **signals):
    setup = tiny_setup(defense, (0, 1, 2, 3) if defense else (0, 1), n_models=n_models, rounds=rounds, participation=0.5)
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(40, 4, generator=g), torch.randint(0, CLASSES, (40,), generator=g)
    made = {name: signal() for name, signal in signals.items()}
    recorder = Recorder(
        setup.flat, x, y, made, False, clients, setup.members, set(views), [12] * 4, n_models=n_models, rounds=rounds
    )
    present = []
    for result in Training(setup).rounds():
        recorder.record(result)
        present.append(result.uploads.participants)
    return recorder, present, y


def test_a_vector_is_measured_beside_a_number_which_is_what_it_was():
    alone, _, _ = recorded(loss=Loss)
    recorder, present, y = recorded(loss=Loss, logits=Logits)
    arrays = recorder.arrays()
    assert arrays["logits"].shape == (2, 5, 40, CLASSES) and arrays["logits"].dtype == np.float32
    np.testing.assert_array_equal(arrays["loss"], alone.arrays()["loss"])
    log_p = torch.from_numpy(arrays["logits"]).log_softmax(-1).numpy()
    np.testing.assert_allclose(arrays["loss"], -log_p[:, :, np.arange(40), y], rtol=1e-5, atol=1e-6)
    for r, there in enumerate(present):
        absent = [k for k in range(4) if k not in there]
        assert len(absent) == 2 and np.isnan(arrays["logits"][r, absent]).all() and np.isfinite(arrays["logits"][r, there]).all()


def test_rounds_without_anybody_are_blank_vectors():
    recorder, _, _ = recorded(views=("coalition",), rounds=6, clients=2, logits=Logits)  # nobody is looked at outside
    arrays = recorder.arrays()["logits"]
    assert arrays.shape == (6, 1, 40, CLASSES)
    blank = np.isnan(arrays).all((1, 2, 3))
    assert 0 < blank.sum() < 6 and np.isfinite(arrays[~blank]).all()


@pytest.mark.parametrize(("cls", "said"), [
    (Grows, "round 1: it returned float32 [40, 2] on cpu; expected float32 [40, 1] on cpu, as long as its first answer"),
    (Flat, "before round 1: it returned float32 [16] on cpu; expected float32 [16, d] on cpu, d >= 1, since its `vector`"),
    (Empty, "before round 1: it returned float32 [16, 0] on cpu; expected float32 [16, d] on cpu"),
    (Undeclared, "round 1: it returned float32 [40, 3] on cpu; expected float32 [40] on cpu"),
    (PartlyNaN, "before round 1: 1 of its 16 vectors are not finite, though the logits are"),
])  # fmt: skip
def test_a_wrong_vector_costs_itself_alone(cls, said):
    alone, _, _ = recorded(loss=Loss)
    recorder, _, _ = recorded(loss=Loss, wrong=cls)
    assert f"signal 'wrong': {said}" in recorder.failed["wrong"]
    np.testing.assert_array_equal(recorder.arrays()["loss"], alone.arrays()["loss"])
    assert set(recorder.arrays()) == {"loss"}


def test_every_cut_of_a_vector_is_the_cut_of_its_components():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 6, 20, 2)).astype(np.float32)  # four clients and two global models
    rows, rounds, n = [0, 1, 2, 3, global_row(0), global_row(1)], np.array([1, 2, 3]), 7
    served = rng.integers(0, 2, (3, n))
    picks = {"alike": rng.integers(0, 20, n), "redrawn": rng.integers(0, 20, (3, 4, n))}
    for name, pick in picks.items():
        for view, target in (("server", 2), ("client", None), ("external", None)):
            if name == "redrawn" and view != "server":
                continue  # the released code redraws for every client
            seen = observe(view, target, rows, rounds, {"v": a}, pick, served)
            parts = [observe(view, target, rows, rounds, {"v": a[..., i]}, pick, served) for i in range(2)]
            np.testing.assert_array_equal(seen["v"], np.stack([p["v"] for p in parts], -1))
            np.testing.assert_array_equal(seen.of_target("v"), np.stack([p.of_target("v") for p in parts], -1))
            assert seen.of_target("v").shape == (1 if view == "external" else 3, n, 2)
    server = observe("server", 2, rows, rounds, {"v": a}, picks["alike"])
    assert server.of_others("v").shape == (3, 3, n, 2)
    np.testing.assert_array_equal(server.of_others("v")[:, 2], a[:, 3, picks["alike"]])


def test_several_global_models_give_vectors_through_each_candidates_own():
    recorder, _, _ = recorded(("client",), Picks(), n_models=2, logits=Logits)
    a, served = recorder.arrays()["logits"], np.array([[0, 1, 1], [1, 1, 0]])
    seen = observe("client", None, recorder.rows, np.array([1, 2]), {"logits": a}, np.array([3, 9, 30]), served)
    wanted = [[a[r, served[r, i], p] for i, p in enumerate((3, 9, 30))] for r in range(2)]
    np.testing.assert_array_equal(seen.of_target("logits"), wanted)


def trained_for(*attacks):
    job, parts, scene = job_of(setting_of(), attack=use(type(attacks[0])), made=attacks[0])
    return job, scene, train(job, parts, scene, attacks, lambda t: None)


def test_an_attack_reads_vectors_after_packing_and_from_the_cache(tmp_path):
    job, scene, trained = trained_for(ReadsLogits())
    again = unpack(*pack(trained))
    answers = ask(job, ReadsLogits(), scene, again)
    assert [len(s) for s in answers.scores] == [len(a.ids) for a in scene.audits]
    rows = {row: i for i, row in enumerate(trained.rows)}
    for audit, scores in zip(scene.audits, answers.scores, strict=True):
        where = np.searchsorted(scene.pool, audit.ids)
        np.testing.assert_array_equal(scores, trained.signals["logits"][-1, rows[audit.target.client], where].max(1))
    kept = replace(job, results=str(tmp_path))
    packed = pack(trained)
    assert cache.save(kept, (packed[0] | {"n_models": 1}, packed[1]))
    np.testing.assert_array_equal(cache.load(kept)[1]["signal:logits"], trained.signals["logits"])


def test_an_analysis_sees_vectors():
    job, scene, trained = trained_for(ReadsLogits())
    run = finished(job, Run(scene=scene, trained=trained, shadows=None, n_models=1),
                   SimpleNamespace(needs=frozenset({"logits"}), view="server", also=()))  # fmt: skip
    assert run.signals["logits"].shape == (2, 4, len(scene.pool), trained.signals["logits"].shape[3])


def test_too_much_for_memory_is_refused_before_training(monkeypatch):
    job, parts, scene = job_of(setting_of(), attack=use(ReadsLogits), made=ReadsLogits())
    classes, pool, rounds = scene.data.n_classes, len(scene.pool), []
    size = 4 * 2 * 4 * pool * classes
    monkeypatch.setattr(room, "MOST_BYTES", size - 1)
    with pytest.raises(UserError) as caught:
        train(job, parts, scene, [ReadsLogits()], rounds.append)
    (said,) = caught.value.messages
    assert rounds == [] and said.startswith("signal 'logits' (fedbench ")
    assert f"2 audited rounds x 4 rows x {pool} samples x {classes} components of 4 bytes are {size / 2**20:,.1f} MiB" in said
    assert "raise audit.every, lower audit.nonmembers" in said
    monkeypatch.setattr(room, "MOST_BYTES", size)
    assert train(job, parts, scene, [ReadsLogits()], rounds.append).signals["logits"].nbytes == size and rounds == [1, 2, 3, 4]


def test_what_is_refused_costs_only_who_needs_it(monkeypatch):
    monkeypatch.setattr(room, "MOST_BYTES", 1000)
    job, scene, trained = trained_for(ReadsLoss(), ReadsBoth())
    assert set(trained.signals) == {"loss"}
    assert len(ask(job, ReadsLoss(), scene, trained).scores) == len(scene.audits)
    with pytest.raises(UserError, match="before round 1: 2 audited rounds x 4 rows"):
        ask(job, ReadsBoth(), scene, trained)


def test_observations_of_vectors_broadcast_over_a_missing_client_axis():
    signals = {"v": np.zeros((2, 1, 5, 3), np.float32)}
    seen = Observations(view="server", rounds=np.array([1, 2]), clients=np.arange(4), target=1, signals=signals)
    assert seen.of_target("v").shape == (2, 5, 3) and seen.of_others("v").shape == (2, 3, 5, 3)


@pytest.mark.parametrize(("changes", "said"), [
    ({"knows_half": 1}, "knows_half is 1, expected True or False"),
    ({"knows_half": True, "colluders": 1}, "knows_half with colluders = 1: an attack learns from one of the two"),
    ({"knows_half": True, "threshold": 0.5}, "knows_half with threshold = 0.5: its scores are ranks within each half"),
    ({"knows_half": True}, ""),
])  # fmt: skip
def test_what_an_attack_says_of_half_is_checked(changes, said):
    attack = ReadsLoss()
    for name, value in changes.items():
        setattr(attack, name, value)
    assert declaration_mistake(attack).startswith(said) and bool(declaration_mistake(attack)) == bool(said)
