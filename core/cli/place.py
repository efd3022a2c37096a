"""The executor, device and part of a plan, from the options of `fedbench run`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fedbench.core.contract.errors import UserError

if TYPE_CHECKING:
    from fedbench.core.run.local import Executor

LOCAL, RAY = "local", "ray"
_MOST_PARTS = 100_000


def executor_of(name: str, workers: int | None, address: str | None) -> Executor:
    """The executor of this name."""
    if name == RAY:
        from fedbench.core.run.ray_executor import RayExecutor

        return RayExecutor(address, workers)
    from fedbench.core.cli.machine import usable_cores
    from fedbench.core.run.local import LocalProcesses

    return LocalProcesses(workers or usable_cores())


def side_by_side(executor: Executor) -> str:
    """The number of runs at a time, in words."""
    workers = getattr(executor, "workers", None)
    return f"{workers} side by side" if workers else "as many side by side as fit on the cluster"


def device_of(wanted: str, executor: str, limits: Any) -> str:
    """The device of a plan: that of this machine, or the one that every run gets of its node. Raises ``UserError``."""
    if executor == RAY:
        return _device_of_nodes(wanted, limits.gpus)
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = _parsed(wanted)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device {wanted}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return "cpu" if device.type == "cpu" else wanted


def _device_of_nodes(wanted: str, gpus: float) -> str:
    if wanted == "auto":
        return "cuda" if gpus else "cpu"
    device = _parsed(wanted)
    if device.index is not None:
        raise UserError(f"--device {wanted}: Ray gives every run a GPU of its node; write --device cuda")
    if device.type == "cuda" and not gpus:
        raise UserError("--device cuda: the suite asks for no GPU; add --set limits.gpus=1, or a fraction of one")
    return device.type


def _parsed(wanted: str) -> Any:
    import torch

    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UserError(f"--device {wanted}: not a device; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {wanted}: only cpu and cuda are supported")
    return device


def parse_part(text: str | None) -> tuple[int, int] | None:
    """``I/N`` as numbers; raises ``UserError`` for another form and for a part that there is not."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None:
        raise UserError(f"--part {text}: expected I/N, for example 2/8: the second of eight parts")
    i, n = int(found[1]), int(found[2])
    if not 1 <= i <= n <= _MOST_PARTS:
        raise UserError(f"--part {text}: there is no such part; I goes from 1 to N, and N is {_MOST_PARTS:,} at most")
    return i, n
