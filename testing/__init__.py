"""Checks that a component keeps the contract, for whoever writes one: in pytest, from Python, or as ``fedbench check NAME``.

::

    from fedbench.testing import parametrize_with_checks

    @parametrize_with_checks("update-noise")
    def test_conformance(check):
        check()
"""

from __future__ import annotations

from fedbench.testing.apart import check_component
from fedbench.testing.parametrize import ConformanceWarning, parametrize_with_checks
from fedbench.testing.results import Report, Result

__all__ = ["ConformanceWarning", "Report", "Result", "check_component", "parametrize_with_checks"]
