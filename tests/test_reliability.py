"""The page of faults that were tried is what its command writes, and the small families of it hold with every `pytest`."""

from __future__ import annotations

import re

import pytest
from faults import EDGES, HELD, caches, extremes, signals
from reliability import FAMILIES, PAGE, TEXT, table


def test_the_committed_page_is_what_its_command_writes_and_everything_held():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
    found = {name: (int(tried.replace(",", "")), int(held.replace(",", ""))) for name, tried, held in rows}
    assert found.keys() == {family.name for family in FAMILIES}
    assert text == TEXT.format(table=table(found))
    assert all(tried == held > 0 for tried, held in found.values())


def test_a_damaged_cache_is_no_cache(tmp_path):
    assert caches(tmp_path, 1, 60) == {HELD: 60}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_that_got_a_signal_at_any_moment_is_finished_by_the_same_command(tmp_path):
    assert signals(tmp_path, 2, 6) == {HELD: 6}


@pytest.mark.slow
@pytest.mark.parametrize("edge", ["a rate that diverges", "a decay that forgets", "a class a client", "one hidden unit"])
def test_a_cell_at_the_edge_does_not_fail(tmp_path, edge):
    assert "FAILED" not in extremes(tmp_path, {edge: EDGES[edge]})
