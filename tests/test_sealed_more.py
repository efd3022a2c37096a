"""Ways round the seal that a second reader found: one test each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_insider, tiny_module, tiny_setup, train_all
from torch import nn

from fedbench.core import ActiveAttack, Data, Defense, Diverged, Model, Signal, UserError
from fedbench.core.contract.defense import needs_coalition, overrides
from fedbench.core.execution.model_checks import try_model
from fedbench.core.federation.compose import composed
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.federation.guard import PhaseError, require_served
from fedbench.core.federation.loop import Training
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.signals.logits import Loss
from fedbench.core.signals.measure import Recorder
from fedbench.core.words.explain import named


def defense(phase: str, does: Any) -> Defense:
    return type("Mine", (Defense,), {phase: lambda self, *args: does(*args)})()


def ends(made: Defense, kind: type[Exception] = PhaseError, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        train_all(tiny_setup(made, **{"rounds": 2, **changes}))
    return str(caught.value)


# --- signals ----------------------------------------------------------------------------------------------------------


class Sparse(Signal):
    def measure(self, probe):
        return probe.logits.amax(1).to_sparse()


class Buffered(Signal):
    """Answers with one tensor that it uses again."""

    out: Any = None

    def measure(self, probe):
        if self.out is None or len(self.out) != len(probe.y):
            self.out = torch.empty(len(probe.y))
        return torch.amax(probe.logits, 1, out=self.out)


class Strange(torch.Tensor):
    """One whose every operation fails."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.cat:
            raise RuntimeError("not with me")
        return super().__torch_function__(func, types, args, kwargs or {})


class Subclassed(Signal):
    def measure(self, probe):
        return probe.logits.amax(1).as_subclass(Strange)


def recorded(module: nn.Module | None = None, **signals: Signal) -> Recorder:
    setup = tiny_setup(rounds=1, module=module or tiny_module())
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(40, 4, generator=g), torch.randint(0, 3, (40,), generator=g)
    recorder = Recorder(setup.flat, x, y, signals, True, 4, (0, 1), {"server"}, [12] * 4)
    for result in Training(setup).rounds():
        recorder.record(result)
    return recorder


def test_a_sparse_answer_costs_its_own_signal_alone():
    recorder = recorded(mine=Sparse(), loss=Loss())
    assert set(recorder.failed) == {"mine"} and "loss" in recorder.arrays()
    assert recorder.failed["mine"].endswith("it returned sparse float32 [40] on cpu; expected float32 [40] on cpu")


@pytest.mark.parametrize("cls", [Buffered, Subclassed])
def test_an_answer_is_taken_as_plain_numbers_when_it_is_given(cls, monkeypatch):
    monkeypatch.setattr("fedbench.core.signals.measure.chunk_of", lambda x, size: 8)
    arrays = recorded(mine=cls(), highest=type("Highest", (Signal,), {"measure": lambda self, p: p.logits.amax(1)})()).arrays()
    np.testing.assert_array_equal(arrays["mine"], arrays["highest"])


class Wide(nn.Module):
    """Computes in float64, and answers in float32."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_module().double()

    def forward(self, x):
        return self.inner(x.double()).float()


def test_gradients_of_a_model_in_float64_are_measured():
    recorder = recorded(Wide(), loss=Loss())
    assert not recorder.failed and np.isfinite(recorder.arrays()["grad-dot"]).all()


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny_module()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x).float()


def test_gradients_through_autocast_are_those_of_each_sample():
    model, g = Autocast().eval(), torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 4, generator=g), torch.arange(20) % 3
    found = gradient_features(model, x, y, torch.ones(1, 51))
    gradients = per_sample_gradients(model, x, y)
    torch.testing.assert_close(found.sq, gradients.square().sum(1))
    torch.testing.assert_close(found.dot[0], gradients.sum(1))


# --- phases -----------------------------------------------------------------------------------------------------------


class OnItself(Defense):
    """Its phase is set where it is made."""

    def __init__(self, **values):
        super().__init__(**values)
        self.protect = lambda update, ctx: 0 * update


def test_a_phase_that_a_constructor_sets_is_a_phase():
    made = OnItself()
    assert overrides(made, "protect") and needs_coalition(made) and not overrides(made, "loss")
    for acts in (made, composed([made, Defense()])):
        assert not train_all(tiny_setup(acts, rounds=1))[1][0].uploads.updates[:2].any()


def test_a_check_that_never_ran_is_refused():
    class Lazy(Defense):
        def check(self, federation):
            yield federation

    for made in (Lazy(), composed([Defense(), Lazy()])):
        with pytest.raises(UserError, match=r"^Lazy\.check returned generator; expected None, or UserError raised"):
            require_served(made, tiny_setup(made).facts)


HOOKS = {
    "a parameter's": lambda model: next(model.parameters()).register_hook(lambda g: 0 * g),
    "after its gradient": lambda model: next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None),
    "before the backward pass": lambda model: model.register_full_backward_pre_hook(lambda module, g: None),
    "another forward": lambda model: setattr(model, "forward", lambda x: x[:, :3]),
}


@pytest.mark.parametrize("which", HOOKS)
def test_no_hook_of_any_kind_stays_behind(which):
    said = ends(defense("after_round", lambda ctx: (HOOKS[which](ctx.model), None)[1]))
    assert said.startswith("Mine.after_round (client 0, round 1) changed its model: ")


def test_a_write_to_what_another_client_was_handed_is_found():
    class Keeps(Defense):
        others: Any = None

        def protect(self, update, ctx):
            if self.others is None:
                self.others = ctx.data.x
            elif ctx.client == 1:
                self.others.zero_()
            return update

    assert ends(Keeps()).startswith("Keeps.protect (client 0, round 2) changed ctx.data.x; ")


@pytest.mark.parametrize(("change", "what"), [
    (lambda data: replace(data, y=data.y + 3), "data.y from 3 to 5; expected labels in 0..2"),
    (lambda data: replace(data, y=data.y - 3), "data.y from -3 to -1; expected labels in 0..2"),
    (lambda data: replace(data, x=data.x / 0), "data.x with values that are not finite; expected finite ones"),
    (lambda data: replace(data, soft=torch.full((12, 3), torch.nan)), "data.soft with values that are not finite; expected"),
])  # fmt: skip
def test_data_that_nothing_can_be_trained_on_are_refused_where_they_are_made(change, what):
    said = ends(defense("prepare", lambda data, ctx: change(data)))
    assert said.startswith(f"Mine.prepare (client 0, before round 1) returned {what}")


def test_a_float64_that_is_no_float32_is_the_phases_doing():
    for phase in ("protect", "coordinate"):
        said = ends(defense(phase, lambda rows, ctx: rows.double() * 1e300), Diverged)
        assert said == f"round 1: Mine.{phase} made the upload of client 0, 1 not finite; mend it"


def test_a_divergence_names_the_data_that_were_prepared():
    said = ends(defense("prepare", lambda data, ctx: replace(data, x=data.x * 1e38)), Diverged)
    assert said.endswith("lower the learning rate or mend Mine.prepare")


class Quiet(ActiveAttack):
    """An adversary whose rows are nothing beside the honest ones."""

    def craft(self, round, knowledge):
        return 1e-6 * knowledge.own


class Loud(ActiveAttack):
    def craft(self, round, knowledge):
        return 1e25 * torch.ones_like(knowledge.own)


def test_an_adversary_is_not_blamed_for_what_its_rows_cannot_have_done():
    blows = defense("protect", lambda update, ctx: update * 1e10)
    with pytest.raises(Diverged) as caught:
        train_all(tiny_setup(blows, rounds=5, insider=tiny_insider(Quiet())))
    assert caught.type is Diverged and "mend Mine.protect" in str(caught.value)
    with pytest.raises(DivergedByAdversary):
        train_all(tiny_setup(rounds=5, members=(), insider=tiny_insider(Loud())))


# --- the rest ---------------------------------------------------------------------------------------------------------


class Leaves(Exception):
    def __str__(self):
        raise SystemExit(3)


def test_an_exception_that_leaves_when_it_is_told_is_named_all_the_same():
    assert named(Leaves()) == "Leaves"
    said = ends(defense("protect", lambda update, ctx: (_ for _ in ()).throw(Leaves())))
    assert said.startswith("Mine.protect (client 0, round 1): Leaves (test_sealed_more.py:")


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3).double(), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(self.a(x.double()).float())


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).real


@pytest.mark.parametrize(("cls", "dtypes"), [(Mixed, "float32 and float64"), (Complex, "complex64")])
def test_parameters_that_fit_in_no_one_vector_are_refused(cls, dtypes):
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    data = Data(train_x=x, train_y=y, test_x=x, test_y=y, holdout_x=x, holdout_y=y, n_classes=3)
    model = type("Mine", (Model,), {"build": lambda self, shape, classes: cls()})()
    with pytest.raises(UserError, match=f"^the model Mine has trainable parameters of {dtypes}; expected one real dtype"):
        try_model(model, data)
