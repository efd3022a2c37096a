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

from fedbench.core.cli.main import main
from fedbench.core.store.arrays import RunArrays
from fedbench.core.store.integrity import key_of
from fedbench.core.store.reading import load_records
from fedbench.core.store.run_file import digest_of_arrays
from fedbench.leaderboard.submissions.comparing import compare


@pytest.fixture(scope="module")
def bundle(finished, tmp_path_factory):
    """The shared results with their observations; read-only."""
    return exported(finished, tmp_path_factory.mktemp("observed"), "--observations")


@pytest.mark.slow
def test_another_attack_judges_a_bundle_as_a_run_does(finished, bundle, tmp_path, call):
    whole = shutil.copytree(finished, tmp_path / "whole")
    added = ["--set", 'attacks=["loss-series","fedmia-ii","avg-cosine"]']
    invoke(finished.parent / "tiny.yaml", "--results", whole, *added)
    status, words = call("judge", bundle, "--attack", "avg-cosine", "-o", tmp_path / "in")
    assert (status, "2 runs with 2 cells to compute" in words) == (0, True), words
    found = {r.record.key: r for r in load_records(tmp_path / "in")}
    verdicts = {r.record.key: compare(found[r.record.key], r).verdict for r in load_records(whole)}
    assert verdicts == dict.fromkeys(found, "bit for bit") and len(found) == 6
    assert set(levels(tmp_path / "in").values()) == {"claimed"}
    assert not list((tmp_path / "in").glob("records/*"))
    again = call("judge", tmp_path / "in", "--attack", "avg-cosine")
    assert (again[0], "0 runs with 0 cells to compute" in again[1]) == (0, True), again
    assert "6 cells in the sample" in call("reproduce", tmp_path / "in", "--dry-run")[1]
    assert call("export", tmp_path / "in", "--observations", "-o", tmp_path / "on.zip")[0] == 0
    kept, before = (
        {n: c for n, c in files_of(b).items() if n.startswith("cache/")}
        for b in (tmp_path / "on.zip", bundle)
    )
    assert kept == before and len(kept) == 2


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
def test_what_needs_a_training_is_not_judged(bundle, tmp_path, call, attack, said):
    status, words = call("judge", bundle, "--attack", attack, "-o", tmp_path / "in")
    assert (status, said in words) == (2, True), words


@pytest.mark.slow
def test_a_bundle_without_observations_is_not_judged(finished, tmp_path, call):
    status, words = call(
        "judge", exported(finished, tmp_path), "--attack", "avg-cosine", "-o", tmp_path / "in"
    )
    assert (status, "2 of 2 runs are not judged" in words) == (2, True), words


def test_the_size_of_observations_is_said_and_limited_before_anything_is_written(
    finished, tmp_path, call, monkeypatch
):
    monkeypatch.setattr("fedbench.leaderboard.submissions.transfer.MAX_BUNDLE_BYTES", 1000)
    status, words = call("export", finished, "-o", tmp_path / "new" / "b.zip", "--observations")
    assert (
        status,
        "observations of 2 of 2 runs: 0." in words,
        "split it with --only" in words,
    ) == (2, True, True), words
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


@pytest.mark.parametrize("defect", DEFECTS)
def test_changed_observations_are_refused(bundle, tmp_path, capsys, defect):
    files = files_of(bundle)
    name = next(n for n in sorted(files) if n.startswith("cache/"))
    change, said = DEFECTS[defect]
    out = io.BytesIO()
    np.savez(out, **change(arrays_of(files[name])))
    (tmp_path / "bad.zip").write_bytes(zipped(files | {name: out.getvalue()}))
    assert main(["import", str(tmp_path / "bad.zip"), "-o", str(tmp_path / "in")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "in").exists()


def test_observations_of_no_record_are_refused(bundle, tmp_path, call):
    files = files_of(bundle)
    name = next(n for n in sorted(files) if n.startswith("cache/"))
    (tmp_path / "bad.zip").write_bytes(zipped(files | {f"cache/{'0' * 32}.npz": files[name]}))
    status, words = call("import", tmp_path / "bad.zip", "-o", tmp_path / "in")
    assert (status, "observations of a run without a record" in words) == (2, True), words
