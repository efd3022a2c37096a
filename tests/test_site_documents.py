"""Boards as documents: the same page as from records, several on one site, and what is refused of anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from boards import LEAK, Folder
from many_records import write_results, write_suite
from site_boards import Page, marked, site

from fedbench.core import UserError
from fedbench.leaderboard.site import schema
from fedbench.leaderboard.site.model import as_json
from fedbench.leaderboard.site.schema import read_board
from fedbench.leaderboard.site.write import make_site

BOARDS = Path(__file__).parents[1] / "leaderboard" / "boards"

@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Four defenses, two attacks, three seeds, all complete."""
    return marked(Folder(tmp_path_factory.mktemp("demo") / "demo", LEAK).fill())


@pytest.fixture(scope="module")
def made(results, tmp_path_factory):
    return site(tmp_path_factory.mktemp("made") / "site", results)


@pytest.fixture
def document(made, tmp_path):
    """A board's document as a file of its own, and its content."""
    path = tmp_path / "demo.json"
    content = made["demo.html"].board
    path.write_text(json.dumps(content))
    return path, content


# --- several boards, half of a board, and again -----------------------------------------------------------------------


def test_a_half_finished_folder_has_its_page(tmp_path):
    folder = Folder(tmp_path / "half", LEAK)
    for defense, attack, seed in (("none", "fedmia-ii", 0), ("none", "loss-series", 0), ("mixup", "fedmia-ii", 1)):
        folder.add(defense, attack, seed)
    folder.add("cofedmid", "loss-series", 0, outcome="failed", reason="out of memory")
    board = site(tmp_path / "site", marked(folder))["half.html"].board
    assert [row["rank"] for row in board["rows"]] == [None] * 3
    assert "out of memory" in board["reasons"] and board["notes"] == [
        "8 cells have no record yet: a row that lacks some has no rank."
    ]
    assert -1 in [cell for row in board["rows"] for entry in row["entries"] for cell in entry["cells"]]


def test_several_folders_are_several_boards_of_one_index(results, tmp_path):
    other = marked(Folder(tmp_path / "elsewhere" / "demo", {"none": 0.5}).fill(seeds=(0,)), "Another")
    found = site(tmp_path / "site", results, other)
    assert set(found) == {"index.html", "licences.html", "demo.html", "demo_2.html"}
    links = [a["href"] for a in found["index.html"].all("a")]
    assert [link for link in links if link.startswith("demo")] == ["demo.html", "demo_2.html"]
    assert found["demo_2.html"].board["title"] == "Another" and len(found["demo_2.html"].board["rows"]) == 1


def test_a_document_gives_the_same_page_as_its_records_and_twice_the_same_bytes(results, tmp_path):
    make_site([results], tmp_path / "a")
    make_site([results], tmp_path / "b")
    make_site([results / "leaderboard" / "board.json"], tmp_path / "c")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    for name in files:
        first, *others = ((tmp_path / folder / name).read_bytes() for folder in "abc")
        assert others == [first, first]
    kept = results / "leaderboard" / "board.json"
    assert as_json(read_board(kept)).encode() + b"\n" == kept.read_bytes()


def test_a_board_that_left_the_site_leaves_no_page_and_nothing_else_is_touched(results, tmp_path):
    other = marked(Folder(tmp_path / "other", {"none": 0.5}).fill(seeds=(0,)))
    folder = tmp_path / "site"
    make_site([results, other], folder)
    (folder / "mine.txt").write_text("mine")
    make_site([other], folder)
    assert not (folder / "demo.html").exists() and (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(("files", "said"), [
    ({"mine.txt": "x"}, "not empty and no site of fedbench"),
    ({"site.json": "{"}, "unreadable"),
    ({"site.json": '{"files": ["../../victim"]}'}, "not what fedbench wrote"),
])  # fmt: skip
def test_a_folder_of_somebody_else_is_left_alone(results, tmp_path, files, said):
    folder = tmp_path / "site"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=said):
        make_site([results], folder)
    assert {p.name: p.read_text() for p in folder.iterdir()} == files


# --- documents of anybody ---------------------------------------------------------------------------------------------


def without(name):
    return lambda content: content.pop(name)


@pytest.mark.parametrize(("change", "said"), [
    (without("rows"), "rows: Field required"),
    (lambda c: c.update(fedbench_board=2), "a board of version 2, this fedbench reads version 1"),
    (lambda c: c.update(more=1), "more: Extra inputs are not permitted"),
    (lambda c: c.update(command="fedbench run x; reboot"), "not a command of fedbench alone"),
    (lambda c: c.update(command="fedbench run $(reboot)"), "not a command of fedbench alone"),
    (lambda c: c.update(command="curl run x"), "not a command of fedbench alone"),
    (lambda c: c.update(onlys=["defense=x --set y=z"] * 9), "not a part of a command"),
    (lambda c: c["runs"]["seed"].append(1), "its columns are of several lengths"),
    (lambda c: c["cells"]["run"].__setitem__(0, 10_000), "cells.run: names what is not there"),
    (lambda c: c["cells"]["scores"].__setitem__(0, "AA"), "a count for each bin"),
    (lambda c: c["rows"][0].update(defense=-1), "greater than or equal to 0"),
    (lambda c: c["rows"][0].update(worst_attack=9), "rows.attacks: names what is not there"),
    (lambda c: c["rows"][0]["entries"].pop(), "one is needed for each of the section's attacks"),
    (lambda c: c["rows"][0]["entries"][0].update(roc="<b>"), "rows.0.entries.0.roc"),
    (lambda c: c["rows"][0].update(worst=["a", 0, 1]), "rows.0.worst"),
])  # fmt: skip
def test_a_document_that_fedbench_did_not_write_is_refused_with_one_message(document, change, said, tmp_path, call):
    path, content = document
    change(content)
    path.write_text(json.dumps(content))
    status, words = call("leaderboard", path, "--html", tmp_path / "site")
    assert status == 2 and said in words
    assert words.startswith(f"{path}: ") and "make it again" in words and not (tmp_path / "site").exists()


@pytest.mark.parametrize(("content", "said"), [
    ("", "unreadable"), ('{"fedbench_board": 1', "unreadable"), ("[1]", "not a board"),
    ('{"fedbench_board": 1e999}', "out of range"), ("[" * 100 + "]" * 100, "nested deeper"),
])  # fmt: skip
def test_a_damaged_document_is_refused(content, said, tmp_path):
    path = tmp_path / "board.json"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        read_board(path)


def test_a_document_that_is_too_large_is_refused(document, monkeypatch):
    path, _ = document
    monkeypatch.setattr(schema, "MAX_BYTES", 1 << 10)
    with pytest.raises(UserError, match="larger than"):
        read_board(path)


def test_hostile_texts_of_a_document_are_text(document, tmp_path):
    path, content = document
    content["title"] = "</title><script>alert(1)</script>\u202e"
    content["rows"][0]["remarks"] = ["<img src=x onerror=alert(1)>"]
    content["provenance"] = ["x" * 3_000]
    path.write_text(json.dumps(content))
    page = site(tmp_path / "site", path)["demo.html"]
    assert page.board["title"] == "</title><script>alert(1)</script>\\u202e"
    assert len(page.board["provenance"][0]) == 1_000
    assert "<img src=x onerror=alert(1)>" in "".join(page.text) and not page.all("img")


# --- the committed ones ---


def test_every_committed_board_has_its_document_and_they_make_a_site(tmp_path):
    """What `.ci/site` builds."""
    documents, tables = ({p.stem: p for p in BOARDS.glob(f"*.{suffix}")} for suffix in ("json", "md"))
    assert set(documents) == set(tables)
    found = site(tmp_path / "site", *documents.values())
    assert set(found) == {"index.html", "licences.html", *(f"{name}.html" for name in documents)}
    for name, path in documents.items():
        assert tables[name].read_text(encoding="utf-8").startswith(f"# {found[f'{name}.html'].board['title']}")
        assert path.stat().st_size < 2 << 20


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_cells_are_less_than_five_megabytes(tmp_path):
    plan = write_results(write_suite(tmp_path / "many", 4), tmp_path / "r")
    made = make_site([tmp_path / "r"], tmp_path / "site")
    assert len(plan.cells) > 10_000 and sum(made.values()) < 5_000_000
    assert len(Page(tmp_path / "site" / "r.html").board["cells"]["key"]) == len(plan.cells)


def test_ci_builds_the_site_after_the_documents_and_installs_a_browser():
    script = (BOARDS.parents[1] / ".ci" / "run").read_text()
    assert script.index(".ci/chromium") < script.index("test-command)") < script.index(".ci/docs ") < script.index(".ci/site ")
    assert "boards/*.json --html" in (BOARDS.parents[1] / ".ci" / "site").read_text()
