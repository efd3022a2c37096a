"""Results of recorded federations are judged, compared and passed on as those of trained ones."""

from __future__ import annotations

import shutil

import pytest
from bundles import levels
from federations import small

from fedbench.core.cli.main import main
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.gate.ceilings import DOUBTFUL

SEEDS = {0, 1}


def audited(folder, *recordings):
    """Results of these recordings, by one attack."""
    options = ["--attacks", "loss-series", "--no-plots", "--workers", "1"]
    folders = [str(recording) for recording in recordings]
    assert main(["audit", *folders, *options, "--results", str(folder)]) == 0
    return folder


def turned(received, state):
    return {a: 2 * received[a] - v if v.is_floating_point() else v for a, v in state.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Recordings of two federations as two of one; read-only."""
    root = tmp_path_factory.mktemp("audited")
    second = small(root / "second", changed=turned, weights="other")
    return audited(root / "r", small(root / "first"), second)


def scores_of(folder):
    """(attack, seed) -> the scores of each target."""
    scores = {}
    for loaded in load_records(folder):
        r = loaded.record
        targets = [loaded.candidates(client).scores.tolist() for client in range(3)]
        scores[r.attack.label, r.seed] = targets
    return scores


@pytest.mark.slow
def test_recordings_are_compared_with_ceilings_and_a_baseline(results, tmp_path, words_of):
    words_of("compare", results, "--max", "worst_auc=1")
    baseline = tmp_path / "baseline.json"
    words_of("baseline", results, "-o", baseline)
    words = words_of("compare", results, baseline, "--max", "worst_auc=0.1", status=1)
    assert "The ceilings **failed**: 1 of 1" in words
    assert "The gate **passed**" in words and "on 2 paired seeds" in words


@pytest.mark.slow
def test_a_bundle_of_recordings_has_their_scores_and_is_judged_alike(results, tmp_path, words_of):
    own, bundle, theirs = tmp_path / "own", tmp_path / "b.zip", tmp_path / "theirs"
    shutil.copytree(results, own)
    words_of("export", results, "--observations", "-o", bundle)
    words_of("judge", bundle, "--attack", "fedmia-i", "-o", theirs)
    words_of("judge", own, "--attack", "fedmia-i")
    judged = scores_of(own)
    assert set(judged) == {(a, s) for a in ("loss-series", "fedmia-i") for s in SEEDS}
    assert scores_of(theirs) == judged
    assert judged["fedmia-i", 0] != judged["fedmia-i", 1]
    assert judged.items() >= scores_of(results).items()
    assert set(levels(own).values()) == set(levels(theirs).values()) == {"claimed"}


@pytest.mark.slow
def test_a_doubtful_recording_is_one_on_the_page_and_to_a_gate(tmp_path, monkeypatch, words_of):
    folder = audited(tmp_path / "r", small(tmp_path / "wrong", weights="equal"))
    monkeypatch.setenv("PATH", "")  # no browser
    words_of("leaderboard", folder, "--report", "audit")
    page = (folder / "leaderboard" / "audit.html").read_text()
    result, scope = page.index("Result</h2>"), page.index("What was audited</h2>")
    assert result < page.index(f"{DOUBTFUL}: in 3 of 3 rounds") < scope
    assert DOUBTFUL in words_of("compare", folder, "--max", "worst_auc=1", status=1)
