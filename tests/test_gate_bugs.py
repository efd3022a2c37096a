"""The gate of this repository fails for a bug in an attack, a defense or the audit, names what
moved, and passes without.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted_bugs import OF_THE_GATE, OF_THE_ORACLE

ROOT = Path(__file__).parents[1]
ONLY, FAIL_ON = (
    re.search(rf"--{name} (\S+)", (ROOT / ".ci" / "gate").read_text())[1]
    for name in ("only", "fail-on")
)
RUN = (
    "run",
    "partial_defense",
    "--only",
    ONLY,
    "--set",
    "seeds=[0,1,2,3,4]",
    "--no-plots",
    "--results",
)


def fedbench(root, *args):
    """One command of the code under ``root``."""
    command = [sys.executable, "-m", "fedbench.core.cli.main", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=root)


def copy_with(bug, folder):
    """A copy of this tree with a bug."""
    package = folder / "fedbench"
    package.mkdir(parents=True)
    (package / "__init__.py").symlink_to(ROOT / "api" / "__init__.py")
    for name in ("core", "plugins", "leaderboard", "suites"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    file, old, new = bug[:3]
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    return folder


def run_with(bug, folder):
    """A copy of this tree with a bug, which has run what `.ci/gate` runs."""
    copy_with(bug, folder)
    done = fedbench(folder, *RUN, folder / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The tree without a bug, with its results and a baseline of them."""
    root = run_with(OF_THE_GATE["none"], tmp_path_factory.mktemp("good"))
    made = fedbench(root, "baseline", root / "results", "-o", root / "baseline.json")
    assert made.returncode == 0, made.stderr
    return root


def moved_by(bug, good, folder):
    """(exit status, rows that are not identical) of the gate with a bug."""
    # what the bug leaves as it is is not trained again
    shutil.copytree(good / "results", folder / "results")
    root = run_with(bug, folder)
    out = folder / "gate.json"
    done = fedbench(
        root,
        "compare",
        root / "results",
        good / "baseline.json",
        "--fail-on",
        FAIL_ON,
        "--json",
        out,
    )
    return done.returncode, [
        row for row in json.loads(out.read_text())["rows"] if row["verdict"] != "identical"
    ]


def test_each_bug_changes_one_place_of_this_tree():
    bugs = {name: bug for name, bug in (OF_THE_ORACLE | OF_THE_GATE).items() if name != "none"}
    assert [
        name for name, (file, old, *_) in bugs.items() if (ROOT / file).read_text().count(old) != 1
    ] == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("bug", OF_THE_GATE)
def test_a_bug_in_one_attack_fails_the_gate(good, tmp_path, bug):
    status, rows = moved_by(OF_THE_GATE[bug], good, tmp_path)
    assert (status, {row["attack"] for row in rows}) == (int(bug != "none"), OF_THE_GATE[bug][-1])
    assert all(row["changed"] for row in rows)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bug", "defenses"),
    [
        ("noise times 0.9", {"cofedmid"}),
        ("the labels of mixup unmixed", {"mixup"}),
        (
            "non-members drawn from the training set",
            {"none", "mixup", "cofedmid", "dp-sgd"},
        ),
    ],
)
def test_a_bug_in_a_defense_or_the_audit_fails_the_gate(good, tmp_path, bug, defenses):
    status, rows = moved_by(OF_THE_ORACLE[bug], good, tmp_path)
    assert (status, {row["defense"] for row in rows}) == (1, defenses)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_bug_in_the_order_of_samples_is_refused_before_training(tmp_path):
    copy_with(OF_THE_ORACLE["one shuffle off by one"], tmp_path)
    done = fedbench(tmp_path, *RUN, tmp_path / "results")
    assert done.returncode == 2
    assert "trains otherwise beside another client than alone" in done.stderr
