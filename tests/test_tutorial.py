"""docs/tutorial.md, typed by a stranger: every command in its order, every file as shown, in a folder with a clone alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
# what stands before a block: nothing (commands), <!-- set-up --> (a fresh environment), <!-- file: PATH --> (its content)
STEPS = re.findall(r"(?:<!-- (set-up|file: \S+) -->\n)?```(?:python)?\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for kind, block in STEPS if not kind for line in block.splitlines()]


def test_the_page_holds_nothing_but_steps():
    assert TEXT.count("```") == 2 * len(STEPS)
    assert [kind for kind, _ in STEPS].count("set-up") == 1
    assert len(COMMANDS) >= 15 and all(line.split()[0] in ("fedbench", "cd", "pip", "pytest", "ruff") for line in COMMANDS)


def environment(folder: Path) -> dict[str, str]:
    """What the block "set-up" makes, in seconds: a virtual environment with links to the packages that fedbench needs instead of
    gigabytes of downloads, and fedbench itself installed from the clone."""
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = folder / ".venv" / here.relative_to(sys.prefix)
    for package in here.iterdir():
        if "fedbench" not in package.name.lower() and not package.name.startswith("__editable__"):
            (there / package.name).symlink_to(package)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env = kept | {"PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / ".cache")}
    tools = folder / ".venv" / "bin"
    (tools / "ruff").symlink_to(Path(sysconfig.get_path("scripts")) / "ruff")
    for tool in ("pip", "pytest"):
        (tools / tool).write_text(f'#!/bin/sh\nexec {tools}/python -m {tool} "$@"\n')
        (tools / tool).chmod(0o755)
    return env


def said(command: str, at: Path, env: dict[str, str]) -> str:
    """What a command prints; one that fails fails the test."""
    done = subprocess.run(["bash", "-c", command], cwd=at, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_stranger_who_types_it_publishes_a_defense(tmp_path):
    home = tmp_path / "empty"
    env = environment(home)
    subprocess.run(["git", "clone", "-q", ROOT, home / "fedbench"], check=True)
    at, heard = home, {}
    for kind, block in STEPS:
        if kind == "set-up":
            said(block.splitlines()[-1], at, env)
            assert "/.venv/" in said("python -c 'import fedbench.core as c; print(c.__file__)'", tmp_path, env)
        elif kind:
            path = at / kind.removeprefix("file: ")
            assert path.exists()  # `fedbench new` wrote one in its place
            path.write_text(block)
        else:
            for command in block.splitlines():
                if command.startswith("cd "):
                    at = at / command.split()[1]
                else:
                    heard[command] = said(command, at, env)
    board = (at / "results" / "sign-update" / "leaderboard" / "board.md").read_text()
    assert re.search(r"^\|.*\| sign-update +\|", board, re.MULTILINE) and "fedbench-sign-update 0.1.0" in board
    assert [p.name for p in (at / "dist").iterdir()] == ["fedbench_sign_update-0.1.0-py3-none-any.whl"]
    theirs = (at / "results" / "theirs" / "leaderboard" / "board.md").read_text()
    assert "reproduced" in theirs and "claimed" in theirs
    assert "sign-update" in heard["fedbench show results/sign-update"]
