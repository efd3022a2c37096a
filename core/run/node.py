"""A run on another machine: in a clean process there, with the same workers as at home, and its records sent back as they come.

What asks for it there (``serve``, in a worker of Ray) is full of threads and imports; so it starts a process of its own, which
lives as long as it does and forks the workers of one run after another.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.process.child import end_with_parent

Tell = Callable[[str, Any], None]

PASSED_ON = ("FEDBENCH_DATA", "FEDBENCH_OFFLINE", "FEDBENCH_PLUGIN_SECONDS", "FEDBENCH_DEBUG")
"""settings of the user's that hold on nodes too, unless a node has its own"""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # which GPUs a task was given
_SELDOM_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run as it is sent. ``needs``: what ``same_code`` compares, before ``job`` (pickled) is looked at; ``environment``: the
    user's settings."""

    needs: dict[str, Any]
    job: bytes
    environment: dict[str, str]


def passed_on() -> dict[str, str]:
    """The user's settings, as a request carries them: a path says the same wherever it is read."""
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    if (data := found.get("FEDBENCH_DATA", "~")) and not data.startswith("~"):
        found["FEDBENCH_DATA"] = os.path.abspath(data)
    return found


def trainings() -> Path:
    """Where the finished trainings of runs on this machine are kept, for attacks that come later; safe to delete."""
    from fedbench.core.toolkit.folders import cache_folder

    return cache_folder() / "trainings"


# -- in the process that was asked --------------------------------------------------------------------------------------


class _Process:
    """The clean process, and the way to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        mine, theirs = Pipe()
        words = [sys.executable, "-P", "-m", "fedbench.core.run.node", str(theirs.fileno()), str(os.getpid())]
        self.environment = environment
        self.pipe = mine
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=dict(environment), stdin=subprocess.DEVNULL)
        theirs.close()

    def run(self, request: Request) -> Iterator[tuple[str, Any]]:
        self.pipe.send((request.needs, request.job))
        while True:
            kind, value = self.pipe.recv()
            if kind == "end":
                return
            yield kind, value

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


_process: _Process | None = None


def serve(request: Request) -> Iterator[tuple[str, Any]]:
    """What happens to the run, as it happens: "started", "round" (how many are done), "judging" (a cell's key), "traceback",
    "log" (bytes), "run" (a ``Shipped``). Or why it is not done here: "refused" (lines for people), "lost" (why the process
    ended), "defect" (of fedbench)."""
    global _process
    environment = _environment(request)
    if _process is not None and (_process.environment != environment or _process.process.poll() is not None):
        _process.end()
        _process = None
    _process = _process or _Process(environment)
    whole = False
    try:
        yield from _process.run(request)
        whole = True
    except (EOFError, OSError) as error:
        yield "lost", f"its process there ended (exit status {_process.process.wait()}; {type(error).__name__})"
    finally:
        if not whole:
            _process.end()
            _process = None


def _environment(request: Request) -> dict[str, str]:
    """Ray's own settings are not the workers'. The user's count where the node says nothing itself."""
    here = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name != "PYTHONBREAKPOINT"}
    return {**{name: value for name, value in request.environment.items() if name in PASSED_ON}, **here}


# -- in the clean process -----------------------------------------------------------------------------------------------


def main(fd: int, parent: int) -> None:
    """Serve one request after another, until whoever sends them is gone."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever sends the requests ends this process
    pipe = Connection(fd)
    from fedbench.core.run.local import start_early

    start_early()
    while True:
        try:
            needs, job = pipe.recv()
        except EOFError:
            return
        _answer(needs, job, lambda kind, value: pipe.send((kind, value)))
        pipe.send(("end", None))


def _answer(needs: dict[str, Any], packed_job: bytes, tell: Tell) -> None:
    from fedbench.core.run.provenance import lacking

    try:
        if problems := lacking(needs):
            tell("refused", problems)
        else:
            _run(packed_job, tell)
    except UserError as error:
        tell("refused", list(error.messages))
    except OSError as error:  # a full disk, no more processes: this machine's, not the run's
        tell("refused", [f"{error.filename or 'the run'}: {error.strerror or error}"])
    except Exception:  # nobody else's code runs in this process
        tell("defect", traceback.format_exc())


def _run(packed_job: bytes, tell: Tell) -> None:
    from fedbench.core.run.local import LocalProcesses
    from fedbench.core.run.provenance import as_here, require_data
    from fedbench.core.run.ray_executor import packed, packed_log

    job = as_here(pickle.loads(packed_job))
    require_data(job)
    trainings().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedbench-run-") as root:
        for folder in ("records", "logs"):
            (Path(root) / folder).mkdir()
        (Path(root) / "cache").symlink_to(trainings())
        here = replace(job, results=root)
        tell("started", None)
        notes = list[str]()
        LocalProcesses(1).execute([here], _watcher(here, tell, notes.append))
        if text := packed_log(here):
            tell("log", text)
        if (made := packed(here)).files:
            tell("run", made)
        else:
            tell("lost", "; ".join(notes) or "it has no record")


def _watcher(job: Any, tell: Tell, note: Callable[[str], None]) -> Any:
    """Everything that is told goes through a network: rounds and attacks are told twice a second at most."""
    from fedbench.core.run.local import Watcher

    told = time.monotonic()

    def seldom(kind: str, what: Any) -> None:
        nonlocal told
        if time.monotonic() - told > _SELDOM_S:
            told = time.monotonic()
            tell(kind, what)

    return Watcher(
        advanced=lambda _, round: seldom("round", round), judging=lambda _, key: seldom("judging", key),
        traceback=lambda _, text: tell("traceback", text), note=note,
    )  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
