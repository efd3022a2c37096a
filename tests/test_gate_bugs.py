"""The gate of this repository fails for a bug planted in one attack, names that attack alone, and passes without."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted_bugs import OF_THE_GATE

ROOT = Path(__file__).parents[1]
ONLY, FAIL_ON = (re.search(rf"--{name} (\S+)", (ROOT / ".ci" / "gate").read_text())[1] for name in ("only", "fail-on"))
RUN = ("run", "partial_defense", "--only", ONLY, "--set", "seeds=[0,1,2,3,4]", "--no-plots", "--results")


def fedbench(root, *args):
    """One command of the code under ``root``."""
    command = [sys.executable, "-m", "fedbench.core.cli.main", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=root)


def run_with(bug, folder):
    """A copy of this tree with a bug in its plugins, which has run what `.ci/gate` runs."""
    package = folder / "fedbench"
    package.mkdir(parents=True)
    for name in ("core", "leaderboard", "suites"):
        (package / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "plugins", package / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    file, old, new, _ = OF_THE_GATE[bug]
    text = (package / "plugins" / file).read_text()
    assert old in text
    (package / "plugins" / file).write_text(text.replace(old, new))
    done = fedbench(folder, *RUN, folder / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The tree without a bug, with its results and a baseline of them."""
    root = run_with("none", tmp_path_factory.mktemp("good"))
    made = fedbench(root, "baseline", root / "results", "-o", root / "baseline.json")
    assert made.returncode == 0, made.stderr
    return root


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("bug", OF_THE_GATE)
def test_a_bug_in_one_attack_fails_the_gate(good, tmp_path, bug):
    shutil.copytree(good / "results", tmp_path / "results")  # with its trainings: they do not depend on an attack
    root = run_with(bug, tmp_path)
    out = tmp_path / "gate.json"
    done = fedbench(root, "compare", root / "results", good / "baseline.json", "--fail-on", FAIL_ON, "--json", out)
    attacks = OF_THE_GATE[bug][-1]
    assert done.returncode == bool(attacks), done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["attack"] for row in rows if row["verdict"] != "same"} == attacks
    touched = {row["attack"] for row in rows if row["changed"]}
    assert touched >= attacks
    assert [row for row in rows if row["attack"] not in touched and row["change"] != 0] == []


