"""The README's commands and examples are what they say: extracted from it, then run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from fake_packages import install
from running import invoke, records, suite

from fedbench.core.cli.main import cli, commands
from fedbench.core.cli.run import build_plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def marked(name: str) -> str:
    """The command that follows a marker."""
    found = re.findall(rf"<!-- {name} -->\n```\n(.*)\n```", README)
    assert len(found) == 1, f"the README has {len(found)} commands marked {name}"
    return found[0]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    """The three examples in one module, as a package that announces all of them."""
    folder = install(tmp_path / "site", "my_package", "\n\n".join(EXAMPLES))
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("my_package", None)


def test_the_examples_run_together_in_one_suite(tmp_path, my_package):
    federation = {"clients": 4, "rounds": 4, "batch_size": 20, "optimizer": {"lr": 0.1}}
    setting = {"name": "blobs", "dataset": "blobs", "federation": federation, "audit": {"every": 2}}
    path = suite(tmp_path, settings=[setting], defenses=["none", "update-noise"], attacks=["last-loss"])
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    assert {key: r["outcome"] for key, r in found.items()} == {
        ("none", "last-loss", 0): "ok", ("update-noise", "last-loss", 0): "ok",
    }  # fmt: skip
    noise = found["update-noise", "last-loss", 0]
    assert noise["defense"]["params"] == {"sigma": 0.01} and noise["defense"]["distribution"] == "my_package 1.0"
    assert noise["pooled"] != found["none", "last-loss", 0]["pooled"]


def test_each_example_is_found_alone(tmp_path, monkeypatch):
    for i, (kind, name) in enumerate([("defense", "update-noise"), ("attack", "last-loss"), ("dataset", "blobs")]):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(install(tmp_path / str(i), "my_package", EXAMPLES[i])))
            listed = CliRunner().invoke(cli, ["list", f"{kind}s", "--json"]).stdout
        sys.modules.pop("my_package", None)
        (found,) = (entry for entry in json.loads(listed)[f"{kind}s"] if entry["name"] == name)
        assert (found["package"], found["version"]) == ("my_package", "1.0")


def test_the_active_attack_of_the_docs_poisons(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "adversaries.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(install(tmp_path / "site", "my_package", code)))
        federation = {"clients": 4, "rounds": 3, "batch_size": 20, "optimizer": {"lr": 0.1}}
        setting = {
            "name": "digits", "dataset": "digits", "federation": federation, "adversary": {"clients": 1, "mask_set": 10},
            "audit": {"targets": "honest", "members": 50, "nonmembers": 50},
        }  # fmt: skip
        path = suite(tmp_path, settings=[setting], coalitions=["none"], defenses=["none"], attacks=["passive", "my-ascent"])
        invoke(path, "--results", tmp_path / "r")
    sys.modules.pop("my_package", None)
    found = records(tmp_path / "r")
    passive, active = (found["none", name, 0] for name in ("passive", "my-ascent"))
    assert active["targets"][0]["decision"] and active["utility"]["accuracy"] < passive["utility"]["accuracy"]


def test_the_package_that_ci_installs_is_the_readmes():
    folder = ROOT / "tests" / "plugin_example"
    assert (folder / "my_package.py").read_text() == EXAMPLES[0]
    (announced,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    entry_points = tomllib.loads(announced)["project"]["entry-points"]
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"] == entry_points


def test_the_two_commands_start_from_nothing_and_name_what_there_is():
    for name in ("run-command", "test-command"):
        make_environment, *rest = marked(name).split(") && ")
        assert make_environment.startswith("(python3.11 -m venv .venv || (apt-get update && apt-get install -y python3.11-venv")
        steps = [[], *(shlex.split(step) for step in ") && ".join(rest).split(" && "))]
        assert steps[1][:3] == [".venv/bin/pip", "install", "-q"] and steps[1][3] == "-e"
        assert steps[2][0].startswith(".venv/bin/")
    assert steps[1][4] == ".[test]" and "pytest" in project()["project"]["optional-dependencies"]["test"]
    assert steps[2][:2] == [".venv/bin/pytest", "-q"]
    run = shlex.split(marked("run-command").split(" && ")[-1])
    assert run[:2] == [".venv/bin/fedbench", "run"] and (ROOT / run[2]).is_file()
    assert "fedbench" in project()["project"]["scripts"]


@pytest.mark.parametrize("name", ["run-command", "test-command"])
def test_ci_takes_its_commands_from_the_readme(name):
    script = (ROOT / ".ci" / "run").read_text()
    function = re.search(r"^readme\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    assert f"readme {name}" in script
    call = ["bash", "-c", f"{function.group()}\nreadme {name}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == marked(name) + "\n"


def shown() -> list[list[str]]:
    """The words of every ``fedbench ...`` line of the block of commands, without its explanation."""
    block = README.split("## What you can do")[1].split("```")[1]
    return [shlex.split(re.split(r"\s{2,}", line)[0]) for line in block.strip().splitlines()]


@pytest.mark.parametrize("words", shown(), ids=" ".join)
def test_every_command_shown_exists_with_its_options(words):
    assert words[0] == "fedbench" and words[1] in commands()
    module, _, name = commands()[words[1]].partition(":")
    command = getattr(import_module(module), name)
    command.make_context(words[1], words[2:], resilient_parsing=False).close()  # unknown options are refused


def test_every_command_is_shown_and_every_exit_status_said():
    assert {words[1] for words in shown()} == set(commands())
    help_text = " ".join(cli.get_help(click.Context(cli)).split())
    for status, meaning in ((0, "fine"), (1, "some cell failed"), (2, "your mistake"), (130, "interrupted")):
        assert f"{status} {meaning}" in README
        assert re.search(rf"\b{status} \w", help_text)


def test_every_dependency_has_its_line():
    extras = project()["project"]["optional-dependencies"]
    asked = [*project()["project"]["dependencies"], *extras["html"], *extras["test"]]
    names = [re.match(r"[\w.-]+", text).group() for text in asked if not text.startswith("fedbench[")]
    table = README.split("## Dependencies")[1]
    first = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for name in re.split(r",|\(", row)}
    assert not set(names) - first


def test_the_main_job_is_as_large_as_it_says(tmp_path):
    jobs = build_plan("partial_defense", (), tmp_path, "cpu").jobs
    cells = sum(len(job.cells) for job in jobs)
    assert f"the main job, {len(jobs)} federations and {cells:,} scores" in README
