"""Signals: what one does never changes another's numbers, attacks see those that they declare, and
a failure costs its cells.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_packages import install
from numpy.testing import assert_array_equal
from running import invoke, loaded, records, suite
from tiny import record_all, tiny_module, tiny_setup
from torch import nn

from fedbench.core import Signal, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.signals.builtin import Loss, Margin
from fedbench.core.signals.measure import GLOBAL, GRADIENT_SIGNALS, PRE_DEFENSE
from fedbench.core.store.run_file import digest_of_arrays


def measured(does, **declared):
    """A signal with this ``measure(probe)``."""
    return type("Mine", (Signal,), {"measure": lambda self, probe: does(probe), **declared})


def highest(probe):
    return probe.logits.amax(1)


def in_place(probe):
    """The textbook margin, which writes to all that it was handed."""
    n = torch.arange(len(probe.y))
    of_label = probe.logits[n, probe.y].clone()
    probe.logits[n, probe.y] = -torch.inf
    margin = of_label - probe.logits.amax(1)
    probe.y.zero_(), probe.x.zero_(), probe.update.zero_()
    probe.x.numpy()[:] = 7
    return margin


def hooked(probe):
    probe.model.register_forward_hook(lambda module, args, out: out * 0)
    return highest(probe)


def restores(probe):
    """Moves the parameters to look around, and puts back what was there."""
    for p in probe.model.parameters():
        p.mul_(2)
    loud = probe.model(probe.x).amax(1)
    for p in probe.model.parameters():
        p.mul_(0.5)
    return loud


def zeroed(probe):
    """Changes its copy of the model after use; the next chunk gets a fresh one."""
    values = probe.model(probe.x).amax(1)
    first, *others = probe.model.parameters()
    first.data = torch.zeros_like(first)
    others[0].detach().numpy()[:] = 0
    return values


def statistics(probe):
    probe.model.train()
    probe.model(probe.x)
    probe.model.eval()
    return highest(probe)


def left_in_training(probe):
    probe.model.train()
    return highest(probe)


def raises(probe):
    raise KeyError("sigma")


def leaves(probe):
    raise SystemExit(0)


class Strange(torch.Tensor):
    """One that cannot be put beside others."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.cat:
            raise RuntimeError("not with me")
        return super().__torch_function__(func, types, args, kwargs or {})


class Late(Signal):
    calls = 0

    def measure(self, probe):
        self.calls += 1
        return highest(probe) if self.calls < 8 else None


class Grows(Signal):
    """Longer with every round."""

    vector, calls = True, 0

    def measure(self, probe):
        self.calls += 1
        return probe.logits[:, :1].repeat(1, self.calls)


FINE = {
    "in place": measured(in_place),
    "hooked": measured(hooked),
    "restores": measured(restores),
    "zeroes": measured(zeroed),
    "statistics": measured(statistics),
    "mode": measured(left_in_training),
    "a subclass": measured(lambda probe: highest(probe).as_subclass(Strange)),
}
WANTED = "expected float32 [40] on cpu"
BAD = {
    "raises": (measured(raises), "round 1: KeyError: 'sigma' (test_sealed_signals.py:"),
    "exits": (measured(leaves), "round 1: it called sys.exit(0)"),
    "double": (
        measured(lambda probe: highest(probe).double()),
        f"round 1: it returned float64 [40] on cpu; {WANTED}",
    ),
    "sparse": (
        measured(lambda probe: highest(probe).to_sparse()),
        f"round 1: it returned sparse float32 [40] on cpu; {WANTED}",
    ),
    "no number": (
        measured(lambda probe: highest(probe).where(torch.arange(40) > 2, torch.nan)),
        "round 1: 3 of its 40 numbers are not finite, though the logits are",
    ),
    "undeclared": (
        measured(lambda probe: probe.logits),
        f"round 1: it returned float32 [40, 3] on cpu; {WANTED}",
    ),
    "no vector": (
        measured(highest, vector=True),
        "before round 1: it returned float32 [16] on cpu; expected float32 [16, d] on cpu, d >= 1, "
        "since its `vector`",
    ),
    "empty": (
        measured(lambda probe: probe.logits[:, :0], vector=True),
        "before round 1: it returned float32 [16, 0] on cpu; expected float32 [16, d] on cpu",
    ),
    "partly no number": (
        measured(lambda probe: probe.logits.where(torch.arange(3) > 0, torch.nan), vector=True),
        "before round 1: 16 of its 16 vectors are not finite, though the logits are",
    ),
    "longer": (
        Grows,
        "round 1: it returned float32 [40, 2] on cpu; expected float32 [40, 1] on cpu, as long as "
        "its first answer",
    ),
    "late": (Late, f"round 2: it returned NoneType; {WANTED}"),
}


def recorded(*, gradients=True, module=None, **signals):
    """(the recorder, the models after both rounds) of a federation that is measured in every round,
    in its own model.
    """
    # with buffers that training moves
    module = module or nn.Sequential(nn.BatchNorm1d(4), tiny_module())
    setup = tiny_setup(rounds=2, module=module, keep_unprotected=True)
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(40, 4, generator=g), torch.randint(0, 3, (40,), generator=g)
    own = {name.replace("_at_", "@").replace("_", "-"): signal for name, signal in signals.items()}
    who = {name: f"'{name}' (mine 1.0)" for name in own}
    recorder, results = record_all(setup, x, y, own, [0, 1, 2, 3, GLOBAL], gradients, names=who)
    return recorder, torch.stack([result.models for result in results])


@pytest.fixture(scope="module")
def undisturbed():
    """Without any foreign signal."""
    return recorded(
        loss=Loss(), margin=Margin(), loss_at_pre_defense=Loss(), highest=measured(highest)()
    )


@pytest.mark.parametrize("name", [*FINE, *BAD])
def test_a_signal_changes_no_other_numbers_and_one_that_fails_names_itself(name, undisturbed):
    cls, message = BAD.get(name) or (FINE[name], "")
    alone, expected = undisturbed
    beside, models = recorded(
        loss=Loss(),
        mine=cls(),
        margin=Margin(),
        loss_at_pre_defense=Loss(),
        highest=measured(highest)(),
    )
    mine, theirs = beside.arrays(), alone.arrays()
    assert torch.equal(models, expected) and {f"loss{PRE_DEFENSE}", "grad-dot"} < {*theirs}
    for other, values in theirs.items():
        assert_array_equal(mine[other], values, err_msg=other)
    if name in BAD:
        assert "mine" not in mine and beside.failed.keys() == {"mine"}
        assert beside.failed["mine"].startswith(f"signal 'mine' (mine 1.0): {message}")
        return
    assert not beside.failed
    if name == "restores":
        assert np.isfinite(mine["mine"]).all() and len(np.unique(mine["mine"])) > 40
    else:
        assert_array_equal(mine["mine"], mine["margin" if name == "in place" else "highest"])


class Odd(nn.Module):
    """A model that computes in float64, has logits that overflow in eval mode, or has no formula
    for its gradients.
    """

    def __init__(self, kind):
        super().__init__()
        self.inner, self.scale, self.kind = tiny_module(), nn.Parameter(torch.ones(1)), kind
        if kind == "double":
            self.inner.double()
            del self.scale

    def forward(self, x):
        if self.kind == "double":
            return self.inner(x.double()).float()
        if self.kind == "huge":
            return self.inner(x) if self.training else self.inner(x) * 1e38
        # vmap cannot go through it
        out = self.inner(x) * (self.scale if bool((x != 0).any()) else 1)
        return out if self.training or self.kind == "one by one" else out.detach()


def test_numbers_that_overflow_are_not_the_signals_fault():
    recorder, _ = recorded(margin=Margin(), gradients=False, module=Odd("huge"))
    assert not recorder.failed and not np.isfinite(recorder.arrays()["margin"]).all()


def test_gradients_of_models_of_any_kind_are_measured_or_cost_their_own_signals_alone():
    wide, slow, hopeless = (
        recorded(loss=Loss(), module=Odd(kind))[0] for kind in ("double", "one by one", "none")
    )
    every = {"loss", *GRADIENT_SIGNALS}
    assert not wide.failed and wide.notes == {} and np.isfinite(wide.arrays()["grad-dot"]).all()
    assert (
        not slow.failed and {*slow.arrays()} == every and {*slow.notes} == {"grad-dot", "grad-sq"}
    )
    assert slow.notes["grad-dot"].startswith(
        "per-sample gradients in eval mode were taken one by one: "
    )
    assert {*hopeless.failed} == GRADIENT_SIGNALS and {*hopeless.arrays()} == {"loss"}
    assert hopeless.failed["grad-sq"].startswith(
        "signal 'grad-sq': round 1: RuntimeError: the model gives no gradient for a sample alone: "
    )


# -- in a run --------------------------------------------------------------------------------------

NEIGHBOURS = """
    import random
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Defense, UserError, hookimpl

    class Learns(Attack):
        needs = frozenset({"loss"})
        colluders = 1
        def fit(self, shadows, audit):
            self.taught = set(shadows[0].observations.signals)
        def score(self, observations, audit):
            assert self.taught == set(observations.signals) == {"loss"}
            return observations.of_target("loss").mean(0)

    class Blind(Attack):
        '''Needs nothing but the labels.'''
        def score(self, observations, audit):
            assert not observations.signals
            return audit.y.astype(float)

    class Draws(Defense):
        '''From the generators of the process.'''
        def protect(self, update, ctx):
            noise = torch.from_numpy(np.random.normal(size=update.shape)) + random.random()
            return update + 0.01 * noise.to(update)

    class Refuses(Defense):
        def protect(self, update, ctx):
            if ctx.client == 1 and ctx.round == 2:
                raise UserError("it needs more samples of this class")
            return update

    @hookimpl
    def fedbench_attacks():
        yield Component("learns", "neighbours:Learns", "a toy")
        yield Component("blind", "neighbours:Blind", "a toy")

    @hookimpl
    def fedbench_defenses():
        yield Component("draws", "neighbours:Draws", "a toy")
        yield Component("refuses", "neighbours:Refuses", "a toy")
"""
PLUGIN = """
    import random
    import numpy as np
    import torch
    from pydantic import Field
    from fedbench.core import Analysis, Attack, Component, Findings, Params, Signal, hookimpl
    torch.set_default_dtype(torch.float64)

    def sets():
        torch.set_default_dtype(torch.float64)
        np.random.rand(), random.random(), np.seterr(all="raise")

    class Sets(Signal):
        def measure(self, probe):
            sets()
            probe.logits.zero_()
            return probe.model(probe.x).amax(1).float()

    class Fails(Signal):
        def measure(self, probe):
            raise ValueError("out of ideas")

    class Power(Signal):
        class Params(Params):
            exponent: float = Field(1.0, ge=0, le=9, description="of the largest probability")
        def measure(self, probe):
            return probe.logits.softmax(1).amax(1).pow(self.params.exponent)

    class Bound(Signal):
        class Params(Params):
            level: float = Field(ge=0, le=1, description="has no default")
        def measure(self, probe):
            return probe.logits.softmax(1).amax(1).clamp(max=self.params.level)

    def reader(name, *needs):
        def score(self, observations, audit):
            assert set(observations.signals) == {*needs}, observations.signals
            for a in (*observations.signals.values(), observations.rounds, audit.y, audit.ids):
                try:
                    a[:] = 7
                except ValueError as error:
                    assert "read-only" in str(error)
                else:
                    raise AssertionError("it can write to what it is shown")
            audit.rng.random(99), audit.randn(99)
            return np.nanmean(observations.of_target(needs[0]), axis=0)
        parts = {"needs": frozenset(needs), "score": score, "__module__": __name__}
        return type(name, (Attack,), parts)

    ReadsSets, ReadsFails = reader("R", "sets"), reader("F", "fails")
    Early = reader("E", "grad-sq@pre-defense")
    Typo, Bounded = reader("T", "los", "grad-dott"), reader("B", "bound")

    class Powerful(reader("P", "power", "max-prob")):
        def score(self, observations, audit):
            seen = observations.signals
            np.testing.assert_allclose(seen["power"], seen["max-prob"] ** 2, rtol=1e-5)
            return super().score(observations, audit)

    class Peeks(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return observations.of_target("grad-sq").mean(0)

    class Wide(Analysis):
        def __init__(self, **values):
            super().__init__(**values)
            sets()
        def analyse(self, run, judgement):
            return Findings({})

    class Odd(Wide):
        needs = frozenset({"margins"})

    @hookimpl
    def fedbench_signals():
        for name in ("sets", "fails", "power", "bound"):
            yield Component(name, f"seals:{name.title()}", "a toy")

    @hookimpl
    def fedbench_attacks():
        for name in ("ReadsSets", "ReadsFails", "Early", "Typo", "Bounded", "Powerful", "Peeks"):
            yield Component(name.lower(), f"seals:{name}", "a toy")

    @hookimpl
    def fedbench_analyses():
        yield Component("wide", "seals:Wide", "a toy")
        yield Component("odd", "seals:Odd", "a toy")
"""


@pytest.fixture
def seals(site):
    install(site, "seals", PLUGIN)
    install(site, "neighbours", NEIGHBOURS)


def test_other_cells_of_a_run_change_no_score_and_failures_cost_their_own(seals, tmp_path):
    """Signals and an analysis that set what the whole process shares, attacks that try to write to
    what they are shown and draw from their generators, beside a defense that draws from the
    process's.
    """
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    attacks, foreign = (
        ["loss-series", "avg-cosine", "learns", "blind"],
        ["readssets", "readsfails", "peeks", "powerful"],
    )
    invoke(suite(tmp_path, defenses=["draws"], attacks=attacks), "--results", alone)
    more = {"analyses": ["wide"], "signals": [{"name": "power", "params": {"exponent": 2.0}}]}
    path = suite(tmp_path, defenses=["draws", "refuses"], attacks=[*foreign, *attacks], **more)
    invoke(path, "--results", beside, status=1)
    scores, others = (
        {
            r.record.attack.label: digest_of_arrays(r.all_arrays())
            for r in loaded(folder)
            if r.record.outcome == "ok"
        }
        for folder in (alone, beside)
    )
    assert len(scores) == len(attacks) and scores == {name: others[name] for name in scores}
    found = {(d, a): (r["outcome"], r["reason"]) for (d, a, _), r in records(beside).items()}
    assert {found["draws", name] for name in (*attacks, "readssets", "powerful")} == {("ok", "")}
    unread = "it reads the signal 'grad-sq', but its `needs` are loss: add 'grad-sq' to them"
    assert found["draws", "peeks"] == ("failed", unread)
    outcome, reason = found["draws", "readsfails"]
    assert outcome == "failed"
    assert reason.startswith(
        "signal 'fails' (seals 1.0): round 2: ValueError: out of ideas (seals.py:"
    )
    refused = ("failed", "Refuses.protect (client 1, round 2): it needs more samples of this class")
    assert {found["refuses", name] for name in (*attacks, *foreign)} == {refused}
    assert records(beside)["draws", "powerful", 0]["identity"]["signals"]["power"]["params"] == {
        "exponent": 2.0
    }


def test_unknown_signals_and_their_parameters_are_mistakes_of_the_plan(seals, tmp_path):
    def mistakes(**changes):
        with pytest.raises(UserError) as caught:
            build_plan(str(suite(tmp_path, **changes)), (), tmp_path / "r", "cpu")
        return [m.partition("/tiny.yaml")[2].partition(": ")[2] for m in caught.value.messages]

    said = mistakes(attacks=["loss-series", "typo", "early"], analyses=["odd"])
    wanted = [
        "attack 'typo' (seals 1.0): its needs: unknown signal 'grad-dott' - did you mean "
        "'grad-dot'?; the signals are ",
        "attack 'typo' (seals 1.0): its needs: unknown signal 'los' - did you mean 'loss'?; the "
        "signals are ",
        "attack 'early' (seals 1.0): its needs: 'grad-sq@pre-defense': signals of the gradient are "
        "measured of what was uploaded "
        "alone; write 'grad-sq'",
        "analysis 'odd' (seals 1.0): its needs: unknown signal 'margins' - did you mean 'margin'?",
    ]
    assert [line[: len(w)] for line, w in zip(said, wanted, strict=True)] == wanted
    (line,) = mistakes(
        attacks=["powerful"], signals=[{"name": "power", "params": {"exponent": 99}}]
    )
    assert "signals[0].params.exponent: expected a number in [0, 9], found 99" in line
    (line,) = mistakes(attacks=["bounded"])
    assert (
        "signal 'bound' (seals 1.0) cannot be made: " in line
        and "a suite sets its parameters under `signals:`" in line
    )
