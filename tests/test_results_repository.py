"""The template of examples/results-repository: its steps, with a git remote in a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import exported
from ruamel.yaml import YAML

TEMPLATE = Path(__file__).parents[1] / "examples" / "results-repository"


@pytest.mark.slow
def test_a_bundle_is_checked_and_published(finished, tmp_path):
    """A branch adds a bundle and a file; then one with a bundle that is no bundle."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull}

    def run(*words, status=0):
        ended = subprocess.run([*map(str, words)], cwd=here, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == status, ended.stdout + ended.stderr
        return ended.stdout

    def commit(message):
        run("git", "add", "-A")
        run("git", "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-qm", message)

    here = tmp_path
    run("git", "init", "-q", "--bare", "-b", "main", "remote")
    shutil.copytree(TEMPLATE, tmp_path / "repository")
    here = tmp_path / "repository"
    run("git", "init", "-q", "-b", "main")
    run("git", "remote", "add", "origin", tmp_path / "remote")
    exported(finished, here / "bundles", "--only", "defense=none")
    commit("the template with one bundle")
    run("git", "push", "-q", "origin", "main")

    run("git", "switch", "-q", "-c", "more")
    Path(exported(finished, tmp_path, "--only", "defense=grad-noise")).rename(here / "bundles" / "noise.zip")
    (here / "more.txt").write_text("x")
    commit("another bundle")
    run("./results.sh", "check", "origin/main")
    said = (here / "work" / "comment.md").read_text()
    assert "not new bundles:\n\n    more.txt\n" in said
    assert "    2 cells bit for bit\n" in said and "**passed**: 3 new, 5 identical" in said
    marks = dict(re.findall(r"  (grad-noise|none) .* (\w+)$", said, re.MULTILINE))
    assert marks == {"grad-noise": "reproduced", "none": "claimed"}

    run("git", "switch", "-q", "main")
    run("git", "merge", "-q", "more")
    env["SAMPLE"] = "0"
    run("./results.sh", "publish")
    assert {"index.html", ".nojekyll"} <= set(run("git", "ls-tree", "--name-only", "origin/gh-pages").split())

    run("git", "push", "-q", "origin", "main")
    run("git", "switch", "-q", "-c", "bad")
    (here / "bundles" / "bad.zip").write_text("no bundle")
    commit("no bundle")
    assert "No new bundle was taken" in run("./results.sh", "check", "origin/main", status=1)


def test_the_workflows_call_the_steps_and_only_those_that_run_nothing_of_a_pull_request_may_write():
    jobs = {}
    for path in sorted((TEMPLATE / ".github" / "workflows").iterdir()):
        jobs |= YAML(typ="safe").load(path)["jobs"]
    steps = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert {name for name, text in steps.items() if f"./results.sh {name}" in text} == {"check", "publish"}
    assert jobs["check"]["permissions"] == {"contents": "read"} and "results.sh" not in steps["comment"]
