"""Where in a plugin something went wrong: in the message, in the log, and, where the user asks for it, with every frame."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fake_packages import install
from running import changed, invoke, outcomes, records, suite

from fedbench.core.cli.validate import command as validate
from fedbench.core.words.explain import explain, told
from fedbench.core.words.frames import DEBUG, logged, place, trimmed, whole


def caught(does: Callable[[], Any]) -> BaseException:
    """What it raises, as the engine has it: from its own call of the plugin on."""
    with pytest.raises(BaseException) as info:
        does()
    error = info.value
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_globals["__name__"] == __name__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def module(folder: Path, name: str, source: str) -> Any:
    """A module of somebody's, imported."""
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    __import__(name)
    return sys.modules[name]


SOURCE = """
    import torch

    def protect(update):
        return inner(update)

    def inner(update):
        return torch.nn.functional.linear(update, update[:, None])

    def around(does):
        try:
            return does()
        except ZeroDivisionError as error:
            raise ValueError("no way") from error

    def deep(n):
        return deep(n + 1)
"""


@pytest.fixture
def theirs(site):
    return module(site, "their_package.defense", SOURCE)


def test_the_place_is_the_innermost_of_the_plugins_own(theirs):
    error = caught(lambda: theirs.protect(torch.ones(3)))
    assert place(error) == " (their_package/defense.py:8 in inner)"
    assert told(error).startswith("RuntimeError: ") and told(error).endswith(place(error))


def test_a_traceback_has_the_plugins_own_frames_and_says_how_many_are_left_out(theirs):
    error = caught(lambda: theirs.around(lambda: 1 / 0))
    text = trimmed(error)
    assert re.findall(r', line (\d+), in (\w+)', text) == [("12", "around"), ("14", "around")]
    assert "ZeroDivisionError: division by zero\n\nThe above exception was the direct cause" in text
    assert "\nValueError: no way\n(1 frames of fedbench and of libraries left out; `--debug` keeps them)\n" in text
    assert "test_frames.py" in whole(error) and "test_frames.py" not in text
    assert logged(error) == text


def test_what_has_no_frame_of_a_plugin_has_no_place():
    error = caught(lambda: torch.ones(2) @ torch.ones(3))
    assert place(error) == trimmed(error) == "" and logged(error) == whole(error)


def test_everything_is_bounded_and_printable(theirs):
    error = caught(lambda: theirs.deep(0))
    assert len(logged(error).splitlines()) < 130 and "Previous line repeated" in logged(error)
    source = f"def {'x' * 3000}():\n raise ValueError('\\x1b[31m' + 'y' * 10**6)\n{'x' * 3000}()"
    long = caught(lambda: exec(compile(source, "\x1b", "exec"), {"__name__": "theirs"}))
    for text in (told(long), logged(long), whole(long)):
        assert "\x1b" not in text and max(map(len, text.splitlines())) <= 801
    assert len(told(long)) <= 801


def test_an_exception_that_cannot_be_looked_at_is_shown_all_the_same():
    class Hostile(Exception):
        __notes__ = property(lambda self: 1 / 0)

        def __str__(self):
            raise RuntimeError("no")

    assert told(Hostile()) == "Hostile" and whole(Hostile()) == "RuntimeError: a Hostile that cannot be shown\n"


# --- in messages, logs and on standard error --------------------------------------------------------------------------

PLUGIN = """
    import numpy as np
    import torch
    from fedbench.core import (
        ActiveAttack, Analysis, Attack, Component, Data, Dataset, Defense, Model, Signal, UserError, hookimpl
    )
    def never(x):
        return np.linalg.inv(np.zeros((2, 2)))  # line 8: numpy raises
    class Fails(Defense):
        def protect(self, update, ctx):
            return never(update)
    class Reports(Defense):
        def report(self, ctx):
            return never(ctx)
    class Scores(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return never(observations)
    class Crafts(ActiveAttack):
        needs = frozenset({"loss"})
        def craft(self, round, knowledge):
            return never(knowledge)
    class Reads(Attack):
        needs = frozenset({"measured"})
        def score(self, observations, audit):
            return observations.of_target("measured").mean(0)
    class Measured(Signal):
        def measure(self, probe):
            return never(probe)
    class Finds(Analysis):
        def analyse(self, run, judgement):
            return never(run)
    class Points(Dataset):
        size_mb = 0
        def load(self, seed):
            import os
            return never(seed) if os.path.exists("fail-data") else self._data(seed)
        def _data(self, seed):
            rng = np.random.default_rng(seed)
            made = lambda n: (rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2)
            (a, b), (c, d), (e, f) = made(80), made(20), made(20)
            return Data(train_x=a, train_y=b, test_x=c, test_y=d, holdout_x=e, holdout_y=f, n_classes=2)
    class Net(torch.nn.Module):
        def __init__(self, inside, out):
            super().__init__()
            self.line = torch.nn.Linear(inside, out)
        def forward(self, x):
            return never(x) if self.training else self.line(x)
    class Line(Model):
        def build(self, input_shape, n_classes):
            import os
            return never(0) if os.path.exists("fail-model") else Net(input_shape[0], n_classes)
    @hookimpl
    def fedbench_defenses():
        yield Component("fails", "places:Fails", "a toy")
        yield Component("reports", "places:Reports", "a toy")
    @hookimpl
    def fedbench_attacks():
        yield Component("scores", "places:Scores", "a toy")
        yield Component("crafts", "places:Crafts", "a toy")
        yield Component("reads", "places:Reads", "a toy")
    @hookimpl
    def fedbench_analyses():
        yield Component("finds", "places:Finds", "a toy")
    @hookimpl
    def fedbench_signals():
        yield Component("measured", "places:Measured", "a toy")
    @hookimpl
    def fedbench_datasets():
        yield Component("points", "places:Points", "a toy")
    @hookimpl
    def fedbench_models():
        yield Component("line", "places:Line", "a toy")
"""
WHAT = "LinAlgError: Singular matrix (places.py:8 in never)"
POINTS = {"dataset": {"name": "points"}, "audit": {"every": 4, "nonmembers": 10}}


@pytest.fixture
def places(site):
    return install(site, "places", PLUGIN)


def logs(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((folder / "logs").iterdir()))


def test_the_message_of_every_kind_says_where_in_the_plugin(places, tmp_path):
    path = changed(
        tmp_path, {"adversary": {"clients": 1}}, defenses=["none", "fails", "reports"],
        attacks=["loss-series", "scores", "reads", "crafts"], analyses=["finds"],
    )  # fmt: skip
    output = invoke(path, "--results", tmp_path / "r", status=1)
    found = {who[:2]: r for who, r in records(tmp_path / "r").items()}
    reasons = {who: r["reason"] for who, r in found.items()}
    assert reasons["fails", "loss-series"] == f"Fails.protect (client 0, round 1): {WHAT}"
    assert reasons["none", "scores"] == f"attack 'scores' (places 1.0): {WHAT}"
    assert reasons["none", "reads"] == f"signal 'measured' (places 1.0): round 2: {WHAT}"
    assert reasons["none", "crafts"] == f"Crafts.craft (round 1): {WHAT}"
    assert f"analysis 'finds' (places 1.0): {WHAT}" in found["none", "loss-series"]["complaints"][0]
    assert f"Reports.report (after the last round): {WHAT}" in found["reports", "loss-series"]["complaints"]
    assert f"tracebacks are in {tmp_path / 'r' / 'logs'}" in output.replace("\n", "")
    log = logs(tmp_path / "r")
    for name, line in (("protect", 11), ("score", 18), ("measure", 29), ("craft", 22), ("analyse", 32), ("report", 14)):
        assert f'places.py", line {line}, in {name}\n' in log, name
    assert "Singular matrix\n(" in log and " frames of fedbench and of libraries left out; `--debug` keeps them)\n" in log
    assert "/numpy/" not in log and f"core{os.sep}federation" not in log


def test_data_sets_and_models_name_themselves_and_the_place(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = changed(tmp_path, POINTS | {"model": {"name": "line"}})
    invoke(path, "--results", tmp_path / "r", status=1)
    assert outcomes(tmp_path / "r")["loss-series"] == ("failed", f"the model (round 1): {WHAT}")
    said = []
    for name in ("fail-data", "fail-model"):
        (tmp_path / name).touch()
        said.append(CliRunner().invoke(validate, [str(path)]).exception.messages[0])
        (tmp_path / name).unlink()
    assert said[0].endswith(f"dataset 'points' (places 1.0): {WHAT}")
    assert said[1].endswith(f"model 'line' (places 1.0): {WHAT}")


def call(folder: Path, site: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "fedbench.core.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)


@pytest.mark.slow
def test_debug_keeps_all_frames_in_the_log_and_shows_them(places, site, tmp_path):
    path = suite(tmp_path, attacks=["scores"])
    ended = call(tmp_path, site, "run", path, "--results", tmp_path / "r", "--no-plots", "--debug")
    assert ended.returncode == 1
    for text in (ended.stderr, logs(tmp_path / "r")):
        assert "core/execution/forked.py" in text and 'places.py", line 18, in score' in text and "/numpy/" in text
        assert "left out" not in text
    ended = call(tmp_path, site, "run", path, "--results", tmp_path / "r", "--no-plots", "--rerun", "failed")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr + ended.stdout


def test_debug_shows_what_fails_before_a_run(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fail-data").touch()
    path = changed(tmp_path, POINTS)
    plain, debugged = (CliRunner().invoke(validate, [str(path), *more]) for more in ((), ("--debug",)))
    assert "Traceback" not in plain.output and str(plain.exception) == str(debugged.exception)
    assert 'places.py", line 8, in never\n    return np.linalg.inv(' in debugged.output and "/numpy/" in debugged.output
    assert DEBUG not in os.environ


def test_explaining_prints_where_the_user_debugs(monkeypatch, capsys, theirs):
    error = caught(lambda: theirs.around(lambda: 1 / 0))
    assert explain(error) and capsys.readouterr().err == ""
    monkeypatch.setenv(DEBUG, "1")
    assert explain(error) and capsys.readouterr().err == whole(error)
