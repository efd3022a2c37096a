"""What others get of this repository: the wheel, and a package written by the tutorial."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[1]
TOPS = ("api", "core", "plugins", "suites", "leaderboard", "testing")


def test_the_wheel_holds_every_file_but_plots(tmp_path):
    tree = tmp_path / "tree"
    for top in TOPS:
        shutil.copytree(
            ROOT / top,
            tree / top,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.png"),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(tree)],
        check=True,
    )
    (wheel,) = tmp_path.glob("fedbench_privacy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("fedbench/"): archive.read(name) for name in archive.namelist()}
    files = {
        str(p.relative_to(tree)).removeprefix("api/"): p
        for top in TOPS
        for p in (tree / top).rglob("*")
        if p.is_file()
    }
    assert [name for name, p in files.items() if held.get(name) != p.read_bytes()] == []


def environment(folder):
    """A virtual environment with links to the packages that fedbench needs, without fedbench; and
    its variables.
    """
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = folder / ".venv" / here.relative_to(sys.prefix)
    for package in here.iterdir():
        if "fedbench" not in package.name.lower() and not package.name.startswith("__editable__"):
            (there / package.name).symlink_to(package)
    tools = folder / ".venv" / "bin"
    (tools / "ruff").symlink_to(Path(sysconfig.get_path("scripts")) / "ruff")
    for tool in ("pip", "pytest"):
        (tools / tool).write_text(f'#!/bin/sh\nexec {tools}/python -m {tool} "$@"\n')
        (tools / tool).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / ".cache"),
    }


def test_the_commands_of_the_tutorial_publish_a_defense(tmp_path):
    """Typed in their order in a folder with a clone alone. Before a block stands nothing
    (commands), <!-- set-up --> (a fresh environment) or <!-- file: PATH --> (its content).
    """
    text = (ROOT / "docs" / "tutorial.md").read_text()
    steps = re.findall(
        r"(?:<!-- (set-up|file: \S+) -->\n)?```(?:python)?\n(.*?)```", text, re.DOTALL
    )
    assert text.count("```") == 2 * len(steps)
    at = tmp_path / "empty"
    env = environment(at)
    subprocess.run(["git", "clone", "-q", ROOT, at / "fedbench"], check=True)
    for kind, block in steps:
        if kind.startswith("file"):
            path = at / kind.removeprefix("file: ")
            assert path.exists()  # `fedbench new` wrote one in its place
            path.write_text(block)
            continue
        for command in block.splitlines()[-1:] if kind else block.splitlines():
            if command.startswith("cd "):
                at = at / command.split()[1]
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=at,
                env=env,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    board = (at / "results" / "sign-update" / "leaderboard" / "board.md").read_text()
    assert re.search(r"^\|.*\| sign-update +\|", board, re.MULTILINE)
    assert "fedbench-sign-update 0.1.0" in board
    assert [p.name for p in (at / "dist").iterdir()] == [
        "fedbench_sign_update-0.1.0-py3-none-any.whl"
    ]
    assert "reproduced" in (at / "results" / "theirs" / "leaderboard" / "board.md").read_text()
