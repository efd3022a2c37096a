"""Jobs for tests, where everybody's conformance checks have them."""

from fedbench.testing.jobs import judge, use, with_setting

__all__ = ["judge", "use", "with_setting"]
