"""The packages of examples/ keep to the public contract, announce what they say, and their suites are valid.

`.ci/examples` builds, installs, checks and runs them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_packages import described
from public_names import private_imports, sources

from fedbench.core.cli.main import cli
from fedbench.core.registry.components import Registry

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGES = sorted(p.parent for p in EXAMPLES.glob("*/pyproject.toml"))
SUITES = [p for p in sorted(EXAMPLES.rglob("*.yaml")) if p.parent.name != "cluster"]  # those are of schedulers
SCRIPT = (EXAMPLES.parent / ".ci" / "examples").read_text()


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def module(folder: Path) -> str:
    """The package that is imported."""
    (name,) = project(folder)["entry-points"]["fedbench"].values()
    return name


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """All of them, without pip."""
    for folder in PACKAGES:
        (tmp_path / module(folder)).symlink_to(folder / "src" / module(folder))
        described(tmp_path, folder.name, module(folder), project(folder)["version"])
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry.discover()


def announced(registry: Registry, folder: Path) -> set[str]:
    """The names of a package's components."""
    return {c.name for plugin in registry.plugins if plugin.distribution == folder.name for c in plugin.components}


def test_there_are_a_defense_an_attack_with_its_signal_and_a_data_set_with_a_model(installed):
    theirs = [plugin for plugin in installed.plugins if plugin.distribution in {folder.name for folder in PACKAGES}]
    kinds = {tuple(sorted(c.kind for c in plugin.components)) for plugin in theirs}
    assert kinds == {("defense",), ("attack", "signal"), ("dataset", "model")} and installed.broken == []


def test_a_private_import_is_seen():
    text = "import torch, scipy, own.x\nfrom fedbench.core import Attack, Batches\nfrom fedbench.plugins.attacks import fta"
    assert private_imports(text, "own") == {"fedbench.core.Batches", "fedbench.plugins.attacks.fta", "scipy."}
    assert private_imports("import fedbench.core.spec", "own") == {"fedbench.core.spec."}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda f: f.name)
def test_it_uses_the_public_contract_alone(folder):
    found = {path: private_imports(text, module(folder)) for path, text in sources(folder).items()}
    assert len(found) >= 4 and not any(found.values()), found


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda f: f.name)
def test_it_is_a_whole_distribution(folder, installed):
    about = project(folder)
    assert about["name"] == folder.name and about["license"] == "Apache-2.0" and (folder / "LICENSE").exists()
    assert about["dependencies"] == ["fedbench>=0.1,<1"] and "pytest" in about["optional-dependencies"]["test"]
    conformance, readme = ((folder / path).read_text() for path in ("tests/test_conformance.py", "README.md"))
    for name in announced(installed, folder):
        assert f'"{name}"' in conformance and f"`{name}`" in readme


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_its_suite_is_valid(path, installed):
    result = CliRunner().invoke(cli, ["validate", "--no-data", str(path)])
    assert result.exit_code == 0, result.output


def test_ci_and_the_readme_install_check_and_show_every_one_of_them(installed):
    readme = (EXAMPLES / "README.md").read_text()
    (block,) = re.findall(r"<!-- together -->\n```\n(.*?)```", readme, re.DOTALL)
    installs, checks, runs = block.splitlines()
    assert installs.split()[2:] == [word for word in installs.split() if (EXAMPLES / word).is_dir()]
    assert {Path(word).name for word in installs.split()[2:]} == {folder.name for folder in PACKAGES}
    assert set(checks.split()[2:]) == set().union(*(announced(installed, folder) for folder in PACKAGES))
    assert checks in SCRIPT.replace('"$fedbench"', "fedbench") and runs == "fedbench run together.yaml"
    for folder in PACKAGES:
        assert f"[{folder.name}]({folder.name})" in readme
        assert f'"{folder.name} {project(folder)["version"]}"' in SCRIPT
