"""A forked process that runs other people's code, watched by the one that forked it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe, connection
from typing import Any

import psutil

from fedbench.core.apart.channel import Channel, Message, speaks
from fedbench.core.apart.output import Output
from fedbench.core.apart.parent import end_with_parent
from fedbench.core.apart.patience import Patience

__all__ = ["Child", "Patience"]

_TICK_S = 0.25
_SOON_S = 0.005
_COUNT_EVERY_S = 1.0
_MUCH = 1 << 16  # bytes written: a download moves, though it uses next to no CPU
_MOVES = 0.01  # of the time that may pass without news: whoever gets less of a processor than this does not move


class Child:
    """``work`` in a process forked from this one, with all that is in memory here and nothing it does to it coming back.

    Iterate to get its messages, until it has ended; then ``ending`` says how, in words ("" where it ended by itself with
    status 0), and ``timed_out`` whether it was stopped. ``who``: the party it last named as being at work.
    ``patience``: with all of it, but for who is at work with a patience of his own, which counts from when he began.
    ``printed`` takes what it prints, as it comes: it then has no input, and a group of its own, which ends with it. Without
    it, it prints and reads where this process does.
    """

    def __init__(
        self, work: Callable[[Channel], None], patience: Patience, tick: Callable[[], None] = lambda: None,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        self.patience, self.tick = patience, tick
        self.who, self.ending, self.timed_out = "", "", False
        mine, theirs = Pipe(duplex=False)
        self._output = None if printed is None else Output(printed)
        for text in (sys.stdout, sys.stderr):
            text.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            _serve(work, Channel(theirs), parent, self._output)
        theirs.close()
        if self._output is not None:
            self._output.forked()
        self._theirs: Patience | None = None
        self._before: float | None = 0.0
        self._channel, self._open = Channel(mine), True
        self._status: int | None = None
        self._process = _process(self.pid)
        self._counted, self._moved = time.monotonic(), (time.monotonic(), 0.0)
        self._traffic, self._printing = 0, True

    def __iter__(self) -> Iterator[Message]:
        try:
            while self._status is None:
                self._wait()
                while self._status is None and self._open and self._channel.connection.poll():
                    message = self._receive()
                    if message is not None and not self._heard(message):
                        yield message
                self.tick()
                self._look_after()
            while self._open and self._channel.connection.poll():  # what it said last
                message = self._receive()
                if message is not None and not self._heard(message):
                    yield message
        finally:
            self.end()

    def more_cpu(self, seconds: float) -> None:
        """From now on it may use so many seconds of CPU, whatever it has used before."""
        used = 0.0 if self._process is None else _cpu_of(self._process)
        self.patience = replace(self.patience, cpu_s=used + seconds)

    @property
    def limits(self) -> Patience:
        """The patience with who is at work."""
        return self._theirs or self.patience

    def end(self) -> None:
        """Stop it, and what it started."""
        if self._status is None:
            _kill(self._process)
            self._reap(block=True)
        if self._output is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it left running
            self._output.close()
            self._output = None
        self._channel.connection.close()
        self._open = False

    def _wait(self) -> None:
        """Until there is news, for a moment at most."""
        if not self._open:  # it is about to end, as a rule
            time.sleep(_SOON_S)
            return
        sources: list[Any] = [self._channel.connection]
        if self._output is not None and self._printing:
            sources.append(self._output.fd)
        ready = connection.wait(sources, timeout=_TICK_S)
        if self._output is not None and self._output.fd in ready:
            self._printing = self._output.drain()

    def _heard(self, message: Message) -> bool:
        """Whether a message was for this process alone."""
        if message.kind == "at work":
            self.who, limits = message.value
            self._theirs = None if limits is None else Patience(cpu_s=limits[0], idle_s=limits[1])
            self._before = 0.0 if limits is None else None  # None: as of when it is counted next
        elif message.kind == "said":
            print(message.value, file=sys.stderr)
        return message.kind in ("at work", "said", "moved")

    def _receive(self) -> Message | None:
        try:
            message = self._channel.receive()
        except (EOFError, OSError):
            self._open = False
            return None
        except Exception as error:  # somebody else's bytes in its pipe, or no memory for what it sent: nothing can follow
            self._open, self.ending = False, f"what it sent cannot be read ({type(error).__name__}: {error})"
            _kill(self._process)
            self._reap(block=True)
            return None
        self._moved = (time.monotonic(), self._moved[1])
        return message

    def _look_after(self) -> None:
        limits = self.limits
        self._reap(block=not self._open and limits == Patience())
        if self._status is not None or self._process is None:
            return
        now = time.monotonic()
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted, used, why = now, _cpu_of(self._process), ""
        self._before = used if self._before is None else self._before
        if limits.cpu_s is not None and used - self._before > limits.cpu_s:
            why = f"it used more than {limits.cpu_s:g} s of CPU"
        elif limits.idle_s is not None:
            since, before = self._moved[0], min(self._moved[1], used)  # what one that is gone had used is not counted any more
            self._moved = since, before
            traffic = _traffic_of(self._process)
            self._traffic = min(self._traffic, traffic)  # what one that ended had written is not counted any more
            if used - before > _MOVES * limits.idle_s or traffic - self._traffic > _MUCH:
                self._moved, self._traffic = (now, used), traffic
            elif now - since > limits.idle_s:
                why = f"nothing moved for {limits.idle_s:g} s"
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


def _serve(work: Callable[[Channel], None], channel: Channel, parent: int, output: Output | None) -> None:
    """The forked process, from its first to its last instruction: nothing of the forking one's is run at its end."""
    status, pid = 1, os.getpid()
    try:
        if output is not None:
            os.setpgid(0, 0)
            output.redirect()
        end_with_parent(parent)
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(s, signal.SIG_DFL)
        speaks(channel)
        work(channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        status = status if os.getpid() == pid else 1  # a copy that other people's code made of this process got here
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


def _traffic_of(process: psutil.Process) -> int:
    """Bytes written, files and pipes and what is cached counted, where the system tells."""
    total = 0
    for one in _family(process):
        with contextlib.suppress(psutil.Error, AttributeError):  # ended in between; no such count on this system
            total += one.io_counters().write_chars
    return total


def _kill(process: psutil.Process | None) -> None:
    for one in reversed(_family(process)):
        with contextlib.suppress(psutil.Error):
            one.kill()
