"""The checks from Python and in pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from faulty_defenses import AnswersDouble, Sound

from fedbench.core import UserError
from fedbench.testing import check_component
from fedbench.testing.parametrize import cases_of
from fedbench.testing.results import Report, Result


def test_a_class_an_instance_and_a_name_are_checked_from_python():
    sound, faulty = check_component(Sound), check_component(AnswersDouble())
    assert sound.ok and not faulty.ok
    (failed,) = (r for r in faulty.results if r.outcome == "failed")
    assert failed.name == "update_shape_and_dtype" and failed.seconds > 0
    assert "protect answers float32" in failed.message and "faulty_defenses.py:" in failed.message
    assert check_component("perturb").component == "defense 'perturb' (fedbench 0.1.0)"


@pytest.mark.parametrize("what", [3, int, "no-such-thing"])
def test_what_is_no_component_is_refused(what):
    with pytest.raises(UserError, match=r"cannot be checked|unknown component"):
        check_component(what)


def test_a_report_escapes_what_others_wrote():
    report = Report("defense 'x'", (Result("runs", "failed", "a | b <script>\n`c`", 0.1),))
    assert report.markdown().splitlines()[-1] == "| runs | failed | a \\| b \\<script\\> \\`c\\` |"


def test_cases_have_the_ids_that_the_docs_promise_and_raise_one_message():
    cases = {case.id: case for case in cases_of("perturb", AnswersDouble, ("grad-noise", {"sigma": 0.5}))}
    assert "perturb-deterministic_under_seed" in cases and cases["grad-noise-runs"].subject.params == {"sigma": 0.5}
    with pytest.raises(AssertionError, match=r"defense 'AnswersDouble': protect answers float32 .* with float64"):
        cases["AnswersDouble-update_shape_and_dtype"]()
    cases["perturb-documented"]()
    with pytest.raises(pytest.skip.Exception, match="CUDA"):
        cases["perturb-runs_on_cuda"]()
    with pytest.warns(UserWarning, match="announced by no entry point"):
        cases["AnswersDouble-announced"]()


@pytest.mark.slow
def test_the_decorator_makes_a_case_of_each_check(tmp_path):
    (tmp_path / "test_mine.py").write_text(textwrap.dedent("""
        from fedbench.testing import parametrize_with_checks

        @parametrize_with_checks("grad-sparse")
        def test_conformance(check):
            check()
    """))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0 and "passed" in ran.stdout, ran.stdout
