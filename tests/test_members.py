"""A record read member by member is what a parser reads; what is not written as fedbench writes it is left to the parser."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_records import write_results, write_suite

from fedbench.core.metrics import auc_covariance
from fedbench.core.metrics.counts import auc_of_counts
from fedbench.core.store import reading
from fedbench.core.store.held import Held
from fedbench.core.store.integrity import sealed
from fedbench.core.store.members import known_values, members_of
from fedbench.core.store.reading import LoadedRecord, read_record, record_paths
from fedbench.core.store.shared import Shared
from fedbench.leaderboard.statistics.spread import Measured, mean_over_units, over_units, same_samples


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The record of a cell."""
    root = tmp_path_factory.mktemp("one")
    write_results(write_suite(root, 1, 1, defenses=1, attacks=1), root / "r")
    return record_paths(root / "r" / "records")[0]


def test_the_members_of_a_record_are_what_a_parser_finds(path):
    given, shared = path.read_bytes(), Shared()
    first, again = members_of(given, shared), members_of(given, shared, known=True)
    assert first.values == again.values == json.loads(given)
    assert first.values["described"] is again.values["described"] and first.texts() == again.texts()
    wanted = ("key", "outcome", "measured")
    assert known_values(given, (*wanted, "nothing")) == {name: json.loads(given)[name] for name in wanted}


@pytest.mark.parametrize("written", [
    lambda c: json.dumps(c).encode(), lambda c: json.dumps(c, indent=2).encode(), lambda c: json.dumps(c, indent=1).encode(),
    lambda c: sealed({**c, "more": 1}), lambda c: sealed({n: v for n, v in c.items() if n != "identity"}),
    lambda c: sealed({**c, "identity": None}),
    lambda c: sealed({**c, "identity": {**c["identity"], "more": {}}}),
    lambda c: sealed(c).replace(b'"setting": ', b'"suite": ', 1), lambda c: sealed(c).replace(b'"seed": 0', b'"seed": 1e999', 1),
    lambda c: sealed(c).replace(b'"seed": 0', b'"seed": NaN', 1), lambda c: sealed(c).replace(b'"seed": 0', b'"seed": 0 0', 1),
    lambda c: sealed(c).replace(b'"seed": 0', b'"seed": {"a": 1, "a": 2}', 1),
    lambda c: sealed(c).replace(b'"suite": "', b'"suite": ",\n "reason": "', 1),
    lambda c: sealed(c).replace(b'"facts": {', b'"facts": {\n "a": "0",\n "reason": "",', 1),
    lambda c: sealed(c)[:-2], lambda c: b"",
])  # fmt: skip
def test_what_is_written_in_another_way_is_left_to_the_parser(path, written):
    given = written(json.loads(path.read_bytes()))
    assert given != path.read_bytes() and members_of(given, Shared()) is None


def test_a_nested_member_is_none_of_the_record(path):
    """Two values whose halves would make whole ones of another record: each must be whole by itself."""
    content = path.read_bytes().replace(b'"seed": 0,\n "', b'"seed": [0,\n "', 1).replace(b'"suite": "', b'"suite": ["', 1)
    assert content != path.read_bytes() and members_of(content, Shared()) is None


@pytest.mark.parametrize("indent", [None, 2])
def test_a_record_in_another_layout_is_the_same_record(path, tmp_path, indent):
    other = tmp_path / path.name
    other.write_text(json.dumps(json.loads(path.read_bytes()), indent=indent))
    other.with_suffix(".npz").write_bytes(path.with_suffix(".npz").read_bytes())
    assert read_record(other).record == read_record(path).record


def test_scores_are_held_by_their_content_and_in_bounds(path, monkeypatch):
    monkeypatch.setattr(reading, "_HELD", Held())
    loaded, opened = read_record(path), []
    monkeypatch.setattr(LoadedRecord, "_arrays", lambda self, of=LoadedRecord._arrays: opened.append(1) or of(self))
    first = loaded.candidates_of([0, 1])
    assert loaded.candidates(1) is first[1] and loaded.test_correct().dtype == bool and len(opened) == 1
    unknown = LoadedRecord(loaded.record, loaded.path)  # by no content: read each time
    assert unknown.test_correct().tolist() == loaded.test_correct().tolist() and len(opened) == 2
    held = Held()
    monkeypatch.setattr("fedbench.core.store.held.MOST_BYTES", 100)
    for name in "abc":
        held.add(name, "", {0: name}, 60)
    held.add("c", "", {1: "more"}, 10)
    assert [dict(held.of(name, "")) for name in "abc"] == [{}, {}, {0: "c", 1: "more"}]


def by_one_sort_each(scores, member):
    """AUC and covariance of single vectors, ties or not, as they are defined."""
    found = []
    for row in scores:
        values, group = np.unique(row, return_inverse=True)
        m, n = (np.bincount(group[mask], minlength=len(values)) for mask in (member, ~member))
        below, above = (np.cumsum(n) - 0.5 * n) / n.sum(), 1 - (np.cumsum(m) - 0.5 * m) / m.sum()
        found.append((float(auc_of_counts(m, n)), below[group[member]], above[group[~member]]))
    aucs, of_members, of_others = (np.stack([f[i] for f in found]) for i in range(3))
    return aucs, np.atleast_2d(np.cov(of_members) / of_members.shape[1] + np.cov(of_others) / of_others.shape[1])


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(2, 40), st.booleans())
def test_all_rows_at_once_are_bit_for_bit_each_by_itself(seed, rows, n, ties):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, n + 4))
    if ties:
        scores[rng.random(rows) < 0.5] = rng.integers(0, 5, size=n + 4)
    member = rng.permutation(np.arange(n + 4) % 2 == 0)
    for found, expected in zip(auc_covariance(scores, member), by_one_sort_each(scores, member), strict=True):
        assert found.tolist() == expected.tolist()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_mean_alone_is_that_of_the_interval(values):
    found = {(i % 3, i): Measured(v, 0.1) for i, v in enumerate(values)}
    assert mean_over_units(found) == over_units(found).mean == float(np.mean(values))
    assert mean_over_units({}) is None


def test_samples_of_other_arrays_are_other_samples():
    for numbers in ([[1, 2], [2, 3]], [[5, 5], [5, 6]]) * 200:
        expected = np.unique(np.concatenate(numbers), return_inverse=True)[1]
        assert same_samples([np.array(ids) for ids in numbers]).tolist() == expected.tolist()
