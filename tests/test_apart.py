"""Processes for plugin code: limits of time, answers, refusals and errors that come back."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

import psutil
import pytest

from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import Defect, Ended, ask, ask_each
from fedbench.core.process.channel import Channel, at_work
from fedbench.core.process.child import Child, Patience
from fedbench.core.registry import ask as ask_module
from fedbench.core.spec.suite import Setting

SOON = Patience(cpu_s=1.0, idle_s=1.0)


def all_of(work, limits: Patience | None = None) -> tuple[list, Child]:
    """Every message of a child process that does ``work``, and the child."""
    child = Child(work, limits or Patience())
    return list(child), child


# --- a child process ---------------------------------------------------------------------------------------------------


def spins_in_many_parts(out: Channel) -> None:
    for i in range(10_000):
        with at_work(f"part {i}"):
            sum(range(1_000_000))


def spins_in_a_process_of_its_own(out: Channel) -> None:
    subprocess.run([sys.executable, "-c", "while True: pass"])


@pytest.mark.parametrize("work", [spins_in_many_parts, spins_in_a_process_of_its_own])
def test_a_child_that_uses_more_cpu_than_allowed_is_ended(work):
    messages, child = all_of(work, SOON)
    assert (messages, child.ending, child.timed_out) == ([], "it used more than 1 s of CPU", True)
    assert not psutil.pid_exists(child.pid)


def test_a_message_renews_the_idle_time_and_the_work_that_hangs_is_named():
    def work(out: Channel) -> None:
        with at_work("the slow one"):
            for i in range(3):
                time.sleep(0.4)
                out.send("round", i)
            time.sleep(3600)

    messages, child = all_of(work, SOON)
    assert [m.value for m in messages] == list(range(3))
    assert (child.who, child.ending) == ("the slow one", "nothing moved for 1 s")


@pytest.mark.parametrize("content", [b'["x", 1, [["a", "<f8", [3]]]]', b"\xff"], ids=["array cut short", "no JSON"])
def test_a_message_that_cannot_be_read_ends_its_sender(content):
    def work(out: Channel) -> None:
        out.connection.send_bytes(content)
        out.connection.send_bytes(b"short")
        time.sleep(3600)

    messages, child = all_of(work)
    assert messages == [] and child.ending.startswith("what it sent cannot be read (") and not child.timed_out
    assert not psutil.pid_exists(child.pid)


# --- a question to plugin code -----------------------------------------------------------------------------------------


class View(StrEnum):
    """A text of a plugin's own class."""

    SERVER = "server"


class Own:
    """An object of a plugin's class."""


def raising(error: BaseException):
    raise error


def test_plain_values_and_settings_come_back_and_texts_lose_their_class():
    federation = {"clients": 4, "rounds": 2, "batch_size": 5, "optimizer": {"lr": 0.1}}
    setting = Setting.model_validate({"name": "a", "dataset": "digits", "federation": federation})
    value = [None, 3, "é", {"a": (1, {2}), "path": Path("y")}, setting, View.SERVER]
    found = ask(lambda: value)
    assert found == value and type(found[-1]) is str


def test_an_object_that_is_no_plain_data_is_refused():
    with pytest.raises(UserError, match=r"'test_apart\.Own' came back from a plugin where plain data was expected"):
        ask(Own)


@pytest.mark.parametrize("name", ["subprocess.Popen", "metadata.email.message.Message"])
def test_a_forged_pickle_calls_nothing_that_a_module_of_fedbench_imports(name, monkeypatch):
    def forged(value):
        words = [f"\x8c{chr(len(word))}{word}" for word in ("fedbench.core.run.provenance", name, "true")]
        return base64.b64encode(f"\x80\x04{words[0]}{words[1]}\x93]({words[2]}e\x85R.".encode("latin1")).decode()

    monkeypatch.setattr(ask_module, "_packed", forged)
    with pytest.raises(UserError, match=rf"'fedbench\.core\.execution\.provenance\.{re.escape(name)}' came back from a plugin"):
        ask(lambda: "nothing")


@pytest.mark.parametrize(("question", "error", "says"), [
    (lambda: raising(UserError("one", "two")), UserError, "one\ntwo"),
    (lambda: raising(FileNotFoundError(2, "No such file", "/x")), FileNotFoundError, r"No such file: '/x'"),
    (lambda: 1 / 0, Defect, "ZeroDivisionError: division by zero"),
    (lambda: os._exit(0), Ended, "it ended the process with status 0"),
], ids=["refusal", "no file", "defect", "exit 0"])  # fmt: skip
def test_the_error_of_a_question_is_raised_by_the_asker(question, error, says):
    with pytest.raises(error, match=says):
        ask(question)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ValueError])
def test_an_exception_of_a_plugin_names_it(error):
    def question() -> None:
        with at_work("outer"), at_work("attack 'x' (pack 1.0)"):
            raise error

    with pytest.raises(UserError, match=r"^attack 'x' \(pack 1\.0\): "):
        ask(question)


def test_printed_lines_are_shown_without_terminal_escapes(capsys):
    def question(_: int) -> None:
        print("\x1b[31mred\x1b[0m \u202e end")
        os.write(1, b"below \xff\rPython")

    list(ask_each([0], question))
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "\\u001b[31mred\\u001b[0m \\u202e end\nbelow \\xff\nPython\n"
    list(ask_each([0], question, quiet=True))
    assert capsys.readouterr().err == ""
