"""Processes for plugin code: limits of time, answers, refusals and errors that come back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from enum import StrEnum
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from fedbench.core import UserError
from fedbench.core.process.ask import Defect, Ended, ask, ask_each
from fedbench.core.process.channel import Channel, TimeLimits, at_work, trace
from fedbench.core.process.child import Child

SOON = TimeLimits(cpu_s=1.0, idle_s=1.0)


def all_of(work, limits: TimeLimits | None = None) -> tuple[list, Child]:
    """Every message of a child process that does ``work``, and the child."""
    child = Child(work, limits or TimeLimits())
    return list(child), child


# --- a child process ------------------------------------------------------------------------------


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
    assert (child.party, child.ending) == ("the slow one", "nothing moved for 1 s")


@pytest.mark.parametrize(
    "content", [b'["x", 1, [["a", "<f8", [3]]]]', b"\xff"], ids=["array cut short", "no JSON"]
)
def test_a_message_that_cannot_be_read_ends_its_sender(content):
    def work(out: Channel) -> None:
        out.connection.send_bytes(content)
        out.connection.send_bytes(b"short")
        time.sleep(3600)

    messages, child = all_of(work)
    assert messages == [] and not child.timed_out
    assert child.ending.startswith("what it sent cannot be read (")
    assert not psutil.pid_exists(child.pid)


def test_a_child_has_no_descriptor_of_its_parent_but_its_channel_and_output(tmp_path):
    reader, writer = os.pipe()  # as the one from a worker to the command

    def work(out: Channel) -> None:
        open_ones = [fd for fd in range(3, 256) if _is_open(fd)]
        out.send("found", [open_ones == [out.connection.fileno()], os.getsid(0) == os.getpid()])

    for printed in (None, lambda block: None):
        (message,) = list(Child(work, TimeLimits(), printed=printed))
        assert message.value == [True, printed is not None]
    os.close(reader)
    os.close(writer)


def test_multiprocessing_in_a_child_does_not_write_to_descriptors_that_were_closed(tmp_path):
    resource_tracker.ensure_running()

    def work(out: Channel) -> None:
        # one of them has the number of its pipe
        files = [(tmp_path / str(i)).open("wb", buffering=0) for i in range(20)]
        memory = SharedMemory(create=True, size=10)
        memory.close()
        memory.unlink()
        out.send("written", [f.tell() for f in files])

    ((message,), child) = all_of(work)
    assert message.value == [0] * 20 and not child.ending


def test_a_child_that_prints_without_end_is_ended_at_its_limit():
    def work(out: Channel) -> None:
        while True:
            os.write(1, b"x" * 10_000 + b"\n")

    limits = TimeLimits(cpu_s=0.02)  # it waits for its reader most of the time
    child = Child(work, limits, printed=lambda block: time.sleep(0.001))
    assert list(child) == [] and child.timed_out


@pytest.mark.parametrize("value", [3, [1], ["x", 3]])
def test_a_forged_message_of_who_works_ends_its_sender_alone(value):
    messages, child = all_of(lambda out: out.send("at work", value))
    assert messages == [] and child.ending.startswith("what it sent cannot be read (")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# --- a question to plugin code --------------------------------------------------------------------


class View(StrEnum):
    """A text of a plugin's own class."""

    SERVER = "server"


class Own:
    """An object of a plugin's class."""


def raising(error: BaseException):
    raise error


def test_plain_values_come_back_and_texts_lose_their_class():
    found = ask(lambda: [None, 3, "é", {"a": [1, 0.1]}, View.SERVER])
    assert found == [None, 3, "é", {"a": [1, 0.1]}, "server"] and type(found[-1]) is str


@pytest.mark.parametrize("value", [Own(), {1, 2}, Path("x")], ids=["object", "set", "path"])
def test_an_object_that_is_no_plain_data_is_refused(value):
    said = "a plugin's code returned a value that is not plain data: TypeError: Object of type"
    with pytest.raises(UserError, match=said):
        ask(lambda: value)


@pytest.mark.parametrize(
    ("question", "error", "says"),
    [
        (lambda: raising(UserError("one", "two")), UserError, "one\ntwo"),
        (
            lambda: raising(FileNotFoundError(2, "No such file", "/x")),
            FileNotFoundError,
            r"No such file: '/x'",
        ),
        (lambda: 1 / 0, Defect, "ZeroDivisionError: division by zero"),
        (lambda: os._exit(0), Ended, "it ended the process with status 0"),
    ],
    ids=["refusal", "no file", "defect", "exit 0"],
)
def test_the_error_of_a_question_is_raised_by_the_asker(question, error, says):
    with pytest.raises(error, match=says):
        ask(question)


def test_a_traceback_is_shown_and_is_no_answer(capsys):
    def question(item: int) -> int:
        trace(f"traceback {item}")
        return item

    assert [answer.get() for answer in ask_each([1, 2], question)] == [1, 2]
    assert "traceback 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ValueError]
)
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
    assert shown.out == ""
    assert shown.err == "\\u001b[31mred\\u001b[0m \\u202e end\nbelow \\xff\nPython\n"
    list(ask_each([0], question, quiet=True))
    assert capsys.readouterr().err == ""
