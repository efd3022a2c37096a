"""Contract of a backend, which groups clients and computes the gradients of their batches, and the
plain one: one client after the other, by autograd. Others are tested against it.

A step of local training begins with a ``ModelState``, takes a ``Batch`` (in a group: one of each
client), and makes of it a gradient [P]; the optimiser makes of that an update. The trainer owns the
order of steps and all phases of a defense; a backend owns the samples' layout and the kernels. To
add one: a module of this package with a class ``Backend``, and the module's name in
``spec.federation.BackendName``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedbench.core.contract.samples import Batch
from fedbench.core.federation.guard import run_model
from fedbench.core.federation.optimizer import State, make_optimizer
from fedbench.core.federation.setup import MemberTools
from fedbench.core.federation.turn import Turn
from fedbench.core.numerics.chain import is_own, unfilled
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.wrappers import as_floats
from fedbench.core.spec.federation import FederationSpec


@dataclass(frozen=True)
class GradientRequest:
    """A client's gradient to compute."""

    batch: Batch
    place: str
    """of its phases, for messages"""
    loss: Callable[[Tensor], Tensor] | None = None
    """outputs [B, ...] -> the defense's loss, a scalar; None: the task's mean loss"""
    backward: Callable[[Tensor], None] = Tensor.backward
    """backpropagates that loss"""

    @property
    def has_graph(self) -> bool:
        """Whether samples or targets require gradients: a ``transform`` computed them from the
        parameters, or a ``loss`` differentiates with respect to them.
        """
        return self.batch.x.requires_grad or self.batch.target.requires_grad


class Backend:
    """Computes gradients of ``flat``, the model that up to ``clients`` clients train. ``moments``:
    the state of optimisers that lives on from round to round.
    """

    def __init__(
        self,
        config: FederationSpec,
        flat: FlatModel,
        clients: int = 1,
        moments: dict[int, State] | None = None,
    ) -> None:
        self.config = config
        self.flat = flat
        self.clients = clients
        self.moments = moments
        self._own = False
        self.alone = Group(self, flat.params[None], flat.grad[None])

    def note(self, x: Tensor) -> str:
        """A sentence for records on why training on ``x`` is slower than it could be; or empty."""
        return ""

    def groups(self, turns: Sequence[Turn]) -> Iterator[tuple[Group, Sequence[Turn]]]:
        """The groups in which a round's clients train, one after the other."""
        for turn in turns:
            yield self.alone, [turn]

    def examine(self, x: Tensor) -> None:
        """Note the model's present layers, before batches like ``x``: a plugin may change them."""
        self._own = is_own(self.flat.module, self.flat.task)

    def mean_gradient(self, x: Tensor, target: Tensor) -> None:
        """Fill ``flat.grad`` with that of the mean loss on ``x`` [B, *input]."""
        with unfilled(self._own):
            loss = self.flat.task.loss(self.flat.module(x), target)
            self.flat.drop_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.flat.take_grad()

    def loss_gradient(self, request: GradientRequest) -> None:
        """Fill ``flat.grad`` with that of a defense's own loss, or of samples with a graph."""
        batch = request.batch
        with unfilled(self._own):
            outputs = run_model(self.flat.module, batch.x, where=request.place)
        if request.loss is None:
            loss = self.flat.task.loss(outputs, batch.target)
        else:
            loss = request.loss(outputs)
        self.flat.drop_grad()  # a plugin may have used the gradients
        request.backward(loss)
        self.flat.take_grad()

    def gradient(self, request: GradientRequest) -> None:
        """Fill ``flat.grad`` with the requested gradient."""
        if request.loss is None and not request.has_graph:
            batch = request.batch
            run_model(self.mean_gradient, batch.x, batch.target, where=request.place)
        else:
            self.loss_gradient(request)


class Group:
    """Clients that train in lock step, each with a row of ``params`` and ``grads`` [G, P]: here one
    client, in the module's own vectors. ``turns``: those of the present round; ``tools``: of its
    members, where the group has its own.
    """

    tools: MemberTools | None = None

    def __init__(self, backend: Backend, params: Tensor, grads: Tensor) -> None:
        self.backend = backend
        self.flat = backend.flat
        self.params = params
        self.grads = grads
        self.optimizer = make_optimizer(backend.config.optimizer, params, grads, backend.moments)
        self.turns: Sequence[Turn] = ()

    def receive(self) -> None:
        """Let each client have the model that it starts from."""
        self.flat.load(self.turns[0].start)

    def work_as(
        self,
        i: int,
        work: Callable[..., Any],
        *args: Any,
        **named: Any,
    ) -> Any:
        """``work(*args, **named)`` of client ``i``, in the module; it sees no other's gradients."""
        self.flat.drop_grad()
        return work(*args, **named)

    def show(self, i: int) -> None:
        """Let the module be client ``i``'s, and torch's global generator as it left it."""

    def close(self) -> None:
        """End the round."""

    def steps(self, drawn: Sequence[list[Tensor]]) -> Iterator[dict[int, int]]:
        """The steps of an epoch, in which client i trains on ``drawn[i]``, positions in its
        selection: for each the clients that have a batch, with its size. A group may take steps
        without phases by itself, and leave them out.
        """
        turn = self.turns[0]
        self.backend.examine(turn.data.x)
        for batch in batches_of(self.flat, turn, drawn[0]):
            self._batch = batch
            yield {0: len(batch.index)}

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The present step's, for :meth:`mean_gradients`."""
        return self._batch.x, self._batch.target

    def mean_gradients(self, *inputs: Tensor) -> None:
        """Fill ``grads`` with those of each client's mean loss."""
        self.backend.mean_gradient(*inputs)

    def batch(self, i: int) -> Batch:
        """Client ``i``'s batch of the present step."""
        return self._batch

    def replace(self, batches: dict[int, Batch]) -> None:
        """Take the members' batches in place of those of the step."""

    def share(self, requests: dict[int, GradientRequest]) -> None:
        """Let ``tools`` compute for all members at once, until :meth:`fill`."""

    def fill(self, requests: dict[int, GradientRequest]) -> None:
        """Fill the rows of ``grads`` of this step. ``requests``: of members with phases."""
        request = requests.get(0) or GradientRequest(self._batch, self.turns[0].place)
        self.work_as(0, self.backend.gradient, request)


def batches_of(flat: FlatModel, turn: Turn, drawn: list[Tensor]) -> Iterator[Batch]:
    """Batches of an epoch, of these positions in the turn's selection, as the task makes rows of
    them. Samples are gathered once.
    """
    if not drawn:
        return
    sizes = [len(part) for part in drawn]
    pick = torch.cat(drawn)
    index = turn.selection.index[pick]

    def split(values: Tensor | None, rows: Tensor) -> Sequence[Tensor | None]:
        if values is None:
            return [None] * len(sizes)
        return values[rows].split(sizes)

    samples = turn.data.x[index].split(sizes)
    labels = turn.data.y[index].split(sizes)
    softs = split(turn.data.soft, index)
    flags = split(turn.selection.flag, pick)
    for s, rows in enumerate(index.split(sizes)):
        y = labels[s]
        soft = softs[s]
        x, target = flat.rows(as_floats(flat.module, samples[s]), y, "train", turn.draws)
        if soft is None and target is not y:
            soft = target
        yield Batch(x, y, rows, soft, flags[s])


def backend_of(config: FederationSpec, device: torch.device) -> type[Backend]:
    """The federation's backend; ``auto``: the fastest one on the device."""
    fastest = "recorded" if device.type == "cuda" else "stacked"
    modules = {"auto": fastest, "autograd": "backend"}
    name = modules.get(config.backend, config.backend)
    backend: type[Backend] = import_module(f"fedbench.core.federation.{name}").Backend
    return backend
