"""Data set and model meet the plugin contract."""

from fedbench.testing import parametrize_with_checks


@parametrize_with_checks(
    "control-charts", ("control-charts", {"label_noise": 0.3, "length": 20}), "conv-series"
)
def test_conformance(check):
    check()
