"""Runs on the machines of a Ray cluster: a remote function computes one run and returns its files.

The command forks a driver process, which alone imports Ray and writes the results folder; nodes
share no disk. On a node, Ray's worker starts ``ray_node`` in a process of its own, so that no
plugin code and no pickle of it meets Ray.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import Channel, Message, TimeLimits, at_work
from fedbench.core.process.child import Child
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job, job_json
from fedbench.core.spec.suite import Limits
from fedbench.core.store.reading import read_run
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult
from fedbench.core.words import one_line

MOST_RETRIES = 3
"""of one run, by Ray, after the end of a node or of a process of Ray"""
PASSED_ON = ("FEDBENCH_DATA", "FEDBENCH_OFFLINE", "FEDBENCH_PLUGIN_SECONDS", "FEDBENCH_DEBUG")
"""the user's settings that hold on a node too, unless it has its own"""
# tasks given to Ray at a time: enough for it to plan with, and to ask an autoscaler for nodes
_MOST_WAITING = 256
_TICK_S = 0.5
_JOIN_S = 90.0
_HELP = (
    "`ray status --address ...` shows the cluster; every node needs the same versions of Python "
    "and Ray"
)
_CONTINUES = "; what is finished is kept, and the same command continues"
CANNOT = 3
"""exit status of ``ray_node`` on a node that cannot do the run"""


@dataclass(frozen=True)
class RayExecutor:
    """Runs on the cluster at ``address``; None: the one that Ray finds (RAY_ADDRESS, or one on this
    machine), else one on this machine for this command.
    """

    workers: int | None = None
    address: str | None = None

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """See :class:`fedbench.core.run.executor.Executor`. Raises ``UserError`` for a cluster that
        cannot be used.
        """
        jobs = list(jobs)
        if not jobs:
            return
        if find_spec("ray") is None:
            raise UserError(
                "--executor ray: Ray is not installed here; pip install 'fedbench-privacy[ray]', "
                "on every node"
            )
        address = self.address or os.environ.get("RAY_ADDRESS") or ""
        drive = partial(_drive, jobs, address, self.workers or _MOST_WAITING)
        child = Child(drive, TimeLimits(), watcher.tick, printed=lambda _: None)
        for message in child:
            _hand_on(message, jobs, watcher)
        if child.timed_out:
            raise UserError(
                f"{_name_of(address)} did not answer within {_JOIN_S:g} s; is it a Ray head's "
                "address and port?"
            )
        if child.ending:
            raise UserError(
                f"the connection to the Ray cluster was lost ({child.ending}){_CONTINUES}"
            )


def _hand_on(message: Message, jobs: Sequence[Job], watcher: Watcher) -> None:
    """Call the watcher as a message of the driver says, or raise the error in it."""
    if message.kind == "user error":
        raise UserError(*message.value)
    if message.kind == "os error":
        raise OSError(*message.value)
    index, *values = message.value
    if index is not None:
        values = [jobs[index], *values]
    getattr(watcher, message.kind)(*values)


def _name_of(address: str) -> str:
    return f"the Ray cluster at {address}" if address else "a Ray cluster"


# --- the driver process ---------------------------------------------------------------------------


def _drive(jobs: Sequence[Job], address: str, most: int, out: Channel) -> None:
    """Send each callback of the watcher with the job's position (None: no job) and values, or why
    the work ended early.
    """
    try:
        ray = _joined(address)
        try:
            RayRuns(ray, jobs, out.send).work(most)
        finally:
            ray.shutdown()
    except UserError as error:
        out.send("user error", list(error.messages))
    except OSError as error:
        if error.filename is None:  # of Ray
            out.send("user error", [str(error)])
        else:
            out.send("os error", [error.errno, error.strerror, str(error.filename)])


def _joined(address: str) -> Any:
    """Join the cluster and return the module ``ray``. Raises ``UserError``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    cluster = {"address": address} if address else {"include_dashboard": False}
    try:
        with at_work("joining the cluster", TimeLimits(idle_s=_JOIN_S)):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **cluster)
    # of many kinds: another version of Ray or Python there, a missing token
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 400)
        raise UserError(f"{_name_of(address)} cannot be joined: {reason}; {_HELP}") from error
    return ray


class RayRuns:
    """The runs of one command on a cluster. ``tell``: called with a callback of ``Watcher`` and
    [position of the job, values].
    """

    def __init__(
        self, ray: Any, jobs: Sequence[Job], tell: Callable[[str, list[Any]], None]
    ) -> None:
        self.ray = ray
        self.jobs = jobs
        self.tell = tell
        self.task = ray.remote(_task())
        self.refusals: dict[str, str] = {}  # node id -> why it is not used
        self.running: dict[Any, int] = {}

    def work(self, most: int) -> None:
        """Compute every run. Raises ``UserError`` if no node can do a run, ``OSError`` if a record
        cannot be written. Ray waits for a node with enough cores, GPUs and memory.
        """
        waiting = deque(range(len(self.jobs)))
        while waiting or self.running:
            while waiting and len(self.running) < most:
                index = waiting.popleft()
                self.running[self._submit(self.jobs[index])] = index
            ready, _ = self.ray.wait(list(self.running), timeout=_TICK_S)
            for task in ready:
                index = self.running.pop(task)
                result = self._result(index, task)
                if result and (reason := refusal(result)):
                    self._refuse(result["node"], reason)
                    waiting.append(index)
                elif result:
                    self._keep(index, result)

    def _submit(self, job: Job) -> Any:
        from fedbench.core.run.provenance import needs_of

        request = json.dumps({"needs": needs_of(job), "job": job_json(replace(job, results=""))})
        task = self.task.options(
            name=f"fedbench {job.title}",
            max_retries=MOST_RETRIES,
            **options(job.limits, self.refusals),
        )
        return task.remote(request, _passed_on())

    def _result(self, index: int, task: Any) -> dict[str, Any] | None:
        """Return the answer of the node; None, with a note, if the run was lost."""
        try:
            result: dict[str, Any] = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            self._note_lost(index, f"{type(error).__name__}: {error}")
            return None
        return result

    def _refuse(self, node: str, reason: str) -> None:
        """Leave out a node that cannot do runs of this command."""
        if node not in self.refusals:
            self.refusals[node] = reason
            self.tell("note", [None, f"node {node[:8]} is not used: {reason}"])
        if self._nodes() <= self.refusals.keys():
            reasons = " | ".join(dict.fromkeys(self.refusals.values()))
            raise UserError(f"no node of the Ray cluster can do the runs: {reasons}{_CONTINUES}")

    def _keep(self, index: int, result: dict[str, Any]) -> None:
        _keep_log(self.jobs[index], result["logs"])
        if not result["records"]:
            lines = result["said"].splitlines() or ["the node returned no record"]
            self._note_lost(index, lines[-1])
            return
        try:
            records = keep_run(self.jobs[index], result["records"])
        except UserError as error:
            self._note_lost(index, f"what the node returned cannot be used: {error}")
            return
        self.tell("started", [index])
        for r in records:
            self.tell("cell", [index, r.key, r.outcome, r.reason, r.by_adversary])
        self.tell("finished", [index])

    def _note_lost(self, index: int, reason: str) -> None:
        text = f"{self.jobs[index].title}: {one_line(reason, 400)}"
        text += "; it has no record, and the same command tries it again"
        self.tell("note", [None, text])

    def _nodes(self) -> set[str]:
        return {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}


def _task() -> Callable[[str, dict[str, str]], dict[str, Any]]:
    """Return the remote function, made here so that Ray sends its code to any node."""

    def fedbench_run(request: str, environment: dict[str, str]) -> dict[str, Any]:
        import os
        import subprocess
        import sys
        import tempfile
        from pathlib import Path

        import ray

        result: dict[str, Any] = {"node": ray.get_runtime_context().get_node_id()}
        settings = dict(environment)
        for name, value in os.environ.items():
            if not name.startswith("RAY_") and name != "PYTHONBREAKPOINT":
                settings[name] = value
        with tempfile.TemporaryDirectory(prefix="fedbench-run-") as root:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", "fedbench.core.run.ray_node", root, str(os.getpid())],
                input=request.encode(),
                env=settings,
                capture_output=True,
            )
            for folder in ("records", "logs"):
                paths = sorted(Path(root, folder).glob("*"))
                result[folder] = {path.name: path.read_bytes() for path in paths}
        result["status"] = ended.returncode
        result["said"] = ended.stderr.decode(errors="replace").strip()[-2000:]
        return result

    return fedbench_run


def refusal(result: dict[str, Any]) -> str:
    """Return the reason why a node cannot do runs of this command; empty where it can."""
    text = str(result["said"])
    if result["status"] == CANNOT:
        return text
    if result["status"] == 1 and not result["records"] and "No module named" in text:
        return f"it has no fedbench like the one of the driver ({text.splitlines()[-1]})"
    return ""


def _passed_on() -> dict[str, str]:
    """Return the user's settings for a node; a relative path becomes absolute."""
    settings = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    data = settings.get("FEDBENCH_DATA", "")
    if data and not data.startswith("~"):
        settings["FEDBENCH_DATA"] = os.path.abspath(data)
    return settings


def _keep_log(job: Job, logs: dict[str, bytes]) -> None:
    """Append the run's log on the node to the log that is here."""
    path = job.log_path
    if log := logs.get(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(log)


def keep_run(job: Job, files: dict[str, bytes]) -> list[Record]:
    """Check the files of a run as every reader of records does, and that they are the job's; then
    write its cells to the results.

    Raises ``UserError`` for files that are not this run's, and ``OSError`` when they cannot be
    written.
    """
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        for name, content in files.items():
            if Path(name).name != name or not name.startswith(job.stem):
                raise UserError(f"{job.stem}: '{one_line(name, 100)}' is the file of another run")
            Path(folder, name).write_bytes(content)
        loaded = read_run(Path(folder, f"{job.stem}.json"))
        cells = [CellResult(r.record, r.all_arrays()) for r in loaded]
    records = [cell.record for cell in cells]
    if not _are_of(job, records):
        raise UserError(f"{job.stem}: it is the record of another run")
    Results(Path(job.results)).write(job.stem, cells)
    return records


def _are_of(job: Job, records: Sequence[Record]) -> bool:
    names = {(r.run_key, r.suite, r.setting, r.coalition) for r in records}
    expected = (job.run_key, job.suite, job.setting.name, job.coalition)
    return names == {expected} and {r.key for r in records} == {cell.key for cell in job.cells}


def options(limits: Limits, without: Collection[str]) -> dict[str, object]:
    """Return Ray's options of a task with these limits, not on the nodes ``without`` (ids)."""
    task: dict[str, object] = {
        "num_cpus": round(limits.cpus, 4),
        "num_gpus": round(limits.gpus, 4),
    }
    if limits.memory_gb is not None:
        task["memory"] = int(limits.memory_gb * 2**30)
    if without:
        task["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(without))})"}
    else:
        task["scheduling_strategy"] = "SPREAD"
    return task
