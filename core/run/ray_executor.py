"""Runs on the machines of a Ray cluster. This process alone writes the results folder; nodes share no disk."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import Job
from fedbench.core.run.local import Watcher
from fedbench.core.run.node import Request, passed_on
from fedbench.core.run.process import log_path
from fedbench.core.run.provenance import needs_of
from fedbench.core.run.ray_cluster import Event, RayCluster
from fedbench.core.spec.suite import Limits
from fedbench.core.store.reading import read_run
from fedbench.core.store.record import Record, overall_auc
from fedbench.core.store.results import Results
from fedbench.core.store.run_file import CellResult
from fedbench.core.words.explain import one_line

MOST_RETRIES = 3
"""of one run, after losses that are the system's"""
_MOST_WAITING = 256  # tasks that Ray has beyond those that fit: enough for it to plan with, and to ask an autoscaler for nodes
_TICK_S = 0.5
_LOOK_EVERY_S = 5.0
_STRANDED_S = 60.0  # so long a node may be away that a run needs


class Cluster(Protocol):
    """What this executor needs of a cluster: see :class:`RayCluster`."""

    nodes: list[Node]

    def submit(self, ticket: int, name: str, request: Request, options: dict[str, object]) -> None: ...
    def cancel(self, ticket: int) -> None: ...
    def look(self) -> None: ...
    def events(self, seconds: float) -> list[Event]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class RayExecutor:
    """At most ``workers`` runs at a time (None: as many as fit) on the cluster at ``address`` (None: see ``RayCluster``)."""

    address: str | None = None
    workers: int | None = None

    def execute(self, jobs: Iterable[Job], watcher: Watcher) -> None:
        """See :class:`Executor`. Raises ``UserError`` for a cluster that cannot be used: nothing is recorded of cells that no
        node could compute."""
        if not (waiting := list(jobs)):
            return
        cluster = RayCluster.connect(self.address)
        try:
            Runs(cluster, watcher, self.workers or _MOST_WAITING).work(waiting)
        finally:
            cluster.close()


@dataclass
class _Run:
    """One job and what became of it so far. ``node``: where it runs; None: it waits."""

    job: Job
    node: str | None = None
    done: bool = False
    losses: int = 0


class Runs:
    """All runs of one command on a cluster."""

    def __init__(self, cluster: Cluster, watcher: Watcher, most: int) -> None:
        self.cluster, self.watcher, self.most = cluster, watcher, most
        self.running: dict[int, _Run] = {}
        self.refusals: dict[str, list[str]] = {}  # of nodes, by id: why they are asked no more
        self._names: dict[str, str] = {}  # of nodes, by id: those that are gone, too, of which a loss is told after that
        self._remember()
        self._ticket = 0
        self._looked = self._had_room = time.monotonic()

    def work(self, jobs: list[Job]) -> None:
        """Until every cell of every job has a record. Raises as ``RayExecutor.execute`` does."""
        require_room(jobs[0].limits, self.cluster.nodes)
        jobs.reverse()
        while jobs or self.running:
            while jobs and len(self.running) < self.most:
                self._submit(_Run(jobs.pop()))
            for event in self.cluster.events(_TICK_S):
                if event.ticket in self.running:
                    self._take(event.ticket, self.running[event.ticket], event)
            self._look_after()
            self.watcher.tick()

    def _submit(self, run: _Run) -> None:
        self._ticket += 1
        self.running[self._ticket] = run
        job = replace(run.job, results="")
        request = Request(needs=needs_of(job), job=pickle.dumps(job), environment=passed_on())
        self.cluster.submit(self._ticket, f"fedbench {run.job.title}", request, options(job.limits, self.refusals))

    def _take(self, ticket: int, run: _Run, event: Event) -> None:
        job, kind, value = run.job, event.kind, event.value
        if kind == "started":
            run.node = event.node
            self.watcher.started(job)
        elif kind == "round":
            self.watcher.advanced(job, value)
        elif kind == "judging":
            self.watcher.judging(job, value)
        elif kind == "traceback":
            self.watcher.traceback(job, value)
        elif kind == "log":
            unpack_log(job, value)
        elif kind == "run":
            try:
                records = unpack(job, value)
            except UserError as error:
                self.cluster.cancel(ticket)
                self._lost(ticket, run, f"what it sent cannot be used: {error}")
            else:
                run.done = True
                for r in records:
                    self.watcher.cell(job, r.key, r.outcome, r.reason, r.by_adversary, overall_auc(r.pooled))
        elif kind == "refused":
            self._refused(ticket, run, event.node or "", value)
        elif kind == "lost":
            self._lost(ticket, run, value)
        elif kind == "defect":
            self._fail(ticket, run, f"a defect of fedbench on {self._name(event.node or run.node)}: {one_line(value, 600)}")
        elif not run.done:  # it ended without a reason
            self._lost(ticket, run, "its task ended early")
        else:
            self._end(ticket, run)

    def _end(self, ticket: int, run: _Run) -> None:
        del self.running[ticket]
        if run.node is not None:
            self.watcher.finished(run.job)

    def _refused(self, ticket: int, run: _Run, node: str, why: list[str]) -> None:
        """A node that cannot do the run is asked no more; it goes elsewhere, and nothing is recorded of it."""
        if node not in self.refusals:
            self.refusals[node] = why
            self.watcher.note(f"{self._name(node)} is not used: {'; '.join(why)}")
        self._end(ticket, run)
        if not with_room(run.job.limits, self.cluster.nodes, self.refusals):
            self._give_up(run, "")
        run.node = None
        self._submit(run)

    def _lost(self, ticket: int, run: _Run, why: str) -> None:
        """The system's fault, not the run's: it is tried again, a few times."""
        run.losses += 1
        self._look()
        where = self._name(run.node)
        if run.done:
            self._end(ticket, run)
            return
        if run.losses > MOST_RETRIES:
            self._fail(ticket, run, f"lost {run.losses} times, the last time on {where}: {why}")
            return
        self.watcher.note(f"lost: {run.job.title} on {where}: {why}; tried again, {run.losses} of {MOST_RETRIES}")
        self._end(ticket, run)
        run.node = None
        self._submit(run)

    def _fail(self, ticket: int, run: _Run, reason: str) -> None:
        """The run stays without a record: the same command tries it again."""
        self.watcher.note(f"{run.job.title}: {reason}; it has no record, and the same command tries it again")
        self._end(ticket, run)

    def _look_after(self) -> None:
        """Whether the runs that wait still have a node to wait for."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY_S:
            self._looked = now
            self._look()
        waiting = [run for run in self.running.values() if run.node is None]
        if not waiting or with_room(waiting[0].job.limits, self.cluster.nodes, self.refusals):
            self._had_room = now
        elif now - self._had_room > _STRANDED_S:
            self._give_up(waiting[0], f" for {_STRANDED_S:g} s")

    def _give_up(self, run: _Run, how_long: str) -> None:
        """Raise ``UserError``: no node is left."""
        same = Counter("; ".join(why) for why in self.refusals.values())
        said = [f"{n} of the nodes: {why}" if n > 1 else why for why, n in same.items()]
        refused = [f"{self._name(node)}: {'; '.join(why)}" for node, why in self.refusals.items()] if len(same) > 1 else said
        raise UserError(
            f"{run.job.title}: no node of the Ray cluster can do it{how_long}"
            + (": " + " | ".join(refused) if refused else "; the nodes with enough cores, GPUs and memory are gone")
            + "; what is finished is kept, and the same command goes on from here"
        )

    def _look(self) -> None:
        self.cluster.look()
        self._remember()

    def _remember(self) -> None:
        self._names |= {node.id: node.name for node in self.cluster.nodes}

    def _name(self, node: str | None) -> str:
        if node is None:
            return "no node yet"
        return f"node {self._names[node]} ({node[:8]})" if node in self._names else f"node {node[:8]}"


# -- Finished runs on their way from the machine that computed them to the one that keeps the results --


@dataclass(frozen=True)
class Shipped:
    """The files of a run by their names, byte by byte."""

    files: dict[str, bytes]


def packed(job: Job) -> Shipped:
    """The files of the job's run; none where it has no record."""
    return Shipped({path.name: path.read_bytes() for path in sorted(Results(Path(job.results)).records.glob(f"{job.stem}*"))})


def unpack(job: Job, came: Shipped) -> list[Record]:
    """Check the files of a run as every reader of records does, and that they are the job's; then add its cells to the results.

    Raises ``UserError`` for files that are not this run's, and ``OSError`` when they cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        for name, content in came.files.items():
            if Path(name).name != name or not name.startswith(job.stem):
                raise UserError(f"{job.stem}: what came is the file of another run")
            (Path(aside) / name).write_bytes(content)
        loaded = read_run(Path(aside) / f"{job.stem}.json")
        cells = [CellResult(r.record, r.all_arrays()) for r in loaded]
    wanted = {cell.key for cell in job.cells}
    says = {(r.record.run_key, r.record.suite, r.record.setting, r.record.coalition) for r in loaded}
    if says != {(job.run_key, job.suite, job.setting.name, job.coalition)} or {r.record.key for r in loaded} != wanted:
        raise UserError(f"{job.stem}: what came is the record of another run")
    Results(Path(job.results)).write(job.stem, cells)
    return [cell.record for cell in cells]


def packed_log(job: Job) -> bytes:
    """What the run's workers printed, if they did."""
    path = log_path(job)
    return path.read_bytes() if path.exists() else b""


def unpack_log(job: Job, text: bytes) -> None:
    """Keep it at the end of the run's log. Raises ``OSError``."""
    path = log_path(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(text)


# -- What a run asks of a node, and whether some node of a cluster has it --


_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of a cluster: its id and name, its cores, GPUs and memory (GiB)."""

    id: str
    name: str
    cpus: float
    gpus: float
    memory_gb: float

    def holds(self, limits: Limits) -> bool:
        """Whether a run of these limits fits when nothing else runs there."""
        return all(has >= asked for _, has, asked in self._compared(limits))

    def lacks(self, limits: Limits) -> str:
        """What of the limits it does not have, in words."""
        return ", ".join(f"{name}: {has:g}" for name, has, asked in self._compared(limits) if has < asked)

    def _compared(self, limits: Limits) -> Iterable[tuple[str, float, float]]:
        yield "cpus", self.cpus, limits.cpus
        yield "gpus", self.gpus, limits.gpus
        yield "memory_gb", round(self.memory_gb, 1), limits.memory_gb or 0.0


def require_room(limits: Limits, nodes: Sequence[Node]) -> None:
    """Raise ``UserError`` where no node of the cluster has what one run asks for."""
    if any(node.holds(limits) for node in nodes):
        return
    asked = {"cpus": limits.cpus, "gpus": limits.gpus, "memory_gb": limits.memory_gb or 0.0}
    lacking = [name for name, much in asked.items() if all(getattr(node, name) < much for node in nodes)]
    what = ", ".join(f"limits.{name} is {asked[name]:g}" for name in lacking or asked)
    has = "; ".join(f"{node.name} has {node.lacks(limits)}" for node in nodes) or "it has no nodes"
    remedy = " ".join(f"--set limits.{name}=..." for name in lacking or asked)
    raise UserError(f"a run fits on no node of the Ray cluster: {what}, but {has}; ask for less with {remedy}, or add a node")


def with_room(limits: Limits, nodes: Iterable[Node], without: Collection[str]) -> list[Node]:
    """The nodes that could take such a run, but for those of these ids."""
    return [node for node in nodes if node.id not in without and node.holds(limits)]


def options(limits: Limits, without: Collection[str]) -> dict[str, object]:
    """The limits as Ray's options of a task; it is not put on the nodes of the ids ``without``."""
    asked: dict[str, object] = {"num_cpus": round(limits.cpus, 4), "num_gpus": round(limits.gpus, 4)}
    if limits.memory_gb is not None:
        asked["memory"] = int(limits.memory_gb * _GIB)
    if without:
        return {**asked, "label_selector": {"ray.io/node-id": f"!in({','.join(sorted(without))})"}}
    return {**asked, "scheduling_strategy": "SPREAD"}
