"""Run the quick tests that cover the line that a mutation changed, most specific first, for about a
minute.

The command of cosmic-ray, in a clean checkout that holds one mutation. Exit status 0 where no test
fails: the mutant survives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[2]
MOST_TESTS = 400


def changed_line() -> tuple[str, int]:
    """(file, line before the change) of the one mutation in the working tree."""
    diff = subprocess.run(
        ["git", "diff", "-U0"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    return re.search(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)[1], int(
        re.search(r"^@@ -(\d+)", diff, re.MULTILINE)[1]
    )


def tests_of(contexts: Iterable[str]) -> set[str]:
    """The tests among the contexts of coverage: ``static|dynamic``, where the static one may end in
    the phase of a test.
    """
    names = {
        re.sub(r" \((setup|call|teardown)\)$", "", part)
        for context in contexts
        for part in context.split("|", 1)
    }
    # a parameter that no command line can name stands for all parameters of its test
    return {
        name if re.fullmatch(r"[\w./:\[\]-]+", name) else name.partition("[")[0]
        for name in names
        if "::" in name
    }


def covering(data: CoverageData, file: str, line: int) -> list[str]:
    """The tests that run this line, those that run the fewest lines of its file first; all tests of
    the file where at most one is known, since a line that runs on import is noted for the first
    test alone.
    """
    by_line = {
        n: tests_of(contexts) for n, contexts in data.contexts_by_lineno(str(ROOT / file)).items()
    }
    lines_of = Counter(test for tests in by_line.values() for test in tests)
    chosen = by_line.get(line, set())
    return sorted(chosen if len(chosen) > 1 else lines_of, key=lambda test: (lines_of[test], test))[
        :MOST_TESTS
    ]


class Limit:
    """A pytest plugin that ends the session after so many seconds."""

    reached = False

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Stop before the next test."""
        if time.monotonic() > self.end:
            self.reached, item.session.shouldstop = True, "out of time"


def main() -> int:
    """Run them, and stop at the first failure."""
    data = CoverageData(os.environ["COVERAGE_LINES"])
    data.read()
    tests = covering(data, *changed_line())
    print(f"{len(tests)} tests cover {changed_line()}")
    if not tests:
        return 0
    limit = Limit(float(os.environ.get("MUTANT_SECONDS", "60")))
    status = pytest.main(["-x", "-q", "-n", "0", "--tb=no", *tests], plugins=[limit])
    return 0 if limit.reached and status == pytest.ExitCode.INTERRUPTED else int(status)


if __name__ == "__main__":
    sys.exit(main())
