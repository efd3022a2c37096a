"""What a run asks of a node, and whether some node of a cluster has it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fedbench.core.contract.errors import UserError
from fedbench.core.spec.suite import Limits

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
