"""Plant each bug of the oracle's and the gate's tests, run the quick tests that cover its line, and
print whether they find it.

``COVERAGE_LINES=FILE python tests/mutation/planted.py``, in a checkout without changes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from planted_bugs import OF_THE_GATE, OF_THE_ORACLE, OF_THE_QUICK_TESTS  # noqa: E402


def found(file: str, old: str, new: str) -> bool:
    """Whether a quick test fails with this change of a file."""
    path = ROOT / file
    text = path.read_text()
    assert text.count(old) == 1, f"{file} no longer says: {old}"
    try:
        path.write_text(text.replace(old, new))
        command = [sys.executable, ROOT / "tests/mutation/covering.py"]
        return subprocess.run(command, cwd=ROOT, capture_output=True).returncode != 0
    finally:
        path.write_text(text)


if __name__ == "__main__":
    bugs = {name: bug[:3] for name, bug in OF_THE_ORACLE.items()}
    bugs |= {f"{name} (gate)": bug[:3] for name, bug in OF_THE_GATE.items() if bug[-1]}
    bugs |= OF_THE_QUICK_TESTS
    for name, bug in bugs.items():
        print("found   " if found(*bug) else "MISSED  ", name, flush=True)
