"""Fast backend: chains of layers without autograd. Clients with a small model of stackable
layers train many at once, all others in turn.

Measured on two cores with AVX-512 and 2 MiB of L2 cache (docs/performance.md): a step of ten small
networks takes half of the time of ten steps; from about 2^18 parameters on, and for convolutions,
one client at a time is faster, since its parameters stay in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from fedbench.core.contract.samples import Batch, Selection
from fedbench.core.contract.task import Classification, Task
from fedbench.core.federation import backend
from fedbench.core.federation.backend import GradientRequest, Group
from fedbench.core.federation.guard import run_model
from fedbench.core.federation.setup import MemberTools
from fedbench.core.federation.turn import Turn
from fedbench.core.numerics.chain import Chain, Graph, obstacle, unfilled
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gradients import clipped_gradient
from fedbench.core.numerics.per_sample import random_state, set_random_state
from fedbench.core.numerics.wrappers import as_floats

MOST_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
"""parameters of the models of a group together: on the CPU what stays in its cache, on a GPU, where
a step's launches cost more than its arithmetic, 256 MiB (not measured)
"""
MOST_CLIENTS = 64
"""of a group"""
# steps stacked at once: a whole epoch, padded to the largest client, may be many times the clients'
# data
_STEPS = 32


class Backend(backend.Backend):
    """Gradients along chains of layers; by autograd where a model or a loss asks for more."""

    _stacked: StackedGroup | None = None
    _chain: Chain | None = None

    @cached_property
    def _size(self) -> int:
        """Number of clients that train at once; 0 where none do."""
        params = self.flat.params
        most = MOST_ELEMENTS.get(params.device.type, 0) // params.numel()
        size = min(MOST_CLIENTS, most, self.clients)
        if size < 2 or not isinstance(self.flat.task, Classification):
            return 0
        return size

    def note(self, x: Tensor) -> str:
        chain = Chain.of(self.flat, x) if self._size else None
        quick = chain is not None and not chain.draws
        if not self._size or self.flat.params.device.type != "cpu" or quick:
            return ""
        why = obstacle(self.flat.module)
        return f"clients were trained one by one, slower than together: {why}"

    def groups(self, turns: Sequence[Turn]) -> Iterator[tuple[Group, Sequence[Turn]]]:
        chain = Chain.of(self.flat, turns[0].data.x) if self._size else None
        if chain is None or not chain.stackable:
            yield from super().groups(turns)
            return
        alone = [turn for turn in turns if "local_train" in turn.phases]
        yield from super().groups(alone)
        if self._stacked is None:
            self._stacked = self.stack(self._size)
        self._stacked.chain = chain
        for members in _alike(turns):
            for first in range(0, len(members), self._size):
                yield self._stacked, members[first : first + self._size]

    def stack(self, size: int) -> StackedGroup:
        """A group of up to ``size`` clients that train at once."""
        return StackedGroup(self, size)

    def examine(self, x: Tensor) -> None:
        super().examine(x)
        self._chain = Chain.of(self.flat, x)

    def mean_gradient(self, x: Tensor, target: Tensor) -> None:
        if self._chain is None:
            super().mean_gradient(x, target)
        else:
            self._chain.gradient(x, target)

    def loss_gradient(self, request: GradientRequest) -> None:
        chain = self._chain
        if chain is None or chain.draws or request.loss is None or request.has_graph:
            super().loss_gradient(request)
            return
        outputs = run_model(chain.forward, request.batch.x, where=request.place)
        at_outputs, further = _split_gradient(self.flat, outputs, request)
        chain.backward(at_outputs)
        _add(self.flat.gradients, further)


def _alike(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Clients that may be stacked, of similar size together. Batches that may change size, to which
    others would be padded, are apart; so are samples of another type.
    """
    kinds: dict[tuple[bool, str], list[Turn]] = {}
    for turn in turns:
        if "local_train" not in turn.phases:
            resizes = bool(turn.phases & {"transform", "local_step"})
            kinds.setdefault((resizes, str(turn.data.x.dtype)), []).append(turn)
    groups = [kinds[kind] for kind in sorted(kinds)]
    return [sorted(turns, key=lambda turn: -len(turn.data.y)) for turns in groups]


def _split_gradient(
    flat: FlatModel, outputs: Tensor, request: GradientRequest
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradient of the request's loss at ``outputs``, and that of each parameter past them."""
    assert request.loss is not None
    leaf = outputs.detach().requires_grad_()
    graph = Graph(flat.module, flat.trainable, request.batch.x)
    loss = request.loss(graph.through(leaf))
    flat.drop_grad()  # a plugin may have used it
    graph.cut = True
    request.backward(loss)
    if leaf.grad is None:
        leaf.grad = torch.zeros_like(leaf)
    return leaf.grad, [p.grad for p in flat.trainable]


def _add(gradients: Sequence[Tensor], further: Sequence[Tensor | None]) -> None:
    for gradient, addend in zip(gradients, further, strict=True):
        if addend is not None:
            gradient += addend


# --- many clients at once -------------------------------------------------------------------------


class StackedGroup(Group):
    """Up to ``size`` clients, each with a row of its own. ``chain``: the module's, for one."""

    chain: Chain
    tools: GroupTools

    def __init__(self, backend: Backend, size: int) -> None:
        params = backend.flat.params.new_zeros(size, backend.flat.params.numel())
        super().__init__(backend, params, torch.zeros_like(params))
        pairs = zip(params, self.grads, strict=True)
        self.rows = [self.flat.row(p, g) for p, g in pairs]
        self.tools = GroupTools(self)

    def receive(self) -> None:
        self._random = [random_state(self.params.device)] * len(self.turns)
        self._chains: dict[int, Chain] = {}
        for row, turn in zip(self.params, self.turns, strict=False):
            row.copy_(turn.start.params)

    def show(self, i: int) -> None:
        self.flat.show(self.rows[i])
        self.tools.row = i
        set_random_state(self._random[i])

    def work_as(
        self,
        i: int,
        work: Callable[..., Any],
        *args: Any,
        **named: Any,
    ) -> Any:
        self.show(i)
        result = work(*args, **named)
        self._random[i] = random_state(self.params.device)
        return result

    def close(self) -> None:
        self.flat.show_own()

    def steps(self, drawn: Sequence[list[Tensor]]) -> Iterator[dict[int, int]]:
        self._drawn = drawn
        width = max((len(pick) for pick in itertools.chain(*drawn)), default=0)
        for s in range(max(map(len, drawn))):
            sizes = {i: len(picks[s]) for i, picks in enumerate(drawn) if s < len(picks)}
            m = max(sizes) + 1
            if s % _STEPS == 0:
                with unfilled():
                    stack = _stacked(self.turns[:m], drawn[:m], s, width)
            self._s = s
            data = stack.of_step(s % _STEPS, m)
            self.data = data._replace(x=as_floats(self.flat.module, data.x))
            self.tools.end()
            yield sizes

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.data.x, self.data.target, self.data.weight

    def mean_gradients(self, *inputs: Tensor) -> None:
        x, target, weight = inputs
        chain = self.chain_of(len(x))
        chain.backward(self.flat.task.output_gradient(chain.forward(x), target, weight))

    def batch(self, i: int) -> Batch:
        pick = self._drawn[i][self._s]
        turn = self.turns[i]
        data = self.data
        n = len(pick)
        selection = turn.selection
        return Batch(
            data.x[i, :n],
            data.y[i, :n],
            selection.index[pick],
            None if turn.data.soft is None or data.soft is None else data.soft[i, :n],
            None if selection.flag is None else selection.flag[pick],
        )

    def replace(self, batches: dict[int, Batch]) -> None:
        self.data = _restacked(batches, self.data.weight)

    def share(self, requests: dict[int, GradientRequest]) -> None:
        self.tools.begin(requests)

    def fill(self, requests: dict[int, GradientRequest]) -> None:
        self.tools.end()  # its gradients are overwritten
        data = self.data
        place = f"round {self.turns[0].round}"
        chain = self.chain_of(len(data.y))
        outputs = run_model(chain.forward, data.x, where=place)
        gradient = self.flat.task.output_gradient
        g = run_model(gradient, outputs, data.target, data.weight, where=place)
        further = {}
        for i, request in requests.items():
            if request.loss is not None and not request.has_graph:
                n = len(request.batch.x)
                of_loss = self.work_as(i, _split_gradient, self.flat, outputs[i, :n], request)
                g[i, :n], further[i] = of_loss
        chain.backward(g)
        for i, addends in further.items():
            _add(self.rows[i].gradients, addends)
        for i, request in requests.items():
            if request.has_graph:
                self.work_as(i, self.backend.loss_gradient, request)

    def chain_of(self, m: int) -> Chain:
        """The chain of the first ``m`` clients."""
        if m not in self._chains:
            params = self.params[:m]
            grads = self.grads[:m]
            self._chains[m] = self.chain.of_clients(self.flat, params, grads)
        return self._chains[m]


class Stack(NamedTuple):
    """Batches of many clients."""

    x: Tensor
    """[..., B, *input]"""
    y: Tensor
    """[..., B]"""
    soft: Tensor | None
    """[..., B, C]"""
    weight: Tensor
    """[..., B] weight of each sample in its client's mean: 0 of those that only fill up"""

    @property
    def target(self) -> Tensor:
        """Labels, or target probabilities where there are some."""
        return self.y if self.soft is None else self.soft

    def of_step(self, s: int, m: int) -> Stack:
        """Step ``s`` of the first ``m`` clients."""
        soft = None if self.soft is None else self.soft[:m, s]
        return Stack(self.x[:m, s], self.y[:m, s], soft, self.weight[:m, s])


def _stacked(
    turns: Sequence[Turn],
    drawn: Sequence[list[Tensor]],
    first: int,
    width: int,
) -> Stack:
    """Batches of up to ``width`` samples from step ``first`` on, [m, S, B, ...]; what is past a
    client's own is a copy of one of its samples.
    """
    drawn = [picks[first : first + _STEPS] for picks in drawn]
    steps = max(map(len, drawn))
    data = [turn.data for turn in turns]
    places = [
        _places(turn.selection, picks, steps, width)
        for turn, picks in zip(turns, drawn, strict=True)
    ]

    def stack(values: list[Tensor]) -> Tensor:
        rows = [v.index_select(0, index) for v, index in zip(values, places, strict=True)]
        return torch.stack(rows).unflatten(1, (steps, width))

    soft = _targets([d.y for d in data], [d.soft for d in data])
    sizes = [[*map(len, picks), *[0] * (steps - len(picks))] for picks in drawn]
    return Stack(
        stack([d.x for d in data]),
        stack([d.y for d in data]),
        stack(soft) if soft else None,
        _weights(torch.tensor(sizes), width, turns[0].start.params),
    )


def _places(
    selection: Selection,
    picks: list[Tensor],
    steps: int,
    width: int,
) -> Tensor:
    """Places [steps * width], in a client's data, of its batches and of what fills them up."""
    if not picks:
        return selection.index.new_zeros(steps * width)
    rows = pad_sequence(picks, batch_first=True)
    missing = (0, width - rows.shape[1], 0, steps - len(rows))
    return selection.index[pad(rows, missing).flatten()]


def _restacked(batches: dict[int, Batch], weight: Tensor) -> Stack:
    """Transformed batches, in place of those with this ``weight`` [m, B]; clients without one have
    no weight.
    """
    first = next(iter(batches.values()))
    none = Batch(first.x[:0], first.y[:0], first.index[:0])
    stacked = [batches.get(i, none) for i in range(len(weight))]
    soft = _targets([b.y for b in stacked], [b.soft for b in stacked])
    x = pad_sequence([b.x.detach() for b in stacked], batch_first=True)
    sizes = torch.tensor([len(b.x) for b in stacked])
    return Stack(
        x,
        pad_sequence([b.y for b in stacked], batch_first=True),
        pad_sequence(soft, batch_first=True) if soft else None,
        _weights(sizes, x.shape[1], weight),
    )


def _targets(y: list[Tensor], soft: list[Tensor | None]) -> list[Tensor]:
    """Target probabilities [..., C] of each client; none where no client has some of its own."""
    like = next((targets for targets in soft if targets is not None), None)
    if like is None:
        return []
    pairs = zip(y, soft, strict=True)
    return [
        (one_hot(labels, like.shape[-1]) if targets is None else targets.detach()).to(like)
        for labels, targets in pairs
    ]


def _weights(sizes: Tensor, width: int, like: Tensor) -> Tensor:
    """Weights [..., width], on the device of ``like``, of the samples of batches of these
    ``sizes`` in their means.
    """
    sizes = sizes[..., None]
    weights = (torch.arange(width) < sizes) / sizes.clamp_min(1).to(like.dtype)
    return weights.to(like.device)


class GroupTools(MemberTools):
    """Tools of the member in ``row`` of a group. Clipped gradients of a step are computed for the
    whole group when its first member asks; alone for a member that asks for another bound, or has
    changed its parameters, samples or layers since.
    """

    row: int

    def __init__(self, group: StackedGroup) -> None:
        self._group = group
        self._batches: dict[int, Batch]
        self.end()

    def begin(self, requests: dict[int, GradientRequest]) -> None:
        """Compute for these members of the present step, until :meth:`end`."""
        self._batches = {i: request.batch for i, request in requests.items()}
        self._bound = 0.0
        self._versions = {i: _versions(batch) for i, batch in self._batches.items()}

    def end(self) -> None:
        """Let each call from here on compute its own gradients."""
        self._batches = {}

    def clipped_gradient(  # type: ignore[override]
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        bound: float,
        views: int,
        task: Task,
    ) -> Tensor:
        """See ``numerics.gradients.clipped_gradient``."""
        batch = self._batches.get(self.row)
        of_step = batch is not None and x is batch.x and y is batch.target
        if not of_step or views != 1 or not bound > 0 or not self._serves(bound):
            return clipped_gradient(model, x, y, bound, views, task=task)
        group = self._group
        data = group.data
        if not self._bound:
            real = (data.weight > 0).to(data.weight)
            group.chain_of(len(real)).clipped(data.x, data.target, real, bound)
            self._bound = bound
            self._params = group.params.clone()
        return group.grads[self.row].clone()

    def _serves(self, bound: float) -> bool:
        """Whether the group's gradients are those of this member, as it is now."""
        row = self.row
        group = self._group
        if group.chain.hooked() or _versions(self._batches[row]) != self._versions[row]:
            return False
        pairs = zip(group.flat.trainable, group.rows[row].tensors, strict=True)
        if any(p.data_ptr() != tensor.data_ptr() for p, tensor in pairs):
            return False
        if not self._bound:
            return True
        return bound == self._bound and torch.equal(group.params[row], self._params[row])


def _versions(batch: Batch) -> tuple[int, int]:
    return batch.x._version, batch.target._version
