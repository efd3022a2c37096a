"""Tensor operations at fixed places, recorded once and run again without Python: as a CUDA graph, or one by one on the CPU.

Whatever Python decides while they are recorded is decided for good, and whichever memory they read and write is read and written
by every replay: a step that is recorded takes what changes from tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[[], None]


class Recorder(Protocol):
    """A way to record."""

    def warm_up(self, step: Step) -> None:
        """Run ``step`` as it will be recorded; raises ``RuntimeError`` where it waits for a value, as no replay does."""

    def record(self, step: Step) -> Step:
        """Record ``step``; the answer runs its operations again. Raises ``RuntimeError`` for what cannot be recorded."""


class CudaGraphs:
    """One graph for each recorded step, all in one pool of memory: none leaves anything in it that another could overwrite.

    As torch's notes on CUDA graphs ask: warmed up and captured on a side stream, replayed on the stream at work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._side = device, torch.cuda.Stream(device)
        self._pool: Any = None

    def warm_up(self, step: Step) -> None:
        """See :class:`Recorder`."""
        with self._aside(), _no_waiting():
            step()

    def record(self, step: Step) -> Step:
        """See :class:`Recorder`."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        try:
            with self._aside(), torch.cuda.graph(graph, pool=self._pool, stream=self._side):
                step()
        except Exception:
            self._mend_generator()
            raise
        self._pool = graph.pool()
        replay: Step = graph.replay
        return replay

    @contextmanager
    def _aside(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._side):
                yield
        finally:
            current.wait_stream(self._side)

    def _mend_generator(self) -> None:
        """A capture that failed leaves the generator believing that it goes on: every later draw would be refused."""
        fresh = torch.Generator(self._device)
        torch.cuda.default_generators[self._device.index].graphsafe_set_state(fresh)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """An operation that waits for the device raises: found here, it costs nothing; in a capture, the capture."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class CpuOperations:
    """The same on the CPU, operation by operation: for tests of what is recorded, where there is no GPU."""

    def warm_up(self, step: Step) -> None:
        """See :class:`Recorder`."""
        with _Tape():
            step()

    def record(self, step: Step) -> Step:
        """See :class:`Recorder`."""
        tape = _Tape()
        with tape:
            step()
        return tape.replay


class _Tape(TorchDispatchMode):
    """What is computed, backward pass included. All results stay alive, so that a replay writes them where they were."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a value of a tensor is asked for, which a replay could not give again")
        out = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, tree_leaves(out)))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, before in self._calls:
            for was, now in zip(before, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(was, torch.Tensor) and was.data_ptr() != now.data_ptr():
                    was.copy_(now)
