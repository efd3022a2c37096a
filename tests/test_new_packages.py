"""What `fedbench new` writes works as written: linted, installed, checked, tested and run, with the public contract alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_packages import described
from public_names import private_imports
from ruamel.yaml import YAML
from running import records

from fedbench.core.scaffold.names import names_of
from fedbench.core.scaffold.package import KINDS, package_files
from fedbench.core.scaffold.write import write_folder


def written(kind: str, folder: Path) -> Path:
    """A new package of this kind, called ``new-KIND``."""
    names = names_of(kind, f"new-{kind}")
    write_folder(folder / names.distribution, package_files(names, "Jo Doe", "0.1.0"))
    return folder / names.distribution


def call(*words: object, cwd: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """A Python module as a command, in the package's folder, with the packages of ``site``."""
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def fedbench_(*words: object, cwd: Path, site: Path) -> str:
    """The output of the command."""
    return call("fedbench.core.cli.main", *words, cwd=cwd, site=site).stdout


@pytest.mark.parametrize("kind", KINDS)
def test_it_uses_the_public_contract_alone_and_only_what_fedbench_brings(kind):
    names = names_of(kind, f"new-{kind}")
    files = package_files(names, "Jo Doe", "0.1.0")
    found = {path: private_imports(text, names.module) for path, text in files.items() if path.endswith(".py")}
    assert len(found) == 4 and not any(found.values()), found


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_clean_to_the_linter_of_its_own_settings(kind, tmp_path):
    folder = written(kind, tmp_path)
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_its_workflow_lints_tests_and_checks_it(kind):
    files = package_files(names_of(kind, "shield"), "Jo Doe", "0.1.0")
    job = YAML(typ="safe").load(files[".github/workflows/test.yml"])["jobs"]["test"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    expected = ["pip install -e '.[test]'", "ruff check .", "pytest", "fedbench check shield", "fedbench run suites/shield.yaml"]
    for words in expected:
        assert [c for c in commands if c.startswith(words)], words
    assert files["README.md"].startswith(f"# fedbench-shield\n\n{'An' if kind[0] == 'a' else 'A'} {kind} for fedbench")


def test_a_new_defense_passes_its_own_tests(tmp_path):
    folder = written("defense", tmp_path)
    described(folder / "src", "fedbench-new-defense", "fedbench_new_defense", "0.1.0")
    done = call("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, site=folder / "src")
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("defense", "attack") else [pytest.mark.nightly]) for kind in KINDS]
)
def test_installed_by_pip_it_passes_its_tests_and_gets_its_place_on_a_board(kind, tmp_path):
    folder, site = written(kind, tmp_path), tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(folder)], check=True, text=True
    )
    assert " passed" in call("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, site=site).stdout
    assert "| passed |" in fedbench_("check", f"new-{kind}", cwd=folder, site=site)
    fedbench_("run", f"suites/new-{kind}.yaml", "--results", tmp_path / "results", cwd=folder, site=site)
    assert {record["outcome"] for record in records(tmp_path / "results").values()} == {"ok"}
    assert f"new-{kind}" in (tmp_path / "results" / "leaderboard" / "board.md").read_text()
