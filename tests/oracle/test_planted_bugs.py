"""The oracle moves for each planted bug, in the cells that the bug is about, and stands still
without one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from oracle.reading import read
from oracle.stored import load, moved
from oracle.toys import toy
from planted_bugs import EVERY_ATTACK, EVERYTHING, OF_THE_ORACLE

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
SUITE = "partial_defense"
KEPT = {
    "coalition": ["none", "pair"],
    "defense": sorted(EVERYTHING),
    "attack": sorted(EVERY_ATTACK),
}
ONLY = ",".join(f"{kind}={name}" for kind, names in KEPT.items() for name in names)


def results(folder: Path, images: Path, bug: tuple | None) -> Path:
    """Results of the toy suite by a copy of this tree under ``folder``, with one change."""
    package = folder / "fedbench"
    package.mkdir(parents=True)
    for name in ("core", "plugins", "leaderboard", "suites"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    if bug:
        file, old, new = bug[:3]
        text = (package / file).read_text()
        assert text.count(old) == 1, f"{file} no longer says: {old}"
        (package / file).write_text(text.replace(old, new))
    command = [
        "run",
        toy(SUITE, images, folder),
        "--results",
        folder / "results",
        "--no-plots",
        "--only",
        ONLY,
    ]
    env = {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(
        [sys.executable, "-m", "fedbench.core.cli.main", *map(str, command)],
        env=env,
        cwd=folder,
        check=True,
    )
    return folder / "results"


def changes(folder: Path) -> set[tuple[str, str]]:
    """(component, kind of numbers) of what moved, among the cells that were run; board tables
    depend on all cells.
    """
    made, found = read(folder)
    stored = load()[SUITE]
    kept = {
        "made": stored["made"],
        "numbers": {name: parts for name, parts in stored["numbers"].items() if name in found},
    }
    found = {name: parts for name, parts in found.items() if not name.startswith("board")}
    kept["numbers"] = {
        name: parts for name, parts in kept["numbers"].items() if not name.startswith("board")
    }
    return {(part.component, part.kind) for part in moved(kept, made, found)}


def test_the_oracle_stands_still_without_a_bug(tmp_path: Path, images: Path) -> None:
    assert changes(results(tmp_path, images, None)) == set()


@pytest.mark.parametrize("name", OF_THE_ORACLE)
def test_the_oracle_moves_for_a_bug(name: str, tmp_path: Path, images: Path) -> None:
    found = changes(results(tmp_path, images, OF_THE_ORACLE[name]))
    *_, defenses, attacks = OF_THE_ORACLE[name]
    other_scores = [component.split("/") for component, kind in found if kind == "scores"]
    assert {parts[2] for parts in other_scores} == (defenses if attacks else set())
    assert {parts[4] for parts in other_scores} == attacks
    if not attacks:
        assert {
            component.split("/")[2] for component, kind in found if kind == "history"
        } == defenses
