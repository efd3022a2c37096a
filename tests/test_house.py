"""Rules of the source tree: what is in the digest, who imports what, one table of phases, how tests
are written.
"""

from __future__ import annotations

import ast
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from tiny import tiny_setup, train_all

import fedbench.core
import fedbench.core.metrics
import fedbench.core.report
import fedbench.core.toolkit
from fedbench.core import Defense
from fedbench.core.contract.defense import needs_coalition
from fedbench.core.contract.phases import PHASES, Phase
from fedbench.core.federation.compose import composed
from fedbench.core.registry import digest

ROOT = Path(__file__).parents[1]
# Used by code that decides a result, although not in the digest: their values are in the keys, or
# they only carry and write.
DECIDE_NOTHING = {"spec", "registry", "store", "words", "process"}
OF_A_DATA_SET = {"recorded"}  # in its digest


# From the bottom up: a folder of core imports folders of lower levels only.
LEVELS = (
    {"contract", "words"},
    {"process"},
    {"metrics", "models", "numerics", "registry"},
    {"population", "scaffold", "spec", "store"},
    {"federation", "recording", "toolkit"},
    {"recorded", "signals"},
    {"run"},
    {"cli"},
)
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path):
    """Modules that a file imports, wherever in it; a name taken from a package counts as a
    module.
    """
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {
                f"{node.module or ''}.{alias.name}" for alias in node.names
            }
    return found


def undigested(core):
    """Imports of code that is not in the digest, in code that decides a result."""
    known = {*digest.ENGINE, *DECIDE_NOTHING, *OF_A_DATA_SET, *fedbench.core.__all__}

    def decides_or_carries(module):
        top, *inner = module.split(".")[1:]
        return top == "suites" or (
            top == "core" and bool({*inner[:1], f"{'/'.join(inner[:2])}.py"} & known)
        )

    return {
        f"{path.relative_to(core).as_posix()}: {module}"
        for path in digest.engine_files(core)
        for module in imported(path)
        if module.startswith("fedbench.") and module != "fedbench.core"
        if not decides_or_carries(module)
    }


def upward(core):
    """Imports inside core that do not lead to a lower level, and imports of what is built on
    core.
    """
    for path in core.glob("*/**/*.py"):
        here = path.relative_to(core).parts[0]
        for module in imported(path):
            top, part, *_ = (
                [*module.split(".")[1:], "", ""] if module.startswith("fedbench.") else ("", "")
            )
            inside = top == "core" and part in LEVEL and part != here
            if top in ("plugins", "leaderboard", "testing") or (
                inside and LEVEL[part] >= LEVEL[here]
            ):
                yield f"{path.relative_to(core)}: {module}"


@pytest.fixture
def core(tmp_path):
    """A copy of core."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "core", tmp_path / "core", ignore=ignored))


@pytest.mark.slow
def test_imports_of_core_point_one_way(core):
    assert set(upward(ROOT / "core")) == set()
    wrong = {
        "numerics": "fedbench.core.federation.loop",
        "metrics": "fedbench.plugins.attacks",
        "store": "fedbench.testing",
    }
    for folder, module in wrong.items():
        (core / folder / "bad.py").write_text(f"def f():\n    import {module}")
    assert set(upward(core)) == {f"{folder}/bad.py: {module}" for folder, module in wrong.items()}


@pytest.mark.slow
def test_code_that_decides_a_result_is_in_the_digest(core):
    assert undigested(ROOT / "core") == set()
    (core / "run" / "scoring.py").write_text(
        "def f():\n    import fedbench.plugins.attacks, fedbench.core.cli.main"
    )
    assert undigested(core) == {
        f"run/scoring.py: fedbench.{name}" for name in ("plugins.attacks", "core.cli.main")
    }


def test_the_digest_of_recorded_data_has_all_code_of_recordings():
    files = digest._closure("fedbench.core.recorded.components").values()
    code = (ROOT / "core" / "recorded").glob("*.py")
    assert {path.name for path in files} == {path.name for path in code} - {"__init__.py"}


def test_the_public_names_are_few():
    assert len(fedbench.core.__all__) <= 60


@pytest.mark.slow
def test_plugins_and_checks_import_the_public_contract_and_boards_need_no_torch():
    modules = (fedbench.core, fedbench.core.toolkit, fedbench.core.report, fedbench.core.metrics)
    public = {
        name for m in modules for name in (m.__name__, *(f"{m.__name__}.{n}" for n in m.__all__))
    }
    plugins, boards, checks = (
        {
            m
            for path in (ROOT / top).rglob("*.py")
            if path.parent.name != "papers"  # reads the statistics of boards
            for m in imported(path)
            if not m.startswith(f"fedbench.{top}")
        }
        for top in ("plugins", "leaderboard", "testing")
    )
    assert {m for m in plugins if m.startswith("fedbench")} - public == set()
    assert {".".join(m.split(".")[:2]) for m in checks if m.startswith("fedbench")} == {
        "fedbench.core"
    }
    assert {m for m in boards if m.startswith(("torch.", "fedbench.testing"))} == set()


# --- phases ---------------------------------------------------------------------------------------


class Sealed(Defense):
    """Doubles the update in a phase that only this test knows."""

    def seal(self, update, ctx):
        return 2 * update


class Shifted(Defense):
    """An ordinary defense, to be composed with."""

    def protect(self, update, ctx):
        return update + 1


class Cut(Defense):
    """An answer of another shape."""

    def seal(self, update, ctx):
        return update[1:]


def test_every_phase_is_a_method_and_a_phase_added_to_the_table_is_called_composed_and_guarded(
    monkeypatch,
):
    methods = {
        name
        for name, value in vars(Defense).items()
        if callable(value) and not name.startswith("_")
    }
    assert methods - {"check", "remarks", "privacy_event", "Params"} == set(PHASES)
    seal = Phase("seal", "member", "upload", "chained", "same shape")
    monkeypatch.setattr(Defense, "seal", lambda self, update, ctx: update, raising=False)
    monkeypatch.setitem(PHASES, "seal", seal)
    assert needs_coalition(composed([Defense(), Sealed()]))
    assert not needs_coalition(Defense())
    plain, sealed, both = (
        train_all(tiny_setup(d, rounds=1))[1][0].uploads.updates
        for d in (Defense(), Sealed(), composed([Shifted(), Sealed()]))
    )
    assert torch.equal(sealed, torch.cat([2 * plain[:2], plain[2:]]))
    assert torch.equal(both, torch.cat([2 * (plain[:2] + 1), plain[2:]]))
    with pytest.raises(
        RuntimeError,
        match=r"Cut\.seal \(client 0, round 1\) returned .*; expected a tensor of shape",
    ):
        train_all(tiny_setup(Cut(), rounds=1))


# --- tests ----------------------------------------------------------------------------------------

CLOCKS = {"monotonic", "perf_counter", "time", "process_time"}
LEAST_TIMEOUT_S = 300  # a loaded machine is slow


def alternatives(test):
    """The `or`s of an assertion's condition, below `and` and `not`."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.Or) + sum(map(alternatives, test.values))
    return alternatives(test.operand) if isinstance(test, ast.UnaryOp) else 0


def faults(path):
    """Imports of test modules, short timeouts, clocks in conditions, and assertions with an
    alternative.
    """
    for name in imported(path):
        if name.rpartition(".")[2].startswith("test_") or name.endswith("conftest"):
            yield f"imports {name}"
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "timeout"
            and isinstance(node.value, ast.Constant)
        ):
            yield from [f"timeout={node.value.value}"] * (node.value.value < LEAST_TIMEOUT_S)
        elif isinstance(node, ast.Assert | ast.While):
            called = {
                getattr(n.func, "attr", getattr(n.func, "id", ""))
                for n in ast.walk(node.test)
                if isinstance(n, ast.Call)
            }
            yield from [f"a clock in line {node.lineno}"] * bool(
                called & CLOCKS and path.name != "running.py"
            )
            yield from [f"an alternative in line {node.lineno}"] * (
                isinstance(node, ast.Assert) and alternatives(node.test)
            )


@pytest.mark.slow
def test_tests_import_no_test_read_no_clock_and_assert_no_alternative(tmp_path):
    found = {
        str(path.relative_to(ROOT)): list(faults(path)) for path in (ROOT / "tests").rglob("*.py")
    }
    assert {path: own for path, own in found.items() if own} == {}
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from test_a import b\np.wait(timeout=30)\nwhile time.monotonic() < 1:\n    pass\nassert "
        "time.time() < 60\n"
        "assert x and not (a or b)\nassert (a or b) == c\np.wait(timeout=600)\n"
    )
    assert sorted(faults(bad)) == [
        "a clock in line 3",
        "a clock in line 5",
        "an alternative in line 6",
        "imports test_a",
        "timeout=30",
    ]
