"""Suites: YAML in, checked types out. See ``load`` and ``resolve``."""

from fedbench.core.spec.coalition import Coalition, resolve_coalition
from fedbench.core.spec.component import MethodUse, Use
from fedbench.core.spec.document import Problem
from fedbench.core.spec.load import LoadedSuite, find_suite, load_suite, shipped_suites
from fedbench.core.spec.resolve import Resolved, ResolvedSetting, ResolvedUse, check_components, load_and_check
from fedbench.core.spec.suite import Setting, SuiteSpec

__all__ = [
    "Coalition", "LoadedSuite", "MethodUse", "Problem", "Resolved", "ResolvedSetting", "ResolvedUse", "Setting",
    "SuiteSpec", "Use", "check_components", "find_suite", "load_and_check", "load_suite", "resolve_coalition",
    "shipped_suites",
]  # fmt: skip
