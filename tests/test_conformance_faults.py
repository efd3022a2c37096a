"""Every check catches what it is for: components with one planted mistake each, and what the checks say of them."""

from __future__ import annotations

from pathlib import Path

import faulty_attacks
import faulty_beginners
import faulty_defenses
import faulty_others
import pytest
import torch

from fedbench.testing.checks import runs
from fedbench.testing.one import run_check
from fedbench.testing.subject import subject_of
from fedbench.testing.table import CHECKS, checks_of, kinds_words

FAILED = {**faulty_defenses.FAILED, **faulty_attacks.FAILED, **faulty_others.FAILED, **faulty_beginners.FAILED}
WARNED = {**faulty_defenses.WARNED, **faulty_others.WARNED, **faulty_beginners.WARNED}
# `announced` is about announcements, which a bare class has none of (tests/test_conformance_command.py); costs vary, see below
ELSEWHERE = {"announced", "runs_on_cuda", "cost"}


def results_of(cls: type) -> dict:
    """Check -> result."""
    subject = subject_of(cls)
    return {check.name: run_check(subject, check) for check in checks_of(subject) if check.name not in ELSEWHERE}


@pytest.mark.parametrize("cls", FAILED, ids=lambda cls: cls.__name__)
def test_a_planted_mistake_fails_the_check_that_is_for_it_and_no_other(cls):
    results = results_of(cls)
    failed = {name: r.message for name, r in results.items() if r.outcome == "failed"}
    assert set(failed) == set(FAILED[cls]), failed
    for name in WARNED.get(cls, ()):
        assert results[name].outcome == "warned", results[name]
    for message in failed.values():
        assert "\n" not in message and len(message) > 40
        assert message.count("expected") <= 1, message


@pytest.mark.parametrize("cls", faulty_beginners.SAID, ids=lambda cls: cls.__name__)
def test_a_first_mistake_is_told_in_words_that_mend_it(cls):
    subject = subject_of(cls)
    said = [run_check(subject, check).message for check in checks_of(subject) if check.name in FAILED[cls]]
    assert [faulty_beginners.SAID[cls] in message for message in said] == [True], said


def test_the_page_says_of_every_check_what_it_asks_and_why():
    page = (Path(__file__).parents[1] / "docs" / "conformance.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[:3] for row in rows] == [[f"`{c.name}`", kinds_words(c), c.doc] for c in CHECKS]
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)


def test_every_check_has_a_mistake_that_it_catches():
    caught = {name for names in (*FAILED.values(), *WARNED.values()) for name in names}
    assert caught | ELSEWHERE == {check.name for check in CHECKS}


@pytest.mark.parametrize("cls", [faulty_defenses.Sound, faulty_attacks.SoundAttack, faulty_attacks.SoundActive])
def test_costs_are_told_and_never_fail(cls, monkeypatch):
    subject = subject_of(cls)
    (cost,) = (check for check in checks_of(subject) if check.name == "cost")
    for dear, outcome in ((1e9, "passed"), (0.0, "warned")):
        monkeypatch.setattr(runs, "_DEAR", dear)
        result = run_check(subject, cost)
        assert result.outcome == outcome and "x the small plain training" in result.message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("cls", "outcome"), [
    (faulty_defenses.Sound, "passed"), (faulty_defenses.StaysOnTheCpu, "failed"), (faulty_others.SoundModel, "passed"),
    (faulty_others.SoundSignal, "passed"), (faulty_attacks.SoundActive, "passed"),
])  # fmt: skip
def test_a_tensor_made_on_the_cpu_is_found_where_there_is_a_gpu(cls, outcome):
    subject = subject_of(cls)
    (check,) = (check for check in checks_of(subject) if check.name == "runs_on_cuda")
    assert run_check(subject, check).outcome == outcome
