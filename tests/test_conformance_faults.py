"""Every check catches what it is for: components with one planted mistake each, and what the checks say of them."""

from __future__ import annotations

import faulty_defenses
import faulty_others
import pytest

from fedbench.testing.one import run_check
from fedbench.testing.subject import subject_of
from fedbench.testing.table import CHECKS, checks_of

FAILED = {**faulty_defenses.FAILED, **faulty_others.FAILED}
WARNED = {**faulty_defenses.WARNED, **faulty_others.WARNED}
# `announced` is about announcements, which a bare class has none of; tests/test_conformance_command.py
ELSEWHERE = {"announced", "runs_on_cuda"}


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


def test_every_check_has_a_mistake_that_it_catches():
    caught = {name for names in (*FAILED.values(), *WARNED.values()) for name in names}
    assert caught | ELSEWHERE == {check.name for check in CHECKS}
