"""The gate that this repository runs turns red for a bug planted in one attack, names that attack alone, and is green without."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.leaderboard.gate.file import read_baseline

ROOT = Path(__file__).parents[1]
GATE = (ROOT / ".ci" / "gate").read_text()
ONLY = re.search(r"--only (\S+)", GATE)[1]
FAIL_ON = re.search(r"--fail-on (\S+)", GATE)[1]

# file of plugins/, what it says, what it says with the bug, whom the gate is to name
BUGS = {
    "a sign dropped": (
        "attacks/fta.py", 'return -slope(observations.rounds, self._read(observations.of_target("loss"), audit))',
        'return slope(observations.rounds, self._read(observations.of_target("loss"), audit))', {"fta-l"},
    ),
    "the audit lists misaligned": (
        "attacks/loss_series.py", "self._read(of_target(self.params.negative_loss.of(observations), observations), audit)",
        "self._read(of_target(self.params.negative_loss.of(observations), observations), audit)[..., ::-1]", {"loss-series"},
    ),
    # a round off by one would not do: one client's cosines hardly differ between audited rounds, so FedMIA-II's AUC moves by less
    # than its spread over five seeds, and the gate is right to be silent about it
    "a client off by one": (
        "attacks/fedmia.py", "zip(of_target(measured, observations), of_others(measured, observations), strict=True)",
        "zip(of_others(measured, observations)[:, 0], of_others(measured, observations), strict=True)",
        {"fedmia-i", "fedmia-ii"},
    ),
}  # fmt: skip


def tree(folder: Path, file: str = "", old: str = "", new: str = "") -> Path:
    """This tree under another root, its plugins copied, with one change of one of their files."""
    package = folder / "fedbench"
    package.mkdir(parents=True)
    for name in ("core", "leaderboard", "suites"):
        (package / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "plugins", package / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    if file:
        text = (package / "plugins" / file).read_text()
        assert text.count(old) == 1, f"{file} no longer says: {old}"
        (package / "plugins" / file).write_text(text.replace(old, new))
    return folder


def fedbench(root: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """One command of the code under ``root``."""
    command = [sys.executable, "-m", "fedbench.core.cli.main", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=root)


def run_of(root: Path, results: Path) -> None:
    """What `.ci/gate` runs."""
    done = fedbench(root, "run", "partial_defense", "--only", ONLY, "--results", results, "--no-plots")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of this tree and a baseline of them."""
    folder = tmp_path_factory.mktemp("gate")
    root = tree(folder / "tree")
    run_of(root, folder / "results")
    made = fedbench(root, "baseline", folder / "results", "-o", folder / "baseline.json")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("bug", [None, *BUGS])
def test_a_bug_in_one_attack_turns_the_gate_red_and_nothing_does_without(good, tmp_path, bug):
    file, old, new, attacks = BUGS[bug] if bug else ("", "", "", set())
    root = tree(tmp_path / "tree", file, old, new)
    shutil.copytree(good / "results", tmp_path / "results")  # with its trainings: they do not depend on an attack
    run_of(root, tmp_path / "results")
    out = tmp_path / "gate.json"
    done = fedbench(root, "compare", tmp_path / "results", good / "baseline.json", "--fail-on", FAIL_ON, "--json", out)
    assert done.returncode == (1 if bug else 0), done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["attack"] for row in rows if row["verdict"] != "same"} == attacks
    touched = {row["attack"] for row in rows if row["changed"]}
    assert touched >= attacks and all(row["change"] == 0 for row in rows if row["attack"] not in touched)


def test_the_committed_baseline_is_small_and_of_what_the_gate_runs():
    path = ROOT / ".ci" / "baseline.json"
    made = read_baseline(path)
    named = {kind: {v for k, v in (p.split("=") for p in ONLY.split(",")) if k == kind} for kind in ("defense", "coalition")}
    assert path.stat().st_size <= 50_000 and made.suite == "partial_defense" and made.seeds == [0, 1, 2, 3, 4]
    assert {key.defense for key in made.cells} == named["defense"] and {key.coalition for key in made.cells} == named["coalition"]
    assert len(made.cells) == 3 * (7 + 1)
