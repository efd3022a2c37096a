"""`fedbench leaderboard --html`, and the command of a cell that a page offers to copy."""

from __future__ import annotations

import shlex
import sys

import pytest
from boards import LEAK, Folder
from bundles import make_folder
from hypothesis import given
from hypothesis import strategies as st
from site_boards import cells_of, marked, site

from fedbench.core.cli.options import parse_only
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.site import again, library, pages, write


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Four defenses, two attacks, three seeds, all complete."""
    return marked(Folder(tmp_path_factory.mktemp("demo") / "demo", LEAK).fill())


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The results of a suite of four cells, as a run leaves them."""
    return make_folder(tmp_path_factory.mktemp("planned"), defenses=["none", "mixup"], attacks=["loss-series", "avg-cosine"])


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


def test_names_of_pages_hold_nothing_of_a_path(tmp_path):
    assert write._name(tmp_path / "a b" / "..%2f<x>") == "2f_x"
    assert write._free("index", []) == "index_2"
