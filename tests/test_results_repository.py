"""The workflows of examples/: their steps, with a git remote in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import exported
from ruamel.yaml import YAML

EXAMPLES = Path(__file__).parents[1] / "examples"
TEMPLATE, GATE = EXAMPLES / "results-repository", EXAMPLES / "ci" / "fedbench-gate.yml"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_bundle_is_checked_and_published(finished, tmp_path):
    """A branch adds a bundle and a file; then one with a bundle that is no bundle."""
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }

    def run(*words, status=0):
        ended = subprocess.run(
            [*map(str, words)], cwd=here, env=env, capture_output=True, text=True, check=False
        )
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
    Path(exported(finished, tmp_path, "--only", "defense=grad-noise")).rename(
        here / "bundles" / "noise.zip"
    )
    strange = (
        "more.txt",
        "bundles/deep/noise.zip",
        "bundles/*.zip",
        "bundles/a.zip\nb.zip",
        "bundles/:(top)c.zip",
    )
    (here / "bundles" / "deep").mkdir()
    for name in strange:
        (here / name).write_text("x")
    commit("another bundle")
    run("./results.sh", "check", "origin/main")
    said = (here / "work" / "comment.md").read_text()
    listed = said.partition("not new bundles:\n\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(listed) == sorted(
        [
            "    bundles/\\*.zip",
            "    bundles/:\\(top\\)c.zip",
            "    $'bundles/a.zip\\nb.zip'",
            "    bundles/deep/noise.zip",
            "    more.txt",
        ]
    )
    assert "    2 cells bit for bit\n" in said and "**passed**: 3 new, 5 identical" in said
    marks = dict(re.findall(r"  (grad-noise|none) .* (\w+)$", said, re.MULTILINE))
    assert marks == {"grad-noise": "reproduced", "none": "claimed"}

    run("git", "switch", "-q", "main")
    run("git", "merge", "-q", "more")
    env["SAMPLE"] = "0"
    run("./results.sh", "site")
    assert run("git", "ls-remote", "origin", "gh-pages") == ""
    run("./results.sh", "push", "work/site")
    assert {"index.html", ".nojekyll"} <= set(
        run("git", "ls-tree", "--name-only", "origin/gh-pages").split()
    )

    run("git", "push", "-q", "origin", "main")
    run("git", "switch", "-q", "-c", "bad")
    (here / "bundles" / "bad.zip").write_text("no bundle")
    commit("no bundle")
    assert "No new bundle was taken" in run("./results.sh", "check", "origin/main", status=1)


def jobs_of(*paths):
    """Name -> job of the workflows."""
    jobs = {}
    for path in paths:
        jobs |= YAML(typ="safe").load(path)["jobs"]
    return jobs


def script(job):
    """What the job's steps run."""
    return " ".join(step.get("run", "") for step in job["steps"])


def test_the_workflows_call_the_steps_and_only_those_that_run_no_package_may_write():
    jobs = jobs_of(*(TEMPLATE / ".github" / "workflows").iterdir())
    assert {name for name, job in jobs.items() if f"./results.sh {name}" in script(job)} == {
        "check",
        "site",
        "push",
    }
    assert YAML(typ="safe").load(GATE)["permissions"] == {"contents": "read"}
    jobs |= {f"gate {name}": job for name, job in jobs_of(GATE).items()}
    writes = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert writes == {"push", "comment", "gate comment"}
    assert [name for name in writes if re.search(r"pip|python|fedbench", script(jobs[name]))] == []
    for name in ("check", "site"):
        assert jobs[name]["steps"][0]["with"]["persist-credentials"] is False


GH = """\
#!/bin/sh
# `gh` with the comments of a file: prints what a filter leaves of them, keeps what is sent
case "$*" in
  "pr list"*) echo 7 ;;
  *--paginate*) while [ "$1" != --jq ]; do shift; done; jq -r "$2" comments.json ;;
  *) echo "$*" >> sent ;;
esac
"""


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    "path", [GATE, TEMPLATE / ".github" / "workflows" / "comment.yml"], ids=lambda path: path.stem
)
def test_a_workflow_edits_only_the_comment_that_it_made(path, tmp_path):
    job = jobs_of(path)["comment"]
    mark = job["env"]["MARK"]
    text = (job["steps"][-1])["run"]
    (tmp_path / "gate").mkdir()
    for name in ("comment.md", "gate/gate.md"):
        (tmp_path / name).write_text("the table")
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    others = [
        (1, "a-person", mark),
        (2, "github-actions[bot]", "of another workflow"),
        (3, "github-actions[bot]", f"> {mark}"),
    ]

    def sent(*comments):
        content = [
            {"id": n, "user": {"login": login}, "body": f"{body}\nx"} for n, login, body in comments
        ]
        (tmp_path / "comments.json").write_text(json.dumps(content))
        (tmp_path / "sent").unlink(missing_ok=True)
        env = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "MARK": mark,
            "PR": "7",
            "GITHUB_REPOSITORY": "us/it",
        }
        subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, env=env, check=True)
        return (tmp_path / "sent").read_text().split(" --field")[0]

    assert sent(*others) == "api --method POST repos/us/it/issues/7/comments"
    mine = (4, "github-actions[bot]", mark)
    assert (
        sent(*others, mine, (5, "a-person", mark))
        == "api --method PATCH repos/us/it/issues/comments/4"
    )
    (written,) = {p.read_text() for p in tmp_path.glob("*.md") if p.read_text().startswith(mark)}
    assert written == f"{mark}\nthe table"
