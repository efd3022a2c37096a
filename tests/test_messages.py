"""Messages: the place in plugin code where an error was raised, and text without orders to the
terminal.
"""

from __future__ import annotations

import importlib
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from fake_packages import install
from hypothesis import given, settings
from hypothesis import strategies as st
from running import settings_of, suite

from fedbench.core.cli.main import cli
from fedbench.core.words import describe_error, full_traceback, one_line, printable, printable_lines

# --- where an error was raised --------------------------------------------------------------------


def caught(does: Callable[[], Any]) -> BaseException:
    """What it raises, as the engine has it: from its own call of the plugin on."""
    with pytest.raises(BaseException) as info:
        does()
    error = info.value
    while (
        error.__traceback__ is not None
        and error.__traceback__.tb_frame.f_globals["__name__"] == __name__
    ):
        error.__traceback__ = error.__traceback__.tb_next
    return error


def test_everything_is_bounded_and_printable(site):
    (site / "their_defense.py").write_text("def deep(n):\n    return deep(n + 1)\n")
    theirs = importlib.import_module("their_defense")
    traceback = full_traceback(caught(lambda: theirs.deep(0)))
    assert len(traceback.splitlines()) < 130 and "Previous line repeated" in traceback
    source = f"def {'x' * 3000}():\n raise ValueError('\\x1b[31m' + 'y' * 10**6)\n{'x' * 3000}()"
    long = caught(lambda: exec(compile(source, "\x1b", "exec"), {"__name__": "theirs"}))
    for text in (describe_error(long), full_traceback(long)):
        assert "\x1b" not in text and max(map(len, text.splitlines())) <= 801
    assert len(describe_error(long)) <= 801


# --- printable text -------------------------------------------------------------------------------

# escape sequences, right to left, an isolate, without width, a surrogate
EVIL = "nice\x1b[31m\x1b]0;title\x07\u202e\u2066\u200b\u061c\x9b2J\r\ud800name"


def harmless(text: str) -> bool:
    """No control, format, surrogate or private character; line breaks alone between lines."""
    orders = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return [c for c in text.replace("\n", "") if unicodedata.category(c) in orders] == []


@settings(max_examples=50)
@given(st.text())
def test_a_printable_text_has_no_order_for_a_terminal_and_keeps_what_can_be_seen(text):
    shown = printable(text)
    assert harmless(shown) and "\n" not in shown and printable(shown) == shown
    assert harmless(one_line(text)) and harmless(printable_lines(text))
    plain = [c for c in text if unicodedata.category(c)[0] in "LNP" and harmless(c)]
    assert [c for c in plain if c not in shown] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grad-noise[sigma=0.1] ± 3 日本語 עברית é", "grad-noise[sigma=0.1] ± 3 日本語 עברית é"),
        ("a\tb\nc\u2028d", "a b c d"),
        ("\x1b[31mred\u202ey", "\\u001b[31mred\\u202ey"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_hidden_is_shown_as_its_code(text, shown):
    assert printable(text) == shown


PLUGIN = f"""
from fedbench.core import Component, Dataset, Defense, Params, hookimpl
from pydantic import Field

SAID = {EVIL!r}

@hookimpl
def fedbench_defenses():
    yield Component("shield", "evil:Shield", "a [red] rag")

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


@pytest.mark.parametrize(("command", "shown"), [("list", "a [red] rag"), ("plugins", "\\u200b")])
def test_a_plugins_words_of_itself_are_printable(site, command, shown):
    install(site, "evil", PLUGIN)
    install(site, "worse", f"raise ImportError({EVIL!r})")
    result = CliRunner().invoke(cli, [command])
    assert result.exit_code == 0 and harmless(result.output) and shown in result.output
    assert not {"evil", "worse"} & sys.modules.keys()  # they are asked in a process of their own


@pytest.mark.parametrize(
    ("words", "change", "status", "shown"),
    [
        (["validate", "--no-data"], {"a\u202e\x1bb": 1}, 2, "a\\u202e\\u001bb: unknown field"),
        (
            ["validate"],
            {"settings": "sets", "title": "x\u202ey\x1b[2J"},
            2,
            "dataset 'sets' (evil 1.0): ValueError: nice",
        ),
        (
            ["validate", "--no-data"],
            {"attacks": [{"name": "loss-series", "label": "loss\u200b"}]},
            2,
            "attacks[0].label: 'loss\\u200b' has a character that cannot be seen: remove it",
        ),
    ],
    ids=["unknown field", "data", "label"],
)
def test_the_words_of_a_suite_and_of_a_failing_plugin_are_printable(
    tmp_path, site, words, change, status, shown
):
    install(site, "evil", PLUGIN)
    if "settings" in change:
        change = {
            **change,
            "settings": settings_of(tmp_path, {"dataset": change["settings"], "model": "mlp"}),
        }
    result = CliRunner().invoke(cli, [*words, str(suite(tmp_path, **change))])
    assert result.exit_code == status and shown in result.output and harmless(result.output), (
        result.output
    )
