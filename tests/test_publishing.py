"""docs/publishing.md: its commands exist with these options, and the package it speaks of is the one that is written."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fedbench.core.cli.main import commands
from fedbench.core.scaffold.names import names_of
from fedbench.core.scaffold.package import KINDS, package_files

TEXT = (Path(__file__).parents[1] / "docs" / "publishing.md").read_text()
LINES = [line for block in re.findall(r"```\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
WRITTEN = package_files(names_of("defense", "my-defense"), "Jo Doe", "0.1.0")


@pytest.mark.parametrize("words", [shlex.split(line) for line in LINES if line.startswith("fedbench ")], ids=" ".join)
def test_every_command_exists_with_its_options(words):
    module, _, name = commands()[words[1]].partition(":")
    getattr(import_module(module), name).make_context(words[1], words[2:]).close()  # unknown options are refused


def test_the_files_it_speaks_of_are_written():
    (block,) = re.findall(r"<!-- files -->\n```\n(.*?)```", TEXT, re.DOTALL)
    named = {line.split()[0] for line in block.splitlines()}
    assert set(WRITTEN) - named == {"README.md", "LICENSE", ".gitignore"} and named < set(WRITTEN)
    assert {f"`{kind}`" for kind in KINDS} <= set(re.findall(r"`\w+`", TEXT.split("<!-- files -->")[0]))
    assert "cd fedbench-my-defense" in LINES and "results/my-defense/leaderboard/board.md" in TEXT


def test_its_suite_line_names_the_parameters_of_the_method():
    (snippet,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    used = YAML(typ="safe").load(snippet)["defenses"][-1]
    assert used["name"] == "my-defense"
    for parameter in used["params"]:
        assert re.search(rf"^        {parameter}: ", WRITTEN["src/fedbench_my_defense/my_defense.py"], re.MULTILINE)
