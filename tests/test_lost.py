"""Results folders that are deleted, renamed, full or without their marker: no record is lost
without a word.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from running import fingerprint, invoke, suite

from fedbench.core import UserError
from fedbench.core.run.local_executor import LocalProcesses
from fedbench.core.store import files
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically, write_if_room
from fedbench.core.store.results import MARKER, Results

# -- a folder that goes while a run goes on --------------------------------------------------------


def test_a_run_that_loses_every_record_ends_with_the_table_and_a_failure(tmp_path, monkeypatch):
    path, folder = suite(tmp_path), tmp_path / "r"
    from fedbench.core.cli import run

    honest = run.execute

    def then_gone(*args):
        reported = honest(*args)
        shutil.rmtree(folder)
        return reported

    monkeypatch.setattr(run, "execute", then_gone)
    said = " ".join(invoke(path, "--results", folder, status=1).split())
    assert "it has no new record: its process was ended, or the results folder was changed" in said
    assert not (folder / "records").exists()


def test_a_lost_run_is_a_failure_also_where_an_earlier_record_is_kept(
    finished, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(finished, tmp_path / "r"))
    before = fingerprint(folder)
    # as if every worker were killed
    monkeypatch.setattr(LocalProcesses, "execute", lambda self, jobs, watcher: None)
    said = invoke(finished.parent / "tiny.yaml", "--results", folder, "--rerun", "always", status=1)
    assert "it has no new record" in " ".join(said.split()) and fingerprint(folder) == before


def test_arrays_that_new_cells_would_join_are_read_before_anything_is_trained(finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "r"))
    for damaged in (folder / "records").glob("*.npz"):
        damaged.write_bytes(damaged.read_bytes()[:100])
    before = sorted(folder.rglob("*"))
    path = suite(
        tmp_path, defenses=["none", "grad-noise"], attacks=["loss-series", "threshold-loss"]
    )
    with pytest.raises(UserError, match="delete its record") as caught:
        invoke(path, "--results", folder)
    assert len(caught.value.messages) == 2 and sorted(folder.rglob("*")) == before


# -- the marker ------------------------------------------------------------------------------------


@pytest.fixture
def unmarked(finished, tmp_path) -> tuple[Path, Path]:
    """(suite, results folder without its marker)."""
    folder = Path(shutil.copytree(finished, tmp_path / "r"))
    (folder / MARKER).unlink()
    return finished.parent / "tiny.yaml", folder


def test_a_lost_marker_is_missed_and_written_by_the_next_run(unmarked, words_of):
    path, folder = unmarked
    before = fingerprint(folder)
    assert "not a fedbench results folder" in words_of("show", folder, status=2)
    assert "0 runs with 0 cells" in words_of("run", path, "--results", folder, "--no-plots")
    assert fingerprint(folder) == before and Results.open(folder).marker()["suite"] == "tiny"
    with pytest.raises(UserError, match="holds the results of suite 'tiny', not 'mine'"):
        Results.create(folder, "mine")


@pytest.mark.parametrize("name", ["thesis.tex", "data/x.csv"])
def test_a_folder_that_may_be_another_programs_is_refused_untouched(unmarked, words_of, name):
    path, folder = unmarked
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    words = words_of("run", path, "--results", folder, status=2)
    assert "not empty and not a fedbench results folder" in words
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_folder_of_a_run_killed_before_its_first_record_is_used(tmp_path):
    folder = tmp_path / "r"
    for name in ("records", "cache", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / "cache" / f"{TEMPORARY_PREFIX}half").write_text("x")
    store = Results.create(folder, "tiny")
    assert store.marker()["suite"] == "tiny"
    store.sweep()
    assert not list((folder / "cache").iterdir())
    with pytest.raises(UserError, match="is a file; name a folder with --results"):
        Results.create(folder / ".lock", "tiny")
    with pytest.raises(UserError, match="not a fedbench results folder"):
        Results.open(tmp_path / "missing")


# -- a full disk -----------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_that_names_the_file_and_a_cache_takes_only_what_is_left(
    tmp_path, monkeypatch
):
    store = Results.create(tmp_path / "r", "tiny")

    def full(*args):
        raise OSError(errno.ENOSPC, "no room")

    arrays = {"a": np.zeros(500)}
    write_if_room(store.cache / "d.npz", arrays)
    monkeypatch.setattr(files, "_replace", full)
    write_if_room(store.cache / "e.npz", arrays)
    assert [path.name for path in store.cache.iterdir()] == ["d.npz"]
    with pytest.raises(OSError, match="no room") as caught:
        write_atomically(store.path("cell"), b"1")
    assert caught.value.filename == str(store.path("cell")) and not list(store.records.iterdir())


@pytest.mark.slow
def test_a_training_without_room_for_its_cache_has_its_records(finished, tmp_path):
    """The worker fails to write its cache: there is a folder in its place."""
    folder = tmp_path / "r"
    Results.create(folder, "tiny")
    for cached in (finished / "cache").iterdir():
        (folder / "cache" / cached.name / "in the way").mkdir(parents=True)
    invoke(finished.parent / "tiny.yaml", "--results", folder)
    assert fingerprint(folder) == fingerprint(finished)


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps: list[str] = []
    rename = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append("synced"))
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("named"), rename(*paths)))
    write_atomically(tmp_path / "file", b"1")
    assert steps == ["synced", "named"]
    assert (tmp_path / "file").read_bytes() == b"1"
