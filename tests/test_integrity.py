"""A record's numbers are protected: no damage is read as another content, and a board counts its scores again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import Folder
from click.testing import CliRunner
from damage import HELD, every_bit, files_of, folder_of_all_outcomes, record_damages, score_damages, tried
from hypothesis import given, settings
from hypothesis import strategies as st
from running import unprotected

from fedbench.core.cli.leaderboard import command as leaderboard
from fedbench.core.contract.errors import UserError
from fedbench.core.metrics import score_groups
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.core.store.reading import load_records, read_record
from fedbench.core.store.recount import recount
from fedbench.core.store.results import Results
from fedbench.leaderboard.document import source_of

OUTCOMES = {"ok", "failed", "timeout", "diverged", "skipped"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a record of every outcome; every test leaves it as it was."""
    return folder_of_all_outcomes(tmp_path_factory.mktemp("all"))


@pytest.fixture
def spoilt(folder: Path) -> Any:
    """The folder, to be spoilt by one test."""
    before = files_of(folder)
    yield folder
    for path in (folder / "records").iterdir():
        path.unlink()
    for name, content in before.items():
        (folder / "records" / name).write_bytes(content)


def an_ok_record(folder: Path) -> Path:
    return next(r.path for r in load_records(folder) if r.record.outcome == "ok")


def escaped(counts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """What did not hold."""
    return {what: n for what, n in counts.items() if what[1] not in HELD}


# -- the fuzzer --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_a_damaged_record_is_refused_or_says_what_it_said(folder, seed):
    assert escaped(tried(folder, record_damages(seed, 33))) == {}


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_damaged_scores_are_refused_or_say_what_they_said(folder, seed):
    assert escaped(tried(folder, score_damages(seed, 18))) == {}


@pytest.mark.slow
def test_no_bit_of_a_record_can_flip_unnoticed(folder):
    sample = list(every_bit(folder))[::211]
    counts = tried(folder, sample)
    assert len(sample) > 500 and escaped(counts) == {}


def test_the_fuzzer_sees_records_that_are_not_protected(folder, spoilt):
    """It is not blind: the records of an earlier schema take most flips of a digit."""
    for path in (spoilt / "records").glob("*.json"):
        path.write_text(json.dumps(unprotected(path)))
    edits = [damage for damage in record_damages(0, 330) if damage.kind == "a number edited"]
    assert tried(spoilt, edits)["a number edited", "ACCEPTED CHANGED"] > 10


# -- the digest --------------------------------------------------------------------------------------------------------


def test_a_run_writes_records_of_every_outcome_with_their_protection(folder):
    loaded = load_records(folder)
    assert {r.record.outcome for r in loaded} == OUTCOMES and {r.schema for r in loaded} == {6}
    assert all(len(r.record.digest) == 64 for r in loaded)
    for r in loaded:
        assert keys_of(r.record.identity.model_dump()) == (r.record.run_key, r.record.key)


def test_spaces_and_the_order_of_fields_do_not_count(spoilt):
    path = an_ok_record(spoilt)
    before = read_record(path).record
    path.write_text(json.dumps(dict(sorted(json.loads(path.read_text()).items(), reverse=True)), indent=7))
    assert read_record(path).record == before


def refused(path: Path) -> str:
    """The one message that reading ends in."""
    with pytest.raises(UserError) as caught:
        read_record(path)
    (message,) = caught.value.messages
    assert message.startswith(f"{path}: ") and message.isprintable()
    assert message.endswith("delete it and run its suite again to compute the cell anew")
    return message


def changed(path: Path, change: Callable[[dict], None], seal: bool) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_bytes(sealed(content) if seal else json.dumps(content).encode())


def test_an_edited_number_is_found_by_the_digest(spoilt):
    path = an_ok_record(spoilt)
    changed(path, lambda r: r["measured"].update(train_cpu_s=0.001), seal=False)
    assert "damaged or changed since fedbench wrote it (its content is not the one its digest was made of)" in refused(path)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("left", ["digest", "identity"])
def test_a_smaller_version_does_not_switch_the_protection_off(spoilt, version, left):
    path = an_ok_record(spoilt)

    def change(record: dict) -> None:
        record["schema_version"] = version
        del record["digest" if left == "identity" else "identity"]

    changed(path, change, seal=False)
    assert f"it says schema {version}, which has no '{left}'" in refused(path)


def test_a_record_of_an_earlier_schema_is_read_without_protection(spoilt):
    path = an_ok_record(spoilt)
    before = read_record(path)
    path.write_text(json.dumps(unprotected(path)))
    loaded = read_record(path)
    assert (loaded.schema, loaded.record.schema_version, loaded.record.identity) == (3, 3, None)
    assert loaded.record.targets == before.record.targets


# -- the keys ----------------------------------------------------------------------------------------------------------

SAID_TWICE: dict[str, tuple[Callable[[dict], None], str]] = {
    "seed": (lambda r: r.update(seed=7), "seed is 7, but 0 in its identity"),
    "members": (lambda r: r.update(members=[3]), r"members is \[3\], but \[\] in its identity"),
    "defense": (lambda r: r["defense"].update(digest="00"), "defense is .* in its identity"),
    "attack": (lambda r: r["attack"]["params"].update(more=1), "attack is .* in its identity"),
    "torch": (lambda r: r["provenance"].update(torch="9.9"), 'torch is "9.9", but .* in its identity'),
    "device": (lambda r: r["provenance"].update(device="cuda:0 (H)"), 'device is "cuda", but "cpu" in its identity'),
    "rounds": (lambda r: r["described"]["federation"].update(rounds=9), "described.federation is .* in its identity"),
    "data": (lambda r: r["digests"].update(data="d"), "digests is .* in its identity"),
    "targets": (lambda r: r.update(targets=r["targets"][:-1]), "targets is .* in its identity"),
    "run_key": (lambda r: r.update(run_key="0" * 64), "run_key is not made of its identity"),
    "key": (lambda r: r.update(key=r["key"][:-1] + "x"), "key is not made of its identity"),
    "identity": (lambda r: r["identity"]["run"].update(seed=7), "run_key is not made of its identity"),
    "signals": (lambda r: r["identity"].update(signals={}), "key is not made of its identity"),
    "components": (lambda r: r["components"]["model"].update(distribution="x 1"), "components is .* in its identity"),
    "no identity": (lambda r: r.pop("identity"), "identity is missing"),
    "no part of it": (lambda r: r["identity"]["run"].pop("digests"), "run_key is not made of its identity"),
    "no scores": (lambda r: r["digests"].pop("scores"), "digests.scores is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), SAID_TWICE.values(), ids=SAID_TWICE)
def test_a_key_that_is_not_its_own_and_a_field_that_disagrees_are_refused(spoilt, change, message):
    path = next(p for p in sorted((spoilt / "records").glob("digits--none--none--loss-series--s0--*.json")))
    changed(path, change, seal=True)
    with pytest.raises(UserError, match=f"not a valid record .*{message}"):
        read_record(path)
    refused(path)


def test_a_record_names_what_took_part_with_package_and_version(folder):
    record = read_record(an_ok_record(folder)).record
    used = [record.components.dataset, record.components.model, *record.components.signals.values()]
    assert [use.name for use in used] == ["digits", "mlp", *record.identity.signals]
    assert {use.distribution for use in used} == {f"fedbench {record.provenance.fedbench}"}


def test_a_record_of_schema_4_is_read_with_what_its_identity_says(spoilt):
    path = an_ok_record(spoilt)
    before = read_record(path).record
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "components"} | {"schema_version": 4}
    path.write_bytes(sealed(content))
    loaded = read_record(path)
    assert (loaded.schema, loaded.record.schema_version) == (4, 4) and loaded.record.components == before.components
    path.write_bytes(sealed(content | {"schema_version": 5}))
    assert "components is missing" in refused(path)


def test_a_record_of_schema_5_is_read_without_its_maxima(spoilt):
    path = an_ok_record(spoilt)
    content = json.loads(path.read_text())
    assert all(t["maximum"].keys() == {"auc", "advantage", "rounds"} for t in content["targets"])
    content["targets"] = [{k: v for k, v in t.items() if k != "maximum"} for t in content["targets"]]
    path.write_bytes(sealed(content | {"schema_version": 5}))
    loaded = read_record(path)
    assert (loaded.schema, loaded.record.schema_version) == (5, 5) and all(t.maximum is None for t in loaded.record.targets)
    path.write_bytes(sealed(content))
    assert "the maximum of a target is missing" in refused(path)


# -- the scores --------------------------------------------------------------------------------------------------------


def more_accurate(record: dict) -> None:
    record["utility"]["accuracy"] += 0.01


FORGED: dict[str, tuple[Callable[[dict], None], str]] = {
    "a target's AUC": (
        lambda r: r["targets"][1]["groups"]["ofl"]["values"]["auc"].update(value=0.51), "target 1, ofl: AUC is 0.51, its scores",
    ),
    "the pooled AUC": (lambda r: r["pooled"]["mix"]["values"]["auc"].update(value=0.5), "pooled, mix: AUC is 0.5, its scores"),
    "a TF01": (lambda r: r["pooled"]["mix"]["values"]["tf01"].update(value=3.5), "pooled, mix: TF01 is 3.5, its scores"),
    "a count": (lambda r: r["pooled"]["ifl"].update(n_members=1), "pooled, ifl: members is 1, its scores give"),
    "a group": (lambda r: r["targets"][0]["groups"].pop("canary"), "target 0: it has the groups mix, ofl, ifl, its scores give"),
    "the accuracy": (more_accurate, "test accuracy is .* its scores give"),
}  # fmt: skip


@pytest.mark.parametrize("schema", [3, 6])
@pytest.mark.parametrize(("change", "message"), FORGED.values(), ids=FORGED)
def test_a_board_shows_no_number_that_the_scores_do_not_give(spoilt, change, message, schema):
    path = an_ok_record(spoilt)
    if schema == 3:
        path.write_text(json.dumps(unprotected(path)))
    changed(path, change, seal=schema == 6)
    read_record(path)  # by itself nothing is wrong with it
    with pytest.raises(UserError, match=message) as caught:
        source_of(spoilt)
    (only,) = caught.value.messages
    assert only.startswith(f"{path}: ") and "delete it and run its suite again" in only
    result = CliRunner().invoke(leaderboard, [str(spoilt), "--no-plots"])
    assert isinstance(result.exception, UserError)


def test_tf01_of_a_schema_with_another_rule_is_not_compared(spoilt):
    path = an_ok_record(spoilt)
    path.write_text(json.dumps(unprotected(path, schema=2)))
    changed(path, FORGED["a TF01"][0], seal=False)
    assert len(source_of(spoilt).records) == len(load_records(spoilt))


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([1, 7, 10**6]))
@settings(max_examples=60, deadline=None)
def test_the_recount_is_the_metrics_on_every_group(seed, n, values):
    """Against ``score_groups``, with ties and groups that nobody is in."""
    rng = np.random.default_rng(seed)
    scores, kind = rng.integers(0, values, n) / 3, rng.integers(-1, 3, n)
    canary, in_mix = rng.random(n) < 0.3, rng.random(n) < 0.8
    expected = score_groups(scores, kind, canary, rng, in_mix)
    found = recount(scores, kind, canary, in_mix)
    assert {g: (r.auc, r.tf01, r.n_members, r.n_nonmembers) for g, r in found.items()} == {
        g: (s.value("auc"), s.value("tf01"), s.n_members, s.n_nonmembers) for g, s in expected.items()
    }


@pytest.mark.parametrize("digits", [1, 9])
def test_the_recount_gives_tf01_where_there_are_enough_non_members(digits):
    rng = np.random.default_rng(digits)
    scores, kind = rng.normal(size=5000).round(digits), rng.integers(0, 3, 5000)
    everybody = np.ones(5000, bool)
    expected, found = score_groups(scores, kind, ~everybody, rng), recount(scores, kind, ~everybody, everybody)
    assert found["mix"].tf01 == expected["mix"].value("tf01") and found["mix"].tf01 is not None
    assert found["ofl"].tf01 is None


def test_a_board_of_a_large_folder_is_what_it_was(tmp_path):
    """Records without protection are counted again too, and one that agrees is shown."""
    folder = Folder(tmp_path / "r", {"none": 1.0, "mixup": 0.3}).fill(seeds=(0, 1))
    assert {r.schema for r in source_of(folder.root).records} == {3}


# -- the marker --------------------------------------------------------------------------------------------------------


def test_a_marker_that_was_changed_is_refused(tmp_path):
    store = Results.create(tmp_path / "r", "tiny")
    store.set_manifest(["a", "b"], "A title")
    path = tmp_path / "r" / "fedbench.json"
    path.write_text(path.read_text().replace("A title", "B title"))
    with pytest.raises(UserError, match=r"fedbench\.json: damaged or changed since fedbench wrote it .* delete it"):
        Results.open(tmp_path / "r")

