"""The pages of a site: what is on them, that nothing on them runs or is fetched, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from boards import LEAK, Folder
from bundles import make_folder
from hypothesis import given
from hypothesis import strategies as st
from many_records import write_results, write_suite
from site_boards import HOSTILE, Page, hostile, marked, site

from fedbench.core import UserError
from fedbench.core.cli.main import main
from fedbench.core.cli.options import parse_only
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.site import again, encode, library, pages, schema, write
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


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The same of a folder whose every name is hostile."""
    root = tmp_path_factory.mktemp("odd")
    return site(root / "site", hostile(root / "hostile"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The results of a suite of four cells, as a run leaves them."""
    return make_folder(tmp_path_factory.mktemp("planned"), defenses=["none", "mixup"], attacks=["loss-series", "avg-cosine"])


@pytest.fixture
def call(capsys):
    """The status and the words of a command."""

    def called(*args):
        status = main(list(map(str, args)))
        said = capsys.readouterr()
        return status, " ".join((said.out + said.err).split())

    return called


@pytest.fixture
def document(made, tmp_path):
    """A board's document as a file of its own, and its content."""
    path = tmp_path / "demo.json"
    content = made["demo.html"].board
    path.write_text(json.dumps(content))
    return path, content


# --- nothing runs, nothing is fetched ----------------------------------------------------------------------------------


def every_page(made, odd):
    return [*made.values(), *odd.values()]


def test_every_page_has_a_strict_policy_whose_nonce_only_our_files_carry(made, odd):
    for page in every_page(made, odd):
        (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        (nonce,) = re.findall(r"^'nonce-([A-Za-z0-9_-]{24})'$", rules["script-src"])
        assert rules == {
            "default-src": "'none'", "script-src": f"'nonce-{nonce}'", "style-src": f"'nonce-{nonce}'",
            "base-uri": "'none'", "form-action": "'none'",
        }  # fmt: skip
        carrying = [(tag, attributes) for tag, attributes in page.tags if attributes.get("nonce")]
        assert {attributes["nonce"] for _, attributes in carrying} == {nonce}
        assert all(re.fullmatch(r"static/[a-z0-9.-]+", attributes.get("src") or attributes["href"]) for _, attributes in carrying)
    nonces = {page.all("link")[0]["nonce"] for page in every_page(made, odd)}
    assert len(nonces) == len({page.source for page in every_page(made, odd)})  # each its own


def test_no_page_has_an_inline_script_a_handler_a_style_or_anything_from_outside(made, odd):
    for page in every_page(made, odd):
        names = {name for _, attributes in page.tags for name in attributes}
        assert not {name for name in names if name.startswith("on")} and not names & {"style", "srcdoc", "action", "formaction"}
        assert not {tag for tag, _ in page.tags} & {"style", "iframe", "object", "embed", "base", "img", "svg", "math"}
        runs = [s for s in page.all("script") if s.get("type") != "application/json"]
        assert all(s["src"] for s in runs) and [text for text in page.scripts if text] == page.scripts[: -len(runs)]
        links = [a[name] for _, a in page.tags for name in ("href", "src") if name in a]
        assert not [link for link in links if re.match(r"[a-z]+:|//", link)]


def test_what_a_page_loads_is_there(made, results, tmp_path):
    make_site([results], tmp_path / "site")
    for page in made.values():
        wanted = [a.get("src") or a["href"] for tag, a in page.tags if tag in ("script", "link") and a.get("nonce")]
        assert wanted and all((tmp_path / "site" / name).is_file() for name in wanted)
    pages_named = {a["href"] for page in made.values() for a in page.all("a") if not a["href"].startswith("#")}
    assert pages_named == {"index.html", "demo.html", "licences.html"} == set(made)


# --- whatever a record says is text -----------------------------------------------------------------------------------


def test_hostile_names_are_text_on_the_page_and_data_in_its_block(odd):
    page = odd["hostile.html"]
    (block,) = [s for s in page.scripts if s]
    assert not set("<>&\u2028\u2029") & set(block)
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown and "</script><img src=x onerror=alert(1)>" in shown and "{{ 7 * 7 }}" in shown
    assert HOSTILE["quotes"] in shown
    labels = [row["label"] for row in page.board["rows"]]
    assert f"end {HOSTILE['end']}" in labels and f"quotes {HOSTILE['quotes']}" in labels
    assert page.board["reasons"] == ["", f"script {HOSTILE['script']}"]
    assert [row["data-row"] for row in page.all("tr") if "data-row" in row] == [str(i) for i in range(len(labels))]


def test_what_hides_or_turns_a_text_is_shown_as_its_code_and_a_long_name_is_cut(odd):
    page = odd["hostile.html"]
    labels = [row["label"] for row in page.board["rows"]]
    assert "rtl \\u202egnol\\u2066" in labels and "lines a b c d" in labels
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.source)
    assert max(map(len, labels)) == encode.LONGEST


def test_a_name_that_no_command_line_takes_has_no_command_and_the_others_are_quoted(odd):
    board = odd["hostile.html"].board
    assert "" in board["onlys"] and len(set(board["onlys"])) > 3
    for only in filter(None, [*board["onlys"], *(use["only"] for use in board["uses"])]):
        (word,) = shlex.split(only)
        assert set(parse_only((word,))) <= {"setting", "coalition", "defense", "attack"}
        assert not re.search(r"[\u202a-\u202e\n]", only)


NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.fixed_dictionaries({"setting": NAMES, "coalition": NAMES, "defense": NAMES}))
def test_what_a_command_says_is_what_the_command_line_reads(wanted):
    quoted = again.only_of(wanted)
    assert again.is_only(quoted)
    if quoted:
        assert parse_only(tuple(shlex.split(quoted))) == {kind: {name} for kind, name in wanted.items()}


def test_plain_names_have_a_command():
    assert again.only_of({"setting": "digits", "defense": "a b"}) == "'setting=digits,defense=a b'"
    assert again.only_of({"attack": "x,defense=none"}) == ""  # it would be read as two


# --- what is on a board's page ----------------------------------------------------------------------------------------


def test_the_table_says_what_the_section_says(made, results):
    (section,) = source_of(results).sections
    page = made["demo.html"]
    assert [row["label"] for row in page.board["rows"]] == [row.label for row in section.rows]
    for at, row in zip(page.board["rows"], section.rows, strict=True):
        worst = section.contest.worst(row.label)
        assert at["worst"] == pytest.approx([worst.found.mean, worst.found.low, worst.found.high], abs=5e-5)
        assert section.attacks[at["worst_attack"]] == worst.attack
        assert tuple(at["rank"]) == section.contest.ranks[row.label]
        assert f">{worst.found.mean:.3f}<" in page.source
    keys = [th["data-key"] for th in page.all("th") if th.get("scope") == "col" and "data-key" in th]
    assert keys == [key for key, _ in pages.COLUMNS]


def test_the_skeleton_is_the_one_that_the_scripts_know(made):
    ids = [a["id"] for _, a in made["demo.html"].tags if "id" in a]
    assert len(ids) == len(set(ids))
    filters = {f"f-{name}" for name in ("setting", "coalition", "view", "attack", "defense", "package", "reset", "count")}
    places = {"filters", "ranking", "plane", "roc", "roc-attack", "cells", "cells-body", "record", "record-body", "board"}
    assert filters | places <= set(ids)


def cells_of(board):
    """(defense, attack, seed) -> its cell, by way of the rows."""
    section = board["sections"][0]
    return {
        (row["label"], board["uses"][use]["label"], seed): cell
        for row in board["rows"] for use, entry in zip(section["attacks"], row["entries"], strict=True)
        for seed, cell in zip(section["seeds"], entry["cells"], strict=True)
    }  # fmt: skip


def records_of(results):
    return {(r.record.defense.label, r.record.attack.label, r.record.seed): r for r in source_of(results).records}


def test_a_cell_leads_to_its_record(made, results):
    board, records = made["demo.html"].board, records_of(results)
    cells, runs = board["cells"], board["runs"]
    found = cells_of(board)
    assert set(found) == set(records) and sorted(found.values()) == list(range(len(cells["key"])))
    for name, at in found.items():
        own, run = records[name].record, cells["run"][at]
        labels = [board["uses"][use]["label"] for use in (runs["defense"][run], cells["attack"][at])]
        assert (*labels, runs["seed"][run]) == name
        assert board["targets"][cells["targets"][at]] == [t.target for t in own.targets]
        aucs = [a / 1e5 for a in encode.unpacked(cells["auc"][at], 3)]
        assert aucs == pytest.approx([t.groups["ofl"].value("auc") for t in own.targets], abs=1e-5)
        assert board["rounds"][runs["rounds"][run]] == [10, 20, 30]


def test_the_histogram_of_a_cell_counts_every_candidate(made, results):
    board, records = made["demo.html"].board, records_of(results)
    for name, at in list(cells_of(board).items())[:6]:
        counts = np.array(encode.unpacked(board["cells"]["scores"][at])).reshape(2, 20)
        _, members, others = board["samples"][board["cells"]["sample"][at]]
        assert counts.sum(axis=1).tolist() == [members, others]
        judged = records[name].candidates_of([t.target for t in records[name].record.targets]).values()
        scores = np.concatenate([c.scores[c.kind == 0] for c in judged])
        low, high = board["cells"]["range"][at]
        edges = np.linspace(low, high, 21)[1:-1]
        plain = np.bincount(np.searchsorted(edges, scores, side="right"), minlength=20)
        assert np.abs(plain - counts[0]).sum() <= 2  # the ends are written with four digits


@given(st.lists(st.floats(0, 1), max_size=30))
def test_packed_numbers_come_back(values):
    whole = encode.unpacked(encode.packed_numbers([*values, None], 10_000, 3), 3)
    assert whole == [*(round(v * 10_000) for v in values), 64**3 - 1]
    rates = np.array(values)
    back = [0 if v == 0 else 10 ** (4 * (v / 4095 - 1)) for v in encode.unpacked(encode.packed_rates(rates))]
    lowest = 10 ** (4 * (1 / 4095 - 1))
    assert back == pytest.approx(np.where(rates > 0, np.maximum(rates, lowest), 0), rel=0.0012)


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


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_where_the_site_is(results, tmp_path, call):
    status, words = call("leaderboard", results, "--html", tmp_path / "site")
    assert status == 0 and f"site: {tmp_path / 'site' / 'index.html'} (3 pages" in words
    assert (results / "leaderboard" / "board.json").is_file()


@pytest.mark.parametrize("more", [["--output", "x"], ["--report", "board"], ["--no-plots"]])
def test_a_site_and_a_report_are_two_commands(results, tmp_path, more, call):
    status, words = call("leaderboard", results, "--html", tmp_path / "site", *more)
    assert status == 2 and words.startswith(f"--html goes without {more[0].replace('no-', '')}:")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("missing", ["bokeh", "jinja2"])
def test_without_the_extra_the_message_says_what_to_install(results, tmp_path, missing, monkeypatch, call):
    pages._environment.cache_clear()
    pages._static.cache_clear()
    monkeypatch.setitem(sys.modules, missing, None)
    status, words = call("leaderboard", results, "--html", tmp_path / "site")
    assert status == 2 and f"--html needs {missing}" in words and library.INSTALL in words
    assert not (tmp_path / "site").exists()


def test_the_licences_name_what_is_shipped(made, tmp_path, results):
    page = made["licences.html"]
    text = "".join(page.text)
    assert "bokeh" in text and "BSD-3-Clause" in text and "Apache-2.0" in text
    assert "Redistribution and use in source and binary forms" in text


def test_a_bundle_is_a_board_too(planned, tmp_path, call):
    bundle = tmp_path / "theirs.zip"
    assert call("export", planned, "-o", bundle) [0] == 0
    page = site(tmp_path / "site", bundle)["theirs.html"]
    assert {row["trust"] for row in page.board["rows"]} == {"claimed"}


def test_the_command_of_a_cell_runs_that_cell(planned, tmp_path, call):
    board = site(tmp_path / "site", planned)[f"{planned.name}.html"].board
    assert board["command"].startswith("fedbench run RESULTS/suites/")
    for (_, attack, seed), at in cells_of(board).items():
        run = board["cells"]["run"][at]
        parts = [board["onlys"][board["runs"]["only"][run]], f"seed={seed}", board["uses"][board["cells"]["attack"][at]]["only"]]
        command = shlex.split(" ".join([board["command"], *(f"--only {part}" for part in parts)]))
        status, words = call(*(word.replace("RESULTS", str(planned)) for word in command[1:]), "--results", planned, "--dry-run")
        assert status == 0 and ": 1 runs, 1 cells, 1 of them recorded" in words and f"attacks: {attack} " in words


def test_the_command_of_a_shipped_suite_is_its_name(planned, tmp_path, monkeypatch):
    plan = source_of(planned).plan
    given = tmp_path / "tiny.yaml"
    given.write_bytes((planned / "suites" / f"{plan}.given.yaml").read_bytes())
    monkeypatch.setattr(again, "shipped_suites", lambda: {"papers/tiny": given})
    assert again.command_of(planned, plan, {"tiny"}) == "fedbench run papers/tiny"
    assert again.command_of(planned, None, {"tiny"}) == "fedbench run papers/tiny"  # from before plans were kept
    assert again.command_of(planned, None, {"tiny", "demo"}) == again.command_of(planned, None, {"demo"}) == ""


def test_every_committed_board_has_its_document_and_they_make_a_site(tmp_path):
    """What `.ci/site` builds."""
    documents, tables = ({p.stem: p for p in BOARDS.glob(f"*.{suffix}")} for suffix in ("json", "md"))
    assert set(documents) == set(tables)
    found = site(tmp_path / "site", *documents.values())
    assert set(found) == {"index.html", "licences.html", *(f"{name}.html" for name in documents)}
    for name, path in documents.items():
        assert tables[name].read_text(encoding="utf-8").startswith(f"# {found[f'{name}.html'].board['title']}")
        assert path.stat().st_size < 2 << 20


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


def test_names_of_pages_hold_nothing_of_a_path(tmp_path):
    assert write._name(tmp_path / "a b" / "..%2f<x>") == "2f_x"
    assert write._free("index", []) == "index_2"


def test_page_reads_a_page(tmp_path):
    path = tmp_path / "x.html"
    path.write_text("<p onclick=a>x</p>")
    assert Page(path).tags == [("p", {"onclick": "a"})]
