"""Train the clients of a round: those with a small model of stackable layers many at once, in lock
step, all others in turn.

A client's shuffle, random numbers, optimiser and phases are its own, so that its result depends on
who is in its group by rounding alone, and on the number of workers not at all. Measured on two
cores with AVX-512 and 2 MiB of L2 cache (docs/performance.md): a step of ten small networks takes
half of the time of ten steps; from about 2^18 parameters on, and for convolutions, one client at a
time is faster, since its parameters stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from fedbench.core.contract.samples import Batch
from fedbench.core.federation.guard import call_phase, run_model
from fedbench.core.federation.local import LocalTrainer, Turn, add_to, has_graph
from fedbench.core.federation.optimizer import lr_at, make_optimizer
from fedbench.core.federation.setup import MemberTools, Setup
from fedbench.core.numerics.chain import Chain, obstacle, of_logits, unfilled
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gradients import clipped_gradient
from fedbench.core.numerics.wrappers import as_floats

MOST_ELEMENTS = 2**19
"""parameters of the models of a group together"""
MOST_CLIENTS = 64
"""of a group"""
# steps stacked at once: a whole epoch, padded to the largest client, may be many times the clients'
# data
_STEPS = 32
# parameters of a client that are compared to find writes past torch's version counters
_SAMPLE = 1024


class Cohort:
    """Trains the clients of each round of one training."""

    def __init__(self, setup: Setup) -> None:
        self.trainer, self._setup = LocalTrainer(setup), setup
        size = min(MOST_CLIENTS, MOST_ELEMENTS // setup.flat.params.numel(), len(setup.clients))
        self._size = size if size > 1 else 0
        self._group: Group | None = None

    @property
    def note(self) -> str:
        """Why clients are trained one by one though their model is small; empty where they are not,
        or where that is as fast.
        """
        flat, chain = self._setup.flat, self._chain()
        if (
            not self._size
            or flat.params.device.type != "cpu"
            or (chain is not None and not chain.draws)
        ):
            return ""
        return f"clients were trained one by one, slower than together: {obstacle(flat.module)}"

    def train(self, turns: Sequence[Turn]) -> Iterator[Turn]:
        """Train all, in any order. Yields each client when it is trained: the module then holds its
        model, and torch's global generator its state.
        """
        acts, chain = self.trainer.phases, self._chain()
        together: list[Turn] = []
        for turn in turns:
            if (
                chain is None
                or not chain.stackable
                or (turn.context is not None and acts["local_train"])
            ):
                self.trainer.train(turn)
                yield turn
            else:
                together.append(turn)
        if chain is not None:
            yield from self._together(chain, together)

    def _chain(self) -> Chain | None:
        return Chain.of(self._setup.flat, self._setup.clients[0].x) if self._size else None

    def _together(self, chain: Chain, turns: Sequence[Turn]) -> Iterator[Turn]:
        acts = self.trainer.phases
        # members with these phases may have larger batches, to which the other clients' would be
        # padded
        apart = acts["transform"] or acts["local_step"]
        # a `prepare` may return images as floats, which cannot be stacked with bytes
        kinds = [
            (bool(apart and turn.context is not None), str(turn.data.x.dtype)) for turn in turns
        ]
        for kind in sorted(set(kinds)):
            mine = [turn for turn, its in zip(turns, kinds, strict=True) if its == kind]
            mine.sort(key=lambda turn: -len(turn.data.y))  # clients of similar size together
            for start in range(0, len(mine), self._size):
                self._group = self._group or Group(self.trainer, self._size)
                yield from self._group.train(chain, mine[start : start + self._size])


class Group:
    """Up to ``size`` clients in lock step, each with a row of the parameters [G, P] and of their
    gradients.
    """

    def __init__(self, trainer: LocalTrainer, size: int) -> None:
        self._trainer, self._setup, self._flat = trainer, trainer.setup, trainer.flat
        self._params, self._grads = (
            self._flat.params.new_zeros(size, self._flat.params.numel()) for _ in range(2)
        )
        self._views, self._gradients = (
            [self._flat.views(row) for row in rows] for rows in (self._params, self._grads)
        )
        self._optimizer = make_optimizer(
            self._setup.config.optimizer, self._params, self._grads, trainer.states
        )
        self._phases, self._tools = trainer.phases, GroupTools(self._flat, self._params)

    def train(self, chain: Chain, turns: Sequence[Turn]) -> Iterator[Turn]:
        """As ``Cohort.train``; ``chain``: the module's."""
        self._turns, self._chain, self._chains = turns, chain, dict[int, Chain]()
        self._random = [torch.Generator().get_state()] * len(turns)
        try:
            for i, turn in enumerate(turns):
                self._params[i].copy_(turn.start)
                self._as(i, self._trainer.begin, turn)
            self._optimizer.reset([turn.client for turn in turns])
            for e in range(self._setup.config.local_epochs):
                self._epoch(e)
            for i, turn in enumerate(turns):
                self._show(i)
                self._trainer.end(turn)
                yield turn
        finally:
            self._flat.show_own()

    def _show(self, i: int) -> None:
        """Let the module be client ``i``'s, and torch's global generator as it left it."""
        self._flat.show(self._params[i], self._views[i])
        self._tools.show(i)
        torch.random.default_generator.set_state(self._random[i])

    def _as(self, i: int, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """``work(*args, **named)`` of client ``i``."""
        self._show(i)
        out = work(*args, **named)
        self._random[i] = torch.random.default_generator.get_state()
        return out

    def _phase(self, i: int, name: str, *args: Any) -> Any:
        return self._as(i, call_phase, self._setup.defense, name, *args, where=self._turns[i].where)

    # an epoch

    def _epoch(self, e: int) -> None:
        config, turns = self._setup.config, self._turns
        self._drawn = [self._trainer.drawn(turn) for turn in turns]
        self._contexts = {}
        for i, turn in enumerate(turns):
            if (ctx := self._trainer.context_of_epoch(turn, 0, e)) is not None:
                self._contexts[i] = replace(ctx, tools=self._tools)
        for s in range(max(map(len, self._drawn))):
            active = [i for i, own in enumerate(self._drawn) if s < len(own)]
            if s % _STEPS == 0:
                with unfilled():
                    data = self._stacked(s, active[-1] + 1)
            learnt = self._step(s, active, data.of_step(s % _STEPS, active[-1] + 1))
            if learnt:
                self._optimizer.step(lr_at(config, turns[0].round), learnt)

    def _stacked(self, first: int, m: int) -> Stack:
        """The batches of ``m`` clients from step ``first`` on, [m, S, B, ...]; what is past a
        client's own is a copy of one of its samples.
        """
        drawn, width = (
            [own[first : first + _STEPS] for own in self._drawn[:m]],
            max(len(p) for own in self._drawn for p in own),
        )
        sizes, data = (
            [[len(pick) for pick in own] for own in drawn],
            [turn.data for turn in self._turns],
        )
        steps = max(map(len, sizes))
        shape = m, steps * width
        counts = torch.tensor([own + [0] * (steps - len(own)) for own in sizes])[..., None]
        weight = (torch.arange(width) < counts) / counts.clamp_min(1).to(self._params)
        x, y = data[0].x.new_empty(*shape, *data[0].x.shape[1:]), data[0].y.new_empty(shape)
        soft = next(
            (d.soft.new_empty(*shape, d.soft.shape[1]) for d in data if d.soft is not None), None
        )
        for i, (turn, own) in enumerate(zip(self._turns, drawn, strict=False)):
            if not own:
                x[i], y[i] = 0, 0
                continue
            index = turn.selection.index[_padded(own, steps, width)]
            torch.index_select(turn.data.x, 0, index, out=x[i])
            torch.index_select(turn.data.y, 0, index, out=y[i])
            if soft is not None:
                soft[i] = (
                    one_hot(y[i], soft.shape[2])
                    if turn.data.soft is None
                    else turn.data.soft[index]
                )
        x, y = (t.unflatten(1, (steps, width)) for t in (x, y))
        return Stack(x, y, None if soft is None else soft.unflatten(1, (steps, width)), weight)

    def _batch(self, i: int, s: int, data: Stack) -> Batch:
        """Step ``s`` of client ``i``."""
        pick, turn = self._drawn[i][s], self._turns[i]
        n, own = len(pick), turn.selection
        soft = None if turn.data.soft is None or data.soft is None else data.soft[i, :n]
        return Batch(
            data.x[i, :n],
            data.y[i, :n],
            own.index[pick],
            soft,
            None if own.flag is None else own.flag[pick],
        )

    # a step

    def _step(self, s: int, active: list[int], data: Stack) -> list[int]:
        """Fill the gradients of step ``s``. Returns those of the ``active`` clients that have one."""
        data = data._replace(x=as_floats(self._flat.module, data.x))
        batches = {i: self._batch(i, s, data) for i in active if i in self._contexts}
        if batches and self._phases["transform"]:
            full = {i: batch for i, batch in batches.items() if len(batch.index)}
            batches |= {
                i: self._phase(i, "transform", batch, self._contexts[i])
                for i, batch in full.items()
            }
            data = _restacked(batches, len(data.y), data)
        own: dict[int, torch.Tensor] = {}
        if batches and self._phases["local_step"]:
            self._tools.begin(self._of_first(len(data.y)), data, batches)
            answers = {
                i: self._phase(i, "local_step", batch, self._contexts[i])
                for i, batch in batches.items()
            }
            own = {i: gradient for i, gradient in answers.items() if gradient is not None}
            # from here on the gradients are overwritten: each call computes its own
            self._tools.begin(self._chain, data, {})
        rest = [i for i in active if i not in own and len(self._drawn[i][s])]
        if rest:
            graphs = {i: batches[i] for i in rest if i in batches and has_graph(batches[i])}
            self._descend(data, {i: batches[i] for i in rest if i in batches and i not in graphs})
            for i, batch in graphs.items():
                rows = self._grads[i], self._gradients[i]
                self._as(
                    i,
                    self._trainer.by_autograd,
                    batch,
                    self._contexts[i],
                    self._turns[i].where,
                    *rows,
                )
        for i, gradient in own.items():
            self._grads[i].copy_(gradient)
        return [*own, *rest]

    def _descend(self, data: Stack, batches: dict[int, Batch]) -> None:
        """The gradients of the mean cross-entropy, and of the loss of the members that have
        ``batches``.
        """
        chain, others = self._of_first(len(data.y)), {}
        logits = run_model(chain.forward, data.x, where=f"round {self._turns[0].round}")
        g = run_model(
            of_logits, logits, data.target, data.weight, where=f"round {self._turns[0].round}"
        )
        for i, batch in batches.items() if self._phases["loss"] else ():
            n = len(batch.x)
            g[i, :n], others[i] = self._as(
                i, self._trainer.of_loss, logits[i, :n], batch, self._contexts[i]
            )
        chain.backward(g)
        for i, of_parameters in others.items():
            add_to(self._gradients[i], of_parameters)

    def _of_first(self, m: int) -> Chain:
        """The chain of the first ``m`` clients."""
        if m not in self._chains:
            self._chains[m] = self._chain.of_clients(self._flat, self._params[:m], self._grads[:m])
        return self._chains[m]


class Stack(NamedTuple):
    """Batches of many clients: ``x`` [..., B, *input], ``y`` [..., B], ``soft`` [..., B, C] or
    None, and the ``weight`` [..., B] of each sample in its client's mean: 0 of those that only fill
    up.
    """

    x: torch.Tensor
    y: torch.Tensor
    soft: torch.Tensor | None
    weight: torch.Tensor

    @property
    def target(self) -> torch.Tensor:
        """What the cross-entropy is taken with."""
        return self.y if self.soft is None else self.soft

    def of_step(self, s: int, m: int) -> Stack:
        """Step ``s`` of the first ``m`` clients."""
        return Stack(
            self.x[:m, s],
            self.y[:m, s],
            None if self.soft is None else self.soft[:m, s],
            self.weight[:m, s],
        )


class GroupTools(MemberTools):
    """A member's tools in a group. The clipped gradients of a step are computed for the whole group
    when its first member asks; alone for a member that asks for another bound, or has changed its
    parameters, samples or layers since the step began.
    """

    def __init__(self, flat: FlatModel, params: torch.Tensor) -> None:
        self._flat, self._params, self._sample = (
            flat,
            params,
            params[:, :: max(1, params.shape[1] // _SAMPLE)],
        )
        self._batches, self._versions = dict[int, Batch](), dict[int, tuple[int, int]]()

    def show(self, row: int) -> None:
        """The member of this row is at work, in the module."""
        self._row, self._since = row, self._state()

    def _state(self) -> tuple[int, list[tuple[int, int]]]:
        return self._params._version, [(p._version, p.data_ptr()) for p in self._flat.trainable]

    def begin(self, chain: Chain, data: Stack, batches: dict[int, Batch]) -> None:
        """A step of the group begins."""
        self._chain, self._data, self._batches, self._bound = chain, data, batches, 0.0
        self._versions = {i: _versions(batch) for i, batch in batches.items()}

    def clipped_gradient(  # type: ignore[override]
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float, views: int = 1
    ) -> torch.Tensor:
        """As ``numerics.gradients.clipped_gradient``."""
        batch = self._batches.get(self._row)
        of_step = (
            batch is not None and x is batch.x and y is _target(batch) and views == 1 and bound > 0
        )
        if not of_step or bound != (self._bound or bound) or self._chain.hooked():
            return clipped_gradient(model, x, y, bound, views)
        if not self._bound:
            self._then = self._sample.clone()
        if self._moved():
            return clipped_gradient(model, x, y, bound, views)
        if not self._bound:
            real = (self._data.weight > 0).to(self._data.weight)
            self._chain.clipped(self._data.x, self._data.target, real, bound)
            self._bound = bound
        return self._chain.grads[self._row].clone()

    def _moved(self) -> bool:
        """Whether the member has changed its batch or parameters since the step began."""
        row = self._row
        if _versions(self._batches[row]) != self._versions[row] or self._state() != self._since:
            return True
        return not torch.equal(self._sample[row], self._then[row])


def _versions(batch: Batch) -> tuple[int, int]:
    return batch.x._version, _target(batch)._version


def _target(batch: Batch) -> torch.Tensor:
    return batch.y if batch.soft is None else batch.soft


def _padded(drawn: list[torch.Tensor], steps: int, width: int) -> torch.Tensor:
    """[steps * width]: the positions of each batch, zeros behind."""
    if all(len(pick) == width for pick in drawn[:-1]):
        together = torch.cat(drawn)
        return pad(together, (0, steps * width - len(together)))
    rows = pad_sequence(drawn, batch_first=True)
    return pad(rows, (0, width - rows.shape[1], 0, steps - len(rows))).flatten()


def _restacked(batches: dict[int, Batch], m: int, before: Stack) -> Stack:
    """Transformed batches of ``m`` clients; the others have no weight."""
    width, first = max(len(b.x) for b in batches.values()), next(iter(batches.values()))
    x, y = first.x.new_zeros(m, width, *first.x.shape[1:]), first.y.new_zeros(m, width)
    soft = next(
        (
            b.soft.new_zeros(m, width, b.soft.shape[1])
            for b in batches.values()
            if b.soft is not None
        ),
        None,
    )
    weight = before.weight.new_zeros(m, width)
    for i, b in batches.items():
        n = len(b.x)
        x[i, :n], y[i, :n], weight[i, :n] = b.x.detach(), b.y, 1 / max(n, 1)
        if soft is not None:
            soft[i, :n] = one_hot(b.y, soft.shape[2]) if b.soft is None else b.soft.detach()
    return Stack(x, y, soft, weight)
