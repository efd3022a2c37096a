"""Runs on the machines of a Ray cluster. This process alone writes the results folder; nodes share no disk."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from fedbench.core.contract.errors import UserError
from fedbench.core.execution.executor import Watcher
from fedbench.core.execution.node import Request, passed_on
from fedbench.core.execution.ray_cluster import Event, RayCluster
from fedbench.core.execution.resources import Node, options, require_room, with_room
from fedbench.core.execution.same_code import needs_of
from fedbench.core.execution.shipped import unpack, unpack_log
from fedbench.core.experiment.job import Job
from fedbench.core.store.record import overall_auc
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
