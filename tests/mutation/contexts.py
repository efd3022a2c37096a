"""A pytest plugin: coverage notes the test that runs a line. Forked and started processes learn it
from PYTEST_CURRENT_TEST.
"""

import coverage
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """Set the context of this process."""
    if (current := coverage.Coverage.current()) is not None:
        current.switch_context(nodeid)
