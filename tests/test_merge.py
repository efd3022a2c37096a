"""Several folders and bundles as one board; and the board's id."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from boards import Folder
from bundles import make_bundle, make_folder
from click.testing import CliRunner
from running import suite

from fedbench.core.cli.main import cli
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import Results
from fedbench.core.store.trust import read_trust
from fedbench.leaderboard.citation import board_id, citation
from fedbench.leaderboard.document import source_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: two with parts of one suite, one of another suite; and the second as a bundle."""
    root = tmp_path_factory.mktemp("made")
    found = {}
    for name, changes in {
        "one": {"defenses": ["none", "mixup"]}, "two": {"defenses": ["none", "hamp"]}, "other": {"name": "other"},
    }.items():  # fmt: skip
        (root / name).mkdir()
        found[name] = make_folder(root / name, **({"attacks": ["loss-series"]} | changes))
    return found | {"bundle": make_bundle(found["two"], root / "two.zip")}


def fedbench(*args: object, status: int = 0) -> str:
    result = CliRunner().invoke(cli, [*map(str, args)], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


def rows(folder: Path) -> dict[str, str]:
    """Defense -> level of trust."""
    trust = read_trust(folder)
    return {r.record.defense.name: trust.of(r).level for r in load_records(folder)}


def test_a_folder_and_a_bundle_become_one_and_keep_their_marks(made, tmp_path):
    output = fedbench("merge", made["one"], made["bundle"], "-o", tmp_path / "all")
    one, bundle = made["one"], made["bundle"]
    assert f"1 records are in {one} and in {bundle}, with equal scores; those of {one} were kept" in output
    assert "suite 'tiny': the sources ask for different cells" in output
    assert rows(tmp_path / "all") == {"none": "measured here", "mixup": "measured here", "hamp": "claimed"}
    marker = Results.open(tmp_path / "all").marker()
    assert len(marker["cells"]) == 3 and len(marker["plans"]) == 2 and marker["suite"] == "tiny"
    fedbench("leaderboard", tmp_path / "all", "--no-plots")
    text = (tmp_path / "all" / "leaderboard" / "board.md").read_text()
    assert "| claimed " in text and "| measured here |" in text


def test_several_sources_are_one_board_without_a_folder(made, tmp_path):
    output = tmp_path / "both" / "board.md"
    said = fedbench("leaderboard", made["one"], made["bundle"], made["other"], "--output", output, "--no-plots")
    assert f"board: {output}" in said and "/merged" not in said and "records of 3 sources" in said
    text = output.read_text()
    assert "mixup" in text and "hamp" in text and "Setting tiny: digits" in text and "Setting other: digits" in text
    assert {path.name for path in output.parent.iterdir()} == {"board.md", "board-id.json"}
    assert "needs --output FILE" in fedbench("leaderboard", made["one"], made["two"], status=2)
    before = made["bundle"].read_bytes()
    assert "is one of the sources" in fedbench("leaderboard", made["bundle"], "--output", made["bundle"], status=2)
    assert made["bundle"].read_bytes() == before
    fedbench("leaderboard", made["bundle"], "--output", output, "--no-plots")
    assert "mixup" not in output.read_text()


def test_a_cell_of_two_suites_is_in_both_and_travels_on(made, tmp_path):
    """Its key does not hold the suite's name."""
    fedbench("merge", made["one"], made["other"], "-o", tmp_path / "all")
    keys = [r.record.key for r in load_records(tmp_path / "all")]
    assert len(keys) == 4 and len(set(keys)) == 2
    fedbench("export", tmp_path / "all", "-o", tmp_path / "all.zip")
    fedbench("import", tmp_path / "all.zip", "-o", tmp_path / "in")
    assert len(load_records(tmp_path / "in")) == 4
    assert "4 cells bit for bit" in fedbench("reproduce", tmp_path / "in")


def changed(folder: Path, tmp_path: Path, change) -> Path:
    """A copy of a folder in which one record says something else."""
    copy = Path(shutil.copytree(folder, tmp_path / "changed"))
    path = next((copy / "records").glob("*--none--loss-series--*.json"))
    content = json.loads(path.read_text())
    change(content)
    path.write_bytes(sealed(content))
    return copy


def test_unequal_records_under_one_key_are_refused_with_files_and_fields(made, tmp_path):
    copy = changed(made["one"], tmp_path, lambda r: r["facts"].update(epsilon=3.5))
    output = fedbench("merge", made["one"], copy, "-o", tmp_path / "all", status=2)
    assert f"{made['one']}/records/digits--none" in output and f"{copy}/records/digits--none" in output
    assert "one key, but they differ in facts.epsilon (null and 3.5)" in output
    assert not (tmp_path / "all").exists() and {p.name for p in tmp_path.iterdir()} == {"changed"}


def test_time_and_machine_may_differ(made, tmp_path):
    def change(record: dict) -> None:
        record["measured"]["wall_s"] = 77.0
        record["provenance"]["cpu"] = "another"

    fedbench("merge", made["one"], changed(made["one"], tmp_path, change), "-o", tmp_path / "all")
    assert {r.record.measured.wall_s for r in load_records(tmp_path / "all")}.isdisjoint({77.0})


def test_nothing_is_overwritten_and_what_is_no_source_is_a_message(made, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert "exists and is not empty" in fedbench("merge", made["one"], "-o", tmp_path, status=2)
    assert "not a fedbench results folder" in fedbench("merge", tmp_path, "-o", tmp_path / "all", status=2)
    assert "does not end as a zip file" in fedbench("merge", __file__, "-o", tmp_path / "all", status=2)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt"}


def test_the_page_on_submissions_does_what_it_says(made, tmp_path, monkeypatch):
    """Every command of docs/submissions.md, in its order, in an empty folder with a suite."""
    monkeypatch.chdir(tmp_path)
    suite(tmp_path, attacks=["loss-series"], defenses=["none", "mixup"]).rename("my_suite.yaml")
    shutil.copytree(made["one"], "results/ours")
    shutil.copy(made["bundle"], "theirs.zip")
    page = (Path(__file__).parent.parent / "docs" / "submissions.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    commands = [line.split() for block in blocks for line in block.splitlines()]
    for program, *words in commands:
        assert program == "fedbench"
        fedbench(*words)
    assert {"export", "import", "reproduce", "merge", "leaderboard"} <= {words[1] for words in commands}
    assert Path("both/board.md").is_file() and set(rows(Path("results/theirs")).values()) == {"reproduced"}


# -- the board's id ----------------------------------------------------------------------------------------------------


def test_the_id_is_the_same_for_any_names_and_order_of_files(tmp_path):
    records = load_records(Folder(tmp_path / "a", {"none": 1.0, "mixup": 0.3}).fill(seeds=(0, 1)).root)
    for loaded in records:
        loaded.path.rename(loaded.path.with_name(f"x{hash(loaded.path.stem) % 10**9}.json"))
        loaded.path.with_suffix(".npz").rename(loaded.path.with_name(f"x{hash(loaded.path.stem) % 10**9}.npz"))
    again = load_records(tmp_path / "a")
    assert board_id(records) == board_id(again) == board_id(records[::-1])
    assert {r.path for r in again}.isdisjoint({r.path for r in records})


def test_the_id_changes_with_any_record_and_with_the_rules(made, tmp_path, monkeypatch):
    records = load_records(made["one"])
    copy = changed(made["one"], tmp_path, lambda r: r["facts"].update(epsilon=3.5))
    ids = {board_id(records), board_id(records[:1]), board_id(load_records(copy)), board_id([*records, records[0]])}
    monkeypatch.setattr("fedbench.leaderboard.citation.rules_digest", lambda: "other rules")
    assert len(ids | {board_id(records)}) == 5


def test_the_board_prints_its_id_and_stores_what_it_is_made_of(made):
    folder = made["one"]
    name = board_id(source_of(folder).newest[0])
    assert f"Board id: `{name}`" in (folder / "leaderboard" / "board.md").read_text()
    stored = json.loads((folder / "leaderboard" / "board-id.json").read_text())
    assert stored == json.loads(citation(load_records(folder))) and stored["board"] == name
    assert stored["records"] == sorted(r.record.digest for r in load_records(folder))


def test_the_board_names_every_package_with_what_it_brought(made):
    text = (made["one"] / "leaderboard" / "board.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("- components of"))
    what = "data sets digits; models mlp; defenses mixup, none; attacks loss-series; signals loss"
    assert line.startswith(f"- components of fedbench {version('fedbench')}: {what}")
    plan = Results.open(made["one"]).marker()["plans"][-1]
    assert f"`fedbench run RESULTS/suites/{plan}.yaml`" in text
