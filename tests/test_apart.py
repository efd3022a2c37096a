"""Processes for plugin code: values that come back, endings, time limits, and the plugins' announcements that are remembered."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedbench.core.apart.channel import Channel, at_work
from fedbench.core.apart.child import Child, Patience
from fedbench.core.contract.errors import UserError
from fedbench.core.registry import ask as ask_module
from fedbench.core.registry.ask import Defect, Ended, ask, ask_each
from fedbench.core.spec.suite import Setting

SOON = Patience(cpu_s=1.0, idle_s=1.0)


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def all_of(work, limits: Patience | None = None) -> tuple[list, Child]:
    """Every message of a child process that does ``work``, and the child."""
    child = Child(work, limits or Patience())
    return list(child), child


# --- a child process ---------------------------------------------------------------------------------------------------


def test_values_and_arrays_come_back_as_they_were():
    arrays = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros((0, 5), bool), "c": np.array(7, np.int64),
        "big": np.random.default_rng(0).normal(size=300_000), "cut": np.arange(10)[::2],
    }  # fmt: skip
    (message,), child = all_of(lambda out: out.send("here", {"x": [1, None, "é"]}, arrays))
    assert (message.kind, message.value, child.ending) == ("here", {"x": [1, None, "é"]}, "")
    assert message.arrays.keys() == arrays.keys()
    for name, a in arrays.items():
        np.testing.assert_array_equal(message.arrays[name], a)
        assert message.arrays[name].dtype == a.dtype


def test_the_childs_changes_of_memory_and_environment_stay_there():
    mine = np.zeros(3)

    def work(out: Channel) -> None:
        mine[:] = 9
        os.environ["FEDBENCH_TEST_APART"] = "changed"
        out.send("sum", float(mine.sum()))

    (message,), _ = all_of(work)
    assert message.value == 27 and mine.sum() == 0 and "FEDBENCH_TEST_APART" not in os.environ


def closes_its_pipe(out: Channel) -> None:
    os.closerange(3, 100)
    os._exit(4)


@pytest.mark.parametrize("work, ending", [
    (lambda out: None, ""),
    (lambda out: os._exit(0), ""),
    (lambda out: sys.exit(3), "it ended the process with status 1"),
    (closes_its_pipe, "it ended the process with status 4"),
    (lambda out: os.kill(os.getpid(), 9), "it was killed by SIGKILL - out of memory?"),
], ids=["returns", "exit 0", "sys.exit", "closes its pipe", "SIGKILL"])  # fmt: skip
def test_the_ending_of_a_child_is_told(work, ending):
    messages, child = all_of(work)
    assert (messages, child.ending, child.timed_out) == ([], ending, False)


def spins_in_many_parts(out: Channel) -> None:
    for i in range(10_000):
        with at_work(f"part {i}"):
            sum(range(1_000_000))


def spins_in_a_process_of_its_own(out: Channel) -> None:
    subprocess.run([sys.executable, "-c", "while True: pass"])


@pytest.mark.parametrize("work, why", [
    (spins_in_many_parts, "it used more than 1 s of CPU"),
    (spins_in_a_process_of_its_own, "it used more than 1 s of CPU"),
    (lambda out: time.sleep(3600), "nothing moved for 1 s"),
], ids=["spins", "spins elsewhere", "sleeps"])  # fmt: skip
def test_a_child_that_does_not_end_is_ended(work, why):
    messages, child = all_of(work, SOON)
    assert (messages, child.ending, child.timed_out) == ([], why, True)
    assert not psutil.pid_exists(child.pid)


def test_a_message_renews_the_idle_time_and_the_work_that_hangs_is_named():
    def work(out: Channel) -> None:
        with at_work("the slow one"):
            for i in range(5):
                time.sleep(0.3)
                out.send("round", i)
            time.sleep(3600)

    messages, child = all_of(work, SOON)
    assert [m.value for m in messages] == list(range(5))
    assert (child.who, child.ending) == ("the slow one", "nothing moved for 1 s")


def test_the_processes_that_a_child_started_end_with_it():
    def work(out: Channel) -> None:
        out.send("pid", subprocess.Popen(["sleep", "3600"]).pid)
        time.sleep(3600)

    child = Child(work, Patience())
    pid = next(iter(child)).value
    child.end()
    assert not psutil.pid_exists(child.pid) and not runs(pid)


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


@pytest.mark.parametrize(("value", "name"), [(Own, r"test_apart\.Own"), (lambda: os.system, r"posix\.system")], ids=["own", "os"])
def test_an_object_that_is_no_plain_data_is_refused(value, name):
    with pytest.raises(UserError, match=f"'{name}' came back from a plugin where plain data was expected"):
        ask(value)


@pytest.mark.parametrize("name", ["subprocess.Popen", "metadata.email.message.Message"])
def test_a_forged_pickle_calls_nothing_that_a_module_of_fedbench_imports(name, monkeypatch):
    def forged(value):
        words = [f"\x8c{chr(len(word))}{word}" for word in ("fedbench.core.execution.provenance", name, "true")]
        return base64.b64encode(f"\x80\x04{words[0]}{words[1]}\x93]({words[2]}e\x85R.".encode("latin1")).decode()

    monkeypatch.setattr(ask_module, "_packed", forged)
    with pytest.raises(UserError, match=rf"'fedbench\.core\.execution\.provenance\.{re.escape(name)}' came back from a plugin"):
        ask(lambda: "nothing")


@pytest.mark.parametrize(("question", "error", "says"), [
    (lambda: raising(UserError("one", "two")), UserError, "one\ntwo"),
    (lambda: raising(FileNotFoundError(2, "No such file", "/x")), FileNotFoundError, r"No such file: '/x'"),
    (lambda: 1 / 0, Defect, "ZeroDivisionError: division by zero"),
    (lambda: os._exit(0), Ended, "it ended the process with status 0"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), Ended, "it was killed by SIGKILL"),
], ids=["refusal", "no file", "defect", "exit 0", "SIGKILL"])  # fmt: skip
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
