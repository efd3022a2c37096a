"""Suites: YAML in, checked types out. See ``load`` and ``resolve``."""
