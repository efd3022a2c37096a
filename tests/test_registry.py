"""Plugin discovery through fake distributions on sys.path: what works, what breaks, and that nothing else breaks."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedbench.core.contract.errors import UserError
from fedbench.core.registry import digest
from fedbench.core.registry.components import Registry

ANNOUNCE = """
from fedbench.core import Component, hookimpl

@hookimpl
def fedbench_defenses():
    yield Component({name!r}, {target!r}, "does nothing")
"""
DEFENSE = """
from fedbench.core import Defense

class Shield(Defense):
    pass
"""


def install(site: Path, distribution: str, module: str, source: str, version: str = "1.0") -> None:
    """A module and the metadata that announces it, as an installer would leave them."""
    site.mkdir(exist_ok=True)
    (site / f"{module}.py").write_text(textwrap.dedent(source))
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[fedbench]\n{module} = {module}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path; modules imported from it are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def status(registry: Registry, distribution: str):
    (plugin,) = (p for p in registry.plugins if p.distribution == distribution)
    return plugin


def test_a_good_plugin_is_found_and_its_class_loads(site):
    install(site, "good-shield", "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"))
    (site / "good_class.py").write_text(DEFENSE)
    registry = Registry.discover()
    plugin = status(registry, "good-shield")
    assert plugin.ok and plugin.reason == "" and plugin.version == "1.0" and plugin.entry_point == "good_shield"
    found = registry.get("defense", "shield")
    assert (found.distribution, found.version, found.kind, found.name) == ("good-shield", "1.0", "defense", "shield")
    assert found in registry.components("defense") and plugin.components == (found,)
    assert "good_class" not in sys.modules  # announcing imports nothing
    assert found.load().__name__ == "Shield"


# (source, words of the reason)
BROKEN = {
    "import error": ("import no_such_module_at_all",
        "cannot import 'broken': ModuleNotFoundError: No module named 'no_such_module_at_all' ("),
    "syntax": ("def f(:\n    pass", "cannot import 'broken': SyntaxError: "),
    "exit": ("import sys\nsys.exit(3)", "cannot import 'broken': it called sys.exit(3) ("),
    "division": ("x = 1\n1 / 0", "broken.py:2)"),
    "hook raises": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defenses():
            raise KeyError("sigma")
        """, "fedbench_defenses failed: KeyError: 'sigma' ("),
    "hook raises on the way": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_defenses():
            yield Component("one", "a:B", "x")
            raise ValueError("two")
        """, "fedbench_defenses failed: ValueError: two ("),
    "hook exits": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defenses():
            yield exit(4)
        """, "fedbench_defenses failed: it called sys.exit(4)"),
    "returns None": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            pass
        """, "fedbench_attacks returned None, expected an iterable of Component (use yield)"),
    "returns one": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            return Component("one", "a:B", "x")
        """, "expected an iterable of Component (use yield)"),
    "returns a number": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            return 7
        """, "fedbench_attacks failed: TypeError: 'int' object is not iterable"),
    "garbage": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            yield "loss-series"
        """, "fedbench_attacks: yielded str 'loss-series', expected fedbench.core.Component"),
    "name": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("My_Attack", "a:B", "x")
        """, "the name 'My_Attack' is not kebab-case (lower-case letters, digits and single dashes)"),
    "target": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("mine", "a.B", "x")
        """, "the target 'a.B' of 'mine' has not the form 'package.module:Class'"),
    "summary": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("mine", "a:B", "")
        """, "the summary of 'mine' must be one non-empty line"),
    "type": ("""
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("mine", None, "x")
        """, "the target of 'mine' is None, expected text"),
    "misspelt": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defences():
            return []
        """, "unknown hook 'fedbench_defences' - did you mean 'fedbench_defenses'?"),
    "unmarked": ("def fedbench_attacks():\n    return []",
        "the function 'fedbench_attacks' is not marked @hookimpl, so it announces nothing"),
    "signature": ("""
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks(config):
            return []
        """, "fedbench_attacks(config): wrong signature, the hooks of fedbench take no arguments"),
    "nothing": ("x = 1", "announces nothing: no function is marked @hookimpl; the hooks are fedbench_defenses, "),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_the_reason_and_breaks_nothing_else(site, source, reason):
    install(site, "broken-dist", "broken", source, version="0.3")
    install(site, "good-shield", "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"))
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
    install(site, "half-dist", "half_plugin", ANNOUNCE.format(name="kept", target="a:B") + """
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
    install(site, "first-dist", "first_plugin", ANNOUNCE.format(name="shield", target="first:Shield"))
    install(site, "second-dist", "second_plugin", ANNOUNCE.format(name="shield", target="second:Shield"), "2.1")
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
    install(site, "first-dist", "first_plugin", twice)
    with pytest.raises(UserError, match="the package must rename one of them"):
        Registry.discover().get("defense", "shield")


def test_a_distribution_seen_twice_on_the_path_counts_once(site, monkeypatch):
    other = site / "other"
    install(site, "good-shield", "good_shield", ANNOUNCE.format(name="shield", target="good_class:Shield"))
    install(other, "Good_Shield", "good_shield", ANNOUNCE.format(name="old-shield", target="a:B"), version="0.9")
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
    install(site, "my-dist", "my_plugin", ANNOUNCE.format(name="shield", target=target))
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
