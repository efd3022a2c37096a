"""Results that travel: what is exported, what is taken in, and that no crafted bundle is."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from bundles import edited, files_of, make_bundle, make_folder, packed, pick, relabelled
from click.testing import CliRunner
from crafted import CRAFTED
from hypothesis import given, settings
from hypothesis import strategies as st
from running import fingerprint, unprotected

from fedbench.core.cli.main import cli
from fedbench.core.contract.errors import UserError
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import load_records
from fedbench.core.store.trust import read_trust
from fedbench.leaderboard.submissions.archive import most_of
from fedbench.leaderboard.submissions.importing import import_bundle
from fedbench.leaderboard.submissions.recompute import NOT_RECOMPUTED, recompute

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder; nobody writes to it."""
    return make_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(folder, tmp_path_factory.mktemp("bundle") / "b.zip")


def fedbench(*args: object, status: int = 0) -> str:
    """The output of a command; a traceback fails the test."""
    result = CliRunner().invoke(cli, [*map(str, args)], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


def refused(bundle: Path, folder: Path) -> str:
    """The one message that an import ends in; nothing is left of it."""
    before = sorted(p for p in folder.parent.rglob("*"))
    with pytest.raises(UserError) as caught:
        import_bundle(bundle, folder)
    assert sorted(p for p in folder.parent.rglob("*")) == before
    for message in caught.value.messages:
        assert message.startswith(f"{bundle}: refused, nothing was ") and message.isprintable() and len(message) < 1000
    return caught.value.messages[0]


# -- there and back ----------------------------------------------------------------------------------------------------


def test_what_is_exported_comes_in_unchanged_and_is_claimed(folder, bundle, tmp_path):
    output = fedbench("import", bundle, "-o", tmp_path / "in")
    assert fingerprint(tmp_path / "in") == fingerprint(folder) and "8 records, claimed" in output
    assert all(what in output for what in NOT_RECOMPUTED)
    trust = read_trust(tmp_path / "in")
    assert {trust.of(r).level for r in load_records(tmp_path / "in")} == {"claimed"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"records", "suites", "fedbench.json", "trust.json"}


def test_the_same_folder_gives_the_same_bytes_and_nothing_but_results(folder, bundle, tmp_path):
    again = make_bundle(folder, tmp_path / "again.zip")
    assert again.read_bytes() == bundle.read_bytes()
    names = set(files_of(bundle))
    assert {name.partition("/")[0] for name in names} == {"manifest.json", "records", "suites"}
    assert {Path(name).suffix for name in names} == {".json", ".npz", ".yaml"}


def test_the_manifest_says_what_is_in_it(bundle):
    manifest = json.loads(files_of(bundle)["manifest.json"])
    assert manifest["bundle"] == 1 and manifest["suite"] == "tiny" and manifest["packages"]["fedbench"] == manifest["fedbench"]
    assert {f["path"] for f in manifest["files"]} == set(files_of(bundle)) - {"manifest.json"}


def test_a_part_is_a_bundle_of_its_own(folder, tmp_path):
    fedbench("export", folder, "-o", tmp_path / "part.zip", "--only", "defense=mixup,attack=loss-series")
    import_bundle(tmp_path / "part.zip", tmp_path / "in")
    (only,) = load_records(tmp_path / "in")
    assert (only.record.defense.name, only.record.attack.name) == ("mixup", "loss-series")
    assert "leaves no record" in fedbench("export", folder, "-o", tmp_path / "no.zip", "--only", "seed=77", status=2)


def test_nothing_is_overwritten(folder, bundle, tmp_path):
    (tmp_path / "there.zip").write_text("mine")
    assert "exists; nothing was overwritten" in fedbench("export", folder, "-o", tmp_path / "there.zip", status=2)
    assert (tmp_path / "there.zip").read_text() == "mine"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "exists and is not empty" in fedbench("import", bundle, "-o", tmp_path / "full", status=2)
    (tmp_path / "empty").mkdir()
    fedbench("import", bundle, "-o", tmp_path / "empty")


@pytest.fixture
def spoilt(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "spoilt"))


def test_a_folder_with_a_broken_record_is_not_exported(spoilt, tmp_path):
    path = next((spoilt / "records").glob("*loss-series*.json"))
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    assert f"{path}: damaged or changed" in fedbench("export", spoilt, "-o", tmp_path / "b.zip", status=2)
    assert not (tmp_path / "b.zip").exists()


def test_records_of_one_run_that_disagree_are_not_exported(spoilt, tmp_path):
    path = next(p for p in (spoilt / "records").glob("*--mixup--rmia--*.json"))
    content = json.loads(path.read_text())
    content["history"][0]["accuracy"] /= 2
    path.write_bytes(sealed(content))
    output = fedbench("export", spoilt, "-o", tmp_path / "b.zip", status=2)
    assert "of one run, but have other rounds; run them again with --rerun always" in " ".join(output.split())
    assert not (tmp_path / "b.zip").exists()


def test_records_without_protection_are_not_exported(spoilt, tmp_path):
    path = next((spoilt / "records").glob("*loss-series*.json"))
    path.write_text(json.dumps(unprotected(path)))
    assert "1 records are of schema 3, which nothing protects" in fedbench("export", spoilt, "-o", tmp_path / "b.zip", status=2)


def test_a_file_that_is_too_large_is_not_exported(spoilt, tmp_path, monkeypatch):
    monkeypatch.setattr("fedbench.leaderboard.submissions.exporting.most_of", lambda name: min(most_of(name), 3000))
    assert "in a bundle it may have 3,000" in fedbench("export", spoilt, "-o", tmp_path / "b.zip", status=2)


# -- every number, from the scores -------------------------------------------------------------------------------------


def test_every_number_of_a_run_is_what_its_scores_give(folder):
    judged = [r for r in load_records(folder) if r.record.outcome == "ok"]
    assert [recompute(r) for r in judged] == [[]] * len(judged) and len(judged) == 6
    targets = [t for r in judged for t in r.record.targets]
    assert any(t.rounds for t in targets) and any(t.decision for t in targets)


def test_errors_drawn_with_another_numpy_are_listed_not_compared(bundle, tmp_path):
    files = files_of(bundle)

    def change(record: dict) -> None:
        record["provenance"]["numpy"] = "1.0"
        record["pooled"]["mix"]["values"]["auc"]["error"] *= factor

    factor = 1.3
    (tmp_path / "b.zip").write_bytes(packed(edited(files, pick(files), change)))
    assert import_bundle(tmp_path / "b.zip", tmp_path / "in").other_draws == 1
    factor = 0.3  # no draws give that
    (tmp_path / "c.zip").write_bytes(packed(edited(files, pick(files), change)))
    assert "the error of auc is" in refused(tmp_path / "c.zip", tmp_path / "out")


def test_the_page_lists_what_is_not_recomputed():
    page = " ".join((DOCS / "submissions.md").read_text().split())
    assert all(what in page for what in NOT_RECOMPUTED)


# -- crafted bundles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("craft", "reason"), CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_bundle_is_refused_with_the_reason(bundle, tmp_path, craft, reason):
    path = tmp_path / "crafted.zip"
    path.write_bytes(craft(files_of(bundle)))
    assert reason in refused(path, tmp_path / "in")


def test_what_the_crafted_ones_are_made_of_is_taken(bundle, tmp_path):
    """So each is refused for its one defect."""
    (tmp_path / "b.zip").write_bytes(packed(files_of(bundle)))
    assert (tmp_path / "b.zip").read_bytes() == bundle.read_bytes()
    import_bundle(tmp_path / "b.zip", tmp_path / "in")


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_a_damaged_bundle_is_refused(bundle, tmp_path_factory, seed):
    """Bits, bytes and ends: all that a bundle says is covered by a digest, or says nothing."""
    folder, rng, content = tmp_path_factory.mktemp("damaged"), random.Random(seed), bundle.read_bytes()
    damaged = bytearray(content)
    how = rng.randrange(3)
    if how == 0:
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == 1:
        at = rng.randrange(len(content))
        damaged[at : at + rng.randint(1, 40)] = rng.randbytes(rng.randint(0, 40))
    else:
        del damaged[rng.randrange(len(content)) :]
    (folder / "b.zip").write_bytes(damaged)
    try:
        import_bundle(folder / "b.zip", folder / "in")
    except UserError as error:
        assert error.messages[0].startswith(f"{folder}/b.zip: refused, nothing was ")
    else:
        import_bundle(bundle, folder / "good")
        assert fingerprint(folder / "in") == fingerprint(folder / "good")


def test_html_in_a_label_is_shown_as_text(bundle, tmp_path):
    files = files_of(bundle)
    for attack in ("blackbox-loss", "loss-series", "passive", "rmia"):
        files = relabelled(files, pick(files, attack), "<img/src=x>|mixup", "_img_src=x_mixup")
    stems = [Path(name).stem for name in files if name.startswith("records/")]
    (tmp_path / "b.zip").write_bytes(packed(files, lambda m: m.update(cells=stems)))
    fedbench("import", tmp_path / "b.zip", "-o", tmp_path / "in")
    fedbench("leaderboard", tmp_path / "in", "--no-plots")
    text = (tmp_path / "in" / "leaderboard" / "board.md").read_text()
    assert "&lt;img/src=x&gt;\\|mixup" in text and "<img" not in text


def test_no_bundle_and_a_folder_are_messages(tmp_path):
    assert "no such file" in fedbench("import", tmp_path / "none.zip", "-o", tmp_path / "in", status=2)
    assert "not a regular file" in fedbench("import", tmp_path, "-o", tmp_path / "in", status=2)


def test_a_link_to_an_empty_folder_is_that_folder(bundle, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    fedbench("import", bundle, "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "fedbench.json").is_file()


def test_a_full_disk_names_the_folder_and_leaves_nothing(bundle, tmp_path, monkeypatch):
    def full(archive, name, out):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedbench.leaderboard.submissions.archive.Archive.copy", full)
    said = fedbench("import", bundle, "-o", tmp_path / "in", status=2)
    assert said == f"{tmp_path / 'in'}: No space left on device; nothing was kept\n" and not list(tmp_path.iterdir())


def test_an_import_that_is_interrupted_leaves_nothing(bundle, tmp_path):
    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_bundle(bundle, tmp_path / "in", stop)
    assert list(tmp_path.iterdir()) == []
