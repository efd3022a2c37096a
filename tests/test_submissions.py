"""Results that travel: export, import, merge, and that no changed or hostile bundle is taken."""

from __future__ import annotations

import io
import json
import shutil
import stat
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from bundles import (
    Picked,
    array_of,
    arrays_of,
    edited,
    entry,
    exported,
    files_of,
    levels,
    packed,
    pick,
    records_in,
    rescored,
    scores_of,
    with_scores,
    without,
    zipped,
)
from running import fingerprint, invoke, suite

from fedbench.core import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, folder_aside, npz_bytes
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import _run_arrays, load_records
from fedbench.core.store.results import Results
from fedbench.leaderboard.document import board_id
from fedbench.leaderboard.submissions import recompute as recomputing
from fedbench.leaderboard.submissions.transfer import merge


@pytest.fixture(scope="module")
def bundle(finished, tmp_path_factory):
    """The bundle of the shared results; read-only."""
    return exported(finished, tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def small(finished, tmp_path_factory):
    """The bundle of one run with two cells; read-only."""
    return exported(finished, tmp_path_factory.mktemp("small"), "--only", "defense=grad-noise")


@pytest.fixture
def imported(bundle, tmp_path, words_of):
    """The folder that an import of the bundle makes."""
    assert "4 records, claimed" in words_of("import", bundle, "-o", tmp_path / "in")
    return tmp_path / "in"


# --- there and back -------------------------------------------------------------------------------


def test_an_exported_folder_is_imported_unchanged_and_is_claimed(
    finished, bundle, imported, tmp_path, words_of
):
    words_of("export", finished, "-o", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()
    assert fingerprint(imported) == fingerprint(finished)
    assert set(levels(imported).values()) == {"claimed"}
    assert {path.name for path in imported.iterdir()} == {"imported", "suites", "fedbench.json"}
    assert {path.name for path in (imported / "imported" / "b").iterdir()} == {"records"}


def test_an_imported_record_is_claimed_whatever_file_is_deleted(imported, tmp_path):
    whole = levels(imported)
    for path in sorted(p for p in imported.rglob("*") if p.is_file()):
        copy = Path(shutil.copytree(imported, tmp_path / "copy"))
        (copy / path.relative_to(imported)).unlink()
        if path.suffix == ".npz":
            with pytest.raises(UserError, match="missing, though its record says 'ok'"):
                levels(copy)
        else:
            assert levels(copy).items() <= whole.items()
            assert set(levels(copy).values()) == {"claimed"}
        shutil.rmtree(copy)


def test_a_record_measured_here_takes_the_place_of_the_imported_one(part, imported):
    shutil.copytree(part / "records", imported / "records")
    assert {defense: level for (defense, _), level in levels(imported).items()} == {
        "grad-noise": "measured here",
        "none": "claimed",
    }


def test_a_part_without_a_record_is_no_bundle(finished, tmp_path, words_of):
    nothing = ("export", finished, "-o", tmp_path / "no.zip", "--only", "seed=77")
    assert "leaves no record" in words_of(*nothing, status=2)


@pytest.mark.parametrize(
    ("command", "target"), [("export", "full/mine.txt"), ("import", "full"), ("merge", "full")]
)
def test_nothing_is_overwritten(finished, bundle, tmp_path, command, target, words_of):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    source = bundle if command == "import" else finished
    words = words_of(command, source, "-o", tmp_path / target, status=2)
    assert f"{tmp_path / target}: exists" in words
    assert {p.name: p.read_text() for p in (tmp_path / "full").iterdir()} == {"mine.txt": "mine"}


def _halved(path):
    content = json.loads(path.read_text())
    content["cells"][0]["history"] = [
        {**content["run"]["history"][0], "accuracy": 0.01},
        *content["run"]["history"][1:],
    ]
    return sealed(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.read_bytes().replace(b'"seed": 0', b'"seed": 1'), "damaged or changed"),
        (_halved, "of one run, but have other rounds"),
    ],
    ids=["damaged", "of another run"],
)
def test_a_folder_with_a_changed_record_is_not_exported(part, tmp_path, change, said, words_of):
    (path,) = (part / "records").glob("*.json")
    path.write_bytes(change(path))
    assert said in words_of("export", part, "-o", tmp_path / "b.zip", status=2)
    assert not (tmp_path / "b.zip").exists()


# --- changed bundles ------------------------------------------------------------------------------


@pytest.fixture
def refused(tmp_path, words_of):
    """Imports a bundle of this content, which must be refused with these words; nothing may be left
    of it.
    """

    def check(content, said):
        path = tmp_path / "b.zip"
        path.write_bytes(content)
        words = words_of("import", path, "-o", tmp_path / "in", status=2)
        assert words.startswith(f"{path}: refused, nothing was ")
        assert said in words
        assert words.isprintable()
        assert list(tmp_path.iterdir()) == [path]

    return check


def _always_right(files):
    """A model with accuracy 1 in one cell of a run, in its record and in its scores alike."""
    name = pick(files)
    correct = array_of(files, name, "test_correct")
    made = rescored(files, name, test_correct=np.ones_like(correct))
    rounds = [{"round": 1, "accuracy": 1.0, "train_loss": None}]
    utility = {"accuracy": 1.0, "n_test": len(correct)}
    return edited(
        made, name, (f"cells/{name.cell}/utility", utility), (f"cells/{name.cell}/history", rounds)
    )


def _other_rounds(files):
    """One cell of a run with an earlier round that the others lack."""
    name = pick(files)
    last = json.loads(files[name])["run"]["history"][-1]
    return edited(files, name, ("cells/1/history", [{**last, "round": 1, "accuracy": 1.0}, last]))


def _huge(content):
    """Arrays of 32 GB by their headers."""
    header = (
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000,), }".ljust(117) + b"\n"
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in arrays_of(content):
            z.writestr(
                f"{name}.npy",
                b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64),
            )
    return out.getvalue()


def _bomb(content):
    """Arrays of 80 MiB in less than 100 KiB."""
    return npz_bytes(
        {
            name: np.zeros(80 << 20 if name == "test_correct" else 1, bool)
            for name in arrays_of(content)
        }
    )


FILES = {  # of the record of one cell and its scores
    "field twice": (
        lambda f, n: f | {n: b'{"run": 7,' + f[n].lstrip()[1:]},
        "'run' is a duplicate name",
    ),
    "scores without a record": (lambda f, n: without(f, n), "no records found"),
    "record without scores": (
        lambda f, n: without(f, scores_of(f, n)),
        "missing, though its record says 'ok'",
    ),
    "model of another run": (
        lambda f, n: _always_right(f),
        "of one run, but have other test accuracy",
    ),
    "rounds of another run": (lambda f, n: _other_rounds(f), "of one run, but have other rounds"),
    "huge array": (
        lambda f, n: with_scores(f, n, _huge(f[scores_of(f, n)])),
        "bytes, its header says shape",
    ),
    "bomb": (lambda f, n: with_scores(f, n, _bomb(f[scores_of(f, n)])), "for a file of its size"),
    "Python objects": (
        lambda f, n: rescored(f, n, t0_scores=np.array([{}], object)),
        "expected numbers",
    ),
}
MIX = "targets/0/groups/mix/values"
RECORDS = [  # what is put where in a record, and the reason of the refusal
    ("cells/1/history", [], "utility.accuracy is not that of the last round in history"),
    (f"{MIX}/auc/value", 0.5, "values.auc.value is 0.5, its scores give"),
    (f"{MIX}/tf01/value", 0.1, "values.tf01.value is 0.1, its scores give None"),
    (f"{MIX}/auc/error", 0.001, "values.auc.error is 0.001, its scores give"),
    (
        f"{MIX}/luck",
        {"value": 1.0, "error": None},
        "values.luck.value is 1.0, its scores give None",
    ),
    ("pooled/ofl/values/auc/value", 0.5, "pooled.ofl.values.auc.value is 0.5, its scores give"),
    ("pooled/mix/n_members", 10**6, "n_members is 1000000"),
    ("targets/0/groups/ifl", ..., "targets[0].groups.ifl.n_members is None"),
    ("targets/0/maximum/advantage", 0.9, "targets[0].maximum.advantage is 0.9, its scores give"),
]
SCORES = [  # the change of an array, and the reason of the refusal
    ("t0_scores", lambda a: np.where(a == a.max(), np.nan, a), "values that are not finite"),
    ("t0_scores", lambda a: None, "the array 't0_scores' is missing"),
    ("t0_kind", np.zeros_like, "pooled.canary.n_members is"),
    ("t0_kind", lambda a: a + 9, "holds values outside -1..2"),
    ("t0_ids", np.zeros_like, "among its candidates twice"),
    ("t0_ids", lambda a: a[::-1], "of one run, but have other candidates of target 0"),
    ("test_correct", np.zeros_like, "utility.accuracy is"),
    ("t0_null_auc", lambda a: a - 0.1, "the null of the largest AUC is not"),
    ("t0_null_advantage", lambda a: a + 0.01, "the null of the largest advantage is not"),
]


@pytest.mark.parametrize(("craft", "said"), FILES.values(), ids=FILES)
def test_a_forged_file_is_refused_with_the_reason(small, refused, craft, said):
    files = files_of(small)
    refused(packed(craft(files, pick(files))), said)


@pytest.mark.parametrize(("path", "value", "said"), RECORDS)
def test_a_forged_record_is_refused_with_the_reason(small, refused, path, value, said):
    files = files_of(small)
    refused(packed(edited(files, pick(files), (path, value))), said)


@pytest.mark.parametrize(("array", "change", "said"), SCORES)
def test_forged_scores_are_refused_with_the_reason(small, refused, array, change, said):
    files = files_of(small)
    forged = change(array_of(files, pick(files), array))
    refused(packed(rescored(files, pick(files), **{array: forged})), said)


@pytest.fixture(scope="module")
def bundle_of_rounds(tmp_path_factory):
    """Of an attack on single rounds."""
    root = tmp_path_factory.mktemp("rounds")
    invoke(suite(root, defenses=["grad-noise"], attacks=["blackbox-loss"]), "--results", root / "r")
    return exported(root / "r", root)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("number", ["last_auc", "last_tf01"])
def test_a_forged_number_of_single_rounds_is_refused(bundle_of_rounds, refused, number):
    files = files_of(bundle_of_rounds)
    forged = edited(files, pick(files, "blackbox-loss"), (f"targets/0/rounds/{number}", 0.5))
    refused(packed(forged), f"rounds.{number} is 0.5, its scores give")


# --- hostile files --------------------------------------------------------------------------------


def _second_name(name):
    """The field of an entry that gives it another name for Python 3.12 and later (Info-ZIP Unicode
    Path).
    """
    body = struct.pack("<BL", 1, zlib.crc32(b"records/x--0123456789ab.json")) + name.encode()
    return struct.pack("<HH", 0x7075, len(body)) + body


@pytest.fixture
def second_names(monkeypatch):
    """Names as Python 3.12 reads them, on every Python."""

    def decoded(info, *of_name):
        if info.extra[:2] == struct.pack("<H", 0x7075):
            info.filename = info.extra[9:].decode()

    monkeypatch.setattr("zipfile.ZipInfo._decodeExtra", decoded)


def _added(name, said="is not a file of a results folder", content=b"x", **info):
    """A bundle with one more entry."""

    def made(files):
        out = io.BytesIO(packed(files))
        with zipfile.ZipFile(out, "a") as z, warnings.catch_warnings(action="ignore"):
            z.writestr(entry(name, **info), content)
        return out.getvalue()

    return made, said


HOSTILE = {
    "path out of the folder": _added("../evil.json"),
    "absolute path": _added("/tmp/evil.json"),
    "escape in a name": _added("records/\x1b[2J--0123456789ab.json"),
    "marks of trust": _added("trust.json"),
    "second name": _added(
        "records/x--0123456789ab.json",
        "has a second name, '../../evil.py'",
        extra=_second_name("../../evil.py"),
    ),
    "link": _added(
        "records/a--0123456789ab.json",
        "not a complete JSON file",
        b"/etc/passwd",
        mode=stat.S_IFLNK | 0o777,
    ),
    "entry twice": _added("fedbench.json", "two of its entries have one name"),
    "large record": (
        lambda f: packed(f | {pick(f): b" " * (17 << 20)}),
        "has 17,825,792 bytes, more than 16,777,216",
    ),
    "bytes behind it": (
        lambda f: packed(f) + b"#!/bin/sh",
        "it does not end as a zip file of fedbench",
    ),
    "empty file": (lambda f: b"", "it does not end as a zip file of fedbench"),
    "changed file": (
        lambda f: zipped(f | {pick(f): f[pick(f)].replace(b'"ok"', b'"OK"')}),
        "damaged or changed",
    ),
    "changed marker": (
        lambda f: zipped(f | {"fedbench.json": f["fedbench.json"].replace(b'"tiny"', b'"tinz"')}),
        "damaged or changed",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("craft", "said"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.usefixtures("second_names")
def test_a_hostile_bundle_is_refused_with_the_reason(small, refused, craft, said):
    refused(craft(files_of(small)), said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("published", [{"source": 1}], "its published numbers are not those of a suite"),
        ("plans", ["0" * 16], "0000000000000000.json: not a regular file"),
    ],
)
def test_a_changed_marker_is_refused_with_the_reason(small, refused, path, value, said):
    refused(packed(files_of(small), (path, value)), said)


def test_a_large_marker_is_refused_before_it_is_read(small, tmp_path):
    (tmp_path / "b.zip").write_bytes(
        zipped(files_of(small) | {"fedbench.json": b'{"a": [' + b"[]," * (20 << 20) + b"[]]}"})
    )
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"the entry 'fedbench.json' has 62,914,571 bytes"):
            merge([tmp_path / "b.zip"], tmp_path / "in")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_an_import_holds_the_arrays_of_one_run(bundle, tmp_path, monkeypatch, words_of):
    held, recompute = [], recomputing.recompute

    def counted(loaded):
        held.append(_run_arrays.cache_info().currsize)
        return recompute(loaded)

    monkeypatch.setattr(recomputing, "recompute", counted)
    words_of("import", bundle, "-o", tmp_path / "in")
    assert (len(held), max(held), _run_arrays.cache_info().currsize) == (4, 1, 0)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(28, "No space left on device"), 2, "No space left on device; nothing was kept"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["full disk", "interrupted"],
)
def test_an_import_that_stops_leaves_nothing(
    bundle, tmp_path, monkeypatch, error, status, said, words_of
):
    copy = Mock(side_effect=error)
    monkeypatch.setattr("fedbench.leaderboard.submissions.bundle.shutil.copyfileobj", copy)
    assert said in words_of("import", bundle, "-o", tmp_path / "in", status=status)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_is_swept_and_a_running_one_keeps_its_folder(
    finished, bundle, tmp_path, words_of
):
    other = tmp_path / f"{TEMPORARY_PREFIX}others"
    other.mkdir()
    commands = {
        "b.zip": ("export", finished),
        "in": ("import", bundle),
        "all": ("merge", finished),
    }
    for name, command in commands.items():
        stray = tmp_path / f"{TEMPORARY_PREFIX}fedbench-killed"
        with folder_aside(tmp_path) as running:
            (stray / "source0").mkdir(parents=True)
            words_of(*command, "-o", tmp_path / name)
            assert running.is_dir() and other.is_dir() and not stray.exists()
    stray = tmp_path / "in" / "imported" / "b" / "records" / f"{TEMPORARY_PREFIX}half"
    stray.write_text("x")
    Results(tmp_path / "in").sweep()
    assert not stray.exists()


# --- several folders as one -----------------------------------------------------------------------


@pytest.fixture
def part(finished, tmp_path):
    """A folder with the cells of grad-noise, as they were measured here."""
    copy = Path(shutil.copytree(finished, tmp_path / "part"))
    for path in (copy / "records").glob("*--none--none--*"):
        path.unlink()
    return copy


def test_a_folder_and_a_bundle_become_one_and_keep_their_marks(part, bundle, tmp_path, words_of):
    words = words_of("merge", part, bundle, "-o", tmp_path / "all")
    assert f"2 records are in {part} and in {bundle}, with equal scores; those of {part} " in words
    assert levels(tmp_path / "all") == {
        ("grad-noise", "fedmia-ii"): "measured here",
        ("grad-noise", "loss-series"): "measured here",
        ("none", "fedmia-ii"): "claimed",
        ("none", "loss-series"): "claimed",
    }


def test_a_merged_folder_keeps_reproductions(finished, part, imported, tmp_path, words_of):
    shutil.copytree(finished, imported / "reproduced")
    assert set(levels(imported).values()) == {"reproduced"}
    words_of("merge", part, imported, "-o", tmp_path / "all")
    merged = {defense: level for (defense, _), level in levels(tmp_path / "all").items()}
    assert merged == {"grad-noise": "measured here", "none": "reproduced"}
    assert Results.create(tmp_path / "all" / "reproduced", "tiny").marker()["suite"] == "tiny"


def test_a_cell_of_two_suites_stands_in_both(finished, bundle, tmp_path, words_of):
    files = files_of(bundle)
    for name in records_in(files):
        files = edited(files, Picked(name), ("suite", "other"))
    (tmp_path / "other.zip").write_bytes(packed(files, ("suite", "other")))
    words_of("merge", finished, tmp_path / "other.zip", "-o", tmp_path / "all")
    keys = [r.record.key for r in load_records(tmp_path / "all")]
    assert (len(keys), len(set(keys))) == (8, 4)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (
            lambda r: r["run"]["facts"].update(epsilon=3.5),
            2,
            "one key, but they differ in facts.epsilon (null and 3.5)",
        ),
        (lambda r: r["run"]["provenance"].update(cpu="another"), 0, "with equal scores"),
    ],
    ids=["facts", "machine"],
)
def test_records_of_one_key_may_differ_in_time_and_machine_alone(
    finished, part, tmp_path, change, status, said, words_of
):
    (path,) = (part / "records").glob("*.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_bytes(sealed(content))
    assert said in words_of("merge", finished, part, "-o", tmp_path / "all", status=status)
    assert (tmp_path / "all").exists() == (status == 0)


def test_the_id_of_a_board_is_made_of_its_records_and_rules(finished, part, monkeypatch):
    records = load_records(finished)
    assert board_id(records) == board_id(records[::-1]) == board_id(load_records(finished))
    (path,) = (part / "records").glob("*.json")
    path.write_bytes(sealed(json.loads(path.read_text()) | {"reason": "changed"}))
    ids = {
        board_id(records),
        board_id(records[:1]),
        board_id(load_records(part)),
        board_id([*records, records[0]]),
    }
    monkeypatch.setattr("fedbench.leaderboard.document.rules_digest", lambda: "other rules")
    assert len(ids | {board_id(records)}) == 5
