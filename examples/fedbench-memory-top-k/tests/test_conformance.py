"""The defense meets the plugin contract, in both of its forms."""

from fedbench.testing import parametrize_with_checks


@parametrize_with_checks("memory-top-k", ("memory-top-k", {"entries": "random", "share": 0.1}))
def test_conformance(check):
    check()
