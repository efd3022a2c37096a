"""The house: arrows run one way, what decides a result is in the digest, and a phase lives in one table.

Each rule is also shown to fail: on a copy of the tree with the mistake in it, or on a phase that only one place knows.
"""

from __future__ import annotations

import ast
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_setup, train_all

import fedbench.core
from fedbench.core import Defense
from fedbench.core.contract import phases
from fedbench.core.contract.defense import needs_coalition, overrides
from fedbench.core.contract.phases import PHASES, Phase
from fedbench.core.federation.compose import composed
from fedbench.core.registry.digest import ROOMS

ROOT = Path(__file__).parents[1]

# From the ground up: a room imports rooms of lower floors only, never one of its own floor.
FLOORS = (
    {"apart", "contract", "words"},
    {"metrics", "models", "numerics", "registry"},
    {"population", "scaffold", "spec", "store"},
    {"federation", "toolkit"},
    {"signals"},
    {"experiment"},
    {"execution"},
    {"cli"},
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# Rooms that what decides a result may use although their code is not in the digest, and why it need not be.
DECIDE_NOTHING = {
    "spec": "the suite's types: their values are in every key",
    "registry": "finds components, whose own code is in their digests",
    "store": "writes what was computed",
    "words": "messages",
    "apart": "carries plain data out of another process",
}


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, wherever in it; a name taken from a package counts as a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path, core: Path) -> str:
    """The folder of a file of the harness; a file beside the rooms is a room of its own."""
    parts = path.relative_to(core).parts
    return parts[0] if len(parts) > 1 else path.stem


def arrows(core: Path) -> Iterator[tuple[str, str, Path]]:
    """(from, to, file) for every import of one room by another."""
    for path in sorted(core.rglob("*.py")):
        for module in imports(path):
            parts = module.split(".")
            here = room_of(path, core)
            if parts[:2] == ["fedbench", "core"] and len(parts) > 2 and parts[2] != here and (core / parts[2]).is_dir():
                yield here, parts[2], path


def wrong_arrows(core: Path) -> set[str]:
    """Arrows that do not lead downwards, files that lie in no room, and ways out of the harness."""
    found = {f"{p.relative_to(core)}: {a} imports {b}" for a, b, p in arrows(core)
             if a != "__init__" and LEVEL.get(a, -1) <= LEVEL.get(b, 99)}  # fmt: skip
    found |= {f"{p.name}: in no room" for p in core.glob("*.py") if p.name != "__init__.py"}
    out = ("fedbench.plugins", "fedbench.leaderboard", "fedbench.suites", "fedbench.testing")
    return found | {
        f"{p.relative_to(core)}: {m}" for p in core.rglob("*.py") for m in imports(p) if m.startswith(out) and m != out[2]
    }


def undigested(core: Path) -> set[str]:
    """Rooms that the deciding rooms import and that are neither among them nor known to decide nothing."""
    return {f"{p.relative_to(core)} imports {b}" for a, b, p in arrows(core) if a in ROOMS and b not in {*ROOMS, *DECIDE_NOTHING}}


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the harness to spoil."""
    shutil.copytree(ROOT / "core", tmp_path / "core", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "core"


def append(path: Path, line: str) -> None:
    """One more line of code."""
    path.write_text(path.read_text() + f"\n{line}\n")


# --- arrows -----------------------------------------------------------------------------------------------------------


def test_arrows_run_downwards_only():
    assert wrong_arrows(ROOT / "core") == set()


def test_an_arrow_that_runs_up_is_seen_wherever_in_the_file_it_hides(copy):
    append(copy / "numerics" / "flat.py", "def f():\n    from fedbench.core.federation.loop import Training")
    append(copy / "metrics" / "roc.py", "import fedbench.plugins.attacks")
    append(copy / "metrics" / "tpr.py", "from fedbench.testing import check_component")
    (copy / "misalign.py").write_text("")
    assert wrong_arrows(copy) == {
        "numerics/flat.py: numerics imports federation", "metrics/roc.py: fedbench.plugins.attacks", "misalign.py: in no room",
        "metrics/tpr.py: fedbench.testing", "metrics/tpr.py: fedbench.testing.check_component",
    }  # fmt: skip


def test_plugins_import_the_public_contract_alone():
    for path in (ROOT / "plugins").rglob("*.py"):
        inside = {m for m in imports(path) if m.startswith("fedbench.") and not m.startswith("fedbench.plugins")}
        public = {"fedbench.core", *(f"fedbench.core.{name}" for name in fedbench.core.__all__)}
        assert inside <= public, path


def ours_in(folder: str) -> set[str]:
    """The packages of ours that a top folder imports, itself apart."""
    modules = (m for path in (ROOT / folder).rglob("*.py") for m in imports(path) if m.startswith("fedbench."))
    return {".".join(m.split(".")[:2]) for m in modules} - {f"fedbench.{folder}"}


def test_the_checks_of_components_build_on_the_harness_alone_and_nobody_on_them():
    assert ours_in("testing") == {"fedbench.core"}
    assert all("fedbench.testing" not in ours_in(top) for top in ("core", "plugins", "leaderboard", "suites"))


def test_the_leaderboard_needs_no_torch():
    for path in (ROOT / "leaderboard").rglob("*.py"):
        assert not {m for m in imports(path) if m.partition(".")[0] == "torch"}, path


def test_the_three_lists_of_public_names_are_one():
    tree = ast.parse((ROOT / "core" / "__init__.py").read_text())
    typed = next(n for n in tree.body if isinstance(n, ast.If))
    shown = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert shown == set(fedbench.core._MODULE) == set(fedbench.core.__all__)
    for name in fedbench.core.__all__:
        assert getattr(fedbench.core, name) is not None


def positional(tree: ast.AST) -> set[str]:
    """Dataclasses of more than five fields that can be made by position: two fields of one type can be swapped unseen."""
    found = set()
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        made = next((ast.unparse(d) for d in node.decorator_list if "dataclass" in ast.unparse(d)), "")
        fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and "ClassVar" not in ast.unparse(s.annotation)]
        if made and "kw_only=True" not in made and len(fields) > 5:
            found.add(node.name)
    return found


def test_dataclasses_above_five_fields_take_keywords_only():
    fields = "".join(f"    {name}: int\n" for name in "abcdef")
    assert positional(ast.parse(f"@dataclass(frozen=True)\nclass Wide:\n{fields}")) == {"Wide"}
    for top in ("core", "plugins", "leaderboard", "testing"):
        for path in (ROOT / top).rglob("*.py"):
            assert positional(ast.parse(path.read_text(encoding="utf-8"))) == set(), path


def packages(root: Path) -> set[str]:
    """Every folder with code of ours, by its package name."""
    tops = [root / top for top in ("core", "plugins", "suites", "leaderboard", "testing")]
    found = {p.parent for top in tops for p in top.rglob("*.py")}
    return {f"fedbench.{p.relative_to(root).as_posix().replace('/', '.')}" for p in found}


def test_the_wheel_holds_every_package():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(build["packages"]) == packages(ROOT)


# --- the digest -------------------------------------------------------------------------------------------------------


def test_whatever_decides_a_result_is_in_the_digest():
    assert undigested(ROOT / "core") == set()
    assert all((ROOT / "core" / room).is_dir() for room in {*ROOMS, *DECIDE_NOTHING})


def test_an_engine_file_outside_the_digest_is_seen(copy):
    (copy / "tuning").mkdir()
    (copy / "tuning" / "misalign.py").write_text("")
    append(copy / "experiment" / "judge.py", "from fedbench.core.tuning.misalign import redrawn")
    assert undigested(copy) == {"experiment/judge.py imports tuning"}


def test_a_new_file_of_a_deciding_room_changes_the_digest_by_itself(copy, monkeypatch):
    from fedbench.core.registry import digest

    monkeypatch.setattr(digest, "__file__", str(copy / "registry" / "digest.py"))
    before = digest.engine_digest()
    (copy / "experiment" / "misalign.py").write_text("x = 1\n")
    assert before != digest.engine_digest()
    (copy / "experiment" / "misalign.py").unlink()
    assert before == digest.engine_digest()


# --- the phase table --------------------------------------------------------------------------------------------------


def unlisted() -> set[str]:
    """Public methods of a defense that the table does not know, and rows of the table that no defense has."""
    public = {name for name, value in vars(Defense).items() if callable(value) and not name.startswith("_")}
    return (public - {"check", "remarks", "Params"}) ^ set(PHASES)


def unserved() -> set[str]:
    """Phases that the loop neither finds in the table by their stage nor asks for by name."""
    asked = {
        node.args[1].value
        for name in ("loop.py", "local.py")
        for node in ast.walk(ast.parse((ROOT / "core" / "federation" / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "act"
        and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    }  # fmt: skip
    return set(PHASES) - asked - set(phases.phases(stage=phases.CALLED))


class Sealed(Defense):
    """Doubles the update in a phase that the harness never heard of before this test."""

    def seal(self, update, ctx):
        assert ctx.round >= 1
        return 2 * update


class Shifted(Defense):
    """An ordinary defense, to be composed with."""

    def protect(self, update, ctx):
        return update + 1


SEAL = Phase(
    name="seal", party="member", stage="upload", combines="chained", returns="same shape", summary="the last thing before sending"
)


@pytest.fixture
def seal_method(monkeypatch):
    """The phase as a method of ``Defense`` alone."""
    monkeypatch.setattr(Defense, "seal", lambda self, update, ctx: update, raising=False)


@pytest.fixture
def seal_phase(seal_method, monkeypatch):
    """The phase in the table too: all that it takes."""
    monkeypatch.setitem(PHASES, "seal", SEAL)


def test_every_phase_is_a_method_and_every_method_a_phase():
    assert unlisted() == set()


def test_a_phase_that_nobody_calls_is_seen(seal_method, monkeypatch):
    assert unserved() == set()
    monkeypatch.setitem(PHASES, "seal", replace(SEAL, stage="batch"))
    assert unserved() == {"seal"}
    with pytest.raises(ValueError, match="a phase of stage rows is the coalition's or a member's"):
        replace(SEAL, stage="rows", party="server")


def test_a_phase_in_one_place_only_is_seen(seal_method):
    assert unlisted() == {"seal"}
    with pytest.raises(LookupError, match=r"'seal' is no phase: give it a row in contract/phases\.py"):
        overrides(Sealed(), "seal")


def test_a_phase_added_to_the_table_is_everywhere(seal_phase):
    assert unlisted() == unserved() == set() and "seal" in phases.phases(stage=("upload",))
    assert needs_coalition(Sealed()) and not needs_coalition(Defense())
    assert needs_coalition(composed([Defense(), Sealed()]))
    plain, sealed, both = (train_all(tiny_setup(d, rounds=1))[1][0].uploads.updates
                           for d in (Defense(), Sealed(), composed([Shifted(), Sealed()])))  # fmt: skip
    assert torch.equal(sealed[:2], 2 * plain[:2]) and torch.equal(sealed[2:], plain[2:])
    assert torch.equal(both[:2], 2 * (plain[:2] + 1)) and torch.equal(both[2:], plain[2:])


@pytest.mark.parametrize("name", ["view", "ask", "one", "names", "owner"])
def test_a_phase_may_have_any_name_that_the_composite_uses_for_itself(name, monkeypatch):
    monkeypatch.setattr(Defense, name, lambda self, update, ctx: update, raising=False)
    monkeypatch.setitem(PHASES, name, replace(SEAL, name=name))
    doubles = type("Doubles", (Defense,), {name: Sealed.seal})
    pair = Defense(), composed([Shifted(), doubles()])
    plain, both = (train_all(tiny_setup(d, rounds=1))[1][0].uploads.updates for d in pair)
    assert torch.equal(both[:2], 2 * (plain[:2] + 1))


def test_a_phase_is_guarded_by_what_the_table_says_it_returns(seal_phase):
    class Cut(Defense):
        def seal(self, update, ctx):
            return update[1:]

    with pytest.raises(RuntimeError, match=r"Cut\.seal \(client 0, round 1\) returned .*; expected a tensor of shape"):
        train_all(tiny_setup(Cut(), rounds=1))


def test_an_exclusive_phase_is_nobodys_twice(seal_method, monkeypatch):
    monkeypatch.setitem(PHASES, "seal", replace(SEAL, combines="exclusive"))
    with pytest.raises(fedbench.core.UserError, match="each replaces 'seal'"):
        composed([Sealed(), Sealed()])


def test_the_documentation_lists_every_phase_as_the_table_does():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for row in PHASES.values():
        assert f"| `{row.name}` | {row.party} | {row.stage} | {row.combines} | {row.summary} |" in text, row.name
