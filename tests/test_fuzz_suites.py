"""Whatever stands in a suite's file, reading it ends in a suite or in a few readable lines, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_suites import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import Mutant, ending, suite_mutants
from running import HANG_S

from fedbench.core.registry.components import Registry

REGISTRY = Registry.discover()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES)
def test_what_was_found_by_hand_is_refused_readably(folder, text):
    end = ending(text.encode(), folder, REGISTRY)
    assert end.held, end.what
    assert end.outcome == "refused"


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_a_mutant_is_a_suite_or_is_refused_readably(folder, seed):
    (mutant,) = suite_mutants(seed, 1)
    end = ending(mutant.content, folder, REGISTRY)
    assert end.held, f"{mutant.how}: {end.what}"


@pytest.mark.slow
def test_reading_takes_bounded_memory():
    """In a process of its own that may take 300 MB beyond what all components take; every example among them."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mutants.py")), "3", "5"], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["tried"] == counts["held"] == len(EXAMPLES) + 5


def test_mutants_are_the_same_every_time_and_differ_from_each_other():
    first, again = list(suite_mutants(5, 60)), list(suite_mutants(5, 60))
    assert first == again and first[:20] == list(suite_mutants(5, 20))
    assert len({m.content for m in first}) > 50


@pytest.mark.parametrize(("messages", "outcome"), [
    (("suite.yaml:1:1: a mistake",), "refused"), (("two\nlines",), "broken"), (("\x1b[2J",), "broken"),
    (("x" * 5_000,), "broken"), (("m",) * 100, "broken"), ((), "broken"), (("a\u202eb",), "broken"),
])  # fmt: skip
def test_the_fuzzer_knows_a_bad_refusal(folder, monkeypatch, messages, outcome):
    from fedbench.core.contract.errors import UserError

    def refuse(*args):
        raise UserError(*messages)

    monkeypatch.setattr("mutants.load_and_check", refuse)
    assert ending(b"", folder, REGISTRY).outcome == outcome


def test_the_fuzzer_knows_a_traceback(folder, monkeypatch):
    def fail(*args):
        raise TypeError("unhashable type: 'list'")

    monkeypatch.setattr("mutants.load_and_check", fail)
    end = ending(Mutant("x", b"").content, folder, REGISTRY)
    assert not end.held and end.what.startswith("TypeError: unhashable type: 'list' (")
