"""A GPU's memory, and its faults, which are no result: the run stays missing and is tried again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

_CONTEXT = 2**29  # bytes that a process holds beside its tensors, for the context and kernels
_SIZES = re.compile(
    r"Tried to allocate ([\d.]+ \w+).*?total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
)
_ASSERT = "device-side assert"  # a label that is no class, an index out of range: a component's


def memory_of_run(device: torch.device) -> list[int] | None:
    """Return (the most bytes that this process held on the GPU, all of its bytes); None on the
    CPU.
    """
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return [torch.cuda.max_memory_reserved(device) + _CONTEXT, total]


class DeviceFault(Exception):
    """A GPU is out of memory, or lost."""


def fault_of(error: BaseException) -> str:
    """Return what happened to a GPU, with a remedy; empty for an error with another cause."""
    for cause in _causes(error):
        text = str(cause.args[0]) if cause.args else ""
        if isinstance(cause, torch.OutOfMemoryError):
            return _out_of_memory(text)
        if isinstance(cause, torch.AcceleratorError) and _ASSERT not in text:
            lines = text.strip().splitlines() or ["it gives no reason"]
            return f"the GPU was lost in mid-run ({lines[0]}): look at it with nvidia-smi"
    return ""


def raise_fault(error: BaseException) -> None:
    """Raise :class:`DeviceFault` if a GPU caused ``error``."""
    if text := fault_of(error):
        raise DeviceFault(text) from error


def _out_of_memory(text: str) -> str:
    remedy = (
        "run fewer side by side (--workers), or lower federation.batch_size or the model's size"
    )
    sizes = _SIZES.search(text)
    if sizes is None:
        return f"out of GPU memory ({text[:200]}): {remedy}"
    asked, total, free = sizes.groups()
    return f"out of GPU memory: {asked} were asked for, {free} of {total} were free: {remedy}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
