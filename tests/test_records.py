"""Records of schema 1 are read as what they said, and a damaged one is one message."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import Clustered, Folder, board

from fedbench.core import Number, UserError
from fedbench.core.store.arrays import ArrayFile
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.json_file import parse_bytes
from fedbench.core.store.reading import LoadedRecord, load_records, read_record

SCORES = {
    "t0_scores": np.array([0.9, 0.1, 0.5]), "t0_kind": np.array([0, 1, 2], np.int8), "t0_ids": np.array([5, 6, 7]),
    "t0_canary": np.zeros(3, bool), "test_correct": np.array([True, False, True, True]),
}  # fmt: skip
NPZ = npz_bytes(SCORES)

# As fedbench 0.1.0 wrote it before records had a version 2, digests shortened.
PLAIN = """
{
 "schema_version": 1, "key": "11aa", "run_key": "22bb", "outcome": "ok", "reason": "", "suite": "demo", "setting": "iid",
 "coalition": "pair", "members": [0, 1], "seed": 7,
 "defense": {"name": "mixup", "label": "mix", "params": {"alpha": 0.2}, "distribution": "fedbench 0.1.0", "digest": "dd"},
 "attack": {"name": "fedmia-ii", "label": "fedmia-ii", "params": {}, "distribution": "fedbench 0.1.0", "digest": "aa"},
 "view": "server",
 "facts": {"dataset": {"name": "digits", "params": {}}, "federation": {"clients": 4, "rounds": 30}, "adversary": null},
 "utility": {"accuracy": 0.75, "n_test": 4},
 "targets": [{
   "target": 0,
   "groups": {
     "mix": {"auc": 0.75, "auc_se": 0.02, "tf01": 12.5, "tf01_se": 1.5, "advantage": 0.4, "balanced_accuracy": 0.7,
             "n_members": 1, "n_nonmembers": 2},
     "ofl": {"auc": 0.5, "auc_se": null, "tf01": null, "tf01_se": null, "advantage": 0.0, "balanced_accuracy": 0.5,
             "n_members": 1, "n_nonmembers": 1}
   },
   "rounds": {"last_auc": 0.75, "last_tf01": 12.5, "calibrated_auc": null, "calibrated_tf01": null, "best_round": 20,
              "best_auc": 0.8, "best_tf01": 13.0, "null_best_auc": 0.52, "null_best_tf01": 0.4},
   "decision": null
 }],
 "pooled": {"mix": {"auc": 0.74, "auc_se": 0.01, "tf01": 11.0, "tf01_se": 1.0, "advantage": 0.38, "balanced_accuracy": 0.69,
                    "n_members": 1, "n_nonmembers": 2}},
 "society": null, "violations": null,
 "history": [{"round": 30, "accuracy": 0.75, "train_loss": 0.3, "clusters": null, "moved": null, "group_accuracy": null}],
 "digests": {"data": "d", "split": "e"}, "notes": ["colluding with client 3"],
 "provenance": {"fedbench": "0.1.0", "python": "3.11.7", "torch": "2.11.0", "numpy": "2.3", "git_commit": "c", "git_dirty": false,
                "platform": "Linux x86_64", "cpu": "some", "device": "cpu", "dtype": "float32", "threads": 1,
                "deterministic": true},
 "measured": {"started": "2026-03-01T10:00:00+00:00", "wall_s": 2.0, "cpu_s": 2.0, "train_cpu_s": 1.5, "signals_cpu_s": 0.3,
              "attack_cpu_s": 0.1, "peak_memory_mb": 200.0}
}
"""
SOCIETY = {
    "groups": [
        {"name": "upright", "clients": 3, "accuracy": 0.9, "n_test": 40},
        {"name": "turned", "clients": 1, "accuracy": 0.6, "n_test": 10},
    ],
    "demographic_parity": 0.1, "demographic_parity_se": 0.01, "equal_opportunity": 0.2, "equal_opportunity_se": 0.02,
    "equalised_odds": 0.3, "equalised_odds_se": 0.03,
}  # fmt: skip
VIOLATIONS = {"violated": 2, "clients": 4, "accuracy_of_model": [0.7, None]}
COMPOSED = {
    "name": "mixup+grad-noise", "label": "both", "params": {"mixup": {"alpha": 0.2}, "grad-noise": {"sigma": 0.1}},
    "distribution": "fedbench 0.1.0, other 2.0", "digest": "joint",
}  # fmt: skip


def content(**change: Any) -> dict[str, Any]:
    """The record with these fields."""
    return {**json.loads(PLAIN), **change}


def written(folder: Path, record: dict[str, Any]) -> Path:
    """Its file, with the scores beside it."""
    path = folder / "cell.json"
    record["digests"] = {**record.get("digests", {}), "scores": hashlib.sha256(NPZ).hexdigest()}
    path.write_text(json.dumps(record))
    path.with_suffix(".npz").write_bytes(NPZ)
    return path


def read(folder: Path, **change: Any) -> LoadedRecord:
    return read_record(written(folder, content(**change)))


def test_a_record_of_schema_1_says_today_what_it_said(tmp_path):
    loaded = read(tmp_path)
    r = loaded.record
    assert (r.schema_version, r.key, r.run_key, r.outcome, r.view, r.seed) == (3, "11aa", "22bb", "ok", "server", 7)
    assert (r.suite, r.setting, r.coalition, r.members) == ("demo", "iid", "pair", [0, 1])
    assert r.described == content()["facts"] and r.facts == {} and r.analyses == {}
    mix, ofl = (r.targets[0].groups[name] for name in ("mix", "ofl"))
    assert {m: (mix.value(m), mix.error(m)) for m in mix.values} == {
        "auc": (0.75, 0.02), "tf01": (12.5, 1.5), "advantage": (0.4, None), "balanced_accuracy": (0.7, None),
    }  # fmt: skip
    assert (ofl.value("auc"), ofl.error("auc"), ofl.value("tf01"), ofl.error("tf01")) == (0.5, None, None, None)
    assert [(s.n_members, s.n_nonmembers) for s in (mix, ofl, r.pooled["mix"])] == [(1, 2), (1, 1), (1, 2)]
    assert (r.pooled["mix"].value("auc"), r.pooled["mix"].error("tf01")) == (0.74, 1.0)
    assert (r.targets[0].rounds.best_round, r.targets[0].rounds.null_best_tf01, r.targets[0].decision) == (20, 0.4, None)
    assert (r.defense.full_name, r.defense.label, r.defense.params, r.defense.digest) == ("mixup", "mix", {"alpha": 0.2}, "dd")
    assert r.defense.then == () and r.defense.target == "" and r.attack.name == "fedmia-ii"
    assert r.utility.accuracy == 0.75 and r.history[0].train_loss == 0.3 and r.notes == ["colluding with client 3"]
    assert r.provenance.torch == "2.11.0" and r.measured.train_cpu_s == 1.5
    assert r.measured.train_wall_s is None and r.provenance.cpu_capability is None and r.provenance.cpu_type == "some"
    assert loaded.candidates(0).scores.tolist() == [0.9, 0.1, 0.5] and loaded.test_correct().sum() == 3


def test_groups_of_clients_and_violations_are_findings_now(tmp_path):
    found = read(tmp_path, society=SOCIETY, violations=VIOLATIONS).record.analyses
    assert found["group-fairness"].numbers == {
        "demographic_parity": Number(0.1, 0.01), "equal_opportunity": Number(0.2, 0.02), "equalised_odds": Number(0.3, 0.03),
        "accuracy:upright": Number(0.9), "clients:upright": Number(3), "n_test:upright": Number(40),
        "accuracy:turned": Number(0.6), "clients:turned": Number(1), "n_test:turned": Number(10),
    }  # fmt: skip
    assert found["violations"].numbers == {"violated": Number(2), "clients": Number(4)}
    assert list(read(tmp_path, society=SOCIETY).record.analyses) == ["group-fairness"]
    assert list(read(tmp_path, violations=VIOLATIONS).record.analyses) == ["violations"]


def test_a_composition_is_its_parts(tmp_path):
    defense = read(tmp_path, defense=COMPOSED).record.defense
    assert defense.full_name == "mixup+grad-noise" and defense.label == "both"
    assert [(part.name, part.params) for part in defense.chain] == [("mixup", {"alpha": 0.2}), ("grad-noise", {"sigma": 0.1})]
    assert {(part.distribution, part.digest) for part in defense.chain} == {("fedbench 0.1.0, other 2.0", "joint")}


def test_a_failed_cell_of_schema_1_needs_no_scores(tmp_path):
    failed = content(outcome="timeout", reason="too slow", utility=None, targets=[], pooled={})
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(failed))
    r = read_record(path).record
    assert (r.outcome, r.reason, r.targets, r.pooled, r.analyses) == ("timeout", "too slow", [], {}, {})


def without(*place: str | int) -> dict[str, Any]:
    """The record without what stands at the place."""
    record = content(society=copy.deepcopy(SOCIETY), violations=copy.deepcopy(VIOLATIONS))
    around = record
    for step in place[:-1]:
        around = around[step]
    del around[place[-1]]
    return record


DAMAGED = {
    "no facts": without("facts"), "no defense": without("defense"), "no name": without("attack", "name"),
    "no metric": without("targets", 0, "groups", "mix", "auc"), "no candidates": without("pooled", "mix", "n_members"),
    "no groups": without("targets", 0, "groups"), "no gap": without("society", "equalised_odds_se"),
    "no accuracy": without("society", "groups", 1, "accuracy"), "no count": without("violations", "violated"),
    "targets are text": content(targets="all"), "targets are none": content(targets=None),
    "a score is a number": content(pooled={"mix": 1}), "a name is a number": content(defense={**COMPOSED, "name": 3}),
    "a part has no parameters": content(defense={**COMPOSED, "params": {"mixup": {}}}),
    "society is a list": content(society=[1]), "violations are text": content(violations="2"),
    "a field of the future": content(analyses={}, colour="red"), "an impossible value": without("seed") | {"seed": "seven"},
}  # fmt: skip


@pytest.mark.parametrize("record", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_of_schema_1_is_one_message(tmp_path, record):
    path = written(tmp_path, copy.deepcopy(record))
    with pytest.raises(UserError) as caught:
        read_record(path)
    (message,) = caught.value.messages
    assert message.startswith(f"{path}: not a valid record") and "\n" not in message and len(message) < 500
    assert message.endswith("delete it and run its suite again to compute the cell anew")


def test_what_is_impossible_is_refused_in_schema_1_too(tmp_path):
    record = content()
    record["pooled"]["mix"]["auc"] = 1.5
    with pytest.raises(UserError, match=r"not a valid record \(auc is not between 0 and 1\)"):
        read_record(written(tmp_path, record))


# -- whole folders -----------------------------------------------------------------------------------------------------


def downgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A record of today as schema 1 had it; what it could not say is lost."""

    def score(new: dict[str, Any]) -> dict[str, Any]:
        flat = {m: e["value"] for m, e in new["values"].items()} | {f"{m}_se": new["values"][m]["error"] for m in ("auc", "tf01")}
        return flat | {"n_members": new["n_members"], "n_nonmembers": new["n_nonmembers"]}

    def plain(use: dict[str, Any]) -> dict[str, Any]:
        assert not use["then"]
        return {k: v for k, v in use.items() if k not in ("target", "then")}

    old = {k: v for k, v in record.items() if k not in ("described", "analyses")}
    old |= {"schema_version": 1, "facts": record["described"], "society": None, "violations": None}
    old |= {"defense": plain(record["defense"]), "attack": plain(record["attack"])}
    old["targets"] = [{**t, "groups": {g: score(s) for g, s in t["groups"].items()}} for t in record["targets"]]
    old["pooled"] = {g: score(s) for g, s in record["pooled"].items()}
    if fair := record["analyses"].get("group-fairness"):
        numbers = fair["numbers"]
        names = [n.partition(":")[2] for n in numbers if n.startswith("clients:")]
        old["society"] = {
            "groups": [{"name": n} | {k: numbers[f"{k}:{n}"]["value"] for k in ("clients", "accuracy", "n_test")} for n in names],
        }  # fmt: skip
        gaps = [n for n in numbers if ":" not in n]
        old["society"] |= {n: numbers[n]["value"] for n in gaps} | {f"{n}_se": numbers[n]["error"] for n in gaps}
    if broken := record["analyses"].get("violations"):
        counts = {k: broken["numbers"][k]["value"] for k in ("violated", "clients")}
        old["violations"] = counts | {"accuracy_of_model": [None]}
    return old


@pytest.mark.parametrize("kind", ["plain", "clustered"])
def test_a_folder_of_schema_1_gives_the_same_board(tmp_path, kind):
    root = tmp_path / "r"
    folder = (Folder(root, {"none": 1.0, "mixup": 0.3}) if kind == "plain" else Clustered(root)).fill(seeds=(0, 1))
    before, records = board(folder), load_records(root)
    for loaded in records:
        loaded.path.write_text(json.dumps(downgraded(json.loads(loaded.path.read_text()))))
    assert {json.loads(r.path.read_text())["schema_version"] for r in records} == {1}
    assert board(folder) == before


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
def test_a_number_that_no_arithmetic_survives_is_refused_wherever_it_stands(tmp_path, number):
    folder = Folder(tmp_path / "r", {"none": 1.0}).fill(seeds=(0,))
    path = next((folder.root / "records").glob("*.json"))
    content = json.loads(path.read_text())
    for change in ({"facts": {"steps": 7.25}}, {"utility": {"accuracy": 0.5, "n_test": 7.25}}):
        path.write_text(json.dumps({**content, **change}).replace("7.25", number))
        with pytest.raises(UserError, match="is out of range"):
            read_record(path)



@pytest.mark.parametrize("given", [
    b"{half", b"", b'{"a": 1} x', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": 1E+400}', b'{"a": -1e999}',
    b'{"a": 18446744073709551617}', b'{"a": 1, "a": 1}', b'{"b": {"a": 1, "a": 2}}', b"[" * 60 + b"]" * 60, b"[" * 5000,
    b'{"a": "\xff"}', b'{"a\\u0062": 1, "ab": 2}',
])  # fmt: skip
def test_json_that_no_arithmetic_survives_or_that_says_two_things_is_refused(given):
    with pytest.raises(UserError, match=r"somewhere: unreadable.*; a remedy"):
        parse_bytes(given, "somewhere", "a remedy")


@pytest.mark.parametrize("given", [
    b"null", b"0", b"[]", b'{"a": 18446744073709551616}', b'{"a": 1e308, "b": 0.1234567890123456789, "c": 1e-999}',
    b'{":": ":{[", "\\"": "}", "e\\u00e9": "1e999"}', b"[" * 39 + b"]" * 39,
    b'{"a": "\\ud83d\\ude00", "b": -0.0, "c": [true, false]}',
])  # fmt: skip
def test_json_is_read_as_python_reads_it(given):
    assert json.dumps(parse_bytes(given, "", "")) == json.dumps(json.loads(given))


def test_arrays_are_those_that_numpy_reads_whoever_packed_them(tmp_path):
    """Deflated or stored as numpy does it, or by another program, which leaves them to ``zipfile``."""
    arrays = {"a": np.arange(1000, dtype=np.int64), "b": np.zeros(0, np.float64), "c:d": np.array([True, False])}
    packed = {name: npz_bytes({name: a}, compress=name != "a") for name, a in arrays.items()}
    (tmp_path / "numpy.npz").write_bytes(npz_bytes(arrays))
    (tmp_path / "stored.npz").write_bytes(npz_bytes(arrays, compress=False))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as z:
        for name, content in packed.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.extra = b"\x99\x99\x01\x00x"
            z.writestr(entry, zipfile.ZipFile(io.BytesIO(content)).read(f"{name}.npy"))
    for path in sorted(tmp_path.glob("*.npz")):
        with ArrayFile(path, "a remedy") as found:
            for name, a in arrays.items():
                assert found.length(name) == len(a) and np.array_equal(found.read(name, a.dtype.type), a)
            assert "z" not in found


def test_every_flipped_bit_of_a_score_file_is_refused_or_changes_nothing(tmp_path):
    arrays = {"a": np.arange(20, dtype=np.int64), "b": np.linspace(0, 1, 9)}
    content, path = npz_bytes(arrays), tmp_path / "x.npz"
    for at in range(8 * len(content)):
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            with ArrayFile(path, "a remedy") as found:
                read = {name: found.read(name, a.dtype.type) for name, a in arrays.items()}
        except UserError as error:
            assert str(path) in error.messages[0]
        else:
            assert all(np.array_equal(read[name], a) for name, a in arrays.items())
