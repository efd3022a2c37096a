"""One headless Chromium for all tests here, and pages that note what they must not do."""

from __future__ import annotations

import os
import shutil

import pytest
from claim_boards import Cells
from site_boards import hostile, marked, site
from visits import Visit

LEAK = {"none": 1.0, "mixup": 0.8, "cofedmid": 0.0, "grad-sparse": 0.4, "placebo": 0.95}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright; the tests are skipped where either is missing."""
    sync = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install 'fedbench-privacy[test]'"
    )
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    # its sandbox refuses root, the user of containers
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=root)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens pages: ``visit(path, hash, **context)``; at the end nothing may have gone wrong on any
    of them.
    """
    visits = []

    def opened(path, state="", **context):
        visits.append(Visit(browser, path, state, context))
        return visits[-1]

    yield opened
    for one in visits:
        one.context.close()
    assert [problem for one in visits for problem in one.problems] == []


@pytest.fixture(scope="session")
def shown(tmp_path_factory):
    """A site of one board: two settings, five defenses (one a floor), two attacks, three seeds."""
    root = tmp_path_factory.mktemp("shown")
    rows = {label: (leak, 0.8 - 0.05 * leak) for label, leak in LEAK.items()}
    folder = Cells(
        root / "demo",
        {"iid": rows, "skewed": rows},
        attacks=("fedmia-ii", "loss-series"),
        seeds=range(3),
    )
    site(root / "site", marked(folder))
    return root / "site"


@pytest.fixture(scope="session")
def page(shown):
    """The board's page."""
    return shown / "demo.html"


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    """The site of a folder with hostile names everywhere."""
    root = tmp_path_factory.mktemp("odd")
    site(root / "site", hostile(root / "hostile"))
    return root / "site"
