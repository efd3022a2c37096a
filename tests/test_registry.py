"""Plugin discovery through fake distributions on sys.path: what works, what breaks, and that
nothing else breaks.
"""

import sys
from functools import cached_property, lru_cache

import pytest
import torch
from fake_packages import ANNOUNCE, BROKEN, DEFENSE, install

from fedbench.core import (
    ActiveAttack,
    Analysis,
    Attack,
    Dataset,
    Defense,
    Model,
    Params,
    Report,
    Signal,
    UserError,
)
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.contract.phases import PHASES
from fedbench.core.registry.components import Registry
from fedbench.core.registry.hooks_of import hooks_of, unknown_methods
from fedbench.core.registry.kinds import KINDS

SHIELD = ANNOUNCE.format(name="shield", target="good_class:Shield")


def status(registry: Registry, distribution: str):
    """The one plugin of a distribution."""
    (plugin,) = (p for p in registry.plugins if p.distribution == distribution)
    return plugin


def test_a_good_plugin_is_found_and_its_class_loads(site, monkeypatch):
    install(site, "good_shield", SHIELD, distribution="good-shield")
    (site / "good_class.py").write_text(DEFENSE)
    monkeypatch.setattr(
        sys,
        "path",
        [
            *sys.path,
            str(install(site / "other", "good_shield", SHIELD, "0.9", distribution="Good_Shield")),
        ],
    )
    registry = Registry.discover()  # a second copy further on the path counts as none
    plugin, found = status(registry, "good-shield"), registry.get("defense", "shield")
    assert (plugin.ok, plugin.reason, plugin.version, plugin.entry_point) == (
        True,
        "",
        "1.0",
        "good_shield",
    )
    assert (found.distribution, found.version, found.kind, found.name) == (
        "good-shield",
        "1.0",
        "defense",
        "shield",
    )
    assert (
        found in registry.components("defense")
        and plugin.components == (found,)
        and not registry.clashes
    )
    assert "good_class" not in sys.modules  # announcing imports nothing
    assert found.load().__name__ == "Shield"
    (site / "good_shield.py").write_text(ANNOUNCE.format(name="after", target="a:B"))
    assert [
        c.name for c in Registry.discover().components("defense") if c.distribution == "good-shield"
    ] == ["after"]


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_the_reason_and_breaks_nothing_else(site, source, reason):
    install(site, "broken", source, version="0.3", distribution="broken-dist")
    install(site, "good_shield", SHIELD, distribution="good-shield")
    registry = Registry.discover()
    plugin = status(registry, "broken-dist")
    assert not plugin.ok and plugin.version == "0.3" and plugin.components == ()
    assert reason in plugin.reason and "\n" not in plugin.reason and registry.broken == [plugin]
    assert registry.get("defense", "shield") and registry.get("defense", "none")
    with pytest.raises(UserError, match=r"'broken' \(broken-dist 0\.3\)") as caught:
        registry.get("defense", "promised")
    assert plugin.reason in str(caught.value)


def test_what_a_partly_broken_plugin_announces_rightly_is_kept_and_damaged_metadata_is_one_failure(
    site,
):
    more = '\n@hookimpl\ndef fedbench_atacks():\n    yield Component("lost", "a:B", "x")\n'
    install(site, "half_plugin", SHIELD + more, distribution="half-dist")
    (site / "damaged-2.0.dist-info").mkdir()
    (site / "damaged-2.0.dist-info" / "entry_points.txt").write_text(
        "[fedbench]\nno equals sign here\n"
    )
    registry = Registry.discover()
    assert registry.get("defense", "shield").distribution == "half-dist"
    reasons = {plugin.distribution: plugin.reason for plugin in registry.broken}
    assert (
        len(reasons) == 2
        and reasons["half-dist"]
        == "unknown hook 'fedbench_atacks' - did you mean 'fedbench_attacks'?"
    )
    assert any(
        "damaged" in name and "its entry_points.txt cannot be read" in reason
        for name, reason in reasons.items()
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            "second-dist",
            "first-dist 1.0 (good_class:Shield) and second-dist 1.0 (b:C): uninstall one of them",
        ),
        (
            "first-dist",
            "first-dist 1.0 (good_class:Shield) and first-dist 1.0 (b:C): the package must rename "
            "one of them",
        ),
    ],
)
def test_a_name_claimed_twice_is_an_error_only_where_it_is_used(site, second, said):
    twice = '    yield Component("shield", "b:C", "another")\n'
    install(
        site, "first_plugin", SHIELD + twice * (second == "first-dist"), distribution="first-dist"
    )
    if second != "first-dist":
        install(
            site, "second_plugin", ANNOUNCE.format(name="shield", target="b:C"), distribution=second
        )
    registry = Registry.discover()
    assert [str(clash) for clash in registry.clashes] == [f"defense 'shield' is claimed by {said}"]
    assert "shield" not in [c.name for c in registry.components("defense")] and registry.get(
        "defense", "none"
    )
    with pytest.raises(UserError) as caught:
        registry.get("defense", "shield")
    assert caught.value.messages == (f"defense 'shield' is claimed by {said}",)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            "",
            "no_such_module_either:X",
            "cannot import 'no_such_module_either': ModuleNotFoundError: ",
        ),
        (
            "import sys\nsys.exit()",
            "target_mod:X",
            "cannot import 'target_mod': it called sys.exit(None)",
        ),
        (
            DEFENSE,
            "target_mod:Sheild",
            "the module 'target_mod' has no 'Sheild' - did you mean 'Shield'?",
        ),
        (
            "def Shield():\n    pass",
            "target_mod:Shield",
            "'target_mod:Shield' is the function Shield, expected a subclass of "
            "fedbench.core.Defense",
        ),
        (
            "from fedbench.core import Attack\nclass Shield(Attack):\n    pass",
            "target_mod:Shield",
            "'target_mod:Shield' is the class Shield(Attack), expected a subclass of "
            "fedbench.core.Defense",
        ),
        (
            DEFENSE + "    Params = dict\n",
            "target_mod:Shield",
            "its Params is the class dict(object), expected a subclass of fedbench.core.Params",
        ),
    ],
)
def test_a_class_that_cannot_be_used_says_why(site, source, target, message):
    install(
        site, "my_plugin", ANNOUNCE.format(name="shield", target=target), distribution="my-dist"
    )
    (site / "target_mod.py").write_text(source)
    with pytest.raises(UserError) as caught:
        Registry.discover().get("defense", "shield").load()
    assert str(caught.value).startswith(f"defense 'shield' (my-dist 1.0): {message}")


def test_unknown_names_list_the_good_ones_nearest_first(registry):
    with pytest.raises(UserError) as caught:
        registry.get("attack", "los-series")
    head, _, names = str(caught.value).partition("; the attacks are ")
    assert head == "unknown attack 'los-series' - did you mean 'loss-series'?"
    assert names.split(", ")[0] == "loss-series" and sorted(names.split(", ")) == [
        c.name for c in registry.components("attack")
    ]


def test_every_built_in_component_loads_and_has_no_method_that_is_never_called(registry):
    assert (
        not [p for p in registry.broken if p.distribution == DISTRIBUTION] and not registry.clashes
    )
    loaded = {str(found): found.load() for kind in KINDS for found in registry.own(kind)}
    assert (
        len(loaded) > 60
        and {name: said for name, cls in loaded.items() if (said := unknown_methods(cls))} == {}
    )


# -- methods that the engine never calls -----------------------------------------------------------


def said_of(base: type, name: str) -> list[str]:
    """What is said of a class with one method of this name."""
    return unknown_methods(type("Mine", (base,), {name: lambda self, *args: None}))


def test_a_misspelt_hook_is_said_with_the_nearest():
    meant = {
        (Defense, "protekt"): "protect",
        (Defense, "chek"): "check",
        (Attack, "scor"): "score",
        (ActiveAttack, "kraft"): "craft",
        (Attack, "score_round"): "score_rounds",
        (Analysis, "analyze"): "analyse",
        (Dataset, "laod"): "load",
        (Model, "biuld"): "build",
        (Signal, "mesure"): "measure",
        (Report, "sumary"): "summary",
    }
    expected = {}
    for (base, name), near in meant.items():
        what = "phase" if base is Defense else f"hook of {base.__name__}"
        lead = f"its method '{name}' is no {what}, so the engine never calls it"
        expected[base, name] = [
            f"{lead} - did you mean '{near}'? A helper's name begins with an underscore"
        ]
    assert {(base, name): said_of(base, name) for base, name in meant} == expected
    (narrower,) = said_of(Attack, "craft")
    assert " - did you mean 'craft' of ActiveAttack, which it is not built on? " in narrower
    far = ["partners", "predict", "noise", "step", "reset", "budget", "setup"]
    assert {name: len(said_of(Defense, name)) for name in far} == dict.fromkeys(far, 1)
    assert not any("did you mean" in said_of(Defense, name)[0] for name in far)


def test_hooks_are_the_contracts_own_methods():
    assert set(hooks_of(Defense)) == {*PHASES, "check", "privacy_event", "remarks"}
    assert hooks_of(ActiveAttack) == {
        "craft": ActiveAttack,
        "fit": Attack,
        "score": Attack,
        "score_rounds": Attack,
    }
    assert [said_of(Defense, name) for name in hooks_of(Defense)] == [[]] * len(hooks_of(Defense))


def test_what_counts_as_a_method_of_its_own():
    class Mixin:
        def mixed(self):
            return 1

    class Shared(Defense):
        @staticmethod
        def static(a):
            return a

    class Mine(Mixin, Shared, torch.nn.Module):
        class Params(Params):
            a: int = 1

        def forward(self, x):  # torch's to call
            return x

        def _helper(self):
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

    assert [said.split("'")[1] for said in unknown_methods(Mine)] == [
        "made",
        "kept",
        "mixed",
        "static",
    ]
    assert unknown_methods(Mixin) == []
