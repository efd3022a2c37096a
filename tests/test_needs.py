"""An attack sees the signals that it declares and no others; whoever declares one that is not there hears of it early."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fake_packages import install
from running import invoke, records, suite

from fedbench.core import UserError
from fedbench.core.cli.list_ import command as list_
from fedbench.core.cli.run import build_plan
from fedbench.core.cli.validate import command as validate
from fedbench.core.signals.measure import GRADIENT_SIGNALS

PLUGIN = """
    import numpy as np
    from pydantic import Field
    from fedbench.core import Analysis, Attack, Component, Findings, Params, Signal, hookimpl

    class Power(Signal):
        class Params(Params):
            exponent: float = Field(1.0, ge=0, le=9, description="of the largest logit")
        def measure(self, probe):
            return probe.logits.softmax(1).amax(1).pow(self.params.exponent)

    class Bound(Signal):
        class Params(Params):
            level: float = Field(ge=0, le=1, description="has no default")
        def measure(self, probe):
            return probe.logits.softmax(1).amax(1).clamp(max=self.params.level)

    class Shown(Attack):
        '''The number of signals that it is shown, as everybody's score.'''
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return np.full(len(audit.ids), float(len(observations.signals)))

    class Learns(Shown):
        '''The same of what its colluder shares.'''
        colluders = 1
        def fit(self, shadows, audit):
            self.seen = sorted(shadows[0].observations.signals)
        def score(self, observations, audit):
            assert self.seen == ["loss"], self.seen
            return super().score(observations, audit)

    class Peeks(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return observations.of_target("grad-sq").mean(0)

    class Blind(Attack):
        '''Needs nothing but the labels.'''
        def score(self, observations, audit):
            assert not observations.signals
            return audit.y.astype(float)

    class Typo(Attack):
        needs = frozenset({"los", "grad-dott"})

    class Early(Attack):
        needs = frozenset({"grad-sq@pre-defense"})

    class Powerful(Attack):
        needs = frozenset({"power"})
        def score(self, observations, audit):
            return np.nanmean(observations.of_target("power"), axis=0)

    class Bounded(Attack):
        needs = frozenset({"bound", "bound@pre-defense"})
        def score(self, observations, audit):
            return np.nanmean(observations.of_target("bound"), axis=0)

    class Odd(Analysis):
        needs = frozenset({"margins"})
        def analyse(self, run, judgement):
            return Findings({})

    @hookimpl
    def fedbench_signals():
        yield Component("power", "needy:Power", "a toy")
        yield Component("bound", "needy:Bound", "a toy")

    @hookimpl
    def fedbench_attacks():
        for cls in ("Shown", "Learns", "Peeks", "Blind", "Typo", "Early", "Powerful", "Bounded"):
            yield Component(cls.lower(), f"needy:{cls}", "a toy")

    @hookimpl
    def fedbench_analyses():
        yield Component("odd", "needy:Odd", "a toy")
"""


@pytest.fixture
def needy(site):
    install(site, "needy", PLUGIN)


def scores(folder):
    return {p.name: p.read_bytes() for p in (folder / "records").glob("*.npz")}


def test_a_score_does_not_depend_on_the_suites_other_attacks(needy, tmp_path):
    mine = ["shown", "learns", "blind"]
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    invoke(suite(tmp_path, attacks=mine), "--results", alone)
    invoke(suite(tmp_path, attacks=[*mine, "avg-cosine", "fta-c", "passive"]), "--results", beside)
    assert {r["outcome"] for r in records(alone).values()} == {"ok"}
    kept = scores(alone)
    assert len(kept) == 3 and kept == {name: scores(beside)[name] for name in kept}


def test_a_signal_that_was_not_declared_is_not_there(needy, tmp_path):
    invoke(suite(tmp_path, attacks=["peeks", "avg-cosine"]), "--results", tmp_path / "r")
    found = records(tmp_path / "r")["none", "peeks", 0]
    said = "the view 'server' has no signal 'grad-sq'; of the attack's `needs` it has loss"
    assert (found["outcome"], found["reason"]) == ("skipped", said)


def test_an_unknown_signal_is_a_mistake_of_the_plan(needy, tmp_path):
    path = suite(tmp_path, attacks=["loss-series", "typo", "early"], analyses=["odd"])
    with pytest.raises(UserError) as caught:
        build_plan(str(path), (), tmp_path / "r", "cpu")
    lines = [m.partition("/tiny.yaml")[2] for m in caught.value.messages]
    needs = ("attack 'typo'", "attack 'typo'", "attack 'early'", "analysis 'odd'")
    said = (
        "unknown signal 'grad-dott' - did you mean 'grad-dot'?; the signals are grad-dot, ",
        "unknown signal 'los' - did you mean 'loss'?; the signals are loss, ",
        "'grad-sq@pre-defense': signals of the gradient are measured of what was uploaded alone; write 'grad-sq'",
        "unknown signal 'margins' - did you mean 'margin'?",
    )
    for line, who, words in zip(lines, needs, said, strict=True):
        assert f": {who} (needy 1.0): its needs: {words}" in line
    shown = CliRunner().invoke(validate, [str(path)], catch_exceptions=True)
    assert isinstance(shown.exception, UserError) and shown.exception.messages == caught.value.messages


def test_the_engines_signals_are_listed():
    found = json.loads(CliRunner().invoke(list_, ["signals", "--json", "--params"]).output)["signals"]
    assert {e["name"] for e in found} >= {*GRADIENT_SIGNALS, "loss"}
    assert all(e["params"] == [] and e["summary"] for e in found if e["name"] in GRADIENT_SIGNALS)


def keys(folder, **changes):
    (job,) = build_plan(str(suite(folder, attacks=["powerful", "loss-series"], **changes)), (), folder / "r", "cpu").jobs
    return {cell.attack.name: cell.key for cell in job.cells}, job.run_key


def test_a_suite_sets_a_signals_parameters(needy, tmp_path):
    plain, square = tmp_path / "plain", tmp_path / "square"
    invoke(suite(tmp_path, attacks=["powerful"]), "--results", plain)
    use = {"name": "power", "params": {"exponent": 2.0}}
    invoke(suite(tmp_path, attacks=["powerful"], signals=[use]), "--results", square)
    assert scores(plain) != scores(square)
    (record,) = records(square).values()
    assert record["identity"]["signals"]["power"]["params"] == {"exponent": 2.0}


def test_they_enter_the_keys_of_the_cells_that_read_it(needy, tmp_path):
    before, run = keys(tmp_path)
    after, same_run = keys(tmp_path, signals=[{"name": "power", "params": {"exponent": 2.0}}])
    assert run == same_run and before["loss-series"] == after["loss-series"] and before["powerful"] != after["powerful"]
    assert keys(tmp_path, signals=[{"name": "power", "params": {"exponent": 1.0}}, "grad-dot"]) == (before, run)


def test_parameters_are_checked_in_the_file(needy, tmp_path):
    wrong = [{"name": "power", "params": {"exponent": 99}}, "powr", {"name": "grad-sq", "params": {"x": 1}}, "power"]
    with pytest.raises(UserError) as caught:
        build_plan(str(suite(tmp_path, attacks=["powerful"], signals=wrong)), (), tmp_path / "r", "cpu")
    text = "\n".join(caught.value.messages)
    assert "signals[0].params.exponent: expected a number in [0, 9], found 99" in text
    assert "signals[1]: unknown signal 'powr' - did you mean 'power'?" in text
    assert "signals[2].params.x: unknown field" in text
    assert "signals[3]: the signal 'power' is already taken in line " in text


def test_a_parameter_without_a_default_has_to_be_given(needy, tmp_path):
    said = r"its needs: signal 'bound' \(needy 1.0\) cannot be made: .*level.*; a suite sets its parameters under `signals:`"
    with pytest.raises(UserError, match=said):
        build_plan(str(suite(tmp_path, attacks=["bounded"])), (), tmp_path / "r", "cpu")
    given = [{"name": "bound", "params": {"level": 0.5}}]
    (job,) = build_plan(str(suite(tmp_path, attacks=["bounded"], signals=given)), (), tmp_path / "r", "cpu").jobs
    assert job.signals["bound"].params == {"level": 0.5}
