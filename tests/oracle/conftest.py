"""`pytest tests/oracle` checks every number against `oracle.json`; `--renew` writes the file anew
and prints what moved.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle.stored import PARTS, load, save
from oracle.toys import images_in
from running import plan_once

import fedbench.plugins
from fedbench.plugins.papers.claim_files import shipped_papers


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--renew``."""
    parser.addoption(
        "--renew",
        action="store_true",
        help="write tests/oracle/oracle.json anew and print what moved",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Suites go to the workers one by one, not all of the file to one of them."""
    if getattr(config.option, "dist", "no") == "loadfile":
        config.option.dist = "load"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the parts before the workers start."""
    if config.getoption("--renew") and not hasattr(config, "workerinput"):
        os.environ[PARTS] = tempfile.mkdtemp()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Put the parts together, once all workers have ended, and say what moved."""
    if not config.getoption("--renew") or hasattr(config, "workerinput"):
        return
    content, moved = load(), []
    for path in sorted(Path(os.environ[PARTS]).glob("*.json")):
        part = json.loads(path.read_text())
        content[part["suite"]] = part["entry"]
        moved += part["moved"]
    save(content)
    terminalreporter.section("oracle renewed")
    terminalreporter.write_line("\n".join(moved[:200]) or "nothing moved")
    counts = Counter(line.split(": ")[0] for line in moved)
    terminalreporter.write_line(
        f"{len(moved)} kinds of numbers moved in {len(counts)} suites: {dict(counts)}"
    )


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Load what processes forked from this one would load anew for each suite: modules of plugins,
    claims of papers.
    """
    for module in pkgutil.walk_packages(fedbench.plugins.__path__, "fedbench.plugins."):
        importlib.import_module(module.name)
    shipped_papers()
    plan_once()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of class folders of small images."""
    yield images_in(tmp_path_factory.mktemp("images"))
