"""Plugin discovery through fake distributions on sys.path: what works, what breaks, and that nothing else breaks."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_packages import ANNOUNCE, BROKEN, DEFENSE, install

from fedbench.core.contract.errors import UserError
from fedbench.core.registry import digest
from fedbench.core.registry.components import Registry


def status(registry: Registry, distribution: str):
    (plugin,) = (p for p in registry.plugins if p.distribution == distribution)
    return plugin


def test_a_good_plugin_is_found_and_its_class_loads(site):
    install(site, "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"), distribution="good-shield")
    (site / "good_class.py").write_text(DEFENSE)
    registry = Registry.discover()
    plugin = status(registry, "good-shield")
    assert plugin.ok and plugin.reason == "" and plugin.version == "1.0" and plugin.entry_point == "good_shield"
    found = registry.get("defense", "shield")
    assert (found.distribution, found.version, found.kind, found.name) == ("good-shield", "1.0", "defense", "shield")
    assert found in registry.components("defense") and plugin.components == (found,)
    assert "good_class" not in sys.modules  # announcing imports nothing
    assert found.load().__name__ == "Shield"


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_the_reason_and_breaks_nothing_else(site, source, reason):
    install(site, "broken", source, version="0.3", distribution="broken-dist")
    install(site, "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"), distribution="good-shield")
    registry = Registry.discover()
    plugin = status(registry, "broken-dist")
    assert not plugin.ok and plugin.version == "0.3" and plugin.components == ()
    assert reason in plugin.reason and "\n" not in plugin.reason
    assert registry.broken == [plugin]
    assert registry.get("defense", "shield") and registry.get("defense", "none")
    with pytest.raises(UserError, match=r"'broken' \(broken-dist 0\.3\)") as caught:
        registry.get("defense", "promised")
    assert plugin.reason in str(caught.value)


def test_what_a_partly_broken_plugin_announces_rightly_is_kept(site):
    install(site, "half_plugin", distribution="half-dist", source=ANNOUNCE.format(name="kept", target="a:B") + """
@hookimpl
def fedbench_atacks():
    yield Component("lost", "a:B", "x")
""")
    registry = Registry.discover()
    assert registry.get("defense", "kept").distribution == "half-dist"
    assert status(registry, "half-dist").reason == "unknown hook 'fedbench_atacks' - did you mean 'fedbench_attacks'?"


def test_damaged_metadata_is_one_failure(site):
    info = site / "damaged-2.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[fedbench]\nno equals sign here\n")
    registry = Registry.discover()
    (plugin,) = registry.broken
    assert "damaged" in plugin.distribution and "its entry_points.txt cannot be read" in plugin.reason
    assert registry.get("defense", "none")


def test_a_name_claimed_twice_is_an_error_only_where_it_is_used(site):
    install(site, "first_plugin", ANNOUNCE.format(name="shield", target="first:Shield"), distribution="first-dist")
    install(site, "second_plugin", ANNOUNCE.format(name="shield", target="second:Shield"), "2.1", distribution="second-dist")
    registry = Registry.discover()
    (clash,) = registry.clashes
    expected = (
        "defense 'shield' is claimed by first-dist 1.0 (first:Shield) and second-dist 2.1 (second:Shield): "
        "uninstall one of them"
    )
    assert str(clash) == expected
    assert "shield" not in [c.name for c in registry.components("defense")]
    assert not registry.broken and registry.get("defense", "none")
    with pytest.raises(UserError) as caught:
        registry.get("defense", "shield")
    assert caught.value.messages == (expected,)


def test_one_package_claiming_a_name_twice_must_rename(site):
    twice = ANNOUNCE.format(name="shield", target="a:B") + '    yield Component("shield", "a:C", "another")\n'
    install(site, "first_plugin", twice, distribution="first-dist")
    with pytest.raises(UserError, match="the package must rename one of them"):
        Registry.discover().get("defense", "shield")


def test_a_distribution_seen_twice_on_the_path_counts_once(site, monkeypatch):
    other = site / "other"
    install(site, "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"), distribution="good-shield")
    install(other, "good_shield", ANNOUNCE.format(name="old-shield", target="a:B"), version="0.9", distribution="Good_Shield")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    registry = Registry.discover()
    assert status(registry, "good-shield").version == "1.0" and not registry.clashes
    assert "Good_Shield" not in [p.distribution for p in registry.plugins]


@pytest.mark.parametrize(("source", "target", "message"), [
    ("", "no_such_module_either:X", "cannot import 'no_such_module_either': ModuleNotFoundError: "),
    ("1 / 0", "target_mod:X", "cannot import 'target_mod': ZeroDivisionError: division by zero ("),
    ("import sys\nsys.exit()", "target_mod:X", "cannot import 'target_mod': it called sys.exit(None)"),
    (DEFENSE, "target_mod:Sheild", "the module 'target_mod' has no 'Sheild' - did you mean 'Shield'?"),
    ("def Shield():\n    pass", "target_mod:Shield",
     "'target_mod:Shield' is the function Shield, expected a subclass of fedbench.core.Defense"),
    ("from fedbench.core import Attack\nclass Shield(Attack):\n    pass", "target_mod:Shield",
     "'target_mod:Shield' is the class Shield(Attack), expected a subclass of fedbench.core.Defense"),
    (DEFENSE + "    Params = dict\n", "target_mod:Shield",
     "its Params is the class dict(object), expected a subclass of fedbench.core.Params"),
])  # fmt: skip
def test_a_class_that_cannot_be_used_says_why(site, source, target, message):
    install(site, "my_plugin", ANNOUNCE.format(name="shield", target=target), distribution="my-dist")
    (site / "target_mod.py").write_text(source)
    with pytest.raises(UserError) as caught:
        Registry.discover().get("defense", "shield").load()
    assert str(caught.value).startswith(f"defense 'shield' (my-dist 1.0): {message}")


def test_unknown_names_list_the_good_ones_nearest_first():
    registry = Registry.discover()
    with pytest.raises(UserError) as caught:
        registry.get("attack", "los-series")
    head, _, names = str(caught.value).partition("; the attacks are ")
    assert head == "unknown attack 'los-series' - did you mean 'loss-series'?"
    assert names.split(", ")[0] == "loss-series"
    assert sorted(names.split(", ")) == [c.name for c in registry.components("attack")]


def test_every_built_in_component_loads():
    registry = Registry.discover()
    assert not [p for p in registry.broken if p.distribution == "fedbench"] and not registry.clashes
    for kind in ("defense", "attack", "dataset", "model", "signal"):
        for found in registry.components(kind):
            assert isinstance(found.load(), type)


def test_discovery_imports_neither_torch_nor_a_target():
    code = (
        "import sys; from fedbench.core.registry.components import Registry; r = Registry.discover(); "
        "targets = {c.component.target.split(':')[0] for k in ('defense', 'attack') for c in r.components(k)}; "
        "print([m for m in ('torch', 'numpy', 'sklearn', *targets) if m in sys.modules], len(targets) > 1)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["[]", "True"]


# digests


def package(site: Path) -> Path:
    folder = site / "digested"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('a digest imports nothing')\n")
    (folder / "a.py").write_text("x = 1\n")
    return folder


def test_a_foreign_digest_covers_the_package_and_imports_nothing(site):
    folder = package(site)
    first = digest.source_digest("digested.a")
    assert first == digest.source_digest("digested") and len(first) == 64
    (folder / "b.py").write_text("y = 1\n")
    second = digest.source_digest("digested.a")
    (folder / "b.py").rename(folder / "c.py")
    third = digest.source_digest("digested.a")
    (folder / "a.py").write_text("x = 1\r\n")
    assert len({first, second, third}) == 3 and third == digest.source_digest("digested.a")
    (folder / "data.csv").write_text("1")
    assert third == digest.source_digest("digested.a")


def test_a_single_module_is_its_own_digest(site):
    (site / "lone_module.py").write_text("x = 1\n")
    first = digest.source_digest("lone_module")
    (site / "beside.py").write_text("x = 1\n")
    assert first == digest.source_digest("lone_module")
    (site / "lone_module.py").write_text("x = 2\n")
    assert first != digest.source_digest("lone_module")


def test_in_a_namespace_only_the_regular_package_counts(site):
    for name in ("mine", "theirs"):
        (site / "space" / name).mkdir(parents=True)
        (site / "space" / name / "__init__.py").write_text("")
    first = digest.source_digest("space.mine")
    (site / "space" / "theirs" / "__init__.py").write_text("x = 1")
    assert first == digest.source_digest("space.mine")
    (site / "space" / "mine" / "__init__.py").write_text("x = 1")
    assert first != digest.source_digest("space.mine")


def test_beyond_the_bound_only_what_is_imported_counts(site, monkeypatch):
    folder = package(site)
    (folder / "a.py").write_text("from . import b\nimport digested.d as d\nfrom .e import thing\n")
    for name in "bcde":
        (folder / f"{name}.py").write_text("x = 1\n")
    monkeypatch.setattr(digest, "_MAX_BYTES", 10)
    first = digest.source_digest("digested.a")
    (folder / "c.py").write_text("x = 2\n")
    assert first == digest.source_digest("digested.a")
    for name in "bde":
        (folder / f"{name}.py").write_text("x = 2\n")
        assert first != (first := digest.source_digest("digested.a"))


def test_a_built_in_methods_digest_follows_its_imports_alone(site, monkeypatch):
    plugins = site / "plugins"
    (plugins / "defenses").mkdir(parents=True)
    (plugins / "defenses" / "one.py").write_text(
        "import torch\nfrom fedbench.core import Defense\nfrom fedbench.plugins.defenses.shared import help_one\n"
    )
    for name in ("__init__", "shared", "deep", "other"):
        (plugins / "defenses" / f"{name}.py").write_text("x = 1\n")
    (plugins / "defenses" / "shared.py").write_text("def help_one():\n    from . import deep\n")
    monkeypatch.setattr(digest, "_roots", lambda top: (None, [plugins]) if top == "fedbench.plugins" else (None, []))
    first = digest.source_digest("fedbench.plugins.defenses.one")
    for unrelated in ("__init__", "other"):
        (plugins / "defenses" / f"{unrelated}.py").write_text("x = 2\n")
        assert first == digest.source_digest("fedbench.plugins.defenses.one")
    (plugins / "defenses" / "deep.py").write_text("x = 2\n")
    assert first != digest.source_digest("fedbench.plugins.defenses.one")


def test_built_in_digests_differ_and_a_missing_module_is_an_error():
    targets = [c.component.target.split(":")[0] for c in Registry.discover().components("defense")]
    assert len({digest.source_digest(t) for t in targets}) == len(set(targets))
    for name in ("fedbench.plugins.defenses.no_such", "no_such_package.x"):
        with pytest.raises(UserError, match=f"no source file of the module '{name}' was found"):
            digest.source_digest(name)


def test_the_engine_digest_covers_what_can_change_a_score(tmp_path, monkeypatch):
    core = tmp_path / "core"
    covered = [core / room / "x.py" for room in digest.ROOMS]
    for path in (*covered, core / "cli" / "x.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    monkeypatch.setattr(digest, "__file__", str(core / "registry" / "digest.py"))
    last = digest.engine_digest()
    (core / "cli" / "x.py").write_text("x = 2\n")
    assert last == digest.engine_digest()
    for path in covered:
        path.write_text("x = 2\n")
        assert last != (last := digest.engine_digest()), path
