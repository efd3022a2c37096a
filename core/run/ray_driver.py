"""The process that speaks with Ray: it alone imports it, so that its threads and its ways to die are not the user's command's.

It takes ("submit", ticket, name, request, options), ("cancel", ticket), ("nodes",) and ("stop",). It says ("connected", nodes)
once, then ("nodes", nodes) and ("task", ticket, kind, node, value) as things happen; ("error", text) where there is no cluster.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from fedbench.core.process.child import end_with_parent
from fedbench.core.run.ray_executor import Node
from fedbench.core.words.explain import one_line

_TICK_S = 0.1
_MOST_OF_A_REASON = 400  # characters


def main(fd: int, parent: int, address: str) -> None:
    """``address``: a cluster's; empty: the one that Ray finds, else one on this machine for as long as this process lives."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's command says when to stop
    pipe = Connection(fd)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here tells nobody of it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray

        more = {"address": address} if address else {"include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **more)
    except Exception as error:  # of many kinds: no such cluster, another version of Ray or Python there, a token that is missing
        pipe.send(("error", one_line(f"{type(error).__name__}: {error}", _MOST_OF_A_REASON)))
        return
    try:
        pipe.send(("connected", _nodes(ray)))
        _serve(ray, pipe)
    except (EOFError, BrokenPipeError):
        return  # the command is gone
    finally:
        ray.shutdown()


def _serve(ray: Any, pipe: Connection) -> None:
    """Until there is a "stop"; then whatever still runs is cancelled."""
    remote = ray.remote(_task())
    running: dict[Any, int] = {}
    try:
        while True:
            while pipe.poll(0 if running else _TICK_S):
                word, *what = pipe.recv()
                if word == "stop":
                    return
                if word == "nodes":
                    pipe.send(("nodes", _nodes(ray)))
                elif word == "cancel":
                    for generator in [g for g, ticket in running.items() if ticket == what[0]]:
                        del running[generator]
                        ray.cancel(generator, force=True)
                else:
                    ticket, name, request, options = what
                    task = remote.options(name=name, num_returns="streaming", max_retries=0, **options)
                    running[task.remote(request)] = ticket
            _hand_on(ray, running, lambda *what: pipe.send(("task", *what)))
    finally:
        for generator in running:
            ray.cancel(generator, force=True)


def _hand_on(ray: Any, running: dict[Any, int], tell: Callable[[int, str, Any, Any], None]) -> None:
    """What the tasks have said, after a moment at most."""
    if not running:
        return
    ready, _ = ray.wait(list(running), num_returns=1, timeout=_TICK_S, fetch_local=False)
    if ready:
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0, fetch_local=False)
    for generator in ready:
        ticket = running[generator]
        try:
            tell(ticket, *ray.get(next(generator)))
        except StopIteration:
            del running[generator]
            tell(ticket, "end", None, None)
        except ray.exceptions.RayTaskError as error:  # raised there, in fedbench's own lines
            del running[generator]
            tell(ticket, "defect", None, str(error))
        except ray.exceptions.RayError as error:  # the system's: a node or a process of Ray's is gone
            del running[generator]
            tell(ticket, "lost", None, one_line(f"{type(error).__name__}: {error}", _MOST_OF_A_REASON))


def _nodes(ray: Any) -> list[Node]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [
        Node(
            id=node["NodeID"], name=node["NodeName"], cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0),
            memory_gb=has.get("memory", 0.0) / 2**30,
        )
        for node in alive for has in [node["Resources"]]
    ]  # fmt: skip


def _task() -> Callable[[bytes], Iterator[tuple[str, Any, Any]]]:
    """Made in here, so that Ray sends its code and not its name: a node without fedbench can say so."""

    def fedbench_run(packed: bytes) -> Iterator[tuple[str, Any, Any]]:
        import pickle
        import sys

        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            from fedbench.core.run.node import serve

            request = pickle.loads(packed)
        except (ImportError, AttributeError) as error:
            yield "refused", node, [f"{sys.executable} has no fedbench like the one of the driver ({error})"]
            return
        for kind, value in serve(request):
            yield kind, node, value

    return fedbench_run


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
