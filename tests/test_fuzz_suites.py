"""Reading any file ends in a suite or in a few readable lines."""

from __future__ import annotations

import pytest
from good_suite import GOOD
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import EXAMPLES, HOSTILE, example, mutant, refusal, sources, written


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_odd_suite_is_refused_readably(tmp_path, registry, name):
    assert EXAMPLES[name][1] in refusal(example(name), tmp_path, registry)


@pytest.mark.slow
@pytest.mark.nightly
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mutant_is_a_suite_or_is_refused_readably(tmp_path, registry, seed):
    refusal(written(mutant(seed, HOSTILE, sources()[seed % len(sources())])), tmp_path, registry)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_suite_with_other_letters_is_a_suite_or_is_refused_readably(tmp_path, registry, seed):
    text, at = GOOD, seed % len(GOOD)
    refusal(text[:at] + chr(seed >> 12 & 0xFF) + text[at + (seed >> 20) % 90 :], tmp_path, registry)
