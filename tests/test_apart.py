"""A process for other people's code: what comes back, how its end is told, what stops it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from fedbench.core.apart.channel import Channel, at_work
from fedbench.core.apart.child import Child, Patience

FOR_EVER = Patience()
SOON = Patience(cpu_s=1.0, idle_s=1.0)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended: whom nobody waited for stays as a zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def all_of(work, patience: Patience = FOR_EVER) -> tuple[list, Child]:
    """Every message of a child that does ``work``, and the child."""
    child = Child(work, patience)
    return list(child), child


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


@pytest.mark.parametrize("value, arrays", [({1j}, {}), (None, {"o": np.array([object()])}), (float, {})])
def test_only_plain_things_are_sent(value, arrays):
    def work(out: Channel) -> None:
        try:
            out.send("x", value, arrays)
        except (TypeError, ValueError) as error:
            out.send("refused", type(error).__name__)

    (message,), _ = all_of(work)
    assert message.kind == "refused"


def test_nothing_that_it_does_to_memory_comes_back():
    mine = np.zeros(3)

    def work(out: Channel) -> None:
        mine[:] = 9
        os.environ["FEDBENCH_TEST_APART"] = "changed"
        out.send("sum", float(mine.sum()))

    (message,), _ = all_of(work)
    assert message.value == 27 and mine.sum() == 0 and "FEDBENCH_TEST_APART" not in os.environ


@pytest.mark.parametrize("work, ending", [
    (lambda out: None, ""),
    (lambda out: sys.exit(3), "it ended the process with status 1"),
    (lambda out: os._exit(0), ""),
    (lambda out: os._exit(5), "it ended the process with status 5"),
    (lambda out: os.abort(), "it was killed by SIGABRT"),
    (lambda out: os.kill(os.getpid(), 9), "it was killed by SIGKILL - out of memory?"),
])  # fmt: skip
def test_how_it_ended(work, ending):
    messages, child = all_of(work)
    assert (messages, child.ending, child.timed_out) == ([], ending, False)


def spin(out: Channel) -> None:
    while True:
        pass


def spin_elsewhere(out: Channel) -> None:
    subprocess.run([sys.executable, "-c", "while True: pass"])


@pytest.mark.parametrize("work, why", [
    (spin, "it used more than 1 s of CPU"),
    (spin_elsewhere, "it used more than 1 s of CPU"),
    (lambda out: time.sleep(3600), "nothing moved for 1 s"),
])  # fmt: skip
def test_what_does_not_end_is_ended(work, why):
    child = Child(work, SOON)
    assert list(child) == []
    assert (child.ending, child.timed_out) == (why, True)
    assert not psutil.pid_exists(child.pid)


def test_who_says_something_is_not_hung_and_who_is_at_work_is_known():
    def work(out: Channel) -> None:
        with at_work("the slow one"):
            for i in range(8):
                time.sleep(0.3)
                out.send("round", i)
            time.sleep(3600)

    child = Child(work, SOON)
    assert [m.value for m in child] == list(range(8))
    assert (child.who, child.ending) == ("the slow one", "nothing moved for 1 s")


def test_naming_who_is_at_work_gives_the_whole_no_new_budget():
    def work(out: Channel) -> None:
        for i in range(10_000):
            with at_work(f"part {i}"):
                sum(range(1_000_000))

    child = Child(work, SOON)
    assert list(child) == []
    assert (child.ending, child.timed_out) == ("it used more than 1 s of CPU", True)


def test_what_it_started_ends_with_it():
    def work(out: Channel) -> None:
        out.send("pid", subprocess.Popen(["sleep", "3600"]).pid)
        time.sleep(3600)

    child = Child(work, FOR_EVER)
    pid = next(iter(child)).value
    child.end()
    assert not psutil.pid_exists(child.pid)
    assert not runs(pid)


def test_a_child_that_closes_its_pipe_is_waited_for():
    def work(out: Channel) -> None:
        os.closerange(3, 100)
        os._exit(4)

    messages, child = all_of(work)
    assert (messages, child.ending) == ([], "it ended the process with status 4")


def test_a_copy_of_the_process_that_speaks_says_nothing():
    def work(out: Channel) -> None:
        os.fork()  # somebody forgot to end the copy
        for i in range(200):
            out.send("here", i, {"a": np.full(5, i)})

    messages, child = all_of(work)
    assert [(m.value, m.arrays["a"][0]) for m in messages] == [(i, i) for i in range(200)] and child.ending == ""


@pytest.mark.parametrize("bytes_", [b"[1]", b'["x", 1, [["a", "<f8", [3]]]]', b'["x", 1, [["a", "nonsense", [3]]]]', b"\xff"])
def test_what_cannot_be_read_ends_the_one_who_sent_it(bytes_):
    def work(out: Channel) -> None:
        out.connection.send_bytes(bytes_)
        out.connection.send_bytes(b"short")
        time.sleep(3600)

    messages, child = all_of(work)
    assert messages == [] and child.ending.startswith("what it sent cannot be read (") and not child.timed_out
    assert not psutil.pid_exists(child.pid)


@pytest.mark.slow
def test_who_works_on_after_a_helper_of_its_own_was_lost_is_not_hung(monkeypatch):
    """The time of a process that left the family is not counted any more: what is counted may become less."""
    counted = iter([5.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
    monkeypatch.setattr("fedbench.core.apart.child._cpu_of", lambda process: next(counted))
    messages, child = all_of(lambda out: time.sleep(4.5), Patience(idle_s=2.5))
    assert (messages, child.ending) == ([], "")
