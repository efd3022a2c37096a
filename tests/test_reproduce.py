"""Somebody's claims run again here: what is drawn, how it is compared, and how a board says it."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bundles import edited, files_of, make_bundle, make_folder, packed, pick, with_scores
from click.testing import CliRunner

from fedbench.core.cli.main import cli
from fedbench.core.contract.errors import UserError
from fedbench.core.metrics import score_groups
from fedbench.core.metrics.maximum import maximum
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.core.store.reading import load_records, read_record
from fedbench.core.store.trust import read_trust
from fedbench.leaderboard.submissions.compare import compare
from fedbench.leaderboard.submissions.importing import import_bundle
from fedbench.leaderboard.submissions.installed import missing, pip_command, why_stale
from fedbench.leaderboard.submissions.marks import Marks
from fedbench.leaderboard.submissions.sampling import sampled


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two rows with two seeds each."""
    root = tmp_path_factory.mktemp("made")
    return make_bundle(make_folder(root, seeds=[0, 1], attacks=["loss-series"]), root / "b.zip")


@pytest.fixture
def claims(bundle, tmp_path) -> Path:
    import_bundle(bundle, tmp_path / "claims")
    return tmp_path / "claims"


def fedbench(*args: object, status: int = 0) -> str:
    result = CliRunner().invoke(cli, [*map(str, args)], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


def levels(folder: Path) -> dict[tuple[str, int], str]:
    trust = read_trust(folder)
    return {(r.record.defense.name, r.record.seed): trust.of(r).level for r in load_records(folder)}


# -- the sample --------------------------------------------------------------------------------------------------------


def test_the_sample_has_whole_runs_of_every_row_and_depends_on_the_seed(claims):
    records = load_records(claims)
    one = sampled(records, 0.1, seed=0)
    assert sorted(r.record.defense.name for r in one) == ["mixup", "none"]
    assert {len(sampled(records, share, 0)) for share in (0.01, 0.5)} == {2} and len(sampled(records, 0.51, 0)) == 4
    drawn = {frozenset(r.record.key for r in sampled(records, 0.1, seed)) for seed in range(40)}
    assert len(drawn) == 4  # each seed of each row
    assert sampled(records[::-1], 0.1, 0) == one[::-1]


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "-1", "x"])
def test_a_share_that_is_none_is_a_message_and_remembered_by_nobody(claims, share):
    assert "Invalid value for '--sample'" in fedbench("reproduce", claims, "--sample", share, "--dry-run", status=2)
    assert not (claims / "rerun").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"share": NaN, "seed": 1}', '{"share": 2}', '{"seed": -1}'])
def test_a_draw_that_was_edited_is_a_message(claims, content):
    (claims / "rerun").mkdir()
    (claims / "rerun" / "draw.json").write_text(content)
    assert "draw.json: not the draw of a sample" in fedbench("reproduce", claims, "--dry-run", status=2)


def test_a_cell_that_is_said_to_be_skipped_or_diverged_is_run_again_with_its_run(tmp_path):
    """Otherwise a number that its author does not like is gone by calling it skipped."""
    folder = make_folder(tmp_path, attacks=["loss-series", "blackbox-loss", "rmia"], defenses=["none"])
    (path,) = (folder / "records").glob("*--blackbox-loss--*.json")
    content = json.loads(path.read_text())
    content["digests"].pop("scores")
    path.write_bytes(sealed(content | {"outcome": "skipped", "reason": "does not apply", "targets": [], "pooled": {}}))
    path.with_suffix(".npz").unlink()
    import_bundle(make_bundle(folder, tmp_path / "b.zip"), tmp_path / "claims")
    output = fedbench("reproduce", tmp_path / "claims", status=1)
    assert "3 cells in the sample" in output and "'skipped' claimed, 'ok' here" in " ".join(output.split())
    levels = {r.record.attack.name: read_trust(tmp_path / "claims").of(r).level for r in load_records(tmp_path / "claims")}
    assert levels == {"loss-series": "reproduced", "blackbox-loss": "not reproduced", "rmia": "reproduced"}


def test_a_divergence_may_read_otherwise_on_another_machine(claims):
    (first, *_) = load_records(claims)
    gone = {"outcome": "diverged", "targets": [], "pooled": {}}
    one, other = (
        type(first)(first.record.model_copy(update=gone | {"reason": reason}), first.path) for reason in ("round 3", "round 4")
    )
    assert compare(one, one).verdict == "bit for bit" and sampled([one], 0.1, 0) == [one]
    said = compare(one, other)
    assert said.verdict == "within tolerance" and said.how.startswith("'diverged' here, too, but not reason")
    failed = type(first)(first.record.model_copy(update={"outcome": "failed"}), first.path)
    assert sampled([failed], 0.1, 0) == []  # that something failed is no result


def test_of_many_runs_each_is_drawn_as_often_as_any_other(claims):
    """Counted over seeds of the draw: three of ten runs, each in 30 % of the draws."""
    first = load_records(claims)[0]
    many = [
        type(first)(first.record.model_copy(update={"run_key": f"{i:064x}", "seed": i}), first.path) for i in range(10)
    ]
    counts = np.zeros(10)
    for seed in range(1000):
        counts[[r.record.seed for r in sampled(many, 0.3, seed)]] += 1
    assert counts.sum() == 3000 and np.abs(counts - 300).max() < 5 * np.sqrt(1000 * 0.3 * 0.7)


# -- the command -------------------------------------------------------------------------------------------------------


def test_what_comes_out_again_is_reproduced_and_the_rest_stays_claimed(claims):
    output = fedbench("reproduce", claims, "--seed", 1)
    assert "2 cells bit for bit" in output
    found = levels(claims)
    assert sorted(found.values()) == ["claimed", "claimed", "reproduced", "reproduced"]
    assert {name for (name, _), level in found.items() if level == "reproduced"} == {"none", "mixup"}
    fedbench("leaderboard", claims, "--no-plots")
    text = (claims / "leaderboard" / "board.md").read_text()
    assert "trust: 2 claimed, 2 reproduced" in text and text.count("| claimed, 1 of 2 reproduced |") == 2


def test_a_bundle_file_is_imported_first_and_the_same_command_goes_on(bundle, tmp_path, monkeypatch):
    folder = tmp_path / "theirs"
    words = ["reproduce", bundle, "-o", folder, "--sample", "1"]
    assert "4 cells bit for bit" in fedbench(*words)
    before = {path: path.stat().st_mtime_ns for path in (folder / "rerun" / "results" / "records").iterdir()}
    assert "4 cells bit for bit" in fedbench("reproduce", bundle, "-o", folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before and len(before) == 8
    assert set(levels(folder).values()) == {"reproduced"}


def test_a_dry_run_shows_the_plan_and_computes_nothing(claims):
    output = fedbench("reproduce", claims, "--dry-run", "--seed", 3)
    assert "2 cells in the sample (a share of 0.1 with seed 3), 2 runs with 2 cells" in output and "rounds" in output
    assert not (claims / "rerun" / "results" / "records").exists() and set(levels(claims).values()) == {"claimed"}
    assert "with seed 3)" in fedbench("reproduce", claims, "--dry-run")  # the draw is remembered


def forged(bundle: Path, shift: float) -> bytes:
    """The members of one row score higher than they did, and every number and digest says so."""
    files = files_of(bundle)
    for name in [n for n in files if "--mixup--" in n and n.endswith(".json")]:
        record = json.loads(files[name])
        with np.load(io.BytesIO(files[name[:-5] + ".npz"])) as archive:
            arrays = {n: archive[n] for n in archive.files}
        parts = []
        for target in record["targets"]:
            t = f"t{target['target']}_"
            scores, kind = arrays[f"{t}scores"], arrays[f"{t}kind"]
            arrays[f"{t}scores"] = scores + shift * scores.std() * (kind == 0)
            parts.append([arrays[t + part] for part in ("scores", "kind", "canary", "in_mix")])
            target["groups"] = _groups(*parts[-1], record["seed"], target["target"])
            largest = maximum(arrays[f"{t}scores"][None], kind, shuffle_rng(record["seed"], target["target"]))
            target["maximum"] = {"auc": largest.auc, "advantage": largest.advantage, "rounds": 1}
            nulls = {"null_auc": largest.null_auc, "null_advantage": largest.null_advantage}
            arrays |= {f"{t}{name}": a.astype(np.float32) for name, a in nulls.items()}
        record["pooled"] = _groups(*map(np.concatenate, zip(*parts, strict=True)), record["seed"], -1)
        files = with_scores(files, name, npz_bytes(arrays))
        files = edited(files, name, lambda r, new=record: r.update(targets=new["targets"], pooled=new["pooled"]))
    return packed(files)


def _groups(scores, kind, canary, in_mix, seed, target):
    found = score_groups(scores, kind, canary, numpy_rng(seed, "bootstrap", client=target), in_mix)
    return {
        name: {
            "values": {m: {"value": e.value, "error": e.error} for m, e in score.values.items()},
            "n_members": score.n_members, "n_nonmembers": score.n_nonmembers,
        } for name, score in found.items()
    }  # fmt: skip


def test_forged_scores_that_are_consistent_are_claimed_but_not_reproduced(bundle, tmp_path):
    (tmp_path / "b.zip").write_bytes(forged(bundle, shift=2.0))
    output = fedbench("reproduce", tmp_path / "b.zip", "-o", tmp_path / "in", status=1)
    assert "1 cells bit for bit; 1 cells not reproduced" in output
    assert "claimed, " in output and "here, tolerance " in output and "the same bits were to be expected" in output
    assert sorted(levels(tmp_path / "in").values()) == ["claimed", "claimed", "not reproduced", "reproduced"]
    fedbench("leaderboard", tmp_path / "in", "--no-plots")
    assert "| 1 of 2 not reproduced, claimed |" in (tmp_path / "in" / "leaderboard" / "board.md").read_text()


def test_a_small_difference_is_within_tolerance_and_says_which(bundle, claims, tmp_path, monkeypatch):
    (tmp_path / "b.zip").write_bytes(forged(bundle, shift=1e-3))
    import_bundle(tmp_path / "b.zip", tmp_path / "near")
    name = Path(pick(files_of(bundle), "loss-series")).name
    said = compare(read_record(tmp_path / "near" / "records" / name), read_record(claims / "records" / name))
    assert said.verdict == "within tolerance" and "(its paired interval)" in said.how
    monkeypatch.setattr("fedbench.leaderboard.submissions.compare.FLOOR", 0.1)
    said = compare(read_record(tmp_path / "near" / "records" / name), read_record(claims / "records" / name))
    assert said.verdict == "within tolerance" and "tolerance 0.1000 (its floor)" in said.how


def test_another_outcome_is_not_reproduced(claims):
    (first, *_) = load_records(claims)
    failed = type(first)(first.record.model_copy(update={"outcome": "failed", "reason": "no luck"}), first.path)
    said = compare(first, failed)
    assert (said.verdict, said.how) == ("not reproduced", "'ok' claimed, 'failed' here: no luck")


# -- what is installed -------------------------------------------------------------------------------------------------


def of_another(claims: Path, change) -> Path:
    """The folder's records, made by something else."""
    for path in sorted((claims / "records").glob("*.json")):
        from fedbench.core.store.integrity import components_of

        content = json.loads(path.read_text())
        change(content["identity"])
        content["run_key"], content["key"] = keys_of(content["identity"])
        content["digests"] |= content["identity"]["run"]["digests"]
        content["defense"] |= {n: v for n, v in content["identity"]["run"]["defense"].items() if n != "then"}
        content["components"] = components_of(content["identity"])
        stem = path.stem[:-12] + content["key"][:12]
        path.with_name(f"{stem}.json").write_bytes(sealed(content))
        shutil.move(path.with_suffix(".npz"), path.with_name(f"{stem}.npz"))
        path.unlink()
    return claims


def test_a_missing_package_is_named_with_the_command_that_installs_it(claims):
    of_another(claims, lambda i: i["run"]["defense"].update(distribution="their-package 1.2"))
    (first, *_) = load_records(claims)
    assert missing(first.record) == {"their-package": "1.2"} and why_stale(first.record) == ()
    (claims / "fedbench.json").unlink()
    output = fedbench("reproduce", claims, status=2)
    assert "not installed here: their-package 1.2" in output and "pip install 'their-package==1.2'" in output


def test_a_name_that_a_shell_would_run_is_in_no_command():
    assert pip_command({"$(rm -rf /)": "1", "good": "1.0", "x": "1; ls", "--index-url": "2"}) == "pip install 'good==1.0'"


CODE = {
    "engine": (lambda i: i["run"]["digests"].update(engine="x"), "the engine's code changed"),
    "code": (lambda i: i["run"]["defense"].update(digest="x"), "the code of defense '"),
    "version": (lambda i: i["run"]["defense"].update(distribution="fedbench 0.0.1"), "is of fedbench 0.0.1, here "),
    "elsewhere": (lambda i: i["run"]["defense"].update(target="../../etc/passwd:x"), "the code of defense '"),
}


@pytest.mark.parametrize(("change", "reason"), CODE.values(), ids=CODE)
def test_a_cell_of_other_code_is_stale_and_says_what(claims, change, reason):
    of_another(claims, change)
    (claims / "fedbench.json").unlink()
    output = fedbench("reproduce", claims, status=1)
    assert "2 cells stale" in output
    assert reason in output
    fedbench("leaderboard", claims, "--no-plots")
    assert reason.replace("'", "") in (claims / "leaderboard" / "board.md").read_text().replace("'", "")


def test_results_of_today_are_not_stale(claims):
    assert {why_stale(r.record) for r in load_records(claims)} == {()}


# -- the marks ---------------------------------------------------------------------------------------------------------


def test_what_was_run_here_is_measured_here_and_has_no_column(tmp_path):
    folder = make_folder(tmp_path, attacks=["loss-series"])
    text = (folder / "leaderboard" / "board.md").read_text()
    assert "trust: 2 measured here" in text and "| trust" not in text and "stale" not in text


def test_a_record_computed_anew_here_is_measured_here(claims):
    suite = next(p for p in (claims / "suites").glob("*.yaml") if "given" not in p.name)
    fedbench("run", suite, "--results", claims, "--no-plots", "--rerun", "always", "--only", "defense=none")
    assert {name: level for (name, _), level in levels(claims).items()} == {"none": "measured here", "mixup": "claimed"}


def test_without_its_notes_an_imported_folder_is_claimed(claims):
    (claims / "trust.json").unlink()
    assert set(levels(claims).values()) == {"claimed"}


def test_notes_that_were_edited_are_refused(claims):
    path = claims / "trust.json"
    path.write_text(path.read_text().replace("claimed", "reproduced"))
    with pytest.raises(UserError, match=r"trust\.json: damaged or changed since fedbench wrote it"):
        Marks.of_folder(claims)


def test_a_reproduced_folder_is_claimed_again_elsewhere(claims, tmp_path):
    fedbench("reproduce", claims, "--sample", "1")
    bundle = make_bundle(claims, tmp_path / "again.zip")
    import_bundle(bundle, tmp_path / "elsewhere")
    assert set(levels(tmp_path / "elsewhere").values()) == {"claimed"}
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() in (tmp_path / "elsewhere" / "trust.json").read_text()
