"""Reports by name, the rooms of the leaderboard, a metric's table, and what defenses say of their runs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from boards import LEAK, Folder, board, row_of, rows_of, sections_of, table_of
from fake_packages import install

import fedbench.leaderboard
from fedbench.core.cli.main import main
from fedbench.core.metrics import groups, registry
from fedbench.core.store import validity
from fedbench.leaderboard.board import MarkdownBoard

ROOMS = Path(fedbench.leaderboard.__file__).parent

REPORT = """
    from fedbench.core import Component, Report, Summary, Table, hookimpl
    from fedbench.leaderboard.document import document, source_of

    class Page(Report):
        def write(self, results, plots=True):
            path = results / "leaderboard" / "index.html"
            path.parent.mkdir(exist_ok=True)
            blocks = document(source_of(results), plots)
            path.write_text("".join(f"<h2>{b.title}</h2>" for b in blocks if isinstance(b, Table)))
            return path

        def summary(self, results):
            return Summary(["pages"], [["one"]])

    @hookimpl
    def fedbench_reports():
        yield Component("NAME", "my_report:Page", "a page")
"""


@pytest.fixture
def results(tmp_path):
    """A results folder of one seed, with its marker."""
    folder = Folder(tmp_path / "results", LEAK).fill(seeds=(0,))
    (folder.root / "fedbench.json").write_text(json.dumps({"schema_version": 2, "suite": "demo", "cells": [], "title": "T"}))
    return folder.root


def provide(tmp_path, monkeypatch, name):
    monkeypatch.delitem(sys.modules, "my_report", raising=False)  # another test's
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "my_report", REPORT.replace("NAME", name))))


# ---------------------------------------------------------------- reports by name


def test_the_board_is_the_default_report_and_prints_its_summary(results, capsys):
    assert main(["leaderboard", str(results), "--no-plots"]) == 0
    shown = capsys.readouterr().out
    assert f"board: {results / 'leaderboard' / 'board.md'}" in shown and "worst AUC" in shown
    assert (results / "leaderboard" / "board.md").read_text().startswith("# T\n")


def test_a_report_of_another_package_is_called_by_its_name_beside_ours(results, tmp_path, monkeypatch, capsys):
    provide(tmp_path, monkeypatch, "html")
    out = tmp_path / "copy.html"
    assert main(["leaderboard", str(results), "--report", "html", "--report", "board", "--no-plots", "--output", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "html: " in shown and "board: " in shown and "pages" in shown
    titles = ["At a glance", "Ranking", "Clean samples and canaries", "AUC by attack"]
    assert out.read_text().startswith("".join(f"<h2>{title}</h2>" for title in titles))
    assert (results / "leaderboard" / "board.md").exists()


def test_a_package_that_claims_our_report_is_an_error_that_names_both(results, tmp_path, monkeypatch, capsys):
    provide(tmp_path, monkeypatch, "board")
    assert main(["leaderboard", str(results)]) == 2
    said = capsys.readouterr().err
    assert "report 'board' is claimed by" in said and "fedbench 0.1.0" in said and "my_report 1.0" in said
    assert not (results / "leaderboard").exists()


@pytest.mark.parametrize(("body", "why"), [("1 / 0", "ZeroDivisionError"), ("return None", "write returned NoneType"),
                                           ("raise SystemExit(3)", "it called sys.exit(3)")])  # fmt: skip
def test_a_report_that_fails_costs_itself_alone(results, tmp_path, monkeypatch, capsys, body, why):
    source = REPORT.replace("NAME", "html").replace("path = results /", f"{body}\n            path = results /")
    monkeypatch.delitem(sys.modules, "my_report", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "my_report", source)))
    assert main(["leaderboard", str(results), "--report", "html", "--report", "board", "--no-plots"]) == 2
    said = capsys.readouterr()
    assert f"report 'html': {'TypeError: ' if 'None' in why else ''}{why}" in said.err and "board: " in said.out


def test_an_unknown_report_lists_those_there_are_before_anything_is_written(results, tmp_path, monkeypatch, capsys):
    provide(tmp_path, monkeypatch, "html")
    assert main(["leaderboard", str(results), "--report", "board", "--report", "htlm"]) == 2
    said = capsys.readouterr().err
    assert "unknown report 'htlm' - did you mean 'html'?; the reports are html, board" in said
    assert not (results / "leaderboard").exists()


# ---------------------------------------------------------------- rooms


ALLOWED = {  # what each room may import of the others
    "claims": {"claims"},
    "statistics": {"claims", "statistics"},
    "tables": {"claims", "statistics", "tables"},
    "figures": {"statistics", "figures"},
    "markdown": {"markdown"},
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", ALLOWED)
def test_arrows_between_the_rooms_point_one_way(room):
    files = sorted((ROOMS / room).glob("*.py"))
    assert len(files) > 1
    for path in files:
        for module in imports_of(path):
            if module.startswith("fedbench.leaderboard"):
                assert module.split(".")[2] in ALLOWED[room], f"{path.name} imports {module}"
            assert not module.startswith(("fedbench.plugins", "torch")), f"{path.name} imports {module}"
            if room != "markdown":
                assert module != "tabulate", f"{path.name} renders"


@pytest.mark.parametrize("room", ["statistics", "tables"])
def test_statistics_and_tables_hold_no_markdown(room):
    for path in (ROOMS / room).glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                assert not any(mark in node.value for mark in ("**", "`", "|", "](", "## ")), f"{path.name}: {node.value!r}"


def test_neither_core_nor_plugins_import_the_leaderboard():
    root = ROOMS.parent
    for path in [*(root / "core").rglob("*.py"), *(root / "plugins").rglob("*.py")]:
        assert not any(module.startswith("fedbench.leaderboard") for module in imports_of(path)), path


def test_analyses_import_public_names_only():
    for path in (ROOMS.parent / "plugins" / "analyses").glob("*.py"):
        for module in imports_of(path):
            if module.startswith("fedbench") and not module.startswith("fedbench.plugins.analyses"):
                assert module == "fedbench.core", f"{path.name} imports {module}"


def test_a_board_is_made_without_torch(results):
    code = f"""
import sys
from pathlib import Path
from fedbench.leaderboard.board import MarkdownBoard
MarkdownBoard().write(Path({str(results)!r}))
assert "torch" not in sys.modules, "torch"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- a metric's table


def test_a_metric_of_the_registry_has_a_table_and_a_column_of_the_summary_without_another_change(tmp_path, monkeypatch):
    """As measured, against outside non-members; ``direction`` higher: the worst case is the lowest."""
    share = registry.Metric(
        name="share", title="calm", summary="share of non-members below the median member", unit="pp", direction="higher",
        low=0, high=100, digits=1, value=lambda s, m: 100 * float((s[~m] < s[m].mean()).mean()), error=lambda b: 0.5, board=True,
    )  # fmt: skip
    for module in (registry, groups, validity):
        monkeypatch.setattr(module, "METRICS", (*registry.METRICS[:4], share))
    folder = Folder(tmp_path / "r", LEAK).fill()
    rows = {r["defense"]: r for r in rows_of(board(folder), "**calm as measured (pp)**")}
    assert list(rows["mixup"]) == ["#", "defense", *folder.attacks]
    table = table_of(folder, "calm as measured (pp)")
    by_label = {row[1] if isinstance(row[1], str) else row[1][0]: row for row in table.rows}
    assert {c.direction for c in table.columns[2:]} == {"higher"} and {c.digits for c in table.columns[2:]} == {1}
    (section,) = sections_of(folder)
    for label, row in by_label.items():
        assert not row[2].best and not row[3].best  # nothing is tested here, so nothing is told apart
        assert all(v.half_width >= 1.96 * 0.5 / 6**0.5 * 0.999 for v in row[2:])  # from value and error
        assert [v.mean for v in row[2:]] == [
            row_of(section, label).entries[a].interval("share", "ofl").mean for a in folder.attacks
        ]
    found = MarkdownBoard().summary(folder.root)
    worst = {row[found.headers.index("defense")]: row[found.headers.index("worst calm pp")] for row in found.rows}
    assert worst == {label: f"{min(row[2].mean, row[3].mean):.1f}" for label, row in by_label.items()}


def test_a_metric_that_records_do_not_have_yet_is_not_applicable(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "r", LEAK).fill(seeds=(0,))
    new = replace(registry.metric("advantage"), name="new", title="new", board=True)
    monkeypatch.setattr(registry, "METRICS", (*registry.METRICS, new))
    assert "**new as measured**: n/a throughout, since no record has what it needs." in board(folder)
    assert "worst new" in MarkdownBoard().summary(folder.root).headers


# ---------------------------------------------------------------- what defenses say of their runs


def test_facts_are_means_over_seeds_with_their_range_and_words_where_they_are_no_numbers(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0, "dp|": 0.2}).fill(seeds=())
    for seed in range(3):
        for attack in folder.attacks:
            folder.add("none", attack, seed)
            said = {"epsilon": 8.0 + seed, "rounds": 30, "unit": "sample" if seed else "client_<b>", "tight": True,
                    "choices": list(range(seed, seed + 9)), "steps": [seed] * (5 + seed), "few": ["a", "b"],
                    "nothing": []}  # fmt: skip
            folder.add("dp|", attack, seed, facts=said)
    text = board(folder)
    rows = {r["fact"]: r["value"] for r in rows_of(text, "**What the defenses say of their runs**")}
    assert rows == {
        "epsilon": "9 (8 to 10)", "rounds": "30", "unit": r"client\_&lt;b&gt; / sample", "tight": "yes",
        "choices": "1; 2; 3; 4; 5; 6; 7; 8; 9", "steps": "5 values, all 0 / 6 values, all 1 / 7 values, all 2",
        "few": "a, b", "nothing": "none",
    }  # fmt: skip
    assert text.index("**What the defenses say") > text.index("**AUC by attack")
    assert {r["defense"] for r in rows_of(text, "**What the defenses say")} == {r"dp\|"}


def test_whichever_defense_claims_an_epsilon_has_it_in_its_row(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.0, "dp": 0.2, "two": 0.3, "half": 0.4, "odd": 0.5}).fill(seeds=())
    for seed in range(2):
        two = {f"{who}: {name}": value for who, epsilon in (("A 1", 2.0), ("B 2", [3.5, 1500.0])) for name, value in
               {"epsilon": epsilon, "delta": 1e-6, "unit of privacy": "client"}.items()}  # fmt: skip
        said = {
            "none": {}, "dp": {"epsilon": 7.5 + seed / 2, "delta": 1e-5, "unit of privacy": "<b>|ex"}, "two": two,
            "half": {"epsilon": 1.0, "delta": 1e-5} | ({"unit of privacy": "example"} if seed else {}),
            "odd": {"epsilon": "small", "delta": 1e-5, "unit of privacy": "example", "claimed epsilon (one round)": 1.0},
        }  # fmt: skip
        for label, attack in ((label, a) for label in folder.leak for a in folder.attacks):
            folder.add(label, attack, seed, facts=said[label])
    shown = {
        "none (undefended)": "", "half": "", "odd": "", "dp": "\u03b5 = 7.5 to 8, \u03b4 = 1e-05, &lt;b&gt;\\|ex",
        "two": "\u03b5 = 2, \u03b4 = 1e-06, client; \u03b5 = 3.5 to 1,500, \u03b4 = 1e-06, client",
    }  # fmt: skip
    assert {r["defense"]: r["claims"] for r in rows_of(board(folder), "**Ranking**")} == shown
    _, *notes = MarkdownBoard().summary(folder.root).notes
    assert sorted(notes) == ["dp claims \u03b5 = 7.5 to 8, \u03b4 = 1e-05, <b>|ex", f"two claims {shown['two']}"]


def test_a_board_without_claims_has_no_column_for_them(tmp_path):
    folder = Folder(tmp_path / "r", LEAK).fill(seeds=(0,), facts={"claimed epsilon (one round)": 4.0, "delta": 1e-5})
    assert "claims" not in rows_of(board(folder), "**Ranking**")[0]
    assert not any("claims" in note for note in MarkdownBoard().summary(folder.root).notes)


def test_a_board_without_facts_says_nothing_of_them(tmp_path):
    assert "What the defenses say" not in board(Folder(tmp_path / "r", LEAK).fill(seeds=(0,)))


def test_published_numbers_are_read_under_their_old_name_too(results):
    marker = json.loads((results / "fedbench.json").read_text())
    entry = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 1", "dataset": "cifar100", "model": "resnet18"}}
    texts = []
    for key in ("published", "reference"):
        (results / "fedbench.json").write_text(json.dumps({**marker, key: [entry]}))
        texts.append(MarkdownBoard().write(results, plots=False).read_text())
    assert texts[0] == texts[1] and "## Beside the paper" in texts[0]
