"""Boards as HTML pages: what is on them, that nothing on them runs or is fetched, and documents of
unknown origin.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from boards import LEAK, Folder, board, rows_of, sections_of
from claim_boards import Cells, pairs
from edits import put
from hypothesis import given, settings
from hypothesis import strategies as st
from site_boards import HOSTILE, cells_of, hostile, marked, site

from fedbench.core import UserError
from fedbench.core.api import load
from fedbench.core.cli.options import parse_only
from fedbench.core.contract.board import Table, opened
from fedbench.core.store.files import write_atomically
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.document import document, source_of
from fedbench.leaderboard.markdown import places
from fedbench.leaderboard.site.pages import pages
from fedbench.leaderboard.site.values import only_of, plain
from fedbench.leaderboard.site.write import document_of, make_site
from fedbench.leaderboard.statistics.roc import roc_band
from fedbench.leaderboard.tables.answer import answer
from fedbench.leaderboard.tables.common import TITLE

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def unpacked(text, width=2):
    """Packed numbers, by the rule in leaderboard/site/SCHEMA.md."""
    parts = [text[i : i + width] for i in range(0, len(text), width)]
    return np.array(
        [
            sum(DIGITS.index(digit) * 64**i for i, digit in enumerate(reversed(part)))
            for part in parts
        ]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four defenses, two attacks, three seeds, all complete."""
    folder = Folder(tmp_path_factory.mktemp("demo") / "demo", LEAK).fill()
    marked(folder)
    return folder


def kept(folder):
    """The document that a site keeps in the folder."""
    return json.loads((folder.root / "leaderboard" / "board.json").read_text())


@pytest.fixture(scope="module")
def made(folder, tmp_path_factory):
    """Its site."""
    return site(tmp_path_factory.mktemp("made") / "site", folder.root)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The site of a folder with hostile names everywhere."""
    root = tmp_path_factory.mktemp("odd")
    return site(root / "site", hostile(root / "hostile"))


# --- nothing runs, nothing is fetched -------------------------------------------------------------


def test_every_page_has_a_strict_policy_with_a_nonce_of_its_own(made, odd):
    nonces = set()
    for page in [*made.values(), *odd.values()]:
        (policy,) = [
            m["content"]
            for m in page.all("meta")
            if m.get("http-equiv") == "Content-Security-Policy"
        ]
        (nonce,) = re.findall(r"script-src 'nonce-([A-Za-z0-9_-]{24})'", policy)
        rules = {f"{kind}-src 'nonce-{nonce}'" for kind in ("script", "style")}
        assert set(policy.split("; ")) == rules | {
            "default-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        }
        carrying = [a for _, a in page.tags if "nonce" in a]
        assert {a["nonce"] for a in carrying} == {nonce}
        assert [
            a
            for a in carrying
            if not re.fullmatch(r"static/[a-z0-9.-]+", a.get("src") or a["href"])
        ] == []
        nonces.add((nonce, page.source))
    assert len({nonce for nonce, _ in nonces}) == len(nonces)


def test_no_page_has_an_inline_script_a_handler_a_style_or_an_address_outside(made, odd):
    for page in [*made.values(), *odd.values()]:
        names = {name for _, a in page.tags for name in a}
        assert [
            name
            for name in names
            if name.startswith("on") or name in ("style", "srcdoc", "action", "formaction")
        ] == []
        assert not {tag for tag, _ in page.tags} & {
            "style",
            "iframe",
            "object",
            "embed",
            "base",
            "img",
            "svg",
            "math",
        }
        assert all(s.get("src") for s in page.all("script") if s.get("type") != "application/json")
        assert len(page.scripts) <= 1  # the document
        links = [(tag, a, a[name]) for tag, a in page.tags for name in ("href", "src") if name in a]
        leaving = [
            (tag, a.get("rel"), link.partition("/")[0])
            for tag, a, link in links
            if re.match(r"[a-z]+:|//", link)
        ]
        assert set(leaving) == {("a", "noreferrer", "https:")}


def test_hostile_names_are_text_on_the_page_and_data_in_its_block(odd):
    page = odd["hostile.html"]
    assert not set("<>&\u2028\u2029") & set(page.scripts[0])
    labels = [row["label"] for row in page.board["rows"]]
    for name in ("script", "end", "quotes", "template"):
        assert HOSTILE[name] in page.text
        assert f"{name} {HOSTILE[name]}" in labels
    assert page.board["reasons"] == ["", f"script {HOSTILE['script']}"]
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.source)
    assert "rtl \\u202egnol\\u2066" in labels
    assert max(map(len, labels)) == 200


NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=30)
@given(st.fixed_dictionaries({"setting": NAMES, "coalition": NAMES, "defense": NAMES}))
def test_the_command_line_reads_what_a_command_says(wanted):
    quoted = only_of(wanted)
    assert not re.search(r"[\u202a-\u202e\n]", quoted)
    if quoted:
        assert parse_only(tuple(shlex.split(quoted))) == {
            kind: {name} for kind, name in wanted.items()
        }


# --- the numbers of a page ------------------------------------------------------------------------


def test_the_table_shows_the_numbers_of_the_section(made, folder):
    (section,) = sections_of(folder)
    page = made["demo.html"]
    assert "a power of 80 % takes a difference of" in page.board["sections"][0]["sentence"]
    rates = np.array(page.board["fpr"])[page.board["sections"][0]["fpr_from"] :]
    assert [row["label"] for row in page.board["rows"]] == [row.label for row in section.rows]
    for shown, row in zip(page.board["rows"], section.rows, strict=True):
        worst = section.comparison.worst_cases.of(row.label).worst
        assert shown["numbers"]["worst"] == pytest.approx(
            [worst.interval.mean, worst.interval.low, worst.interval.high], abs=5e-5
        )
        assert section.attacks[shown["worst_attack"]] == worst.attack
        assert tuple(shown["rank"]) == section.comparison.pairwise.ranks[row.label]
        assert re.search(rf">{shown['numbers']['worst'][0]:.3f}[< ]", page.source)
        for attack, entry in zip(section.attacks, shown["entries"], strict=True):
            band, codes = roc_band(section, row.label, attack, rates), unpacked(entry["roc"])
            curve = np.where(codes == 0, 0, 10.0 ** (4 * (codes / 4095 - 1)))
            assert curve == pytest.approx(
                np.concatenate([band.mean, band.low, band.high]), rel=0.0012, abs=1e-4
            )


def test_a_cell_holds_the_auc_and_the_histogram_of_its_record(made, folder):
    records = {
        (r.record.defense.label, r.record.attack.label, r.record.seed): r
        for r in load_records(folder.root)
    }
    board = made["demo.html"].board
    cells, found = board["cells"], cells_of(board)
    assert found.keys() == records.keys()
    assert sorted(found.values()) == list(range(len(cells["key"])))
    for name, at in found.items():
        run, targets = cells["run"][at], records[name].record.targets
        assert board["uses"][board["runs"]["defense"][run]]["label"] == name[0]
        assert board["runs"]["seed"][run] == name[2]
        assert board["targets"][cells["targets"][at]] == [t.target for t in targets]
        aucs = [t.groups["ofl"].value("auc") for t in targets]
        assert unpacked(cells["auc"][at], 3) / 1e5 == pytest.approx(aucs, abs=1e-5)
        judged = records[name].candidates_of([t.target for t in targets]).values()
        edges = np.linspace(*cells["range"][at], 21)[1:-1]
        # members, outside non-members
        for kind, counts in enumerate(unpacked(cells["scores"][at]).reshape(2, 20)):
            scores = np.concatenate([c.scores[c.kind == kind] for c in judged])
            plain = np.bincount(np.searchsorted(edges, scores, side="right"), minlength=20)
            assert counts.sum() == len(scores)
            assert np.abs(plain - counts).sum() <= 2  # the ends are written with four digits


def test_the_folds_hold_every_table_of_the_markdown_board(made, folder):
    blocks = [
        b
        for b in opened(document(source_of(folder.root), plots=False))
        if isinstance(b, Table) and b.title != TITLE
    ]
    shown = [b for fold in kept(folder)["folds"] for b in fold["blocks"] if isinstance(b, dict)]
    assert [(t["title"], [t["columns"], *t["rows"]]) for t in shown] == [
        (b.title, places(b, plain)) for b in blocks
    ]
    assert len(made["demo.html"].all("table")) == len(shown) + 1 > 5
    cells = {" ".join(cell.split()) for table in shown for row in table["rows"] for cell in row}
    assert cells <= set(
        map(unescape, re.findall(r"<td(?: class=\"mean\")?>([^<]*)</td>", made["demo.html"].source))
    )


def test_the_row_within_one_point_that_leaks_least_is_marked_and_leads_to_its_paper(tmp_path):
    rows = pairs("none 1.0 0.8, hamp 0.0 0.78, mixup 0.3 0.795, grad-sparse 0.9 0.8")
    page = site(tmp_path / "site", marked(Cells(tmp_path / "demo", {"iid": rows})))["demo.html"]
    assert {row["label"] for row in page.board["rows"] if row["within"]} == {"mixup", "grad-sparse"}
    assert [row["label"] for row in page.board["rows"] if row["winner"]] == ["mixup"]
    assert page.text.count("★") == 2  # the legend's and the row's
    assert "scholar?q=Zhang+et+al.%2C+ICLR+2018+mixup" in page.source


def test_a_rank_says_which_rows_it_is_tied_with_by_the_tests_of_pairs_alone(tmp_path):
    rows = pairs("none 2.5 0.8, a 0.4 0.8, b 0.6 0.8, c 0.8 0.8")
    wobble = {seed: {"b": (0.6 + 0.5 * (-1) ** seed, 0.8)} for seed in range(6)}
    folder = Cells(tmp_path / "demo", {"iid": rows}, seeds=range(6), of_seed=wobble)
    page = site(tmp_path / "site", marked(folder))["demo.html"]
    found = {row["label"]: row for row in page.board["rows"]}
    assert found["a"]["rank"][1] >= found["c"]["rank"][0]  # the ranges overlap
    assert [page.board["rows"][i]["label"] for i in found["a"]["better"]] == ["c", "none"]
    hints = [a["title"] for tag, a in page.tags if tag == "span" and "title" in a]
    assert "tied with b; better than c, none" in hints
    assert "tied with b; better than none; worse than a" in hints
    ranking = rows_of(board(folder), "**Ranking**")
    assert {row["defense"]: row["tied with"] for row in ranking} == {
        "a": "b",
        "b": "a, c, none",
        "c": "b",
        "none (undefended)": "b",
    }
    assert "c" not in answer(sections_of(folder)[0]).tied


# --- the command ----------------------------------------------------------------------------------


def test_a_document_gives_the_same_site_as_its_records(folder, tmp_path):
    kept = folder.root / "leaderboard" / "board.json"
    found = []
    for name, source in {"a": folder.root, "b": folder.root, "c": kept}.items():
        site(tmp_path / name, source)
        found.append(
            {
                p.relative_to(tmp_path / name): p.read_bytes()
                for p in (tmp_path / name).rglob("*")
                if p.is_file()
            }
        )
    assert found[0] == found[1] == found[2]
    assert found[0][Path("demo.json")] == kept.read_bytes()
    with (tmp_path / "a" / "demo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["worst"]) for row in rows] == [
        row["worst"] for row in load(folder.root).rows.to_dict("records")
    ]


def test_a_site_has_a_page_for_each_board_and_leaves_other_files_alone(folder, tmp_path):
    other = marked(
        Folder(tmp_path / "elsewhere" / "demo", {"none": 0.5}).fill(seeds=(0,)), "Another"
    )
    found = site(tmp_path / "site", folder.root, other)
    assert (
        set(found)
        == {"index.html", "demo.html", "demo_2.html"}
        <= {
            *(a["href"] for a in found["index.html"].all("a")),
            "index.html",
        }
    )
    assert found["demo_2.html"].board["title"] == "Another"
    assert all(
        (tmp_path / "site" / (a.get("src") or a["href"])).is_file()
        for _, a in found["demo.html"].tags
        if "nonce" in a
    )
    (tmp_path / "site" / "mine.txt").write_text("mine")
    assert set(site(tmp_path / "site", other)) == {"index.html", "demo.html"}
    assert (tmp_path / "site" / "mine.txt").read_text() == "mine"


def test_the_index_names_the_defenses_that_win_and_in_how_many_rankings(folder):
    board = document_of(folder.root)
    n = len(board.sections)
    rows = [row.model_copy(update={"winner": row.label == "mixup"}) for row in board.rows]
    won = pages([board.model_copy(update={"rows": rows})])["index.html"].decode()
    assert f"undefended accuracy: mixup ({n} of {n}) rankings." in won
    rows = [row.model_copy(update={"winner": False}) for row in board.rows]
    lost = pages([board.model_copy(update={"rows": rows})])["index.html"].decode()
    assert "No defense leaks significantly less" in lost


@pytest.mark.parametrize(
    ("name", "text"),
    [("mine.txt", "x"), ("site.json", "{"), ("site.json", '{"files": ["../../victim"]}')],
)
def test_a_folder_that_holds_no_site_is_left_alone(folder, tmp_path, name, text, words_of):
    (tmp_path / name).write_text(text)
    assert str(tmp_path) in words_of("leaderboard", folder.root, "--html", tmp_path, status=2)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: text}


@pytest.mark.slow
def test_the_command_of_a_cell_computes_that_cell(finished, tmp_path, words_of):
    results = shutil.copytree(finished, tmp_path / "planned")
    board = site(tmp_path / "site", results)["planned.html"].board
    cells = cells_of(board)
    assert len(cells) == 4
    for (_, attack, seed), at in [min(cells.items()), max(cells.items())]:
        run = board["cells"]["run"][at]
        parts = [
            board["onlys"][board["runs"]["only"][run]],
            f"seed={seed}",
            board["uses"][board["cells"]["attack"][at]]["only"],
        ]
        command = shlex.split(" ".join([board["command"], *(f"--only {part}" for part in parts)]))
        words = [word.replace("RESULTS", str(results)) for word in command[1:]]
        said = words_of(*words, "--results", results, "--dry-run")
        assert ": 1 runs, 1 cells, 1 of them recorded" in said
        assert f"attacks: {attack} " in said


# --- documents of unknown origin ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("rows", ..., "rows: Field required"),
        ("fedbench_board", 1, "a board of version 1, this fedbench reads version 3"),
        ("more", 1, "more: Extra inputs"),
        ("command", "fedbench run x; reboot", "command: String should match"),
        ("command", "fedbench run $(reboot)", "command: String should match"),
        ("command", "curl run x", "command: String should match"),
        ("onlys/0", "defense=x --set y=z", "onlys.0: String should match"),
        ("rows/0/worst_attack", 9, "a position is out of range"),
        ("cells/run/0", -1, "cells.run.0"),
        ("rows/0/entries/0/roc", "<b>", "rows.0.entries.0.roc"),
    ],
)
def test_a_changed_document_is_refused_with_the_place(
    folder, made, place, value, said, tmp_path, words_of
):
    path, content = tmp_path / "demo.json", kept(folder)
    put(content, place, value)
    path.write_bytes(sealed(content))
    words = words_of("leaderboard", path, "--html", tmp_path / "site", status=2)
    assert words.startswith((f"{path}: ", "demo.html: ")) and said in words
    assert not (tmp_path / "site").exists()


def test_a_column_that_this_fedbench_does_not_know_is_on_the_page_and_in_the_csv(
    folder, made, tmp_path, words_of
):
    content = kept(folder)
    known = content["columns"][0]
    content["columns"].append(known | {"key": "bytes", "title": "bytes sent", "unit": "MB"})
    for row in content["rows"]:
        row["numbers"]["bytes"] = [7.5, None, None]
    (tmp_path / "demo.json").write_bytes(sealed(content))
    words_of("leaderboard", tmp_path / "demo.json", "--html", tmp_path / "site")
    page = (tmp_path / "site" / "demo.html").read_text()
    assert "bytes sent" in page and "7.500 MB" in page
    assert (tmp_path / "site" / "demo.csv").read_text().splitlines()[0].endswith("bytes_high")


def test_records_that_are_not_shown_are_counted_once_on_the_page(tmp_path):
    folder = Folder(tmp_path / "demo", LEAK).fill()
    folder.add_outdated("mixup", "fedmia-ii", 0)
    page = site(tmp_path / "site", marked(folder))["demo.html"]
    assert page.text.count("1 records of earlier code, parameters or plans are not shown.") == 1
    assert page.text.count("of earlier code") == 1


def test_a_document_with_another_number_is_refused_by_every_reader(
    folder, made, tmp_path, words_of
):
    path, content = tmp_path / "demo.json", kept(folder)
    put(content, "rows/1/numbers/worst/0", 0.1297)
    path.write_text(json.dumps(content))
    said = f"{path}: damaged or changed since fedbench wrote it"
    with pytest.raises(UserError, match=re.escape(said)):
        load(path).board()
    assert said in words_of("leaderboard", path, "--html", tmp_path / "site", status=2)
    assert not (tmp_path / "site").exists()


def test_a_site_that_was_cut_short_is_finished_by_the_same_command(folder, tmp_path, monkeypatch):
    def stopped(path, content):
        if path.suffix == ".html":
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr("fedbench.leaderboard.site.write.write_atomically", stopped)
    with pytest.raises(KeyboardInterrupt):
        make_site([folder.root], tmp_path / "site")
    assert any((tmp_path / "site").iterdir())
    monkeypatch.undo()
    stray = tmp_path / "site" / "static" / ".tmp-of-a-killed-command"
    stray.parent.mkdir(exist_ok=True)
    stray.touch()
    assert set(site(tmp_path / "site", folder.root)) == {"index.html", "demo.html"}
    assert not stray.exists()


@pytest.mark.parametrize("n_ofl", [60, 1000])
def test_the_front_names_its_column_and_ranks_are_whole_numbers(tmp_path, n_ofl):
    rows = pairs("none 2.0 0.8, a 0.9 0.7, b 0.3 0.75, c 0.2 0.6, free-rider 0.0 0.9")
    found = load(marked(Cells(tmp_path / "demo", {"iid": rows}, seeds=range(3), n_ofl=n_ofl))).rows
    assert [str(found.dtypes[name]) for name in ("rank", "rank_last")] == ["Int64", "Int64"]
    shown = [row for row in found.to_dict("records") if row["front"] is not None]
    (column,) = {row["front_of"] for row in shown}
    assert column == ("tf01" if n_ofl == 1000 else "worst") and len(shown) == 4
    for row in shown:
        beaten = [
            r
            for r in shown
            if r is not row and r[column] <= row[column] and r["accuracy"] >= row["accuracy"]
        ]
        assert row["front"] == (not beaten)
