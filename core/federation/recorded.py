"""Backend of GPUs: ``stacked``, with the steps of plain clients as recorded CUDA graphs. A replay
launches at once what is some hundred kernels otherwise.

Only code of torch and of fedbench is recorded: clients without phases of a defense, and models of
no other package. A step is its gradient and the optimiser's update; its batch is copied into
tensors that stay where they are, and the learning rate is a scalar on the device. A recording is
made on another batch at a rate of 0, and accepted if its replay, with the gradient's memory full of
NaN, gives the bits of the step itself: an empty graph, or one that kept a number, does not. Without
one, the trainer takes the step kernel by kernel, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.core.federation import stacked
from fedbench.core.federation.backend import Group
from fedbench.core.federation.optimizer import State, lr_at
from fedbench.core.federation.stacked import StackedGroup
from fedbench.core.federation.watch import structure_of
from fedbench.core.numerics.chain import is_own
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.per_sample import random_state, set_random_state
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.words import error_text

Step = Callable[[], None]
_State = list[Tensor]
MOST = 8
"""recordings of a group: clients of many sizes have last batches of many sizes"""
_WARM_UPS = 3  # before a recording, as torch asks for


class CudaGraphs:
    """Records steps on ``device`` as CUDA graphs that share their memory: no tensor of theirs is
    read after a replay.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, step: Step) -> Step:
        """``step`` as a graph's replay; it runs some times before."""
        with torch.cuda.device(self._device):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                step()
        replay: Step = graph.replay
        return replay


class Backend(stacked.Backend):
    """Recorded steps where they can be, else those of ``stacked``. ``recorder``: makes a step's
    replay; ``reason``: why a step could not be recorded.
    """

    reason = ""

    def __init__(
        self,
        config: FederationSpec,
        flat: FlatModel,
        clients: int = 1,
        moments: dict[int, State] | None = None,
    ) -> None:
        super().__init__(config, flat, clients, moments)
        self.recorder = CudaGraphs(flat.params.device)
        self.alone = Recorded(self, flat.params[None], flat.grad[None])

    def stack(self, size: int) -> StackedGroup:
        return RecordedStack(self, size)

    def note(self, x: Tensor) -> str:
        slow = f"steps of clients ran kernel by kernel: {self.reason}" if self.reason else ""
        return "; ".join(note for note in (super().note(x), slow) if note)


class Recorded(Group):
    """A group that takes its plain steps by replays of recordings, one for each kind of inputs."""

    backend: Backend

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._rate = self.optimizer.rate = torch.zeros((), device=self.params.device)
        self._recordings: dict[object, tuple[list[Tensor], Step]] = {}
        self._structure: list[Any] = []

    def steps(self, drawn: Sequence[list[Tensor]]) -> Iterator[dict[int, int]]:
        plain = not any(turn.phases for turn in self.turns) and self._serves()
        lr = lr_at(self.backend.config, self.turns[0].round)
        for sizes in super().steps(drawn):
            if not (plain and all(sizes.values()) and self._take(list(sizes), lr)):
                yield sizes

    def _serves(self) -> bool:
        """Whether the model can be recorded; forget the recordings of one that has changed."""
        if not is_own(self.flat.module, self.flat.task):
            self.backend.reason = "the model, or its task, is code of another package, or is hooked"
        elif self.optimizer.state is None:
            self.backend.reason = "optimizer.keep_state gives each client a state of its own"
        structure = structure_of(self.flat.module)
        if structure != self._structure:
            self._recordings.clear()
            self._structure = structure
        return not self.backend.reason

    def _take(self, rows: list[int], lr: float) -> bool:
        """Take the present step; False where the caller has to."""
        kind = (*rows, *((t.shape, t.dtype) for t in self.inputs))
        self.optimizer.at(lr)
        if kind in self._recordings:
            room, replay = self._recordings[kind]
            torch._foreach_copy_(room, list(self.inputs))
            replay()
            return True
        if self.backend.reason or len(self._recordings) == MOST:
            return False
        before = self._state()
        try:
            self._recordings[kind] = self._tried(rows, lr, before)
        except Exception as error:  # whatever it is, the step itself meets it again
            self._restore(before)
            self.backend.reason = error_text(error)
        return not self.backend.reason

    def _tried(self, rows: list[int], lr: float, before: _State) -> tuple[list[Tensor], Step]:
        """A recording, with its room for inputs, which has taken the present step."""
        inputs = list(self.inputs)
        room = [t.clone() for t in inputs]

        def step() -> None:
            self.mean_gradients(*room)
            self.optimizer.step(self._rate, rows)

        step()
        expected = self._state()
        self._restore(before)
        torch._foreach_copy_(room, [t.flip(0) for t in inputs])
        self.optimizer.at(0.0)
        replay = self.backend.recorder.record(step)
        self._restore(before)
        torch._foreach_copy_(room, inputs)
        self.optimizer.at(lr)
        self.grads[rows] = torch.nan
        replay()
        if not all(map(torch.equal, self._state(), expected)):
            raise RuntimeError("a replay gave other bits than the step itself")
        return room, replay

    def _live(self) -> list[Tensor]:
        """All that a step changes, but for torch's generators."""
        state = self.optimizer.state or []
        return [self.params, self.grads, self.flat.buffers, *self.flat.counters, *state]

    def _state(self) -> _State:
        """Copies of all that a step changes, the generators' states first."""
        generators = [t for t in random_state(self.params.device) if isinstance(t, Tensor)]
        return [*generators, *(t.clone() for t in self._live())]

    def _restore(self, state: _State) -> None:
        live = self._live()
        cpu, *cuda = state[: -len(live)]
        set_random_state((self.params.device, cpu, cuda[0] if cuda else None))
        torch._foreach_copy_(live, state[-len(live) :])


class RecordedStack(Recorded, StackedGroup):
    """Clients that train at once."""

    def _serves(self) -> bool:
        self.flat.show(self.rows[0])  # the structure tells where parameters lie
        return super()._serves()
