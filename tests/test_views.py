"""What each view sees: uploads, the coalition's mean, global models, and the answers of a defense
in their place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from layered import one_backward_a_sample
from tiny import record_all, tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import Attack, Defense, Observations, Signal, SkipCell, UserError
from fedbench.core.federation.compose import Composite
from fedbench.core.federation.guard import PhaseError
from fedbench.core.federation.loop import Training, answered
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.run.job import SignalRequest
from fedbench.core.run.observations import observe
from fedbench.core.run.scene import samples_of
from fedbench.core.run.scoring import ask, by_colluders
from fedbench.core.run.train import Run, _setup, train
from fedbench.core.signals.builtin import Loss, UploadGradSq
from fedbench.core.signals.measure import (
    COALITION,
    GLOBAL,
    PRE_DEFENSE,
    Recorder,
    coalition_row,
    global_row,
    rows_of,
    seen_from,
)
from fedbench.testing.worlds import given_use, job_of, setting_of, train_job

# -- rows ------------------------------------------------------------------------------------------


def test_a_target_is_followed_through_the_mean_of_its_own_coalition():
    groups, rows = ((0, 1), (2, 3)), [4, COALITION, coalition_row(1)]
    assert seen_from(0, rows, groups) == rows and seen_from(2, rows, groups) == [
        4,
        coalition_row(1),
        COALITION,
    ]
    assert seen_from(5, rows, ()) == seen_from(None, rows, ((0, 1),)) == rows
    for target, name in (
        (5, "client 5, which is in none of them"),
        (None, "many clients together"),
    ):
        with pytest.raises(SkipCell, match=f"there are 2, and the target is {name}"):
            seen_from(target, rows, groups)


@pytest.mark.parametrize("served", [None, np.zeros((2, 3), int)])
def test_the_targets_row_is_the_mean_and_the_others_are_the_clients_outside(served):
    rows, a = (
        [0, 1, 2, 3, GLOBAL, COALITION],
        np.arange(2 * 6 * 9, dtype=np.float32).reshape(2, 6, 9),
    )
    b, pick = a[:, :, :1], np.array([7, 0, 3])
    seen = observe(
        "coalition", 1, rows, np.array([1, 2]), {"loss": a, "update-sq": b}, pick, served, (0, 3)
    )
    assert seen.clients.tolist() == [-2, 0, 3] and seen.target == 0
    np.testing.assert_array_equal(seen.of_target("loss"), a[:, 5, pick])
    np.testing.assert_array_equal(seen.of_others("loss"), a[:, [0, 3]][:, :, pick])
    np.testing.assert_array_equal(seen["update-sq"], b[:, [5, 0, 3]])
    everyone = observe("coalition", 1, rows, np.array([1, 2]), {"loss": a}, pick, served, ())
    assert everyone.clients.tolist() == [-2] and everyone["loss"].shape == (2, 1, 3)


class Picks(Defense):
    """Client k takes model k mod 2."""

    n_models = 2

    def assign(self, models, ctx):
        return ctx.client % 2


X, Y = torch.randn(7, 4, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 3


def slow_loss(setup, params: torch.Tensor, x: torch.Tensor = X, y: torch.Tensor = Y) -> np.ndarray:
    """Sample after sample, in eval mode."""
    setup.flat.params.copy_(params)
    setup.flat.module.eval()
    with torch.no_grad():
        return np.array(
            [
                float(cross_entropy(setup.flat.module(x[i : i + 1]), y[i : i + 1]))
                for i in range(len(y))
            ]
        )


def test_global_views_look_at_each_candidate_through_its_clients_model():
    setup = tiny_setup(Picks(), members=(0, 1, 2, 3), n_models=2, rounds=2)
    recorder, results = record_all(setup, X, Y, {"loss": Loss()}, rows_of({"client"}, 4, (), 2))
    assert recorder.rows == [global_row(0), global_row(1)]
    served = np.array([[0, 1, 0, 1, 1, 0, 0]] * 2)
    of_model = [slow_loss(setup, params) for params in results[-1].models]
    expected = [of_model[j][i] for i, j in enumerate(served[1])]
    for view, rounds in (("client", 2), ("external", 1)):
        seen = observe(
            view, None, recorder.rows, np.array([1, 2]), recorder.arrays(), np.arange(7), served
        )
        assert seen["loss"].shape == (rounds, 1, 7) and len(seen.clients) == 1
        np.testing.assert_allclose(seen["loss"][-1, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_need_that_the_view_hides_skips_the_cell_and_a_signal_outside_the_needs_is_a_mistake():
    needed = {"loss": np.zeros((1, 1, 7)), "grad-sq": np.zeros((1, 1, 7))}
    seen = observe("external", None, [global_row(0)], np.array([1]), needed, np.arange(7))
    with pytest.raises(SkipCell, match="the view 'external' has no signal 'grad-sq'"):
        seen.of_target("grad-sq")
    with pytest.raises(UserError, match="its `needs` are grad-sq, loss: add 'entropy' to them"):
        seen.of_others("entropy")


def test_a_user_of_the_final_model_has_no_signal_of_an_update_or_an_earlier_model():
    shown: list[Observations] = []

    class Outsider(Attack):
        view = "external"
        needs = frozenset(
            {
                "loss",
                "upload-grad-sq",
                "grad-dot",
                "received-metrics",
                "projection-residual",
                "unshifted-cosine",
                f"loss{PRE_DEFENSE}",
            }
        )

        def score(self, observations, audit):
            shown.append(observations)
            return np.zeros(len(audit.ids))

    w = train_job(setting_of(), [Outsider()])
    ask(w.run, Outsider())
    assert {*w.trained.signals} >= Outsider.needs and shown
    for seen in shown:
        assert {*seen.signals} == {"loss", "upload-grad-sq"}
        assert seen.hidden == Outsider.needs - {*seen.signals}


def test_signals_are_measured_at_the_model_that_each_client_really_had():
    sizes, signals = [12, 4, 12, 12], {"loss": Loss(), "upload-grad-sq": UploadGradSq()}
    setup = tiny_setup(members=(0, 1), rounds=4, max_delay=3, local_epochs=1)

    def gradients(params: torch.Tensor) -> torch.Tensor:
        setup.flat.params.copy_(params)
        return one_backward_a_sample(setup.flat.module, X, Y)

    rows = [0, 1, 2, 3, COALITION]
    recorder, results = record_all(setup, X, Y, signals, rows, True, sizes, one_start=False)
    checked = 0
    for t, result in enumerate(results):
        u, now = result.uploads, {name: a[t] for name, a in recorder.arrays().items()}
        ends = torch.stack([u.starts.params[u.start_of[r]] + u.updates[r] for r in range(4)])
        mean = 0.75 * ends[0] + 0.25 * ends[1]
        for row, params in enumerate([*ends, mean]):
            np.testing.assert_allclose(
                now["loss"][row], slow_loss(setup, params), rtol=1e-4, atol=1e-5
            )
        begun = u.starts.params[[*u.start_of, u.start_of[0]]]
        moved = torch.stack([*ends, mean]) - begun
        np.testing.assert_allclose(now["update-sq"][:, 0], moved.square().sum(1), rtol=1e-4)
        for row in range(5):
            of_received, of_upload = gradients(begun[row]), gradients(begun[row] + moved[row])
            np.testing.assert_allclose(
                now["grad-sq"][row], of_received.square().sum(1), rtol=1e-3, atol=1e-6
            )
            np.testing.assert_allclose(
                now["grad-dot"][row], -of_received @ moved[row], rtol=1e-3, atol=1e-6
            )
            np.testing.assert_allclose(
                now["upload-grad-sq"][row], of_upload.square().sum(1), rtol=1e-3, atol=1e-6
            )
        checked += len(set(u.start_of[:2])) > 1
    assert checked, "the coalition never trained on different models: choose another seed"


def test_absent_clients_have_no_numbers_and_a_mean_is_of_those_present():
    setup = tiny_setup(members=(0, 1), rounds=9, participation=0.25)
    rows = [0, 1, 2, 3, COALITION]
    recorder, results = record_all(setup, X, Y, {"loss": Loss()}, rows, gradients=True)
    present = [result.uploads.participants for result in results]
    assert len(set(present)) > 2
    for name in ("loss", "grad-dot", "update-sq"):
        known = np.isfinite(recorder.arrays()[name]).all(2)
        wanted = [[(k,) == there for k in range(4)] + [there[0] < 2] for there in present]
        assert known.tolist() == wanted, name
    assert recorder.rounds == [*range(1, 10)] and recorder.arrays()["grad-sq"].shape == (9, 1, 7)


# -- the view of the coalition ---------------------------------------------------------------------


class Follows(Attack):
    """Notes what it is shown of each target."""

    needs, view = frozenset({"loss"}), "coalition"

    def __init__(self):
        self.seen = {}
        self.shares = {}

    def score(self, observations: Observations, audit):
        assert observations.clients.tolist() == [-2, 0]
        self.shares[audit.target_client] = observations.shares
        self.seen[audit.target_client] = observations.of_target("loss")
        return np.zeros(len(audit.ids))


def test_clients_outside_an_observed_coalition_collude_first():
    """No client defends there: the highest ids would be the coalition's own."""
    job, _, scene = job_of(setting_of(), members=(2, 3))
    undefended, colludes = (
        replace(job, members=(), observed=(2, 3)),
        type("Colludes", (Attack,), {"colluders": 1})(),
    )
    assert {who for who in by_colluders(undefended, colludes, scene.audits)} == {(1,)}


def test_the_undefended_mean_beside_several_coalitions_is_the_one_made_by_hand():
    """Every observed group's mean, upload by upload, then its loss on one sample after the
    other.
    """
    groups = ((1, 4), (2, 3))
    sizes = {"name": "dirichlet-sizes", "beta": 3}
    setting = setting_of(partition=sizes, federation={"clients": 5, "rounds": 2})
    job, parts, scene = job_of(setting, members=(1, 2, 3, 4))
    job, attack = replace(job, members=(), observed=(1, 2, 3, 4), coalitions=groups), Follows()
    request = SignalRequest.of(attack)
    requests = [request, replace(request, view="server")]
    trained = train(job, parts, scene, requests, lambda t, measured: None)
    ask(Run(job=job, scene=scene, trained=trained), attack)
    setup = _setup(job, job_of(setting, members=(1, 2, 3, 4))[1], scene, [], set())
    sizes = torch.tensor([len(data.y) for data in setup.clients])
    # else any weights would do
    assert len({*sizes.tolist()}) > 2 and {*attack.seen} == {1, 2, 3, 4}
    *_, last = Training(setup).rounds()
    u, (x, y) = last.uploads, samples_of(scene, scene.pool, torch.device("cpu"))
    for audit in scene.audits:
        (group,) = (list(g) for g in groups if audit.target.index in g)
        shares = attack.shares[audit.target.index]
        assert np.flatnonzero(shares.any(axis=0)).tolist() == group
        mean = u.starts.params[0] + (sizes[group] / sizes[group].sum()) @ u.updates[group]
        at = np.searchsorted(scene.pool, audit.ids)
        wanted = slow_loss(setup, mean, x[at], y[at])
        np.testing.assert_allclose(
            attack.seen[audit.target.index][-1], wanted, rtol=2e-4, atol=1e-5
        )


# -- answers in place of a model's outputs ---------------------------------------------------------

LOGITS = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]])


def answering(does: Any) -> Defense:
    """A defense with this ``answer(logits, ctx)``."""
    return type("Mine", (Defense,), {"answer": lambda self, *args: does(*args)})()


def after(defense: Defense, **changes: Any) -> Training:
    """A finished federation."""
    return train_all(tiny_setup(defense, **changes))[0]


class Silent(Defense):
    """All classes alike, and class 2 a little ahead."""

    def answer(self, logits, ctx):
        return torch.zeros_like(logits) + 1e-3 * (torch.arange(logits.shape[1]) == 2)


def test_global_rows_final_logits_and_test_accuracy_are_of_the_answers_and_nothing_else_is():
    names = ("loss", "max-prob", "grad-dot", "grad-sq", f"loss{PRE_DEFENSE}")

    def trained(defense: type[Defense]):
        views: tuple[Any, ...] = ("server", "client", "coalition")
        requests = [
            SignalRequest(needs=frozenset(names), view=view, needs_shadow_models=True)
            for view in views
        ]
        return train_job(setting_of(), requests, defense=given_use(defense, {}, "asked"))

    undefended, answered = trained(Defense), trained(Silent)
    plain, asked, scene = undefended.trained, answered.trained, undefended.scene
    at, others = [plain.rows.index(-1)], [i for i, row in enumerate(plain.rows) if row != -1]
    assert plain.rows == asked.rows and -2 in plain.rows and len(others) == 5
    assert np.allclose(asked.signals["loss"][:, at], math.log(scene.data.n_classes), atol=1e-3)
    assert not np.allclose(plain.signals["loss"][:, at], math.log(scene.data.n_classes), atol=1e-1)
    for name in ("loss", "max-prob"):
        assert np.array_equal(plain.signals[name][:, others], asked.signals[name][:, others]), name
    # of parameters, and of what no answer has touched
    for name in ("grad-dot", "grad-sq", f"loss{PRE_DEFENSE}"):
        assert np.array_equal(plain.signals[name], asked.signals[name], equal_nan=True), name
    assert (asked.predicted == 2).all() and len(set(plain.predicted)) > 1
    assert np.array_equal(asked.test_correct, scene.data.test_y == 2)
    assert (
        np.ptp(asked.logits, axis=(0, 1)).max() == 0 and np.ptp(plain.logits, axis=(0, 1)).max() > 0
    )


def asking(body: Any, defense: Defense) -> np.ndarray:
    """What a signal with this ``measure(probe)`` has measured of a round, by whoever asks the
    model.
    """
    setup = tiny_setup(defense, rounds=1)
    signals = {"asks": type("Asks", (Signal,), {"measure": lambda self, probe: body(probe)})()}
    recorder = Recorder(setup.flat, X, Y, signals, False, [0, 1, 2, 3, GLOBAL], ((0, 1),), [12] * 4)
    training, (result,) = train_all(setup)
    recorder.answer = lambda j, z: answered(training, j, z)
    recorder.record(result)
    return recorder.arrays()["asks"][0]


def test_a_signal_that_asks_the_model_gets_answers_and_gradients_of_the_parameters():
    def asks(probe):
        asked = probe.model(probe.x)
        assert torch.equal(asked, probe.logits)
        with torch.enable_grad():
            raw = probe.model(probe.x).detach()
        return (raw - asked).abs().sum(1)

    plain, doubled = (asking(asks, made) for made in (Defense(), answering(lambda z, ctx: 2 * z)))
    assert (plain == 0).all() and (doubled[:4] == 0).all() and (doubled[4] > 0).all()
    with pytest.raises(
        PhaseError,
        match=r"Mine\.answer \(global model 0, after round 1\) returned a tensor of shape \[0,",
    ):
        only_many = answering(lambda z, ctx: z if len(z) > 1 else z[:0])
        asking(lambda probe: probe.model(probe.x[:1])[0, 0].expand(7).clone(), only_many)


def test_a_member_learns_of_the_model_that_came_of_the_round_and_trains_on_undisturbed():
    heard = {}

    class Asks(Defense):
        def select(self, ctx):
            assert ctx.ask_global is None

        def after_round(self, ctx):
            heard[ctx.round, ctx.client] = ctx.ask_global(ctx.data.x)

    setup = tiny_setup(Asks())
    results, plain = train_all(setup)[1], train_all(tiny_setup(Defense()))[1]
    for (t, k), logits in heard.items():
        flat, done = FlatModel(tiny_module(), torch.device("cpu")), results[t - 1]
        assert torch.equal(logits, flat.logits(done.state[0], setup.clients[k].x))
    assert sorted(heard) == [(t, k) for t in (1, 2, 3) for k in (0, 1)]
    assert all(
        torch.equal(a.uploads.updates, b.uploads.updates)
        for a, b in zip(results, plain, strict=True)
    )


def write_in_place(logits, ctx):
    return logits.zero_()


FITS = "a tensor of shape [2, 3]"
READ = "changed logits; it is read-only"
MISTAKES: dict[str, Any] = {
    "shape": (lambda z, ctx: z[:1], f" returned a tensor of shape [1, 3]; expected {FITS}"),
    "nan": (
        lambda z, ctx: z * math.nan,
        " returned logits that are not finite; expected finite ones, as it was given",
    ),
    "overflow": (
        lambda z, ctx: z.double() * 1e300,
        " returned logits that are not finite; expected finite ones",
    ),
    "in place": (write_in_place, f" {READ}"),
    "memory": (lambda z, ctx: ctx.of_member[0].update(asked=1), ": AttributeError: 'mappingproxy'"),
}


def test_a_wrong_answer_is_an_error_that_names_the_part_the_model_and_the_round():
    def said(defense: Defense) -> str:
        try:
            answered(after(defense, rounds=1), 0, LOGITS.clone())
        except PhaseError as error:
            return str(error)
        return ""

    missed = []
    for name, (does, words) in MISTAKES.items():
        for made in (
            answering(does),
            Composite([answering(lambda z, ctx: 2 * z), answering(does)]),
        ):
            if not said(made).startswith(f"Mine.answer (global model 0, after round 1){words}"):
                missed.append((name, said(made)))
    assert missed == []


def test_logits_that_are_not_finite_are_handed_on_and_answers_are_taken_in_the_engines_width():
    spoilt = LOGITS.clone()
    spoilt[0, 0] = math.inf
    said = answered(after(answering(lambda z, ctx: z.double() + 1), rounds=1), 0, spoilt)
    assert said.dtype == torch.float32 and torch.equal(said, spoilt + 1)
