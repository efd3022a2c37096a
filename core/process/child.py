"""A forked process that runs plugin code, and its parent, which watches and ends it."""

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

from fedbench.core.process.channel import Channel, Message, TimeLimits, set_channel

_TICK_S = 0.25
_MEASURE_EVERY_S = 1.0
_END_S = 0.005  # between two looks at a process that closed its channel
_TRAFFIC = 1 << 16  # bytes written that count as activity: a download uses next to no CPU
_ACTIVE = 0.01  # share of the idle limit that must be used as CPU
_MOST_DESCRIPTORS = 1 << 20
_BLOCK = 1 << 16
_MOST_BLOCKS = 64  # read after the end of a process
_LONGEST_LINE = 2000  # bytes without a line end


class Child:
    """A fork of this process that does ``work``. Of this process's descriptors it has only its
    channel, its output and, without ``printed``, the standard input: no pipe to another process. It
    leads a process group, so that a signal to its group reaches no other process; what it left
    running in the group ends with it.

    Iterate to get its messages until it ends. Then ``ending`` says why in words (empty after exit
    status 0), ``timed_out`` whether a limit ended it, and ``party`` which component was at work.

    Args:
        limits: those of the whole process; a component may have its own, which count from its
            start.
        tick: called several times a second.
        printed: takes its output as bytes; it then has a session of its own without a terminal or
            input.
    """

    def __init__(
        self,
        work: Callable[[Channel], None],
        limits: TimeLimits,
        tick: Callable[[], None] = lambda: None,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:
        self.own_limits = limits
        self.tick = tick
        self.party = ""
        self.ending = ""
        self.timed_out = False
        open_standard_input()
        # sockets: no other process can open one through /proc, as it can a pipe
        receiver, sender = Pipe()
        self._output = None if printed is None else _Output(printed)
        for text in (sys.stdout, sys.stderr):
            text.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(work, Channel(sender), parent, self._output)
        sender.close()
        if self._output is not None:
            os.close(self._output.writer)
        self._channel = Channel(receiver)
        self._open = True
        self._status: int | None = None
        self._usage = _Usage(self.pid)
        self._party_limits: TimeLimits | None = None

    def __iter__(self) -> Iterator[Message]:
        try:
            while not self.ended:
                self._wait(_TICK_S)
                yield from self._messages()
                self.tick()
                self._watch()
            yield from self._messages()  # sent just before it ended
        finally:
            self.end()

    def poll(self) -> list[Message]:
        """Return the messages that have come, without a wait. Call ``end`` after the last one."""
        self._wait(0.0)
        messages = list(self._messages())
        self._watch()
        return [*messages, *self._messages()]

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._status is not None

    @property
    def limits(self) -> TimeLimits:
        """The limits of the component at work, else of the whole process."""
        return self._party_limits or self.own_limits

    def more_cpu(self, seconds: float) -> None:
        """Allow so many seconds of CPU from now on."""
        self.own_limits = replace(self.own_limits, cpu_s=self._usage.cpu() + seconds)

    def end(self) -> None:
        """Kill it and its descendants."""
        if self._status is None:
            self._kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it left running
        if self._output is not None:
            self._output.close()
            self._output = None
        self._channel.connection.close()
        self._open = False

    def _wait(self, seconds: float) -> None:
        """Wait for a message or output, for so long at most."""
        if not self._open:
            time.sleep(_END_S)
            return
        sources: list[Any] = [self._channel.connection]
        if self._output is not None and self._output.open:
            sources.append(self._output.reader)
        ready = connection.wait(sources, timeout=seconds)
        if self._output is not None and self._output.reader in ready:
            self._output.drain()

    def _messages(self) -> Iterator[Message]:
        """Yield the messages that have come, but those for this class."""
        while self._open and self._channel.connection.poll():
            try:
                message = self._channel.receive()
                handled = self._handle(message)
            except (EOFError, OSError):
                self._open = False
                return
            except Exception as error:  # bytes that are no message, or no memory for an array
                self._open = False
                self.ending = f"what it sent cannot be read ({type(error).__name__}: {error})"
                self._kill()
                return
            self._usage.renew()
            if not handled:
                yield message

    def _handle(self, message: Message) -> bool:
        """Act on a message for this class; return whether it was one."""
        if message.kind == "at work":
            party, limits = message.value
            self._party_limits = None
            if limits is not None:
                self._party_limits = TimeLimits(cpu_s=limits[0], idle_s=limits[1])
            self.party = str(party)
            self._usage.begin(limits is not None)
        elif message.kind == "said":
            print(message.value, file=sys.stderr)
        return message.kind in ("at work", "said", "alive")

    def _watch(self) -> None:
        """Notice its end; end it at a limit."""
        self._reap(block=not self._open and self.limits == TimeLimits())
        if self._status is None and (reason := self._usage.over(self.limits)):
            self.timed_out = True
            self.ending = reason
            self._kill()

    def _kill(self) -> None:
        kill_tree(self.pid)
        self._reap(block=True)

    def _reap(self, block: bool) -> None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, 0 if block else os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                self.ending = self.ending or exit_reason(self._status)


def exit_reason(status: int) -> str:
    """Say why a process ended, given its exit status; empty for 0."""
    if status < 0:
        hint = " - out of memory?" if status == -signal.SIGKILL else ""
        return f"it was killed by {signal.Signals(-status).name}{hint}"
    return f"it ended the process with status {status}" if status else ""


def _serve(
    work: Callable[[Channel], None], channel: Channel, parent: int, output: _Output | None
) -> None:
    """Run the forked process to its end: no exit handler or ``finally`` of its parent runs."""
    status = 1
    pid = os.getpid()
    try:
        if output is None:
            os.setpgid(0, 0)
        else:
            os.setsid()
            output.redirect()
        close_descriptors(channel.connection.fileno())
        end_with_parent(parent)
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(s, signal.SIG_DFL)
        set_channel(channel)
        work(channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if os.getpid() != pid:  # a copy that plugin code forked
            status = 1
        for text in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                text.flush()
        os._exit(status)


def close_descriptors(keep: int) -> None:
    """Close all but the standard ones and ``keep``; multiprocessing forgets those that it had."""
    os.closerange(3, keep)
    os.closerange(max(keep + 1, 3), _MOST_DESCRIPTORS)
    for name, server in (("resource_tracker", "_resource_tracker"), ("forkserver", "_forkserver")):
        if module := sys.modules.get(f"multiprocessing.{name}"):
            getattr(module, server).__init__()


# --- CPU time and file traffic --------------------------------------------------------------------


class _Usage:
    """CPU time and file traffic of a process and its descendants, compared with limits once a
    second.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._measured = self._active = time.monotonic()
        # CPU seconds used before the limits began to count; None: measured at the next look
        self._start: float | None = 0.0
        self._active_cpu, self._active_bytes = 0.0, 0  # at the last activity

    def renew(self) -> None:
        """Count a message as activity."""
        self._active = time.monotonic()

    def begin(self, anew: bool) -> None:
        """Count the CPU limit from now on, or from the start of the process."""
        self._start = None if anew else 0.0

    def over(self, limits: TimeLimits) -> str:
        """Return the limit that is exceeded, in words; empty if none is."""
        now = time.monotonic()
        if now - self._measured < _MEASURE_EVERY_S:
            return ""
        self._measured = now
        cpu = self.cpu()
        if self._start is None:
            self._start = cpu
        if limits.cpu_s is not None and cpu - self._start > limits.cpu_s:
            return f"it used more than {limits.cpu_s:g} s of CPU"
        if limits.idle_s is None:
            return ""
        written = self._written()
        # the usage of an ended descendant is not counted any more
        self._active_cpu = min(self._active_cpu, cpu)
        self._active_bytes = min(self._active_bytes, written)
        used = cpu - self._active_cpu > _ACTIVE * limits.idle_s
        if used or written - self._active_bytes > _TRAFFIC:
            self._active = now
            self._active_cpu = cpu
            self._active_bytes = written
        if now - self._active > limits.idle_s:
            return f"nothing moved for {limits.idle_s:g} s"
        return ""

    def cpu(self) -> float:
        """Return the CPU seconds of the process, its living descendants, and those that ended and
        were waited for.
        """
        total = 0.0
        for process in family(self._pid):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def _written(self) -> int:
        total = 0
        for process in family(self._pid):
            with contextlib.suppress(psutil.Error, AttributeError):  # no such count on this system
                total += process.io_counters().write_chars
        return total


# --- output ---------------------------------------------------------------------------------------


class _Output:
    """Standard output and standard error of a child and its descendants in one pipe; ``take`` gets
    the bytes.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take
        self.open = True
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def redirect(self) -> None:
        """Write here, in the child, and read nothing, so that no question waits for an answer."""
        no_input()
        for standard in (1, 2):
            os.dup2(self.writer, standard)
        sys.stdout = _text(1)
        sys.stderr = _text(2)

    def drain(self) -> None:
        """Take one block, so that a process that prints without end is still watched."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self.reader, _BLOCK)
            self.take(block)
            self.open = bool(block)

    def close(self) -> None:
        """Take the rest, up to a limit; a process that was left running is not waited for."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_BLOCKS):
                block = os.read(self.reader, _BLOCK)
                if not block:
                    break
                self.take(block)
        os.close(self.reader)


def open_standard_input() -> None:
    """Make a closed standard input an empty one: else a channel gets its number, and a fork that
    reads nothing closes it.
    """
    try:
        os.fstat(0)
    except OSError:
        os.open(os.devnull, os.O_RDONLY)  # takes the lowest number that is free, 0
        os.set_inheritable(0, True)


def no_input() -> None:
    """Make the standard input empty."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))


def _text(fd: int) -> TextIO:
    return io.TextIOWrapper(
        io.FileIO(fd, "wb", closefd=False), errors="backslashreplace", write_through=True
    )


class Lines:
    """Splits bytes that come in pieces into lines for ``show``."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self._begun = b""

    def take(self, block: bytes) -> None:
        """Show the complete lines."""
        *lines, self._begun = (self._begun + block).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._show(line)
        if len(self._begun) > _LONGEST_LINE:
            self.end()

    def end(self) -> None:
        """Show the last line, which has no end."""
        self._show(self._begun)
        self._begun = b""

    def _show(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip()
        if text:
            self.show(text)


# --- processes that end together ------------------------------------------------------------------

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h; forks do not inherit them


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value)


def end_with_parent(parent: int | None = None) -> None:
    """End this process when its parent ends (Linux only); at once if ``parent``, its process id,
    has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of processes that descendants of this one leave running (Linux only)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; none where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def kill_tree(pid: int, but: int = 0) -> None:
    """Kill a process and its descendants, except the one with the id ``but``."""
    for process in reversed(family(pid)):
        if process.pid != but:
            with contextlib.suppress(psutil.Error):
                process.kill()


def kill_session(leader: int) -> None:
    """Kill every process of a session except this one, whatever group it is in."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != os.getpid() and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def end_children(but: int) -> None:
    """Kill and wait for all descendants of this process except the child with this process id."""
    for process in family(os.getpid())[1:]:
        if process.pid != but:
            with contextlib.suppress(psutil.Error):
                process.kill()
    for process in psutil.Process().children():  # with the orphans that it adopted
        if process.pid != but:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                process.wait()
