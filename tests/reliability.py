"""Try every family of faults and write `docs/reliability.md`: ``python tests/reliability.py`` (about an hour; a number after
it divides the budgets). Ends with 1 when something did not hold; the table then shows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import damage
import faults

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reliability.md"
SEED = 11


@dataclass(frozen=True)
class Family:
    """``run(folder, n)``: (tried, held) of about ``n`` faults; ``holds``: what that means."""

    name: str
    holds: str
    n: int
    run: Callable[[Path, int], tuple[int, int]]


def counted(ended: Counter, good: set[str]) -> tuple[int, int]:
    """Of endings."""
    return sum(ended.values()), sum(n for how, n in ended.items() if how in good)


def signals(folder: Path, n: int) -> tuple[int, int]:
    return counted(faults.signals(folder, SEED, n), {faults.HELD})


def suites(folder: Path, n: int) -> tuple[int, int]:
    command = [sys.executable, str(HERE / "mutants.py"), str(SEED), str(n)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout)
    return said["tried"], said["held"]


def damaged(damages: Callable[[int, int], object]) -> Callable[[Path, int], tuple[int, int]]:
    def run(folder: Path, n: int) -> tuple[int, int]:
        ended = damage.tried(damage.folder_of_all_outcomes(folder), damages(SEED, n))
        return counted(Counter({key: m for key, m in ended.items()}), {key for key in ended if key[1] in damage.HELD})

    return run


def bits(folder: Path, n: int) -> tuple[int, int]:
    """Every n-th single bit of one record."""
    results = damage.folder_of_all_outcomes(folder)
    ended = damage.tried(results, (d for i, d in enumerate(damage.every_bit(results)) if i % n == 0))
    return counted(ended, {key for key in ended if key[1] in damage.HELD})


def caches(folder: Path, n: int) -> tuple[int, int]:
    return counted(faults.caches(folder, SEED, n), {faults.HELD})


def methods(folder: Path, n: int) -> tuple[int, int]:
    return counted(faults.methods(folder), {faults.HELD})


def extremes(folder: Path, n: int) -> tuple[int, int]:
    edges = dict(list(faults.EDGES.items())[: max(2, n)])
    return counted(faults.extremes(folder, edges), {"ok", "skipped", "diverged", faults.REFUSED})


def tests(*names: str) -> Callable[[Path, int], tuple[int, int]]:
    """As many faults as these files of tests have cases."""

    def run(folder: Path, n: int) -> tuple[int, int]:
        report = folder / "report.xml"
        files = [str(HERE / name) for name in names]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not benchmark", f"--junitxml={report}", *files]
        subprocess.run(command, cwd=HERE.parent, capture_output=True)
        suite = next(ElementTree.parse(report).iter("testsuite")).attrib
        tried = int(suite["tests"]) - int(suite["skipped"])
        return tried, tried - int(suite["failures"]) - int(suite["errors"])

    return run


FAMILIES = (
    Family("signals at a random moment (SIGKILL, TERM, INT, HUP, QUIT)", "what is there is whole; the same command finishes it, "
           "byte for byte", 48, signals),
    Family("mutated suites", "a suite, or a few readable lines; bounded memory", 5500, suites),
    Family("single bits of a record", "refused with file and remedy, or the same content", 1, bits),
    Family("other damage to records: swapped, edited, cut, retyped, forged", "the same", 3400, damaged(damage.record_damages)),
    Family("damage to score files", "the same", 1500, damaged(damage.score_damages)),
    Family("damage to training caches", "trained again", 500, caches),
    Family("hostile packages, each with several commands", "named, with package and version; everything else works",
           1, tests("test_hostile.py")),
    Family("hostile methods: attacks, defenses, analyses", "neighbours keep every bit; the method's own cell has an outcome",
           1, methods),
    Family("ill-behaved plugins and machines", "one cell or one run is lost, with the reason",
           1, tests("test_isolation.py", "test_lost.py")),
    Family("hostile files and downloads", "refused before they cost memory or disk; nothing of them is run",
           1, tests("test_hostile_files.py")),
    Family("cells at the edge of what a suite allows", "a score, a skip with its reason, a divergence, or refused when planned",
           len(faults.EDGES), extremes),
)  # fmt: skip

TEXT = """# Reliability: faults that were tried

What fedbench promises when something goes wrong, and how often it was tried. The table is made by

```
python tests/reliability.py
```

(about an hour on two cores; `python tests/reliability.py 50` with a fiftieth of the budgets), which writes this page and
fails when something does not hold. Smaller budgets of the same run with the tests.

{table}

"Held" is what the last column says. What isolation promises, and what it cannot, stands in the
[README](../README.md#what-isolation-promises-and-what-it-cannot); which process does what, in the
[architecture](architecture.md#who-runs-in-which-process).

Two of the columns' words need a note. A record is protected against damage, not against forgery: whoever computes its digest
again can change what is not counted anew from the scores ([what a record proves](architecture.md#what-a-record-proves)). And a
method that patches numpy or leaves autocast on may spoil its own score; it is its own.
"""


def table(found: dict[str, tuple[int, int]]) -> str:
    """As Markdown."""
    rows = [f"| {f.name} | {found[f.name][0]:,} | {found[f.name][1]:,} | {f.holds} |" for f in FAMILIES]
    return "\n".join(["| faults | tried | held | what held means |", "|---|---|---|---|", *rows])


def main(divisor: int = 1) -> int:
    """Exit status."""
    found = {}
    for family in FAMILIES:
        n = family.n * divisor if family.run is bits else max(1, family.n // divisor)
        with tempfile.TemporaryDirectory() as folder:
            found[family.name] = family.run(Path(folder), n)
        print(f"{family.name}: {found[family.name][1]:,} of {found[family.name][0]:,}", flush=True)
    page = TEXT.format(table=table(found))
    (PAGE if divisor == 1 else Path(tempfile.gettempdir()) / "reliability.md").write_text(page)
    return int(any(tried != held for tried, held in found.values()))


if __name__ == "__main__":
    os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp())
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
