"""Nothing that a plugin, a suite or a record says is an order to the terminal, or hides from whoever reads a board."""

from __future__ import annotations

import ast
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from boards import LEAK, Folder, board
from click.testing import CliRunner
from fake_packages import install
from good_suite import edited, write
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from running import suite

from fedbench.core.cli import table
from fedbench.core.cli.main import cli
from fedbench.core.cli.progress import Display
from fedbench.core.cli.run import build_plan
from fedbench.core.cli.tally import Tally
from fedbench.core.words.explain import bounded, one_line, printable, printable_lines

ROOT = Path(__file__).parents[1]
ESCAPE, RTL, ISOLATE, ZERO_WIDTH, FILLER = "\x1b[31m\x1b]0;title\x07", "\u202e", "\u2066", "\u200b", "\u3164"
EVIL = f"nice{ESCAPE}{RTL}{ISOLATE}{ZERO_WIDTH}{FILLER}\u061c\x9b2J\r\ud800name"
SEEN = "a\u115fb\u3164 [red]"  # what a check for printable characters takes
STORED = EVIL.replace("\ud800", "")  # no record can hold half a character


def harmless(text: str) -> bool:
    """No control, format, surrogate or private character; no letter of no width; line breaks alone between lines."""
    unseen = {"\u3164", "\u115f", "\u1160", "\uffa0", "\u2800", "\u034f"}
    orders = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return [c for c in text.replace("\n", "") if unicodedata.category(c) in orders or c in unseen] == []


@given(st.text())
def test_a_printable_text_has_no_order_for_a_terminal_and_keeps_what_can_be_seen(text):
    shown = printable(text)
    assert harmless(shown) and "\n" not in shown and printable(shown) == shown
    assert harmless(one_line(text)) and harmless(printable_lines(text))
    plain = [c for c in text if unicodedata.category(c)[0] in "LNP" and harmless(c)]
    assert [c for c in plain if c not in shown] == []


@pytest.mark.parametrize(("text", "shown"), [
    ("grad-noise[sigma=0.1] ± 3", "grad-noise[sigma=0.1] ± 3"), ("日本語 עברית é", "日本語 עברית é"),
    ("a\tb\nc\u2028d", "a b c d"), ("\x1b[31mred", "\\u001b[31mred"), ("x\u202ey", "x\\u202ey"),
    ("\U000e0041", "\\udb40\\udc41"), ("\ud800", "\\ud800"),
])  # fmt: skip
def test_what_is_hidden_is_shown_as_its_code(text, shown):
    assert printable(text) == shown


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_json_stays_the_same_json(value):
    text = json.dumps(value, indent=1, ensure_ascii=False)
    assert json.loads(printable_lines(text)) == value


def test_many_messages_become_few():
    found = bounded([f"m{i % 70}\nx" for i in range(1000)], what="f: and {} more")
    assert found == [*(f"m{i} x" for i in range(50)), "f: and 20 more"]


PLUGIN = f"""
from fedbench.core import Component, Dataset, Defense, Params, hookimpl
from pydantic import Field

SAID = {EVIL!r}

@hookimpl
def fedbench_defenses():
    yield Component("shield", "evil:Shield", {SEEN!r})

@hookimpl
def fedbench_datasets():
    yield Component("sets", "evil:Sets", "data")

class Shield(Defense):
    class Params(Params):
        strength: float = Field(0.1, description=SAID)

class Sets(Dataset):
    licence = citation = SAID

    @classmethod
    def here(cls):
        return SAID

    def load(self, seed):
        raise ValueError(SAID)
"""


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("words", [
    ["list"], ["list", "datasets"], ["list", "defenses", "--params"], ["list", "--json"], ["plugins"], ["doctor"],
])  # fmt: skip
def test_what_plugins_say_of_themselves_is_only_shown(site, monkeypatch, words, terminal):
    install(site, "evil", PLUGIN)
    install(site, "worse", f"raise ImportError({EVIL!r})")
    written = io.StringIO()
    if terminal:  # without rich's own colours
        monkeypatch.setattr(table, "_rich", lambda headers, rows, title: written.write(str([*headers, title, *map(list, rows)])))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0 and harmless(result.output) and harmless(written.getvalue())
    assert "\\u3164" in result.output + written.getvalue()


def test_a_suites_and_a_failing_plugins_words_are_only_shown(tmp_path, site):
    install(site, "evil", PLUGIN)
    text = edited(("dataset: digits", "dataset: sets"), ("name: small", 'name: small\n"a\\u202e\\eb": 1'))
    result = CliRunner().invoke(cli, ["validate", str(write(tmp_path, text))])
    assert result.exit_code == 2 and "a\\u202e\\u001bb: unknown field" in result.output and harmless(result.output)
    text = edited(("dataset: digits", "dataset: sets"), ("name: small", 'name: small\ntitle: "x\\u202ey\\e[2J"'))
    result = CliRunner().invoke(cli, ["validate", str(write(tmp_path, text))])
    assert result.exit_code == 2 and "dataset 'sets' (evil 1.0): ValueError: nice" in result.output and harmless(result.output)
    titled = edited(("pair, half", "pair"), ("name: small", 'name: small\ntitle: "x\\u202ey\\e[2J"'))
    result = CliRunner().invoke(cli, ["run", "--dry-run", str(write(tmp_path, titled))])
    assert result.exit_code == 0 and result.output.startswith("x\\u202ey\\u001b[2J: ") and harmless(result.output)


def test_a_label_that_hides_something_is_refused(tmp_path):
    text = edited(("- loss-series", '- {name: loss-series, label: "loss\\u200b"}'))
    result = CliRunner().invoke(cli, ["validate", "--no-data", str(write(tmp_path, text))])
    assert result.exit_code == 2
    assert "attacks[0].label: 'loss\\u200b' has a character that cannot be seen: remove it" in result.output


def test_progress_prints_reasons_as_they_can_be_seen(tmp_path):
    plan = build_plan(str(suite(tmp_path)), (), tmp_path / "r", "cpu")
    (job,) = plan.jobs
    for live in (False, True):
        written = io.StringIO()
        tally = Tally([job], plan.work, 0.0)
        with Display(Console(file=written, force_terminal=live, width=200), tally, EVIL) as display:
            display._started(job)
            display._cell(job, job.cells[0].key, "failed", EVIL + " [red]")
            display._finished(job)
        shown = re.sub(r"\x1b\[(\?25[lh]|\d[AK])|\r", "", written.getvalue())  # the display's own orders: hide, up, erase, show
        assert harmless(shown) and "[red]" in shown


def test_records_of_others_are_only_shown(tmp_path):
    folder = Folder(tmp_path / "r", {name: LEAK[name] for name in ("none", "mixup")}).fill(seeds=(0,))
    folder.add("mixup", "loss-series", 1, outcome="failed", reason=STORED)
    folder.add(f"mix{RTL}up", "loss-series", 2, outcome="failed", reason=STORED, stem="odd")
    (tmp_path / "r" / "fedbench-results.json").write_text("{}")
    text = board(folder)
    assert harmless(text) and "mix\\\\u202eup" in text


def test_commands_print_through_say_alone():
    for path in (ROOT / "core" / "cli").glob("*.py"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
        raw = [f for f in calls if ast.unparse(f) in ("click.echo", "click.secho", "print")]
        assert len(raw) == (path.name == "say.py"), path
