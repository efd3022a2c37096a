"""Attack and signal meet the plugin contract."""

from fedbench.testing import parametrize_with_checks


@parametrize_with_checks("merlin", ("loss-rises", {"draws": 5}))
def test_conformance(check):
    check()
