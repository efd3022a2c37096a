"""Results folders that are deleted, renamed, robbed of their marker or full: nothing is lost without a word."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_packages import WAITING, install
from running import HANG_S, fingerprint, invoke, records, start, suite, wait_for

from fedbench.core.cli.main import cli
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.clock import Clock
from fedbench.core.execution.worker import record_for
from fedbench.core.store import files
from fedbench.core.store.files import TEMPORARY_PREFIX, write_if_room
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import load_records, read_record
from fedbench.core.store.results import MARKER, Results

# -- a folder that goes while a run goes on ----------------------------------------------------------------------------


def delete(folder: Path) -> None:
    shutil.rmtree(folder)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def delete_records(folder: Path) -> None:
    shutil.rmtree(folder / "records")


def rename_records(folder: Path) -> None:
    (folder / "records").rename(folder / "old")


OFTEN, SELDOM = (delete,), (rename_records, rename, delete_records)


@pytest.mark.parametrize("harm", [*OFTEN, *(pytest.param(h, marks=pytest.mark.slow) for h in SELDOM)])
def test_a_record_that_is_gone_at_the_end_of_a_run_is_a_failure(tmp_path, site, harm):
    install(site, "waiting", WAITING)
    path, folder = suite(tmp_path, title="A title", defenses=["none", "waits"]), tmp_path / "r"
    (tmp_path / "wait").touch()
    process = start(path, folder, site)
    wait_for((tmp_path / "waiting").exists, process)
    assert [d for d, _, _ in records(folder)] == ["none"]
    harm(folder)
    (tmp_path / "wait").unlink()
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, output
    said = " ".join(output.split())
    assert "lost digits/none none seed 0 loss-series its record is gone: the results folder was deleted, renamed" in said
    assert "run the same command again" in said and "Traceback" not in output
    assert [d for d, _, _ in records(folder)] == ["waits"]
    marker = Results.open(folder).marker()
    assert (marker["suite"], marker["title"], len(marker["cells"])) == ("tiny", "A title", 2)
    invoke(path, "--results", folder)
    assert sorted(d for d, _, _ in records(folder)) == ["none", "waits"]


def test_a_run_in_which_every_record_is_lost_ends_with_the_table(tmp_path, monkeypatch):
    path, folder = suite(tmp_path), tmp_path / "r"
    from fedbench.core.cli import run

    honest = run._execute

    def then_gone(*args):
        honest(*args)
        shutil.rmtree(folder)

    monkeypatch.setattr(run, "_execute", then_gone)
    assert "its record is gone" in " ".join(invoke(path, "--results", folder, status=1).split())
    assert Results.open(folder).marker()["suite"] == "tiny" and not (folder / "records").exists()


def test_cells_that_were_never_asked_for_are_not_lost(tmp_path):
    path, folder = suite(tmp_path, attacks=["loss-series", "blackbox-loss"]), tmp_path / "r"
    invoke(path, "--results", folder, "--only", "attack=loss-series")
    assert "lost" not in invoke(path, "--results", folder, "--rerun", "never")


# -- the marker --------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path) -> tuple[Path, Path]:
    """(suite, results folder) of a run with two records; the folder's marker is gone."""
    path, folder = suite(tmp_path, attacks=["loss-series", "blackbox-loss"]), tmp_path / "r"
    invoke(path, "--results", folder)
    (folder / MARKER).unlink()
    return path, folder


def test_a_marker_is_written_again_with_the_next_record(finished):
    _, folder = finished
    (one, _) = load_records(folder)
    Results(folder).write(one.path.stem, one.record, one.path.with_suffix(".npz").read_bytes())
    assert Results.open(folder).marker() == {"schema_version": 6, "suite": "tiny", "cells": [], "plans": []}
    assert read_record(one.path).record == one.record


def test_a_run_writes_the_marker_again_that_it_wrote(finished):
    path, folder = finished
    invoke(path, "--results", folder)
    store = Results.create(folder, "tiny")
    store.set_manifest(["a"], "A title")
    wanted = store.marker()
    (folder / MARKER).unlink()
    (one, _) = load_records(folder)
    store.write(one.path.stem, one.record, one.path.with_suffix(".npz").read_bytes())
    assert store.marker() == wanted
    (folder / MARKER).unlink()
    Results(folder).write(one.path.stem, one.record, one.path.with_suffix(".npz").read_bytes())  # as a worker does
    store.keep_marker()
    assert store.marker() == wanted


def test_run_makes_a_lost_marker_again_from_the_records(finished):
    path, folder = finished
    whole = fingerprint(folder)
    output = " ".join(invoke(path, "--results", folder).split())
    assert f"note: {folder}: its {MARKER} was gone and was made again from 2 records of suite 'tiny'" in output
    assert "0 runs with 0 cells" in output and fingerprint(folder) == whole
    assert sorted(Results.open(folder).marker()["cells"]) == sorted(p.stem for p in (folder / "records").glob("*.json"))


@pytest.mark.parametrize("words", [["show"], ["leaderboard", "--no-plots"], ["clean"]], ids=lambda words: words[0])
def test_commands_that_read_make_a_lost_marker_again(finished, words):
    _, folder = finished
    result = CliRunner().invoke(cli, [words[0], str(folder), *words[1:]])
    assert result.exit_code == 0, result.output
    assert f"its {MARKER} was gone and was made again from 2 records of suite 'tiny'" in result.stderr
    assert Results.open(folder).marker()["suite"] == "tiny"
    again = CliRunner().invoke(cli, [words[0], str(folder), *words[1:]])
    assert again.stderr == ""


def refused_untouched(folder: Path, suite_file: Path, message: str) -> None:
    """`run` and `show` refuse the folder and leave it as it is."""
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=message):
        invoke(suite_file, "--results", folder)
    result = CliRunner().invoke(cli, ["show", str(folder)])
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("foreign", ["thesis.tex", "records/thesis.tex", "cache/data.csv", "data/x.csv"])
def test_a_folder_with_something_foreign_is_refused_untouched(finished, foreign):
    path, folder = finished
    (folder / foreign).parent.mkdir(exist_ok=True)
    (folder / foreign).write_text("x")
    refused_untouched(folder, path, "not empty and not a fedbench results folder")


def test_records_of_several_suites_are_refused_untouched(finished):
    path, folder = finished
    file = sorted((folder / "records").glob("*.json"))[0]
    file.write_bytes(sealed(json.loads(file.read_text()) | {"suite": "other"}))
    refused_untouched(folder, path, r"it holds records of several suites \('other', 'tiny'\)")


def test_a_record_that_cannot_be_read_is_named_when_the_marker_is_gone(finished):
    path, folder = finished
    file = sorted((folder / "records").glob("*.json"))[0]
    file.write_text("{half")
    refused_untouched(folder, path, f"{file.name}: unreadable")


def test_records_of_another_suite_are_not_adopted(finished, tmp_path):
    _, folder = finished
    other = tmp_path / "other"
    other.mkdir()
    path = suite(other, name="mine")
    with pytest.raises(UserError, match="holds the results of suite 'tiny', not 'mine'; nothing was touched"):
        invoke(path, "--results", folder)
    assert not (folder / MARKER).exists()


def test_a_folder_whose_run_was_killed_before_its_first_record_is_used(tmp_path):
    folder = tmp_path / "r"
    for name in ("records", "cache", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / "cache" / f"{TEMPORARY_PREFIX}half").write_text("x")
    invoke(suite(tmp_path), "--results", folder)
    assert len(records(folder)) == 1


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(monkeypatch) -> Callable[[Path, int, int], None]:
    """``disk(root, room, code)``: a folder that holds so many bytes and then answers with that error."""
    honest = files._replace

    def limit(root: Path, room: int, code: int = errno.ENOSPC) -> None:
        def replace(path: Path, content: bytes) -> None:
            used = sum(p.stat().st_size for p in root.rglob("*") if p.is_file() and p != path)
            if used + len(content) > room:
                raise OSError(code, "no room")
            honest(path, content)

        monkeypatch.setattr(files, "_replace", replace)

    return limit


@pytest.fixture
def store(tmp_path) -> Results:
    """A results folder with caches of 5, 3 and 1 kB, and nothing else."""
    store = Results.create(tmp_path / "r", "tiny")
    for name, size in (("a", 3000), ("b", 5000), ("c", 1000)):
        (store.cache / f"{name}.npz").write_bytes(bytes(size))
    return store


def used(store: Results) -> int:
    return sum(p.stat().st_size for p in store.root.rglob("*") if p.is_file())


def size_of(record) -> int:
    """Bytes of its file."""
    return len(sealed(json.loads(record.model_dump_json())))


def caches(store: Results) -> list[str]:
    return sorted(p.stem for p in store.cache.iterdir())


@pytest.fixture
def made(tmp_path) -> tuple[str, object]:
    """(stem, record) of a cell that failed."""
    from fedbench.core.cli.run import build_plan

    (job,) = build_plan(str(suite(tmp_path)), (), tmp_path / "r", "cpu").jobs
    (cell,) = job.cells
    return cell.stem, record_for(job, cell, "failed", "a reason", Clock.start().outside())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("short", "left"), [(0, ["a", "b", "c"]), (1, ["a", "c"]), (5001, ["c"]), (8001, [])])
def test_a_record_pushes_caches_out_the_largest_first(store, made, disk, code, short, left):
    stem, record = made
    disk(store.root, used(store) + size_of(record) - short, code)
    store.write(stem, record)
    assert caches(store) == left and store.read(stem).record.reason == "a reason"


def test_scores_push_caches_out_too_and_what_was_computed_stays(store, made, disk):
    stem, record = made
    store.write("earlier", record, b"scores")
    disk(store.root, used(store) + size_of(record))
    store.write(stem, record, bytes(5001))
    assert caches(store) == ["c"]
    assert (store.records / "earlier.npz").read_bytes() == b"scores" and store.path(stem).exists()


def test_a_disk_that_is_full_of_other_things_is_an_error_that_names_the_file(store, made, disk):
    stem, record = made
    disk(store.root, 100)
    with pytest.raises(OSError, match="no room") as caught:
        store.write(stem, record)
    assert caught.value.filename == str(store.path(stem)) and caches(store) == []
    assert not list(store.records.iterdir())


def test_a_folder_that_cannot_be_written_costs_no_cache(store, made, disk):
    disk(store.root, 0, errno.EACCES)
    with pytest.raises(OSError, match="no room"):
        store.write(*made)
    assert caches(store) == ["a", "b", "c"]


def test_a_cache_takes_only_what_is_left(store, disk):
    disk(store.root, used(store) + 500)
    assert write_if_room(store.cache / "d.npz", bytes(500)) is True
    assert write_if_room(store.cache / "e.npz", b"1") is False
    assert caches(store) == ["a", "b", "c", "d"]


def test_a_training_without_room_for_its_cache_has_its_records(tmp_path, monkeypatch):
    """The worker's own writing of caches fails here, in a process forked from this one's server: through a file in the way."""
    path, folder = suite(tmp_path), tmp_path / "r"
    Results.create(folder, "tiny")
    shutil.rmtree(folder / "cache")
    invoke(path, "--results", tmp_path / "whole")
    (cached,) = (tmp_path / "whole" / "cache").iterdir()
    (folder / "cache" / cached.name / "in the way").mkdir(parents=True)
    invoke(path, "--results", folder)
    assert fingerprint(folder) == fingerprint(tmp_path / "whole")
