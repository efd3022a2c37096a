"""A forked process that runs other people's code, watched by the one that forked it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe, connection
from typing import Any, TextIO

import psutil

from fedbench.core.process.channel import Channel, Message, Patience, speaks

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


# -- What a forked process prints, and whatever it starts: taken by the one that forked it, not on the terminal as it is --


_BLOCK = 1 << 16
_LONGEST = 2000  # bytes of a line that has no end


class Output:
    """Standard output and standard error of a process in one stream, which ``take`` gets as it comes."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take
        self.fd, self._theirs = os.pipe()
        os.set_blocking(self.fd, False)

    def redirect(self) -> None:
        """In the forked process: print here, and read nothing, so that no question waits for an answer."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, standard in ((nothing, 0), (self._theirs, 1), (self._theirs, 2)):
            os.dup2(ours, standard)
        for used in (nothing, self._theirs, self.fd):
            os.close(used)
        sys.stdout, sys.stderr = _text(1), _text(2)

    def forked(self) -> None:
        """In the process that forked it."""
        os.close(self._theirs)

    def drain(self) -> bool:
        """Hand on what there is; False when there will never be more."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.fd, _BLOCK):
                self.take(block)
            return False
        return True

    def close(self) -> None:
        """Hand on what is left; what a process that was left running still prints is not waited for."""
        self.drain()
        os.close(self.fd)


def _text(fd: int) -> TextIO:
    return io.TextIOWrapper(io.FileIO(fd, "wb", closefd=False), errors="backslashreplace", write_through=True)


class Lines:
    """Bytes that come in pieces, shown line by line."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self._begun = show, b""

    def take(self, block: bytes) -> None:
        """Show the lines that are complete now."""
        *whole, self._begun = (self._begun + block).replace(b"\r", b"\n").split(b"\n")
        if len(self._begun) > _LONGEST:
            whole, self._begun = [*whole, self._begun], b""
        for line in whole:
            self._show(line)

    def end(self) -> None:
        """Show what stands there without an end."""
        self._show(self._begun)
        self._begun = b""

    def _show(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip()
        if text:
            self.show(text)


# -- A process that ends with the one that started it, however that ended. Linux alone can promise it --


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h; not inherited by what is forked later


def end_with_parent(parent: int | None = None) -> None:
    """From now on; at once where ``parent``, the process id of the one that started this, is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """From now on this process is the parent of whatever its descendants leave running."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(but: int) -> None:
    """Kill and wait for every descendant of this process, except the child of this process id."""
    import psutil

    for one in psutil.Process().children(recursive=True):
        if one.pid != but:
            with contextlib.suppress(psutil.Error):
                one.kill()
    for one in psutil.Process().children():
        if one.pid != but:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                one.wait()
