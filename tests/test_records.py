"""Records and their scores: read as written, or refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damage import OTHER_OUTCOMES, Damage, damages, endings, with_all_outcomes
from edits import at, in_run, put
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core import UserError
from fedbench.core.store.files import bytes_of, read_npz
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.core.store.json_file import _once, parse_bytes
from fedbench.core.store.reading import load_records, read_run
from fedbench.core.store.results import Results
from fedbench.leaderboard.board import MarkdownBoard


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """A results folder with a record of every outcome; every test leaves it as it was."""
    return with_all_outcomes(Path(shutil.copytree(finished, tmp_path_factory.mktemp("all") / "r")))


@pytest.fixture
def record(folder):
    """The file of the undefended run, with loss-series as its first cell, to be spoilt by one
    test.
    """
    path = next((folder / "records").glob("*--none--none--*.json"))
    before = {p: p.read_bytes() for p in (path, scores_of(path))}
    yield path
    for p in path.parent.glob(f"{path.stem}*"):
        p.unlink()
    for p, content in before.items():
        p.write_bytes(content)


def scores_of(record):
    """The file with the arrays of a run."""
    return record.with_name(json.loads(record.read_text())["arrays"])


def change(record, path, value):
    """Change what a record says at a path, and make its digest again."""
    content = json.loads(record.read_text())
    put(content, in_run(path), value)
    record.write_bytes(sealed(content))


def refusal(path):
    """The one message that reading ends in, without file and remedy."""
    with pytest.raises(UserError) as caught:
        read_run(path)
    (message,) = caught.value.messages
    assert message.startswith(f"{path}: ") and message.isprintable() and len(message) < 600
    return message.removeprefix(f"{path}: ").removesuffix(
        "; delete it and run its suite again to compute the run anew"
    )


# -- as written ------------------------------------------------------------------------------------


def test_a_run_writes_records_of_every_outcome_with_digest_and_identity(folder):
    loaded = load_records(folder)
    assert list(dict.fromkeys(r.path for r in loaded)) == sorted(
        (folder / "records").glob("*.json")
    )
    assert {r.record.outcome for r in loaded} == {"ok", *OTHER_OUTCOMES}
    for r in loaded:
        content = json.loads(r.path.read_text())
        text = json.dumps(
            {**content, "digest": None}, sort_keys=True, separators=(",", ":")
        ).replace('"digest":null,', "")
        assert content["digest"] == hashlib.sha256(text.encode()).hexdigest()
        assert keys_of(r.record.identity.model_dump()) == (r.record.run_key, r.record.key)
        used = [
            r.record.components.dataset,
            r.record.components.model,
            *r.record.components.signals.values(),
        ]
        assert [use.name for use in used] == ["digits", "mlp", *r.record.identity.signals]
        assert {use.distribution for use in used} == {
            f"fedbench-privacy {r.record.provenance.fedbench}"
        }


FOLLOWING = {
    "seed": 7,
    "members": [3],
    "key": "f" * 64,
    "run_key": "0" * 64,
    "defense/digest": "00",
    "provenance/torch": "9.9",
    "described/federation": {"rounds": 9},
    "digests/data": "d",
}


@pytest.mark.parametrize(("path", "value"), FOLLOWING.items(), ids=FOLLOWING)
def test_what_follows_from_the_identity_is_not_stored_and_is_read_from_it_alone(
    record, path, value
):
    before = [r.record for r in read_run(record)]
    content = json.loads(record.read_text())
    with pytest.raises(KeyError):
        at(content, in_run(path))
    change(record, path, value)
    assert [r.record for r in read_run(record)] == before


def test_spaces_the_order_of_fields_and_the_program_that_packed_the_scores_do_not_count(record):
    scores, content = scores_of(record), json.loads(record.read_text())
    arrays, before = read_npz(scores), [r.record for r in read_run(record)]
    record.write_text(json.dumps(dict(sorted(content.items(), reverse=True)), indent=7))
    with zipfile.ZipFile(scores, "w") as z:
        for name, a in arrays.items():
            buffer, entry = io.BytesIO(), zipfile.ZipInfo(f"{name}.npy")
            np.save(buffer, a)
            entry.extra = b"\x99\x99\x01\x00x"
            z.writestr(entry, buffer.getvalue())
    assert [r.record for r in read_run(record)] == before
    for loaded in (r for r in read_run(record) if r.record.outcome == "ok"):
        own = f"{loaded.record.key[:12]}/"
        shared = {name: a for name, a in arrays.items() if "/" not in name}
        wanted = shared | {
            name.removeprefix(own): a for name, a in arrays.items() if name.startswith(own)
        }
        assert_scores_are(wanted, loaded)


def test_an_array_that_is_equal_in_all_cells_of_a_run_is_stored_once(record):
    names = read_npz(scores_of(record)).keys()
    keys = [r.record.key[:12] for r in read_run(record) if r.record.outcome == "ok"]
    assert (
        {f"{key}/t0_scores" for key in keys} <= names
        and {"t0_kind", "t0_ids", "test_correct"} <= names
        and len(keys) == 2
    )


@pytest.mark.parametrize(
    "header",
    [
        b"-" * 9_900 + b"1\n",
        b"{'descr': '<f8', 'shape': (1,",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s, }" % (b"1" * 30_000),
    ],
    ids=["parsed for ever", "not closed", "digits"],
)
def test_a_header_that_numpy_does_not_write_is_refused(record, header):
    with zipfile.ZipFile(scores_of(record), "w") as z:
        z.writestr(
            "test_correct.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        )
    with pytest.raises(UserError, match="'test_correct' is not a plain array"):
        read_run(record)


def assert_scores_are(arrays, loaded):
    """What is read of a cell are these arrays."""
    read = {"test_correct": loaded.test_correct()}
    for target in (t.target for t in loaded.record.targets):
        of = vars(loaded.candidates(target)) | dict(
            zip(("null_auc", "null_advantage"), loaded.null_maxima(target), strict=True)
        )
        read |= {f"t{target}_{name}": a for name, a in of.items()}
    assert {name: a.tolist() for name, a in read.items()} == {
        name: arrays[name].tolist() for name in read
    }


# -- damage ----------------------------------------------------------------------------------------


HELD = {"refused", "as before"}


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_what_is_damaged_is_refused_or_says_what_it_said(folder, seed):
    assert {how: n for how, n in endings(folder, damages(seed)).items() if how[1] not in HELD} == {}


def noted_by(content):
    """The file of a run, one cell of which has another note."""
    run = json.loads(content)
    run["cells"][0]["notes"] = ["x"]
    return sealed(run)


def test_the_fuzzer_knows_a_change_that_is_accepted(folder, record):
    noted = Damage("a note", 0, lambda files, rng: {record.name: noted_by(files[record.name])})
    assert endings(folder, [noted]) == {("a note", "said something else"): 1}


@pytest.mark.parametrize("of", [Path, scores_of], ids=["record", "arrays"])
def test_a_byte_that_changed_since_the_last_board_is_found(folder, record, of):
    MarkdownBoard().write(folder, plots=False)
    content = bytearray(of(record).read_bytes())
    content[len(content) // 2] ^= 1
    of(record).write_bytes(content)
    with pytest.raises(UserError, match=record.stem):
        MarkdownBoard().write(folder, plots=False)


def test_a_board_follows_its_records(finished, tmp_path):
    """The same board from the same records, another from other ones."""
    folder = Path(shutil.copytree(finished, tmp_path / "r"))

    def board():
        return MarkdownBoard().write(folder, plots=False).read_bytes()

    first = board()
    assert board() == first
    change(load_records(folder)[0].path, "measured/train_cpu_s", 77.0)
    assert board() != first


# where a record of the undefended run is changed, to what (...: it is removed), and the refusal, or
# its start
SAID = [
    ("targets/3", ..., "targets are not those of its identity"),
    ("identity/run/seed", 7, "holds another run's record (key "),
    ("run/identity", ..., "KeyError('identity')"),
    ("digests/scores", ..., "digests.scores is missing"),
    ("colour", "red", "colour: Extra inputs are not permitted"),
    ("targets", [], "outcome is 'ok' without utility and targets"),
    ("utility", None, "outcome is 'ok' without utility and targets"),
    ("outcome", "failed", "outcome is 'failed', but it has scores"),
    ("outcome", "fine", "outcome: Input should be 'ok', "),
    ("by_adversary", True, "by_adversary, but it did not diverge with an adversary inside"),
    ("utility/accuracy", 0.5, "utility.accuracy is not that of the last round in history"),
    (
        "schema_version",
        ...,
        "not a fedbench record (it has no schema_version); move it out of the results folder",
    ),
    ("schema_version", 1.5, "record schema 1.5, expected 1"),
    ("schema_version", 0, "record schema 0, expected 1"),
    (
        "schema_version",
        99,
        "made by a newer fedbench (record schema 99; this one reads 1); upgrade fedbench",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "said"), SAID, ids=[f"{path} {said[:9]}" for path, _, said in SAID]
)
def test_a_record_that_contradicts_itself_is_refused(record, path, value, said):
    change(record, path, value)
    assert refusal(record).removeprefix("not a valid record (").startswith(said)


# -- files -----------------------------------------------------------------------------------------


UNREADABLE = [
    b"{half",
    b"",
    b'{"a": 1} x',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -1e999}',
    b'{"a": 18446744073709551617}',
    b'{"a": -18446744073709551617}',
    b'{"a": 1, "a": 1}',
    b'{"b": {"a": 1, "a": 2}}',
    b"[" * 41 + b"]" * 41,
    b"[" * 5000,
    b'{"a": "\xff"}',
    b'{"a\\u0062": 1, "ab": 2}',
]


@pytest.mark.parametrize("text", UNREADABLE, ids=range(len(UNREADABLE)))
def test_json_with_impossible_numbers_or_a_name_twice_is_refused(text):
    with pytest.raises(UserError, match=r"^somewhere: unreadable.*; a remedy$"):
        parse_bytes(text, "somewhere", "a remedy")


NUMBERS = st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda of: st.lists(of) | st.dictionaries(st.text(), of),
)


@given(JSON)
@settings(max_examples=30)
def test_json_is_read_as_python_reads_it(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        if "\\ud" not in text:
            assert json.dumps(
                parse_bytes(text.encode(errors="surrogatepass"), "", "")
            ) == json.dumps(json.loads(text))
    deepest = b"[" * 40 + b"]" * 40
    assert parse_bytes(deepest, "", "") == json.loads(deepest)


def test_a_file_is_read_whole(tmp_path):
    for size in (0, 1 << 20, (1 << 20) + 1):
        content = bytes(i % 251 for i in range(size))
        (tmp_path / "x").write_bytes(content)
        assert bytes_of(tmp_path / "x", size) == content
    with pytest.raises(OverflowError):
        bytes_of(tmp_path / "x", size - 1)


def test_what_is_no_regular_file_is_none_and_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    os.mkfifo("pipe")
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        found = {name: bytes_of(tmp_path / name, 9) for name in ("pipe", "folder", "socket")}
    assert found == dict.fromkeys(found)
    with pytest.raises(FileNotFoundError):
        bytes_of(tmp_path / "missing", 9)


def test_the_names_of_an_object_are_compared_a_bounded_number_of_times_each():
    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

    pairs = [(Name(f"k{i}"), i) for i in range(1000)]
    with pytest.raises(ValueError, match="'k999' is a duplicate name"):
        _once([*pairs, (Name("k999"), 0)])
    assert Name.compared < 10 * len(pairs)


# -- the marker ------------------------------------------------------------------------------------

MARKERS = [
    ({"title": "B title"}, "damaged or changed since fedbench wrote it "),
    ({"suite": 1}, "unreadable (no schema_version and suite)"),
    ({"schema_version": 99}, "schema 99 is newer than this fedbench understands (1)"),
    ({"digest": None, "cells": [1]}, "unreadable (cells.0: "),
    ({"digest": None, "analyses": 5}, "unreadable (analyses: "),
    ({"digest": None, "title": []}, "unreadable (title: "),
]


@pytest.mark.parametrize(("changes", "start"), MARKERS)
def test_a_marker_that_was_changed_is_refused(tmp_path, changes, start):
    Results.create(tmp_path / "r", "tiny").set_manifest(["a", "b"], "A title")
    path = tmp_path / "r" / "fedbench.json"
    content = json.loads(path.read_text()) | changes
    path.write_bytes(json.dumps(content).encode() if content["digest"] else sealed(content))
    with pytest.raises(UserError) as caught:
        Results.open(tmp_path / "r")
    assert str(caught.value).startswith(f"{path}: {start}")
