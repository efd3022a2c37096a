"""A Ray cluster, as the user's command sees it: a process that speaks with Ray for it."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.run.node import Request
from fedbench.core.run.ray_executor import Node

_PROBE_S = 10.0  # a connection to an address; one that is refused fails at once
_JOIN_S = 90.0  # until Ray has started, or joined, a cluster: seconds, as a rule
_LEAVE_S = 20.0
_HOST_PORT = re.compile(r"\[?([^\[\]/]+)\]?:(\d{1,5})")


@dataclass(frozen=True)
class Event:
    """What a task did: see ``node.serve``; "end": there is nothing more to come. ``node``: the id of where it is, if it is."""

    ticket: int
    kind: str
    node: str | None = None
    value: Any = None


class RayCluster:
    """Made by ``connect``; to be closed. ``nodes``: the machines that are alive, as far as is known."""

    def __init__(self, pipe: Connection, process: subprocess.Popen[bytes], nodes: Sequence[Node]) -> None:
        self._pipe, self._process, self.nodes = pipe, process, list(nodes)

    @classmethod
    def connect(cls, address: str | None) -> RayCluster:
        """Join the cluster at ``address``; None: the one that Ray finds (RAY_ADDRESS, or one that was started on this machine),
        else one on this machine alone. Raises ``UserError`` within a bounded time."""
        if find_spec("ray") is None:
            raise UserError("--executor ray: Ray is not installed here; pip install 'fedbench[ray]', on every node")
        wanted = address or os.environ.get("RAY_ADDRESS") or ""
        _require_answer(wanted)
        mine, theirs = Pipe()
        words = [sys.executable, "-P", "-m", "fedbench.core.run.ray_driver", str(theirs.fileno()), str(os.getpid()), wanted]
        # a session of its own: Ctrl-C is this process's to answer, and it lets the tasks be cancelled
        process = subprocess.Popen(
            words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        where = f"the Ray cluster at {wanted}" if wanted else "a Ray cluster"
        try:
            if not mine.poll(_JOIN_S):
                raise UserError(f"{where} did not answer within {_JOIN_S:g} s; is it a Ray head's address and port?")
            word, what = mine.recv()
        except EOFError:
            process.wait()
            raise UserError(f"{where} cannot be joined: Ray ended with exit status {process.returncode}; {_LOOK}") from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        if word == "error":
            process.wait()
            raise UserError(f"{where} cannot be joined: {what}; {_LOOK}")
        return cls(mine, process, what)

    def submit(self, ticket: int, name: str, request: Request, options: dict[str, object]) -> None:
        """Have a run done somewhere; ``events`` tell of it under this number."""
        self._say("submit", ticket, name, pickle.dumps(request), options)

    def cancel(self, ticket: int) -> None:
        """End a task, of which nothing more is told."""
        self._say("cancel", ticket)

    def look(self) -> None:
        """Ask which nodes there are: ``nodes`` is so a moment later."""
        self._say("nodes")

    def events(self, seconds: float) -> list[Event]:
        """What has happened, after a wait of so many seconds at most. Raises ``UserError`` when the cluster is gone."""
        found: list[Event] = []
        try:
            while self._pipe.poll(0 if found else seconds):
                word, *what = self._pipe.recv()
                if word == "nodes":
                    self.nodes = what[0]
                    seconds = 0
                else:
                    found.append(Event(*what))
        except (EOFError, OSError):
            raise self._gone() from None
        return found

    def close(self) -> None:
        """Cancel what still runs, and leave the cluster; one that was started for this command ends."""
        began = time.monotonic()
        try:
            with contextlib.suppress(EOFError, OSError):  # it has ended, or is about to
                self._pipe.send(("stop",))
                while self._process.poll() is None and time.monotonic() - began < _LEAVE_S:
                    if self._pipe.poll(0.05):
                        self._pipe.recv()  # so that it is not kept waiting for somebody to listen
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, _LEAVE_S - (time.monotonic() - began)))
        finally:
            self._pipe.close()
            self._process.kill()
            self._process.wait()

    def _say(self, *words: Any) -> None:
        try:
            self._pipe.send(words)
        except OSError:
            raise self._gone() from None

    def _gone(self) -> UserError:
        self._process.wait()
        return UserError(
            f"the connection to the Ray cluster was lost (exit status {self._process.returncode}): its head node may be gone; "
            "what is finished is kept, and the same command goes on from here"
        )


_LOOK = "`ray status --address ...` says what Ray sees of it; every node needs the same versions of Python and Ray"


def _require_answer(address: str) -> None:
    """Raise ``UserError`` for an address where nobody listens: Ray itself would wait for minutes, or abort."""
    if address in ("", "auto", "local"):
        return
    found = _HOST_PORT.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 2**16:
        hint = "; run this command on a machine of the cluster" if address.startswith("ray://") else ""
        raise UserError(f"--ray-address {address}: expected HOST:PORT of the head node, auto or local{hint}")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_PROBE_S).close()
    except OSError as error:
        raise UserError(
            f"--ray-address {address}: nobody answers ({error.strerror or error}); `ray start --head` prints the address, "
            "port 6379 unless told otherwise"
        ) from error
