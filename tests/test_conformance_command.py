"""`fedbench check`: whatever a component does, a report comes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner
from fake_packages import install

from fedbench.core.cli.main import cli
from fedbench.testing.table import CHECKS

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
        '''Waits for ever.'''
        def protect(self, update, ctx):
            time.sleep(10_000)

    class Spins(Quiet):
        '''Computes for ever.'''
        def protect(self, update, ctx):
            while True:
                pass

    class Leaves(Quiet):
        '''Ends the process.'''
        def protect(self, update, ctx):
            os._exit(3)

    class Exits(Quiet):
        '''Calls sys.exit.'''
        def protect(self, update, ctx):
            sys.exit(0)

    class Crashes(Quiet):
        '''Kills the process where one client is alone.'''
        def begin(self, ctx):
            if ctx.federation.clients == 1:
                os.kill(os.getpid(), 9)

    class Talks(Quiet):
        '''Prints, and writes to its standard error.'''
        def protect(self, update, ctx):
            print("| passed | injected |")
            return update

    @hookimpl
    def fedbench_defenses():
        for cls in (Quiet, Sleeps, Spins, Leaves, Exits, Crashes, Talks):
            name = cls.__name__.lower()
            yield Component(name, f"behaves:{cls.__name__}", name if name == "talks" else "what it does is in its name")
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
    return install(site, "behaves", PLUGIN)


def test_a_sound_component_has_a_short_report_and_status_0(behaves, tmp_path):
    result = check("quiet", "--markdown", str(tmp_path / "report.md"))
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith("## defense 'quiet' (behaves 1.0)\n") and (tmp_path / "report.md").read_text() == text
    assert {o for o, _ in outcomes(text).values()} <= {"passed", "skipped"}
    assert outcomes(text)["cost"][1].endswith("x the small plain training")
    assert set(outcomes(text)) == {c.name for c in CHECKS if "defense" in c.kinds}


@pytest.mark.parametrize(("name", "words"), [
    ("sleeps", "defense 'sleeps' (behaves 1.0): runs: nothing moved for 2 s"),
    ("spins", "defense 'spins' (behaves 1.0): runs: it used more than 2 s of CPU"),
    ("leaves", "defense 'leaves' (behaves 1.0): runs: it ended the process with status 3"),
    ("exits", "it called sys.exit(0)"),
])  # fmt: skip
def test_one_that_hangs_or_leaves_costs_the_check_in_which_it_does(behaves, monkeypatch, name, words):
    monkeypatch.setenv("FEDBENCH_PLUGIN_SECONDS", "2")
    result = check(name)
    found = outcomes(result.stdout)
    assert result.exit_code == 1 and words in found["runs"][1]
    assert [n for n, (outcome, _) in found.items() if outcome == "failed"] == ["runs"]
    assert found["documented"][0] == "passed" and found["deterministic_under_seed"][0] == "skipped"


def test_one_that_crashes_in_one_check_passes_the_others(behaves):
    found = outcomes(check("crashes").stdout)
    assert [n for n, (outcome, _) in found.items() if outcome == "failed"] == ["refuses_with_a_reason"]
    assert "it was killed by SIGKILL" in found["refuses_with_a_reason"][1] and found["runs_end_to_end"][0] == "passed"


def test_what_it_prints_is_not_in_the_report_and_a_summary_that_says_nothing_fails(behaves):
    result = check("talks")
    found = outcomes(result.stdout)
    assert "injected" not in result.stdout
    assert [n for n, (outcome, _) in found.items() if outcome == "failed"] == ["announced"]


@pytest.mark.parametrize(("args", "words"), [
    (["quite"], "unknown component 'quite' - did you mean 'quiet'?"),
    (["quiet", "--kind", "attack"], "unknown attack 'quiet' (there is a defense of this name)"),
    (["quiet", "--param", "share"], "--param share: expected KEY=VALUE"),
    (["quiet", "--param", "share=2"], "parameter share: Input should be less than or equal to 1; it has share"),
    (["quiet", "--param", "shame=1"], "parameter shame: Extra inputs are not permitted; it has share"),
    (["quiet", "--param", "share=[1"], "--param share=[1: the value is no YAML"),
    (["quiet", "--markdown", "/no/such/folder/report.md"], "the folder /no/such/folder does not exist"),
    ([], "name a component to check, or use --list"),
])  # fmt: skip
def test_a_users_mistake_is_a_message_and_status_2(behaves, args, words):
    result = check(*args)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""


def test_a_name_that_two_packages_claim_names_both(behaves, site):
    install(site, "other", PLUGIN.replace("behaves:", "other:"))
    result = check("quiet")
    assert result.exit_code == 2
    assert result.stderr == (
        "defense 'quiet' is claimed by behaves 1.0 (behaves:Quiet) and other 1.0 (other:Quiet): uninstall one of them\n"
    )


def test_a_name_of_two_kinds_asks_which(site):
    source = """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_defenses():
            yield Component("both", "twice:A", "one")
        @hookimpl
        def fedbench_attacks():
            yield Component("both", "twice:B", "two")
    """
    install(site, "twice", source)
    result = check("both")
    assert result.exit_code == 2 and "'both' is a defense and a attack: say which with --kind" in result.stderr


def test_a_broken_class_is_named(site):
    install(site, "broken", """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_defenses():
            yield Component("torn", "no_such_module:A", "one")
    """)  # fmt: skip
    result = check("torn")
    assert result.exit_code == 2 and "defense 'torn' (broken 1.0): cannot import 'no_such_module'" in result.stderr


def test_the_list_says_what_each_check_asks():
    result = check("--list")
    assert result.exit_code == 0
    for row in CHECKS:
        assert f"{row.name}\n    {row.doc}" in result.stdout


def test_the_command_is_light():
    code = (
        "import sys; from fedbench.core.cli.main import main; main(['check', '--help']); "
        "print('HEAVY', *(m for m in ('torch', 'numpy', 'sklearn', 'rich') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "HEAVY" and "Examples:\n    fedbench check update-noise" in out


# --- what a package brings together -----------------------------------------------------------------------------------

TOGETHER = """
    import numpy as np
    import torch
    from torch import nn
    from fedbench.core import Attack, Component, Data, Dataset, Model, Signal, UserError, hookimpl

    class Second(Signal):
        '''The second largest logit.'''
        def measure(self, probe):
            return probe.logits.topk(2, dim=1).values[:, 1]

    class BySecond(Attack):
        '''High where the second logit is low.'''
        needs = frozenset({"second"})
        def score(self, observations, audit):
            return -np.nanmean(observations.of_target("second").astype(np.float64), axis=0)

    class Sentences(Dataset):
        '''Nine tokens of thirty, the class among them.'''
        licence, citation, home, size_mb, default_model = "CC0", "nobody", "https://example.org", 0.0, "reader"
        def load(self, seed):
            rng = np.random.default_rng(seed)
            def split(n):
                y = rng.integers(0, 3, n)
                x = rng.integers(3, 30, (n, 9))
                x[:, 4] = y
                return x, y
            (a, b), (c, d), (e, f) = split(120), split(30), split(120)
            return Data(train_x=a, train_y=b, test_x=c, test_y=d, holdout_x=e, holdout_y=f, n_classes=3)

    class Net(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.words, self.out = nn.Embedding(30, 4), nn.Linear(4, classes)
            self.read = nn.GRU(4, 4, batch_first=True)

        def forward(self, x):
            return self.out(self.read(self.words(x))[0].mean(1))

    class Reader(Model):
        '''A recurrent net over tokens.'''
        def build(self, input_shape, n_classes):
            if input_shape != (9,):
                raise UserError("it reads sentences of 9 tokens")
            return Net(n_classes)

    class Hangs(Signal):
        '''Nobody asks for it.'''
        def measure(self, probe):
            raise SystemExit

    @hookimpl
    def fedbench_signals():
        yield Component("second", "together:Second", "the second largest logit")
        yield Component("unasked", "together:Hangs", "leaves")

    @hookimpl
    def fedbench_attacks():
        yield Component("by-second", "together:BySecond", "low second logit")

    @hookimpl
    def fedbench_datasets():
        yield Component("sentences", "together:Sentences", "tokens")

    @hookimpl
    def fedbench_models():
        yield Component("reader", "together:Reader", "a GRU over tokens")
"""


@pytest.mark.slow
def test_what_one_package_brings_is_checked_together(site):
    install(site, "together", TOGETHER)
    result = check("by-second", "second", "sentences", "reader")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("| runs | passed |") == result.stdout.count("| runs_end_to_end | passed |") == 4
