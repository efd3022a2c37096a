"""Observations that travel: another attack judges the runs of a bundle as `run` would, and changed
observations are refused.
"""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from bundles import arrays_of, exported, files_of, levels, zipped
from running import invoke

from fedbench.core.store.arrays import RunArrays
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import load_records
from fedbench.core.store.run_file import digest_of_arrays
from fedbench.leaderboard.submissions.comparing import compare


@pytest.fixture(scope="module")
def bundle(finished, tmp_path_factory):
    """The shared results with their observations; read-only."""
    return exported(finished, tmp_path_factory.mktemp("observed"), "--observations")


def observations_in(path):
    """Name in the bundle -> content."""
    files = files_of(path)
    return {name: files[name] for name in sorted(files) if name.startswith("cache/")}


@pytest.fixture
def refused(tmp_path, words_of):
    """Imports a bundle of this content, which must be refused with these words."""

    def check(files, said):
        (tmp_path / "bad.zip").write_bytes(zipped(files))
        assert said in words_of("import", tmp_path / "bad.zip", "-o", tmp_path / "in", status=2)
        assert not (tmp_path / "in").exists()

    return check


@pytest.mark.slow
def test_another_attack_judges_a_bundle_as_a_run_does(finished, bundle, tmp_path, words_of):
    whole = shutil.copytree(finished, tmp_path / "whole")
    added = ["--set", 'attacks=["loss-series","fedmia-ii","avg-cosine"]']
    invoke(finished.parent / "tiny.yaml", "--results", whole, *added)
    judged = tmp_path / "in"
    words = words_of("judge", bundle, "--attack", "avg-cosine", "-o", judged)
    assert "2 runs with 2 cells to compute" in words
    found = {r.record.key: r for r in load_records(judged)}
    verdicts = {r.record.key: compare(found[r.record.key], r).verdict for r in load_records(whole)}
    assert verdicts == dict.fromkeys(found, "bit for bit") and len(found) == 6
    assert set(levels(judged).values()) == {"claimed"}
    assert not list(judged.glob("records/*"))
    again = words_of("judge", judged, "--attack", "avg-cosine")
    assert "0 runs with 0 cells to compute" in again
    assert "6 cells in the sample" in words_of("reproduce", judged, "--dry-run")
    words_of("export", judged, "--observations", "-o", tmp_path / "on.zip")
    kept = observations_in(tmp_path / "on.zip")
    assert kept == observations_in(bundle) and len(kept) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("gradient-ascent", "takes part in the training"),
        (
            "threshold-confidence",
            "2 of 2 runs are not judged: what threshold-confidence would observe was not kept",
        ),
        ("no-such", "no-such"),
    ],
)
def test_what_needs_a_training_is_not_judged(bundle, tmp_path, words_of, attack, said):
    command = ("judge", bundle, "--attack", attack, "-o", tmp_path / "in")
    assert said in words_of(*command, status=2)


@pytest.mark.slow
def test_a_bundle_without_observations_is_not_judged(finished, tmp_path, words_of):
    bare = exported(finished, tmp_path)
    command = ("judge", bare, "--attack", "avg-cosine", "-o", tmp_path / "in")
    assert "2 of 2 runs are not judged" in words_of(*command, status=2)


def test_the_size_of_observations_is_said_and_limited_before_anything_is_written(
    finished, tmp_path, words_of, monkeypatch
):
    monkeypatch.setattr("fedbench.leaderboard.submissions.transfer.MAX_BUNDLE_BYTES", 1000)
    command = ("export", finished, "-o", tmp_path / "new" / "b.zip", "--observations")
    words = words_of(*command, status=2)
    assert "observations of 2 of 2 runs: 0." in words and "split it with --only" in words
    assert not (tmp_path / "new").exists()


def test_arrays_are_read_in_the_order_of_their_memory(tmp_path):
    made = np.arange(6.0).reshape(2, 3).T
    np.savez(tmp_path / "a.npz", made=made)
    assert np.array_equal(RunArrays(tmp_path / "a.npz", "").array("", "made"), made)


# --- changed observations -------------------------------------------------------------------------


def resealed(arrays, **facts):
    """Observations with other facts, and with the digest made anew."""
    arrays = dict(arrays)
    meta = json.loads(arrays.pop("meta").tobytes()) | facts
    meta["digest"] = key_of(
        {
            "meta": {n: v for n, v in meta.items() if n != "digest"},
            "arrays": digest_of_arrays(arrays),
        }
    )
    return arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}


DEFECTS = {
    "a signal": (
        lambda a: a | {"rounds": a["rounds"] + 1},
        "were changed after they were measured",
    ),
    "the accuracy": (
        lambda a: resealed(a | {"test_correct": ~a["test_correct"]}),
        "are not those of its records",
    ),
    "facts": (lambda a: resealed(a, facts={"epsilon": 1.0}), "are not those of its records"),
    "another run": (lambda a: resealed(a, run_key="0" * 64), "are not those of its records"),
    "a field": (lambda a: resealed(a, rows="all"), "not observations as fedbench keeps them"),
    "no facts": (
        lambda a: {n: v for n, v in a.items() if n != "meta"},
        "not observations as fedbench keeps them",
    ),
    "objects": (lambda a: a | {"more": np.array([print])}, "expected numbers"),
}


@pytest.mark.parametrize(("change", "said"), DEFECTS.values(), ids=DEFECTS)
def test_changed_observations_are_refused(bundle, refused, change, said):
    name, content = next(iter(observations_in(bundle).items()))
    out = io.BytesIO()
    np.savez(out, **change(arrays_of(content)))
    refused(files_of(bundle) | {name: out.getvalue()}, said)


def test_observations_of_no_record_are_refused(bundle, refused):
    content, _ = observations_in(bundle).values()
    files = files_of(bundle) | {f"cache/{'0' * 32}.npz": content}
    refused(files, "observations of a run without a record")
