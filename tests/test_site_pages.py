"""The pages of a site: what is on them, and that nothing on them runs or is fetched."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from boards import LEAK, Folder
from hypothesis import given
from hypothesis import strategies as st
from site_boards import HOSTILE, Page, cells_of, hostile, marked, site

from fedbench.core.cli.options import parse_only
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.site import encode, pages
from fedbench.leaderboard.site.write import make_site


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


def test_the_licences_name_what_is_shipped(made, tmp_path, results):
    page = made["licences.html"]
    text = "".join(page.text)
    assert "bokeh" in text and "BSD-3-Clause" in text and "Apache-2.0" in text
    assert "Redistribution and use in source and binary forms" in text


def test_page_reads_a_page(tmp_path):
    path = tmp_path / "x.html"
    path.write_text("<p onclick=a>x</p>")
    assert Page(path).tags == [("p", {"onclick": "a"})]
