"""A forked process that runs other people's code, watched by the one that forked it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe, connection

import psutil

from fedbench.core.apart.channel import Channel, Message, speaks

_TICK_S = 0.25
_COUNT_EVERY_S = 1.0
_MOVES = 0.01  # of the time that may pass without news: whoever gets less of a processor than this does not move


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a process. ``cpu_s``: seconds of CPU that it and what it started may use; ``idle_s``: seconds by
    the clock in which it may neither say anything nor use a hundredth of them as CPU. None: for ever."""

    cpu_s: float | None = None
    idle_s: float | None = None


class Child:
    """``work`` in a process forked from this one, with all that is in memory here and nothing it does to it coming back.

    Iterate to get its messages, until it has ended; then ``ending`` says how, in words ("" where it ended by itself with
    status 0), and ``timed_out`` whether it was stopped. ``who``: the party it last named as being at work.
    """

    def __init__(self, work: Callable[[Channel], None], patience: Patience, tick: Callable[[], None] = lambda: None) -> None:
        self.patience, self.tick = patience, tick
        self.who, self.ending, self.timed_out = "", "", False
        mine, theirs = Pipe(duplex=False)
        for text in (sys.stdout, sys.stderr):
            text.flush()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            _serve(work, Channel(theirs))
        theirs.close()
        self._channel, self._open = Channel(mine), True
        self._status: int | None = None
        self._process = _process(self.pid)
        self._counted, self._moved = time.monotonic(), (time.monotonic(), 0.0)

    def __iter__(self) -> Iterator[Message]:
        try:
            while self._status is None:
                ready = connection.wait([self._channel.connection] if self._open else [], timeout=_TICK_S)
                while ready and self._open and self._channel.connection.poll():
                    message = self._receive()
                    if message is not None and message.kind == "at work":
                        self.who = message.value
                    elif message is not None:
                        yield message
                self.tick()
                self._look_after()
            while self._open and self._channel.connection.poll():  # what it said last
                message = self._receive()
                if message is not None and message.kind != "at work":
                    yield message
        finally:
            self.end()

    def more_cpu(self, seconds: float) -> None:
        """From now on it may use so many seconds of CPU, whatever it has used before."""
        used = 0.0 if self._process is None else _cpu_of(self._process)
        self.patience = replace(self.patience, cpu_s=used + seconds)

    def end(self) -> None:
        """Stop it, and what it started."""
        if self._status is None:
            _kill(self._process)
            self._reap(block=True)
        self._channel.connection.close()
        self._open = False

    def _receive(self) -> Message | None:
        try:
            message = self._channel.receive()
        except (EOFError, OSError, ValueError):
            self._open = False
            return None
        self._moved = (time.monotonic(), self._moved[1])
        return message

    def _look_after(self) -> None:
        self._reap(block=not self._open and self.patience == Patience())
        if self._status is not None or self._process is None:
            return
        now = time.monotonic()
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted, used, why = now, _cpu_of(self._process), ""
        if self.patience.cpu_s is not None and used > self.patience.cpu_s:
            why = f"it used more than {self.patience.cpu_s:g} s of CPU"
        elif self.patience.idle_s is not None:
            since, before = self._moved
            if used - before > _MOVES * self.patience.idle_s:
                self._moved = (now, used)
            elif now - since > self.patience.idle_s:
                why = f"nothing moved for {self.patience.idle_s:g} s"
        if why:
            self.timed_out, self.ending = True, why
            _kill(self._process)
            self._reap(block=True)

    def _reap(self, block: bool) -> None:
        if self._status is not None:
            return
        pid, status = os.waitpid(self.pid, 0 if block else os.WNOHANG)
        if pid:
            self._status = os.waitstatus_to_exitcode(status)
            self.ending = self.ending or _words(self._status)


def _serve(work: Callable[[Channel], None], channel: Channel) -> None:
    """The forked process, from its first to its last instruction: nothing of the forking one's is run at its end."""
    status = 1
    try:
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(s, signal.SIG_DFL)
        speaks(channel)
        work(channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for text in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                text.flush()
        os._exit(status)


def _words(status: int) -> str:
    if status < 0:
        return f"it was killed by {signal.Signals(-status).name}{' - out of memory?' if -status == signal.SIGKILL else ''}"
    return f"it ended the process with status {status}" if status else ""


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None  # it has ended already


def _family(process: psutil.Process | None) -> list[psutil.Process]:
    if process is None:
        return []
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _cpu_of(process: psutil.Process) -> float:
    """Seconds used by a process, those it waited for, and those it started that still live."""
    total = 0.0
    for one in _family(process):
        with contextlib.suppress(psutil.Error):  # ended in between
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _kill(process: psutil.Process | None) -> None:
    for one in reversed(_family(process)):
        with contextlib.suppress(psutil.Error):
            one.kill()
