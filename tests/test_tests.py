"""The tests' own rules: no test module leans on another, none on the clock, and no assertion holds by itself.

Each rule is also shown to fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "time", "process_time"}
LEAST_TIMEOUT_S = 300  # a loaded machine is slow: whoever waits less is wrong about it one day
MODULES = sorted(TESTS.rglob("*.py"))


def borrowed(tree: ast.AST) -> set[str]:
    """Test modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(alias.name for alias in node.names)} if node.level else {node.module or ""}
    return {name for name in names if name.rpartition(".")[2].startswith("test_") or name.endswith("conftest")}


def called(node: ast.expr) -> str:
    """The last part of a function's name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def clocked(tree: ast.AST) -> Iterator[str]:
    """Timeouts that a loaded machine breaks, and readings of a clock inside an assertion or a loop's condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [k.value.value for k in node.keywords if k.arg == "timeout" and isinstance(k.value, ast.Constant)]
            yield from (f"line {node.lineno}: timeout={n}" for n in given if isinstance(n, int | float) and n < LEAST_TIMEOUT_S)
        elif isinstance(node, ast.Assert | ast.While):
            inside = [n for n in ast.walk(node.test) if isinstance(n, ast.Call) and called(n.func) in CLOCKS]
            yield from (f"line {node.lineno}: {called(n.func)}()" for n in inside)


def alternatives(tree: ast.AST) -> Iterator[int]:
    """Lines of assertions that are content with one thing or another: what holds should be said."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            parts = [node.test]
            while parts:
                part = parts.pop()
                if isinstance(part, ast.BoolOp):
                    parts += part.values
                    if isinstance(part.op, ast.Or):
                        yield node.lineno
                elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                    parts.append(part.operand)


@pytest.mark.parametrize(("source", "found"), [
    ("from test_spec import GOOD", {"test_spec"}), ("import test_spec as t", {"test_spec"}), ("from . import test_a", {"test_a"}),
    ("from tests.conftest import site", {"tests.conftest"}), ("from good_suite import GOOD", set()),
])  # fmt: skip
def test_a_borrowed_helper_is_seen(source, found):
    assert borrowed(ast.parse(source)) == found


@pytest.mark.parametrize(("source", "found"), [
    ("p.communicate(timeout=30)", ["line 1: timeout=30"]), ("q.get(timeout=600)", []), ("p.wait(timeout=HANG_S)", []),
    ("while not f() and time.monotonic() < end: pass", ["line 1: monotonic()"]),
    ("assert time.time() - began < 60", ["line 1: time()"]), ("began = time.perf_counter()", []),
])  # fmt: skip
def test_a_clock_is_seen(source, found):
    assert list(clocked(ast.parse(source))) == found


@pytest.mark.parametrize(("source", "n"), [
    ("assert a or b", 1), ("assert x and (a or b)", 1), ("assert not (a or b)", 1), ("assert (a or b) == c", 0),
])  # fmt: skip
def test_an_alternative_is_seen(source, n):
    assert len(list(alternatives(ast.parse(source)))) == n


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_no_module_imports_a_test_module(path):
    assert borrowed(ast.parse(path.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize("path", [p for p in MODULES if p.name != "running.py"], ids=lambda p: p.stem)
def test_no_test_races_against_the_clock(path):
    """``running.wait_for`` alone looks at it, for what hangs."""
    assert list(clocked(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_no_assertion_offers_an_alternative(path):
    assert list(alternatives(ast.parse(path.read_text(encoding="utf-8")))) == []
