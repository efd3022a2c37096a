"""The workflow of examples/ci, its README, docs/gate.md and `.ci/gate` call fedbench as it is: options exist, names resolve."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from fedbench.core.cli.main import cli

ROOT = Path(__file__).parents[1]
CI = ROOT / "examples" / "ci"
WORKFLOW = YAML(typ="safe").load(CI / "fedbench-gate.yml")
STEPS = {step.get("name", step.get("uses")): step for step in WORKFLOW["jobs"]["gate"]["steps"]}


def shell(path: Path) -> str:
    """What a file would run: a workflow's steps, a document's fenced blocks, a script."""
    if path.suffix == ".yml":
        return "\n".join(step["run"] for step in STEPS.values() if "run" in step)
    text = path.read_text()
    return "\n".join(re.findall(r"^ *```\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)) if path.suffix == ".md" else text


def calls(path: Path) -> list[list[str]]:
    """The arguments of each call of fedbench, variables of the workflow filled in."""
    text = re.sub(r"\\\n", " ", shell(path)).replace("...", "0")
    for name, value in WORKFLOW["env"].items():
        text = text.replace(f"${name}", str(value))
    found = (re.match(r' *(?:"\$fedbench"|fedbench) (.*)', line) for line in text.splitlines())
    return [shlex.split(re.split(r" > | \|\| ", m[1])[0]) for m in found if m]


PLACES = [CI / "fedbench-gate.yml", CI / "README.md", ROOT / "docs" / "gate.md", ROOT / ".ci" / "gate"]
EVERY = [(path.name, args) for path in PLACES for args in calls(path)]


@pytest.mark.parametrize(("where", "args"), EVERY, ids=[f"{name}: {args[0]} {i}" for i, (name, args) in enumerate(EVERY)])
def test_every_call_of_fedbench_has_options_that_exist(where, args):
    with click.Context(cli) as ctx:
        command = cli.get_command(ctx, args[0])
        assert command is not None and command.make_context(args[0], args[1:], parent=ctx).params


def test_a_call_that_does_not_exist_would_be_seen():
    with click.Context(cli) as ctx, pytest.raises(click.UsageError, match="No such option"):
        cli.get_command(ctx, "compare").make_context("compare", ["a", "b", "--fail-off", "worse"], parent=ctx)


def test_each_place_runs_makes_a_baseline_or_compares():
    commands = {path.name: [args[0] for args in calls(path)] for path in PLACES}
    assert commands["fedbench-gate.yml"] == ["run", "compare"] and commands["README.md"] == ["run", "baseline"]
    assert commands["gate.md"] == ["run", "baseline", "compare"] and commands["gate"] == ["run", "baseline", "compare"]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_what_is_run_can_be_planned(path, tmp_path):
    args = next(args for args in calls(path) if args[0] == "run")
    result = CliRunner().invoke(cli, [*args, "--results", str(tmp_path / "results"), "--dry-run"])
    assert result.exit_code == 0, result.output


def test_the_workflow_compares_shows_and_keeps_whatever_the_gate_says():
    assert set(WORKFLOW["on" if "on" in WORKFLOW else True]) == {"pull_request", "workflow_dispatch"}
    assert list(STEPS)[-4:] == ["Run", "Compare", "Show the table on the summary page", "Keep the records"]
    show, keep = STEPS["Show the table on the summary page"], STEPS["Keep the records"]
    (compare,) = (args for args in calls(CI / "fedbench-gate.yml") if args[0] == "compare")
    written = [compare[compare.index(option) + 1] for option in ("--output", "--json")]
    assert show["if"] == keep["if"] == "always()" and f"cat {written[0]} >> \"$GITHUB_STEP_SUMMARY\"" in show["run"]
    assert set(written) < set(keep["with"]["path"].split()) and compare[1] == "gate/results"
