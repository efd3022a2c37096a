"""Suites shipped with fedbench: `fedbench list suites`."""
