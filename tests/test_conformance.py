"""The checks of the plugin contract: built-in components pass them, each finds the mistake that it
is for; `fedbench check`.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import faulty_attacks
import faulty_defenses
import faulty_others
import numpy as np
import pytest
from click.testing import CliRunner
from fake_packages import install
from PIL import Image

from fedbench.core.cli.main import cli
from fedbench.core.registry.kinds import KINDS
from fedbench.testing.run import cases_of, check_component, run_check
from fedbench.testing.subject import Report, Result, subject_of
from fedbench.testing.table import CHECKS, checks_of

# --- the built-in components ----------------------------------------------------------------------

# what learns need not learn for long, nor be large, to be deterministic
PARAMS: dict[str, dict[str, Any]] = {
    "seqmia": {"epochs": 2},
    "adv-reg": {"of_prediction": [16], "of_label": [8], "shared": [8]},
    "random-forest": {"trees": 20},
    "memguard": {"epochs": 20, "steps": 20, "hidden": [8]},
    "ifca-mir": {"beta_max": 0},  # no examination: the small run ends before the first
}
# what the quick test checks; the other components and reports take long
QUICK = {
    "defense": "grad-noise",
    "attack": "loss-series",
    "model": "mlp",
    "dataset": "digits",
    "signal": "margin",
    "analysis": "violations",
}
# the checks train classifiers; tests/test_generative.py has these
DENOISING = {"denoiser-mlp", "denoiser-unet", "generated", "generated-images"}
# checks that do not apply to a component
NOT_ASKED = {"cofedmid": {"order_of_clients"}}  # its members' updates are changed together
WITHOUT_RUNS = (
    "its data are not on this machine",
    "the engine measures this signal",
    "it computes nothing of a run",
    "it draws a finished suite",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    """A folder of two classes of pictures."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        for i in range(30):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(
                folder / name / f"{i}.png"
            )
    rows = "".join(f"{i % 2},{i}\n" for i in range(60))
    (folder / "rows.csv").write_text(f"y,x\n{rows}")
    return str(folder)


def found_in(kind: str, name: str, registry, pictures: str) -> dict[str, str]:
    """The checks that a built-in component does not pass, or skips without one of the known
    reasons.
    """
    own = {
        "image-folder": {"path": pictures, "size": 8},
        "table": {"file": f"{pictures}/rows.csv", "target": "y"},
    }
    params = own.get(name) or PARAMS.get(name, {})
    subject = subject_of(name, kind, params, registry)
    results = {check.name: run_check(subject, check) for check in checks_of(subject)}
    skips = {"runs_on_cuda", *NOT_ASKED.get(name, ())}
    if results["runs"].outcome == "skipped" and results["runs"].message.startswith(WITHOUT_RUNS):
        skips |= results.keys()
    return {
        f"{name}: {check}": r.message
        for check, r in results.items()
        if r.outcome in ("failed", "warned") or (r.outcome == "skipped" and check not in skips)
    }


@pytest.mark.parametrize(("kind", "name"), QUICK.items(), ids=QUICK)
def test_a_built_in_component_of_a_kind_passes_the_checks_for_plugins(
    kind, name, registry, pictures
):
    assert found_in(kind, name, registry, pictures) == {}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_the_built_in_components_pass_the_checks_for_plugins(kind, registry, pictures):
    found: dict[str, str] = {}
    # `recorded` is of a recording alone, with `fedbench audit`
    done = {QUICK.get(kind), "recorded", *DENOISING}
    for name in sorted({component.name for component in registry.own(kind)} - done):
        found |= found_in(kind, name, registry, pictures)
    assert found == {}


# --- each check finds the mistake that it is for --------------------------------------------------


def faulty(module: ModuleType) -> dict[str, type]:
    """Check -> the component that it must find: the class of its name."""
    named = {
        re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): cls for name, cls in vars(module).items()
    }
    return {name: named[name] for name in named.keys() & {check.name for check in CHECKS}}


def checked(cls: type, name: str) -> Result:
    """The result of one check of a class."""
    subject = subject_of(cls)
    (check,) = (check for check in checks_of(subject) if check.name == name)
    return run_check(subject, check)


FAULTY = [faulty_defenses, faulty_attacks, faulty_others]
# `announced` is about announcements, which a bare class has none of
ELSEWHERE = {"announced", "runs_on_cuda"}
SAID = {
    "defaults_construct": "call super().__init__(**values)",
    "signatures": "protect takes (update); expected protect(update, ctx)",
    "finds_nothing_in_nothing": "AUC",
}


@pytest.mark.parametrize("module", FAULTY, ids=lambda module: module.__name__)
def test_a_check_finds_the_mistake_that_it_is_for(module):
    for name, cls in faulty(module).items():
        result = checked(cls, name)
        assert result.outcome == "failed", name
        assert SAID.get(name, "") in result.message
        assert "\n" not in result.message and len(result.message) > 40, name


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (faulty_attacks.AsksTheClock, "deterministic_under_seed"),
        (faulty_attacks.AsksForItsProcess, "deterministic_under_seed"),
        (faulty_attacks.CountsInAFile, "deterministic_under_seed"),
        (faulty_attacks.CountsInAGlobal, "no_state_between_runs"),
        (faulty_attacks.KeepsTheMaximum, "one_and_many_targets"),
    ],
)
def test_state_outside_the_instance_is_found_by_all_checks_in_their_order(cls, check):
    found = {r.name: r.outcome for r in check_component(cls).results}
    assert (found["runs"], found[check]) == ("passed", "failed")


@pytest.mark.parametrize(
    ("cls", "place"),
    [
        (faulty_defenses.KeepsOnItsClass, "KeepsOnItsClass.seen"),
        (faulty_defenses.KeepsInAGlobal, "faulty_defenses.SEEN"),
    ],
)
def test_what_a_member_leaves_on_a_class_or_in_a_global_is_found(cls, place):
    result = checked(cls, "members_kept_apart")
    assert result.outcome == "failed"
    assert f"data, memory or context in {place}; expected" in result.message


def test_every_check_has_a_mistake_that_it_finds():
    assert {name for module in FAULTY for name in faulty(module)} | ELSEWHERE == {
        check.name for check in CHECKS
    }


# --- from Python and in pytest --------------------------------------------------------------------


def test_a_report_escapes_the_text_of_plugins():
    report = Report("defense 'x'", (Result("runs", "failed", "a | b <script>\n`c`", 0.1),))
    assert report.markdown().splitlines()[-1] == "| runs | failed | a \\| b \\<script\\> \\`c\\` |"


def test_pytest_cases_have_the_ids_of_the_docs_and_raise_one_message():
    subjects = ("perturb", faulty_defenses.Documented, ("grad-noise", {"sigma": 0.5}))
    cases = {case.id: case for case in cases_of(*subjects)}
    assert "perturb-deterministic_under_seed" in cases
    assert cases["grad-noise-runs"].subject.params == {"sigma": 0.5}
    said = "defense 'Documented': the class Documented has no docstring; expected "
    with pytest.raises(AssertionError, match=said):
        cases["Documented-documented"]()
    cases["perturb-documented"]()
    with pytest.raises(pytest.skip.Exception, match="CUDA"):
        cases["perturb-runs_on_cuda"]()
    with pytest.warns(UserWarning, match="announced by no entry point"):
        cases["Documented-announced"]()


# --- the command ----------------------------------------------------------------------------------

PLUGIN = """
    import os, time, sys
    from pydantic import Field
    from fedbench.core import Component, Defense, Params, hookimpl

    class Quiet(Defense):
        '''Half of the update.'''

        class Params(Params):
            share: float = Field(0.5, ge=0, le=1, description="of the update")

        def protect(self, update, ctx):
            return update * self.params.share

    class Sleeps(Quiet):
        '''Never ends.'''
        def protect(self, update, ctx):
            time.sleep(10_000)

    class Leaves(Quiet):
        '''Ends the process.'''
        def protect(self, update, ctx):
            os._exit(3)

    class Crashes(Quiet):
        '''Kills the process where one client is alone; prints.'''
        def begin(self, ctx):
            print("| passed | injected |")
            if ctx.federation.clients == 1:
                os.kill(os.getpid(), 9)

    @hookimpl
    def fedbench_defenses():
        for cls in (Quiet, Sleeps, Leaves, Crashes):
            name = cls.__name__.lower()
            says = name if name == "crashes" else "what it does is in its name"
            yield Component(name, f"behaves:{cls.__name__}", says)
        yield Component("torn", "no_such_module:A", "one")
"""
TWICE = """
    from fedbench.core import Component, hookimpl

    @hookimpl
    def fedbench_defenses():
        yield Component("both", "twice:A", "one")
        yield Component("claimed", "twice:A", "one")

    @hookimpl
    def fedbench_attacks():
        yield Component("both", "twice:B", "two")
"""


def check(*args: str):
    """`fedbench check` in this process; a traceback fails the test."""
    result = CliRunner().invoke(cli, ["check", *args], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def outcomes(text: str) -> dict[str, tuple[str, str]]:
    """Check -> (outcome, what to do) of the one table."""
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1].strip(" |"), row[2] if len(row) > 2 else "") for row in rows[1:]}


@pytest.fixture
def behaves(site):
    install(site, "behaves", PLUGIN)
    install(site, "twice", TWICE)
    install(site, "again", TWICE.replace("twice:", "again:").replace('"both"', '"other"'))


def test_a_sound_component_has_a_short_report_and_status_0(behaves):
    result = check("quiet")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith("## defense 'quiet' (behaves 1.0)\n")
    assert {o for o, _ in outcomes(text).values()} <= {"passed", "skipped"}
    assert set(outcomes(text)) == {c.name for c in CHECKS if "defense" in c.kinds}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(
            "sleeps",
            "defense 'sleeps' (behaves 1.0): runs: nothing moved for 2 s",
            marks=pytest.mark.slow,
        ),
        ("leaves", "defense 'leaves' (behaves 1.0): runs: it ended the process with status 3"),
    ],
)
def test_a_component_that_hangs_or_leaves_costs_the_check_in_which_it_does(
    behaves, monkeypatch, name, words
):
    monkeypatch.setenv("FEDBENCH_PLUGIN_SECONDS", "2")
    result = check(name)
    found = outcomes(result.stdout)
    assert result.exit_code == 1 and words in found["runs"][1]
    assert [n for n, (outcome, _) in found.items() if outcome == "failed"] == ["runs"]
    assert found["documented"][0] == "passed" and found["deterministic_under_seed"][0] == "skipped"


def test_a_crash_in_one_check_leaves_the_others_and_printed_text_is_not_in_the_report(behaves):
    found = outcomes(text := check("crashes").stdout)
    assert {n for n, (outcome, _) in found.items() if outcome == "failed"} == {
        "refuses_with_a_reason",
        "announced",
    }
    assert "it was killed by SIGKILL" in found["refuses_with_a_reason"][1]
    assert found["runs_end_to_end"][0] == "passed"
    assert "injected" not in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["quite"], "unknown component 'quite' - did you mean 'quiet'?"),
        (["quiet", "--kind", "attack"], "unknown attack 'quiet' (there is a defense of this name)"),
        (
            ["quiet", "--param", "share=2"],
            "parameter share: Input should be less than or equal to 1; it has share",
        ),
        ([], "name a component to check, or use --list"),
        (["both"], "'both' is a defense and a attack: choose one with --kind"),
        (
            ["claimed"],
            "defense 'claimed' is claimed by again 1.0 (again:A) and twice 1.0 (twice:A): "
            "uninstall one of them",
        ),
        (["torn"], "defense 'torn' (behaves 1.0): cannot import 'no_such_module'"),
    ],
)
def test_a_users_mistake_is_a_message_and_status_2(behaves, args, words):
    result = check(*args)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""
