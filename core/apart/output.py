"""What a forked process prints, and whatever it starts: taken by the one that forked it, not on the terminal as it is."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

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
