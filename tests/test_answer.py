"""The phase `answer`: what somebody who only asks a global model is given, who sees it, and who does not."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from running import invoke, suite

from fedbench.core import Defense, Probe, Signal
from fedbench.core.contract.threat import ANSWERS
from fedbench.core.experiment.job import Look
from fedbench.core.experiment.train import train
from fedbench.core.federation.answering import answered
from fedbench.core.federation.compose import Composite, composed
from fedbench.core.federation.guard import PhaseError
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.signals.measure import PRE_DEFENSE, Recorder
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.markdown.escape import inline
from fedbench.leaderboard.tables.setting import setting_bullets
from fedbench.testing.jobs import given_use
from fedbench.testing.tiny import tiny_module, tiny_setup, train_all
from fedbench.testing.trials.world import job_of, setting_of

LOGITS = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]])


class Silent(Defense):
    """All classes alike, and class 2 a little ahead."""

    def answer(self, logits, ctx):
        return torch.zeros_like(logits) + 1e-3 * (torch.arange(logits.shape[1]) == 2)


class Doubled(Defense):
    def answer(self, logits, ctx):
        return 2 * logits


class Raised(Defense):
    def answer(self, logits, ctx):
        return logits + 1


class Learnt(Defense):
    """Answers with what its members and its coordinator have kept."""

    def begin(self, ctx):
        ctx.memory["plan"] = 100.0

    def after_round(self, ctx):
        ctx.memory["seen"] = float(ctx.client + 10 * ctx.round)

    def answer(self, logits, ctx):
        kept = ctx.coalition["plan"] + sum(ctx.of_member[k]["seen"] for k in ctx.members)
        return torch.full_like(logits, kept)


def after(defense, **changes):
    """A finished federation."""
    return train_all(tiny_setup(defense, **changes))[0]


def trained_by(defense: type[Defense], *names: str):
    """A whole training by that defense: every view, these signals and the final logits."""
    job, parts, scene = job_of(setting_of(), defense=given_use(defense, {}, "asked"))
    looks = [Look(needs=frozenset(names), view=view, needs_shadow_models=True) for view in ("server", "client", "coalition")]
    return train(job, parts, scene, looks, lambda t: None), scene


# --- who sees it ------------------------------------------------------------------------------------------------------


def test_the_global_rows_the_final_logits_and_the_test_accuracy_are_of_the_answers_and_nothing_else_is():
    names = ("loss", "max-prob", "grad-dot", "grad-sq", f"loss{PRE_DEFENSE}")
    plain, scene = trained_by(Defense, *names)
    asked, _ = trained_by(Silent, *names)
    at, others = [plain.rows.index(-1)], [i for i, row in enumerate(plain.rows) if row != -1]
    assert plain.rows == asked.rows and -2 in plain.rows and len(others) == 5
    assert np.allclose(asked.signals["loss"][:, at], math.log(scene.data.n_classes), atol=1e-3)
    assert not np.allclose(plain.signals["loss"][:, at], math.log(scene.data.n_classes), atol=1e-1)
    for name in ("loss", "max-prob"):
        assert np.array_equal(plain.signals[name][:, others], asked.signals[name][:, others]), name
    for name in ("grad-dot", "grad-sq", f"loss{PRE_DEFENSE}"):  # of parameters, and of what no answer has touched
        assert np.array_equal(plain.signals[name], asked.signals[name], equal_nan=True), name
    assert (asked.predicted == 2).all() and len(set(plain.predicted)) > 1
    assert np.array_equal(asked.test_correct, scene.data.test_y == 2)
    assert np.ptp(asked.logits, axis=(0, 1)).max() == 0 and np.ptp(plain.logits, axis=(0, 1)).max() > 0


def test_a_defense_without_the_phase_and_a_federation_that_nobody_defends_cost_nothing():
    for training in (after(Defense()), after(Silent(), members=())):
        assert answered(training, 0, LOGITS) is LOGITS


def test_a_signal_that_asks_the_model_itself_gets_answers_and_gradients_of_the_parameters():
    class Asks(Signal):
        def measure(self, probe: Probe) -> torch.Tensor:
            asked = probe.model(probe.x)
            assert torch.equal(asked, probe.logits)
            with torch.enable_grad():
                raw = probe.model(probe.x).detach()
            return (raw - asked).abs().sum(1)

    found = {}
    for defense in (Defense(), Doubled()):
        setup = tiny_setup(defense, rounds=1)
        recorder = Recorder(
            setup.flat, setup.clients[0].x, setup.clients[0].y, {"asks": Asks()}, False, 4, (0, 1), ["server", "client"], [12] * 4
        )
        training, (result,) = train_all(setup)
        recorder.answer = lambda j, z, training=training: answered(training, j, z)
        recorder.record(result)
        assert recorder.failed == {}
        found[type(defense)] = recorder.arrays()["asks"][0]
    assert (found[Defense] == 0).all() and (found[Doubled][:4] == 0).all() and (found[Doubled][4] > 0).all()


def test_a_mistake_of_the_defense_is_not_put_down_to_the_signal_that_asks():
    class Asks(Signal):
        def measure(self, probe: Probe) -> torch.Tensor:
            return probe.model(probe.x[:1])[0, 0].expand(len(probe.y)).clone()

    class OnlyMany(Defense):
        def answer(self, logits, ctx):
            return logits if len(logits) > 1 else logits[:0]

    setup = tiny_setup(OnlyMany(), rounds=1)
    x, y = setup.clients[0].x, setup.clients[0].y
    recorder = Recorder(setup.flat, x, y, {"asks": Asks()}, False, 4, (0, 1), ["client"], [12] * 4)
    training, (result,) = train_all(setup)
    recorder.answer = lambda j, z: answered(training, j, z)
    with pytest.raises(PhaseError, match=r"OnlyMany\.answer \(global model 0, after round 1\) returned a tensor of shape \[0,"):
        recorder.record(result)


def test_records_say_so_in_their_notes_and_boards_in_the_description_of_the_setting(tmp_path):
    path = suite(tmp_path, defenses=["none", {"name": "memguard", "params": {"epochs": 2, "steps": 2, "hidden": [4]}}],
                 attacks=["loss-series", "fta", "shadow"])  # fmt: skip
    invoke(path, "--results", tmp_path / "results")
    records = [json.loads(p.read_text()) for p in sorted((tmp_path / "results" / "records").glob("*.json"))]
    said = {(r["defense"]["label"], r["outcome"]): r["notes"].count(ANSWERS) for r in records}
    assert said == {("none", "ok"): 0, ("none", "skipped"): 0, ("memguard", "ok"): 1, ("memguard", "skipped"): 1}
    loaded = load_records(tmp_path / "results")
    lines = [inline(line) for line in setting_bullets(loaded).items]
    assert [line for line in lines if "answer" in line] == [f"memguard: {ANSWERS}"]


# --- what it is told --------------------------------------------------------------------------------------------------


def test_it_is_told_the_round_the_model_and_whose_it_is():
    told = []

    class Notes(Defense):
        n_models = 2

        def assign(self, models, ctx):
            return ctx.client % 2

        def answer(self, logits, ctx):
            told.append((ctx.round, ctx.model_index, ctx.members, ctx.served, ctx.key))
            return logits

    training = after(Notes(), n_models=2, members=(0, 1, 2))
    for j in (0, 1, 0):
        answered(training, j, LOGITS)
    assert [row[:4] for row in told] == [(3, 0, (0, 1, 2), (0, 2)), (3, 1, (0, 1, 2), (1,)), (3, 0, (0, 1, 2), (0, 2))]
    assert told[0][4] == told[2][4] != told[1][4]


def test_a_member_learns_of_the_model_that_came_of_the_round_and_trains_on_undisturbed():
    heard = {}

    class Asks(Defense):
        def after_round(self, ctx):
            before = ctx.params.clone(), ctx.model.training
            heard[ctx.round, ctx.client] = ctx.ask_global(ctx.data.x)
            assert torch.equal(ctx.params, before[0]) and ctx.model.training is before[1]

    setup = tiny_setup(Asks())
    results = train_all(setup)[1]
    models = [r.models[0] for r in results]
    for (t, k), logits in heard.items():
        flat = FlatModel(tiny_module(), torch.device("cpu"))
        assert torch.equal(logits, flat.logits(models[t - 1], results[t - 1].buffers[0], setup.clients[k].x))
    assert sorted(heard) == [(t, k) for t in (1, 2, 3) for k in (0, 1)]
    plain = train_all(tiny_setup(Defense()))[1]
    assert all(torch.equal(a.uploads.updates, b.uploads.updates) for a, b in zip(results, plain, strict=True))


def test_asking_is_for_after_round_alone():
    seen = []

    class Looks(Defense):
        def select(self, ctx):
            seen.append(ctx.ask_global)

    after(Looks(), rounds=1)
    assert seen == [None, None]


# --- several defenses -------------------------------------------------------------------------------------------------


def test_parts_answer_in_their_order_each_from_its_own_memories():
    def said(*parts):
        return answered(after(composed(parts)), 0, LOGITS)

    assert torch.equal(said(Doubled(), Raised()), 2 * LOGITS + 1) and torch.equal(said(Raised(), Doubled()), 2 * LOGITS + 2)
    alone = said(Learnt())
    assert float(alone[0, 0]) == 100 + 30 + 31
    assert torch.equal(said(Defense(), Learnt()), alone) and torch.equal(answered(after(Composite([Learnt()])), 0, LOGITS), alone)
    assert torch.equal(said(Learnt(), Raised()), alone + 1)


def test_the_first_part_has_the_key_it_has_alone_and_the_second_another():
    class Drawn(Defense):
        def answer(self, logits, ctx):
            return logits + float(ctx.rng.uniform())

    parts = [Drawn()], [Drawn(), Defense()], [Defense(), Drawn()]
    one, first, second = (answered(after(composed(p)), 0, LOGITS) for p in parts)
    assert torch.equal(one, first) and not torch.allclose(one, second)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def wrong(body):
    """The error of a defense that answers so, alone and as a part."""
    cls = type("Wrong", (Defense,), {"answer": lambda self, logits, ctx: body(logits, ctx)})
    messages = []
    for defense in (cls(), Composite([Doubled(), cls()])):
        with pytest.raises(PhaseError) as error:
            answered(after(defense, rounds=1), 0, LOGITS.clone())
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    return messages[0]


def write(logits, ctx):
    logits[0] = 0
    return logits


def write_past_the_counter(logits, ctx):
    logits.numpy()[0] = 0
    return logits


def remember(logits, ctx):
    ctx.of_member[0]["asked"] = 1


def plan(logits, ctx):
    ctx.coalition["asked"] = 1


WHERE = "Wrong.answer (global model 0, after round 1)"
MISTAKES = {
    "shape": (lambda z, ctx: z[:1], f"{WHERE} returned a tensor of shape [1, 3]; expected a tensor of shape [2, 3]"),
    "labels": (lambda z, ctx: z.argmax(1), f"{WHERE} returned a tensor of shape [2]; expected a tensor of shape [2, 3]"),
    "nothing": (lambda z, ctx: None, f"{WHERE} returned NoneType; expected a tensor of shape [2, 3]"),
    "nan": (lambda z, ctx: z * math.nan, f"{WHERE} returned logits that are not finite; expected finite ones, as it was given"),
    "overflow": (lambda z, ctx: z.double() * 1e300, f"{WHERE} returned logits that are not finite; expected finite ones"),
    "write": (write, f"{WHERE} changed logits; it is handed out to be read"),
    "numpy": (write_past_the_counter, f"{WHERE} changed logits; it is handed out to be read"),
    "memory": (remember, f"{WHERE}: TypeError: 'mappingproxy' object does not support item assignment"),
    "plan": (plan, f"{WHERE}: TypeError: 'mappingproxy' object does not support item assignment"),
    "raises": (lambda z, ctx: z[99], f"{WHERE}: IndexError"),
    "grad mode": (lambda z, ctx: [torch.set_grad_enabled(True), z][1], f"{WHERE} changed torch's grad mode"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_answer_is_an_error_that_names_the_part_the_model_and_the_round(name):
    body, said = MISTAKES[name]
    assert wrong(body).startswith(said)


def test_logits_that_are_not_finite_are_nobodys_fault_who_hands_them_on():
    spoilt = LOGITS.clone()
    spoilt[0, 0] = math.inf
    assert torch.equal(answered(after(Raised(), rounds=1), 0, spoilt)[1], LOGITS[1] + 1)


def test_answers_of_another_width_are_taken_in_the_engines():
    class Wide(Defense):
        def answer(self, logits, ctx):
            return logits.double() + 1

    said = answered(after(Wide(), rounds=1), 0, LOGITS)
    assert said.dtype == torch.float32 and torch.equal(said, LOGITS + 1)
