"""A public method that no hook of its kind is called is said, with the nearest name; every built-in plugin is clean."""

from __future__ import annotations

from functools import cached_property, lru_cache

import pytest
import torch
from click.testing import CliRunner
from fake_packages import install
from running import changed, invoke, records

from fedbench.core import ActiveAttack, Analysis, Attack, Dataset, Defense, Model, Params, Report, Signal
from fedbench.core.cli.validate import command as validate
from fedbench.core.contract.phases import PHASES
from fedbench.core.registry.components import Registry
from fedbench.core.registry.hooks_of import hooks_of, unknown_methods
from fedbench.core.registry.kinds import KINDS


def named(base: type, name: str) -> list[str]:
    """What is said of a class with one method of this name."""
    return unknown_methods(type("Mine", (base,), {name: lambda self, *args: None}))


MEANT = [
    (Defense, "protekt", "protect"), (Defense, "agregate", "aggregate"), (Defense, "chek", "check"), (Attack, "scor", "score"),
    (Attack, "score_round", "score_rounds"), (ActiveAttack, "kraft", "craft"), (Analysis, "analyze", "analyse"),
    (Dataset, "laod", "load"), (Model, "biuld", "build"), (Signal, "mesure", "measure"), (Report, "sumary", "summary"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "name", "meant"), MEANT, ids=lambda value: getattr(value, "__name__", value))
def test_a_misspelt_hook_is_said_with_the_nearest(base, name, meant):
    what = "phase" if base is Defense else f"hook of {base.__name__}"
    assert named(base, name) == [
        f"its method '{name}' is no {what}, so the engine never calls it - did you mean '{meant}'? "
        "A helper's name begins with an underscore"
    ]


@pytest.mark.parametrize("name", ["partners", "predict", "noise", "step", "reset", "budget", "setup"])
def test_a_name_near_no_hook_is_said_without_a_guess(name):
    assert named(Defense, name) == [
        f"its method '{name}' is no phase, so the engine never calls it; a helper's name begins with an underscore"
    ]


def test_a_hook_of_a_narrower_class_names_the_class():
    (said,) = named(Attack, "craft")
    assert " - did you mean 'craft' of ActiveAttack, which it is not built on? " in said
    assert named(ActiveAttack, "craft") == named(ActiveAttack, "score") == []


@pytest.mark.parametrize("name", [*PHASES, "check", "remarks"])
def test_every_phase_is_known(name):
    assert named(Defense, name) == []


def test_what_counts_as_a_method_of_its_own():
    class Mixin:
        def mixed(self):
            return 1

    class Shared(Defense):
        @staticmethod
        def static(a):
            return a

    class Mine(Mixin, Shared, torch.nn.Module):
        rate = 0.5

        class Params(Params):
            a: int = 1

        class Helper:
            pass

        def forward(self, x):  # torch's to call
            return x

        def _helper(self):
            return 1

        @property
        def size(self):
            return 1

        @cached_property
        def table(self):
            return {}

        @classmethod
        def made(cls):
            return cls()

        @lru_cache  # noqa: B019
        def kept(self):
            return 1

    assert [said.split("'")[1] for said in unknown_methods(Mine)] == ["made", "kept", "mixed", "static"]
    assert unknown_methods(Mixin) == []


def test_the_messages_of_a_class_are_bounded():
    said = unknown_methods(type("Mine", (Defense,), {f"helper_{i}" + "x" * 500: lambda self: None for i in range(100)}))
    assert len(said) == 21 and said[-1] == "80 more of its methods are no hooks either"
    assert max(map(len, said)) < 200


def test_no_built_in_component_has_any():
    found = {str(c): c.load() for kind in KINDS for c in Registry.discover().own(kind)}
    assert len(found) > 60 and {who: said for who, cls in found.items() if (said := unknown_methods(cls))} == {}


def test_hooks_are_the_contracts_own_methods():
    assert set(hooks_of(Defense)) == {*PHASES, "check", "remarks"}
    assert hooks_of(ActiveAttack) == {"craft": ActiveAttack, "fit": Attack, "score": Attack, "score_rounds": Attack}


# --- where it is said -------------------------------------------------------------------------------------------------

TYPOS = """
    import numpy as np
    import torch
    from fedbench.core import Analysis, Attack, Component, Data, Dataset, Defense, Findings, Model, Signal, hookimpl

    class Base(Defense):
        @staticmethod
        def agregate(updates, weights, ctx):
            return updates[0]

    class Typo(Base):
        def protekt(self, update, ctx):
            return 0 * update
        def _protect(self, update):
            return update

    class Scores(Attack):
        needs = frozenset({"typed"})
        def score(self, observations, audit):
            return observations.of_target("typed").mean(0)
        def score_round(self, observations, audit):
            return None

    class Finds(Analysis):
        def analyse(self, run, judgement):
            return Findings()
        def drew(self, section, label):
            return ()

    class Points(Dataset):
        size_mb = 0
        def load(self, seed):
            rng = np.random.default_rng(seed)
            made = lambda n: (rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2)
            (a, b), (c, d), (e, f) = made(80), made(20), made(20)
            return Data(train_x=a, train_y=b, test_x=c, test_y=d, holdout_x=e, holdout_y=f, n_classes=2)
        def loads(self):
            return 1

    class Line(Model):
        def build(self, input_shape, n_classes):
            return torch.nn.Linear(input_shape[0], n_classes)
        def builder(self):
            return 1

    class Typed(Signal):
        def measure(self, probe):
            return probe.logits.amax(1)
        def mesure(self, probe):
            return 1

    @hookimpl
    def fedbench_defenses():
        yield Component("typo", "misspelt:Typo", "a toy")
    @hookimpl
    def fedbench_attacks():
        yield Component("scores", "misspelt:Scores", "a toy")
    @hookimpl
    def fedbench_analyses():
        yield Component("finds", "misspelt:Finds", "a toy")
    @hookimpl
    def fedbench_datasets():
        yield Component("points", "misspelt:Points", "a toy")
    @hookimpl
    def fedbench_models():
        yield Component("line", "misspelt:Line", "a toy")
    @hookimpl
    def fedbench_signals():
        yield Component("typed", "misspelt:Typed", "a toy")
"""
SAID = {
    "dataset 'points'": ("loads", "load"), "model 'line'": ("builder", "build"), "signal 'typed'": ("mesure", "measure"),
    "analysis 'finds'": ("drew", "draw"), "attack 'scores'": ("score_round", "score_rounds"),
    "defense 'typo'": ("agregate", "aggregate"),
}  # fmt: skip


def test_commands_and_records_carry_the_notes_of_every_kind(site, tmp_path):
    install(site, "misspelt", TYPOS)
    path = changed(
        tmp_path, {"dataset": {"name": "points"}, "model": {"name": "line"}, "audit": {"every": 4, "nonmembers": 10}},
        defenses=["none", {"name": "grad-noise", "label": "both", "then": ["typo"]}], attacks=["scores", "loss-series"],
        analyses=["finds"], signals=["typed"],
    )  # fmt: skip
    notes = [f"{who} (misspelt 1.0): its method '{name}' is no " for who, (name, _) in SAID.items()]
    meant = [f" - did you mean '{near}'? A helper's name" for _, near in SAID.values()]
    said = [CliRunner().invoke(validate, [str(path), *more]).output for more in ((), ("--no-data",))]
    said.append(invoke(path, "--dry-run", "--results", tmp_path / "r"))
    for output in said:
        assert all(output.count(words) == 1 for words in notes), output
        assert all(words in output for words in meant) and output.count("'protekt' is no phase") == 1
    assert f"note: {notes[0]}" in said[2]
    invoke(path, "--results", tmp_path / "r")
    found = {who[:2]: [note.split(" (")[0] for note in r["notes"]] for who, r in records(tmp_path / "r").items()}
    shared, both = ["dataset 'points'", "model 'line'"], ["defense 'typo'"] * 2
    assert found == {
        ("none", "scores"): [*shared, "attack 'scores'", "analysis 'finds'", "signal 'typed'"],
        ("none", "loss-series"): [*shared, "analysis 'finds'"],
        ("both", "scores"): [*shared, *both, "attack 'scores'", "analysis 'finds'", "signal 'typed'"],
        ("both", "loss-series"): [*shared, *both, "analysis 'finds'"],
    }
