"""What a run, an import or a merge wrote here is known; nothing that is known lets a damaged record pass."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from many_records import write_results, write_suite
from running import invoke, suite

from fedbench.core import UserError
from fedbench.core.cli import run
from fedbench.core.execution import resume
from fedbench.core.execution.noting import note
from fedbench.core.store import proven, reading, recount
from fedbench.core.store.proven import Proven
from fedbench.core.store.reading import load_records, record_paths
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.submissions.exporting import export
from fedbench.leaderboard.submissions.importing import import_bundle
from fedbench.leaderboard.submissions.merging import merge


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(cache, results) of a run that ended before it looked at its records again, and before its board."""
    root = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setattr(run, "write_reports", lambda *args: None)
        patch.setattr("fedbench.core.execution.resume.recorded", lambda *args: [])
        invoke(suite(root, attacks=["loss-series", "avg-cosine"]), "--results", root / "r", "--device", "cpu")
    return root / "cache", root / "r"


@pytest.fixture
def checks(monkeypatch):
    """The paths whose records were validated, and whose numbers were counted again, since it was asked last."""
    seen: list[tuple[str, Path]] = []

    def watching(what, function, path_of):
        return lambda *args, **more: seen.append((what, path_of(*args))) or function(*args, **more)

    monkeypatch.setattr(reading, "validated", watching("validated", reading.validated, lambda content, path, *_: path))
    monkeypatch.setattr(recount, "_differences", watching("recounted", recount._differences, lambda loaded: loaded.path))

    def since():
        found = sorted(what for what, _ in seen)
        seen.clear()
        return found

    return since


@pytest.fixture
def known(ran, tmp_path, monkeypatch):
    """That folder with what the run remembers of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shutil.copytree(ran[0], tmp_path / "cache")))
    kept = shutil.copytree(ran[1], tmp_path / "kept")
    yield ran[1]
    shutil.rmtree(ran[1])
    kept.rename(ran[1])


def added() -> Path:
    (path,) = (p for p in proven.notes_folder().iterdir() if p.suffix == ".added")
    return path


def test_what_a_run_wrote_is_not_checked_again(known, checks):
    MarkdownBoard().write(known, plots=False)
    assert checks() == []


def test_a_strangers_folder_is_checked_whole(known, checks, tmp_path):
    moved = shutil.copytree(known, tmp_path / "moved")
    MarkdownBoard().write(moved, plots=False)
    assert checks() == ["recounted"] * 2 + ["validated"] * 2


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_byte_that_changed_since_the_run_is_found(known, suffix):
    path = record_paths(known / "records")[0].with_suffix(suffix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=path.name.replace("[", r"\[")):
        MarkdownBoard().write(known, plots=False)


@pytest.mark.parametrize("damage", [
    lambda b: b"\0" + b, lambda b: bytes(x ^ 1 for x in b), lambda b: hashlib.sha256(b).digest() * 8, lambda b: b"",
])  # fmt: skip
def test_damaged_notes_of_a_run_prove_nothing(known, checks, damage):
    added().write_bytes(damage(added().read_bytes()))
    load_records(known)
    assert checks() == ["validated"] * 2
    load_records(known)
    assert checks() == []  # and are mended


def test_a_note_that_a_kill_cut_short_costs_that_note_alone(known, checks):
    added().write_bytes(added().read_bytes()[:-1])
    MarkdownBoard().write(known, plots=False)
    assert checks() == ["recounted"]


def test_a_damaged_record_is_not_noted(known, checks):
    path = record_paths(known / "records")[0]
    path.write_bytes(path.read_bytes().replace(b'"tiny"', b'"tinY"', 1))
    before = added().read_bytes()
    note(path, Proven(known))
    assert checks() == ["validated"] and added().read_bytes() == before


def test_notes_of_two_writers_at_once_are_all_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = Proven(tmp_path / "r"), Proven(tmp_path / "r")
    for who, content in ((one, "a"), (other, "b"), (one, "c")):
        who.add("read", content)
        who.append()
    reader = Proven(tmp_path / "r")
    assert [reader.holds("read", content) for content in "abcd"] == [True, True, True, False]
    other.add("read", "d")
    other.append()
    reader.save()  # does not drop what was added after it had read
    assert all(Proven(tmp_path / "r").holds("read", content) for content in "abcd")
    Proven(tmp_path / "r").save()
    assert [p.suffix for p in proven.notes_folder().iterdir()] == [""]
    assert all(Proven(tmp_path / "r").holds("read", content) for content in "abcd")


def test_what_was_imported_or_merged_is_not_checked_again(tmp_path, monkeypatch, checks):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_results(write_suite(tmp_path, 1, 1, defenses=1, attacks=2), tmp_path / "r")
    n = len(record_paths(tmp_path / "r" / "records"))
    merge([tmp_path / "r"], tmp_path / "merged")
    checks()
    MarkdownBoard().write(tmp_path / "merged", plots=False)
    assert checks() == []
    shutil.copytree(tmp_path / "merged", tmp_path / "again")
    MarkdownBoard().write(tmp_path / "again", plots=False)
    assert checks() == ["recounted"] * n + ["validated"] * n


def test_a_bundle_that_was_taken_in_is_not_checked_again(known, tmp_path, checks):
    export(known, tmp_path / "b.zip")
    import_bundle(tmp_path / "b.zip", tmp_path / "in")
    checks()
    MarkdownBoard().write(tmp_path / "in", plots=False)
    assert checks() == []


def test_a_run_looks_once_at_every_record_that_is_there(known, monkeypatch, tmp_path):
    looked = []
    one = resume.read_brief
    monkeypatch.setattr(resume, "read_brief", lambda path, *more: looked.append(path.name) or one(path, *more))
    path = suite(tmp_path, attacks=["loss-series", "avg-cosine", "fedmia-i"])
    invoke(path, "--results", known, "--device", "cpu", "--no-plots")
    there = sorted(p.name for p in record_paths(known / "records"))
    assert len(there) == 3 and sorted(looked) == there
