"""A signal changes nobody else's numbers, and one that fails costs the cells that need it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from fake_packages import install
from jobs import use
from running import invoke, outcomes, suite
from tiny import tiny_module, tiny_setup
from torch import nn

from fedbench.core import Signal
from fedbench.core.experiment.train import signals_of
from fedbench.core.federation.loop import Training
from fedbench.core.signals.logits import Loss, Margin
from fedbench.core.signals.measure import PRE_DEFENSE, Recorder


class InPlace(Signal):
    """The textbook margin: right, and it writes to what it was handed."""

    def measure(self, probe):
        n = torch.arange(len(probe.y))
        of_label = probe.logits[n, probe.y].clone()
        probe.logits[n, probe.y] = -torch.inf
        margin = of_label - probe.logits.amax(1)
        probe.y.zero_(), probe.x.zero_(), probe.update.zero_()
        probe.x.numpy()[:] = 7
        return margin


class Hooked(Signal):
    """Leaves a hook in the model, which is its own copy: the hook meets its own later calls alone."""

    def measure(self, probe):
        probe.model.register_forward_hook(lambda module, args, out: out * 0)
        return probe.logits.amax(1)


class Restores(Signal):
    """Moves the parameters to look around, and puts back what was there."""

    def measure(self, probe):
        kept = [p.clone() for p in probe.model.parameters()]
        for p in probe.model.parameters():
            p.mul_(1.5)
        loud = probe.model(probe.x).amax(1)
        for p, before in zip(probe.model.parameters(), kept, strict=True):
            p.copy_(before)
        return loud


class Zeroes(Signal):
    def measure(self, probe):
        for p in probe.model.parameters():
            p.zero_()
        return probe.logits.amax(1)


class ZeroesUnseen(Signal):
    """In the two ways that torch's version counters do not see."""

    def measure(self, probe):
        first, *others = probe.model.parameters()
        first.data.zero_()
        others[0].detach().numpy()[:] = 0
        return probe.logits.amax(1)


class Swaps(Signal):
    def measure(self, probe):
        p = next(probe.model.parameters())
        p.data = torch.zeros_like(p)
        return probe.logits.amax(1)


class Statistics(Signal):
    def measure(self, probe):
        probe.model.train()
        out = probe.model(probe.x).amax(1)
        probe.model.eval()
        return out


class Mode(Signal):
    def measure(self, probe):
        probe.model.train()
        return probe.logits.amax(1)


class Raises(Signal):
    def measure(self, probe):
        raise KeyError("sigma")


class Leaves(Signal):
    def measure(self, probe):
        raise SystemExit(0)


class Scalar(Signal):
    def measure(self, probe):
        return probe.logits.mean()


class Double(Signal):
    def measure(self, probe):
        return probe.logits.double().amax(1)


class Listed(Signal):
    def measure(self, probe):
        return probe.y.tolist()


class NotANumber(Signal):
    def measure(self, probe):
        return probe.logits.amax(1).where(probe.y > 0, torch.nan)


FINE = [InPlace, Hooked, Restores]
BAD = {
    Zeroes: "it changed the model's parameters; work on a copy, or put back what was there",
    ZeroesUnseen: "it changed the model's parameters",
    Swaps: "it changed the model's parameters",
    Statistics: "it changed the model's buffers",
    Mode: "it changed the model's mode: it is no longer in eval mode",
    Raises: "KeyError: 'sigma' (test_sealed_signals.py:",
    Leaves: "it called sys.exit(0)",
    Scalar: "it returned float32 [] on cpu; expected float32 [40] on cpu",
    Double: "it returned float64 [40] on cpu; expected float32 [40] on cpu",
    Listed: "it returned list; expected float32 [40] on cpu",
    NotANumber: "of its 40 numbers are not finite, though the logits are",
}


def normalised() -> nn.Module:
    """With buffers that training moves."""
    return nn.Sequential(nn.BatchNorm1d(4), tiny_module())


def recorded(*, gradients: bool = True, rounds: int = 2, module: nn.Module | None = None, **signals: Signal):
    """(the recorder, the models after every round) of a federation that is measured in every round."""
    setup = tiny_setup(rounds=rounds, module=module or normalised(), keep_unprotected=True)
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(40, 4, generator=g), torch.randint(0, 3, (40,), generator=g)
    own = {name.replace("_", "-").replace("-at-", "@"): signal for name, signal in signals.items()}
    recorder = Recorder(
        setup.flat, x, y, own, gradients, 4, (0, 1), {"server", "client"}, [12] * 4, who={n: f"'{n}' (mine 1.0)" for n in own}
    )
    models = []
    for result in Training(setup).rounds():
        recorder.record(result)
        models.append(result.models.clone())
    return recorder, torch.stack(models)


@pytest.fixture(scope="module")
def undisturbed():
    """Without any foreign signal."""
    return recorded(loss=Loss(), margin=Margin(), loss_at_pre_defense=Loss())


@pytest.mark.parametrize("cls", [*FINE, *BAD], ids=lambda cls: cls.__name__)
def test_a_signal_changes_nobody_elses_numbers(cls, undisturbed):
    beside, models = recorded(loss=Loss(), mine=cls(), margin=Margin(), loss_at_pre_defense=Loss())
    alone, expected = undisturbed
    mine, theirs = beside.arrays(), alone.arrays()
    assert torch.equal(models, expected)
    assert f"loss{PRE_DEFENSE}" in theirs and "grad-dot" in theirs
    for name, values in theirs.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)
    assert ("mine" in mine) == (cls in FINE) and set(beside.failed) == set(() if cls in FINE else ("mine",))


@pytest.mark.parametrize("cls", BAD, ids=lambda cls: cls.__name__)
def test_a_signal_that_fails_names_itself(cls):
    recorder, _ = recorded(mine=cls())
    assert recorder.failed["mine"].startswith("signal 'mine' (mine 1.0): round 1: ") and BAD[cls] in recorder.failed["mine"]


def test_what_a_signal_measures_of_its_copy_is_what_the_engine_has():
    arrays = recorded(mine=InPlace(), margin=Margin(), loud=Restores())[0].arrays()
    np.testing.assert_array_equal(arrays["mine"], arrays["margin"])
    assert np.isfinite(arrays["loud"]).all() and len(np.unique(arrays["loud"])) > 40


def test_a_signal_that_fails_late_counts_nowhere():
    class Late(Signal):
        calls = 0

        def measure(self, probe):
            self.calls += 1
            return probe.logits.amax(1) if self.calls < 8 else None

    recorder, _ = recorded(mine=Late(), loss=Loss())
    assert set(recorder.failed) == {"mine"} and "round 2: it returned NoneType" in recorder.failed["mine"]
    assert "mine" not in recorder.arrays() and recorder.arrays()["loss"].shape == (2, 5, 40)


def test_numbers_that_overflow_are_not_the_signals_fault():
    class Huge(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_module()

        def forward(self, x):
            return self.inner(x) if self.training else self.inner(x) * 1e38

    recorder, _ = recorded(margin=Margin(), gradients=False, module=Huge())
    assert not recorder.failed and not np.isfinite(recorder.arrays()["margin"]).all()


class Batchwise(nn.Module):
    """Known to no formula, and `vmap` cannot go through it."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = tiny_module(), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.inner(x) * (self.scale if bool((x != 0).any()) else 1)


def test_gradients_that_vmap_cannot_give_are_had_one_by_one():
    recorder, _ = recorded(loss=Loss(), module=Batchwise())
    assert not recorder.failed and set(recorder.arrays()) == {"loss", "grad-dot", "grad-sq", "update-sq"}
    assert set(recorder.notes) == {"grad-dot", "grad-sq"}
    assert recorder.notes["grad-dot"].startswith("per-sample gradients in eval mode were taken one by one: ")
    assert recorded(loss=Loss())[0].notes == {}


def test_gradients_that_cannot_be_had_cost_their_own_signals_alone():
    class Hopeless(Batchwise):
        """It can be evaluated, and trained in batches, but gives no gradient in eval mode."""

        def forward(self, x):
            return super().forward(x) if self.training else super().forward(x).detach()

    recorder, _ = recorded(loss=Loss(), module=Hopeless())
    assert set(recorder.failed) == {"grad-dot", "grad-sq", "update-sq"} and set(recorder.arrays()) == {"loss"}
    assert recorder.failed["grad-sq"].startswith("signal 'grad-sq': round 1: RuntimeError: ")


class Unmade(Signal):
    def __init__(self, **values):
        super().__init__(**values)
        raise OSError("no such weights")


def test_a_signal_that_cannot_be_made_costs_its_own_cells():
    job = SimpleNamespace(signals={"mine": use(Unmade), "loss": use(Loss)})
    made, failed = signals_of(cast(Any, job), {"mine", "loss", "grad-dot"})
    assert set(made) == {"loss"} and set(failed) == {"mine"}
    assert failed["mine"].startswith("signal 'Unmade' (tests 0): OSError: no such weights (test_sealed_signals.py:")


PLUGIN = """
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Signal, hookimpl

    class InPlace(Signal):
        def measure(self, probe):
            n = torch.arange(len(probe.y))
            own = probe.logits[n, probe.y].clone()
            probe.logits[n, probe.y] = -torch.inf
            return own - probe.logits.amax(1)

    class Fails(Signal):
        def measure(self, probe):
            raise ValueError("out of ideas")

    def reader(name):
        def score(self, observations, audit):
            return np.nanmean(observations.of_target(name), axis=0)
        return type("Reads" + name, (Attack,), {"needs": frozenset({name}), "score": score})

    ReadsInPlace, ReadsFails = reader("in-place"), reader("fails")

    @hookimpl
    def fedbench_signals():
        yield Component("in-place", "seals:InPlace", "a toy")
        yield Component("fails", "seals:Fails", "a toy")

    @hookimpl
    def fedbench_attacks():
        yield Component("reads-in-place", "seals:ReadsInPlace", "a toy")
        yield Component("reads-fails", "seals:ReadsFails", "a toy")
"""


def test_other_cells_of_a_run_keep_their_scores_under_their_keys(site, tmp_path):
    install(site, "seals", PLUGIN)
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    attacks = ["loss-series", "avg-cosine", "fta-l"]
    invoke(suite(tmp_path, attacks=attacks), "--results", alone)
    foreign = ["reads-in-place", "reads-fails"]
    invoke(suite(tmp_path, attacks=[*foreign, *attacks]), "--results", beside, status=1)
    assert outcomes(beside)["reads-in-place"] == ("ok", "")
    outcome, reason = outcomes(beside)["reads-fails"]
    assert outcome == "failed"
    assert reason.startswith("signal 'fails' (seals 1.0): round 2: ValueError: out of ideas (seals.py:")
    scores = {p.name: p.read_bytes() for p in (alone / "records").glob("*.npz")}
    assert len(scores) == len(attacks)
    assert scores == {name: (beside / "records" / name).read_bytes() for name in scores}
