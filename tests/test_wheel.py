"""The wheel holds every file of the tree that fedbench needs: code, types, suites, recipes, templates, boards."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("core", "plugins", "suites", "leaderboard", "testing")
LEFT_OUT = {".png"}  # plots of committed boards, megabytes that nothing reads


def copied(folder: Path) -> Path:
    """The tree without what setuptools would leave in it."""
    for top in TOPS:
        shutil.copytree(ROOT / top, folder / top, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def missing(tree: Path, out: Path) -> set[str]:
    """Files of the tree that its wheel does not hold with the same bytes."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(tree)], check=True)
    (wheel,) = out.glob("fedbench-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("fedbench/"): archive.read(name) for name in archive.namelist()}
    files = {str(p.relative_to(tree)): p for top in TOPS for p in (tree / top).rglob("*") if p.is_file()}
    return {name for name, p in files.items() if p.suffix not in LEFT_OUT and held.get(name) != p.read_bytes()}


@pytest.mark.slow
def test_the_wheel_holds_the_tree(tmp_path):
    assert missing(copied(tmp_path / "tree"), tmp_path / "out") == set()


@pytest.mark.slow
def test_a_file_that_is_left_out_is_seen(tmp_path):
    tree = copied(tmp_path / "tree")
    project = tree / "pyproject.toml"
    project.write_text(project.read_text().replace('"templates/**/*.in"', '"templates/package/*.in"'))
    (tree / "suites" / "notes.txt").write_text("not data of the package")
    found = missing(tree, tmp_path / "out")
    assert {"suites/notes.txt", "core/scaffold/templates/attack/suites/NAME.yaml.in"} <= found
    assert "core/scaffold/templates/package/README.md.in" not in found
