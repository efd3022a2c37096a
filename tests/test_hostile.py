"""Small packages that break rules, one folder each, against the real command line: see
`tests/hostile/README.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from running import HANG_S, changed

PACKAGES = sorted(
    path.parent for path in (Path(__file__).parent / "hostile").glob("*/package.toml")
)


class Package:
    """A hostile package, installed into ``folder``/site beside a suite; ``call`` runs one
    command.
    """

    def __init__(self, source, folder):
        self.facts = tomllib.loads((source / "package.toml").read_text())
        self.site, self.folder = folder / "site", folder
        shutil.copytree(
            source, self.site, ignore=shutil.ignore_patterns("package.toml", "__pycache__")
        )
        files = [p.relative_to(self.site) for p in sorted(self.site.rglob("*")) if p.is_file()]
        info = self.site / f"{source.name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {source.name.replace('_', '-')}\nVersion: 1.0\n"
        )
        entries = [f"{key} = {value}\n" for key, value in self.facts["entry_points"].items()]
        (info / "entry_points.txt").write_text("[fedbench]\n" + "".join(entries))
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
        self.words = {
            "suite": str(
                changed(folder, self.facts.get("setting", {}), **self.facts.get("suite", {}))
            ),
            "results": str(folder / "results"),
        }

    def said(self, text):
        """With the paths of this test filled in."""
        for name, path in self.words.items():
            text = text.replace(f"{{{name}}}", path)
        return text

    def call(self, call):
        """One command of the package's list."""
        if change := call.get("change"):
            path = self.site / change["file"]
            text = path.read_text()
            assert text.count(change["old"]) == 1, f"{path} does not say {change['old']} once"
            path.write_text(text.replace(change["old"], change["new"]))
        env = {
            **os.environ,
            "PYTHONPATH": str(self.site),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLUMNS": "300",
        }
        return subprocess.run(
            [sys.executable, "-m", "fedbench.core.cli.main", *map(self.said, call["command"])],
            env=env | self.facts.get("environment", {}),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )


LIGHT = {"raises", "vanishes"}
CASES = [
    pytest.param(p, id=p.name, marks=[] if p.name in LIGHT else [pytest.mark.nightly])
    for p in PACKAGES
]


@pytest.mark.slow
@pytest.mark.parametrize("source", CASES)
def test_a_hostile_package_is_named_and_harms_nobody(source, tmp_path):
    package = Package(source, tmp_path)
    for call in package.facts["call"]:
        done = package.call(call)
        shown = f"{call['command']}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        assert done.returncode == call["status"], shown
        for words in call.get("says", []):
            assert package.said(words) in done.stdout + done.stderr, (
                f"it does not say {words!r}: {shown}"
            )
        for words in (*call.get("never", []), "Traceback", "\x1b", "\x07", "\u202e"):
            assert package.said(words) not in done.stdout + done.stderr, (
                f"it says {words!r}: {shown}"
            )
        if call.get("json"):
            assert json.loads(done.stdout), shown
