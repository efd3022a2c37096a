"""Local training of one client: its epochs and batches, the phases of a defense around them, and
the samples that it used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection
from fedbench.core.federation.diverged import Causes, finite
from fedbench.core.federation.guard import (
    PhaseError,
    backward,
    call_phase,
    forward,
    run_model,
    where_of,
)
from fedbench.core.federation.optimizer import State, lr_at, make_optimizer
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.chain import Chain, Graph
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import as_floats

UNKNOWN = -1
"""stands for an unknown count"""


class Used:
    """The samples that one client used in one round. ``seen``: whether there are any."""

    def __init__(self, like: torch.Tensor) -> None:
        self.now, self.flagged = (
            torch.zeros(len(like), dtype=torch.bool, device=like.device) for _ in range(2)
        )
        self.seen = False

    def add(self, index: torch.Tensor, flag: torch.Tensor | None = None) -> None:
        """Samples of batches: ``index`` [m] positions in the client's data; ``flag`` [m, ...] or
        None.
        """
        if len(index):
            self.seen = True
            self.now[index] = True
            if flag is not None:
                self.flagged[index] |= flag.reshape(len(flag), -1).bool().any(1)


class Usage:
    """Counts of used samples in one training. A sample is used in a round if it was in at least one
    batch, and flagged if it was there with a true flag of its ``Selection``.
    """

    def __init__(self, clients: Sequence[MemberData]) -> None:
        self._used = [torch.zeros(len(d.y), dtype=torch.int32, device=d.y.device) for d in clients]
        self._flagged = [torch.zeros_like(used) for used in self._used]
        self._unknown: set[int] = set()
        self._rounds: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor] | None]] = {}

    def begin(self, client: int) -> Used:
        """What the client uses in a round that begins."""
        return Used(self._used[client])

    def end(self, round: int, client: int, used: Used, known: bool) -> None:
        """The client's round ends. ``known``: False where it trained on samples that were not
        recorded.
        """
        self._used[client] += used.now
        self._flagged[client] += used.flagged
        self._rounds.setdefault(round, {})[client] = (
            (used.now.sum(), used.flagged.sum()) if known else None
        )
        if not known:
            self._unknown.add(client)

    def of_client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """([n_k] rounds in which each sample was used, [n_k] flagged), int32; ``UNKNOWN``
        throughout where one round is.
        """
        counts = self._used[k].cpu().numpy(), self._flagged[k].cpu().numpy()
        return (
            counts
            if k not in self._unknown
            else (np.full_like(counts[0], UNKNOWN), np.full_like(counts[1], UNKNOWN))
        )

    def of_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """([T, K] how many samples each client used in each round, [T, K] flagged), int32; 0 of who
        was absent.
        """
        found = np.zeros((2, max(self._rounds, default=0), len(self._used)), np.int32)
        for t, clients in self._rounds.items():
            for k, counts in clients.items():
                found[:, t - 1, k] = UNKNOWN if counts is None else [int(n) for n in counts]
        return found[0], found[1]


# --- local epochs and batches ---------------------------------------------------------------------


class Epochs:
    """The standard local training of one member in one round (``contract.contexts.LocalTraining``).

    ``run(n, e)`` trains epoch ``e`` of ``count`` in the ``n``-th pass; ``restart()`` loads what the
    round began with. The caller may stop after any epoch. Open only while ``local_train`` runs, and
    not during an epoch: the phases of a batch cannot train.
    """

    def __init__(
        self, count: int, run: Callable[[int, int], None], restart: Callable[[], None]
    ) -> None:
        self._count, self._run, self._restart = count, run, restart
        self._pass, self._next, self._open = 0, 0, False

    @contextmanager
    def open(self) -> Iterator[None]:
        """While ``local_train`` runs."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def epochs(self) -> Iterator[int]:
        """As :meth:`MemberContext.epochs` says; raises ``RuntimeError`` outside of ``local_train``."""
        self._require_open("epochs")
        return self._iterate()

    def restart(self) -> None:
        """As :meth:`MemberContext.restart` says; raises ``RuntimeError`` outside of
        ``local_train``.
        """
        self._require_open("restart")
        self._restart()
        self._begin_pass()

    def _iterate(self) -> Iterator[int]:
        if self._next == self._count:
            self._begin_pass()
        mine = self._pass
        while self._pass == mine and self._next < self._count:
            self._require_open("epochs")
            e, self._open = self._next, False
            self._run(mine, e)  # an exception ends the member's training
            self._open, self._next = True, e + 1
            yield e

    def _begin_pass(self) -> None:
        if self._next:
            self._pass, self._next = self._pass + 1, 0

    def _require_open(self, asked: str) -> None:
        if not self._open:
            raise RuntimeError(
                f"ctx.{asked}() is available in local_train only, between its epochs"
            )


def picks(selection: Selection, size: int, shuffle: torch.Generator) -> list[torch.Tensor]:
    """One epoch's batches of about ``size``, as positions in ``selection.index``.

    Shuffled: every sample once, the last batch may be smaller. Poisson: ceil(n / size) batches,
    each holding every sample independently with probability size / n, in ascending order; a batch
    may be empty.
    """
    n, device = len(selection.index), selection.index.device
    if not selection.poisson:
        return list(torch.randperm(n, generator=shuffle).to(device).split(size))
    drawn = (torch.rand(n, generator=shuffle) < size / n for _ in range(-(-n // size)))
    return [torch.nonzero(mask).reshape(-1).to(device) for mask in drawn]


# --- training -------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class Turn:
    """The local training of one client in round ``round``. ``row``: its row among the round's
    updates; ``start`` [P], ``buffers`` [B] and ``counts`` [I]: what it received. ``context``: makes
    its context for phases of the round; None where the engine trains it plainly.

    Set by ``LocalTrainer.begin``: ``ctx``, that context; ``selection``: what it trains on;
    ``shuffle``: its generator of batches; ``used``: its samples.
    """

    round: int
    row: int
    client: int
    data: MemberData
    start: torch.Tensor
    buffers: torch.Tensor
    counts: torch.Tensor
    context: Callable[[], MemberContext] | None = None
    ctx: MemberContext | None = None
    selection: Selection = field(init=False)
    shuffle: torch.Generator = field(init=False)
    used: Used = field(init=False)

    @property
    def where(self) -> str:
        """The place of its phases, for messages."""
        return f"round {self.round}" if self.ctx is None else where_of(self.ctx)


class LocalTrainer:
    """Trains a client in the module, through its flat vectors; ``cohort.py`` trains many at once
    with its help.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.flat, self.states = setup, setup.flat, dict[int, State]()
        self.optimizer = make_optimizer(
            setup.config.optimizer, self.flat.params[None], self.flat.grad[None], self.states
        )
        self.usage = Usage(setup.clients)
        self.phases = {name: overrides(setup.defense, name) for name in PHASES}
        self.by_batch = any(
            self.phases[name] for name in phases(party=("member",), stage=("batch",))
        )
        self.of_upload = tuple(name for name in phases(stage=("upload",)) if self.phases[name])
        self.defended = self.by_batch or any(
            self.phases[name] for name in phases(party=("member",), stage=("round",))
        )

    def train(self, turn: Turn) -> None:
        """The client's whole training; the module then holds its model."""
        self._load(turn)
        self.optimizer.reset((turn.client,), again=self.phases["local_train"])
        self.flat.bind_grad()
        self.begin(turn)
        if turn.ctx is not None and self.phases["local_train"] and len(turn.selection.index):
            key = key_for(self.setup.seed, "defense:local_train", turn.round, turn.client)
            epochs = Epochs(
                self.setup.config.local_epochs,
                lambda n, e: self._epoch(turn, n, e),
                lambda: self._restart(turn),
            )
            with epochs.open():
                ctx = replace(turn.ctx, key=key, training=epochs)
                call_phase(self.setup.defense, "local_train", ctx, where=turn.where)
        else:
            for e in range(self.setup.config.local_epochs):
                self._epoch(turn, 0, e)
        self.end(turn)

    def _load(self, turn: Turn) -> None:
        """The received model, which stays unchanged."""
        self.flat.load(turn.start, turn.buffers, turn.counts)

    def _restart(self, turn: Turn) -> None:
        self._load(turn)
        self.optimizer.restart()

    def begin(self, turn: Turn) -> None:
        """Key the client's random numbers, and ask a member for its selection. The module holds
        what it received.
        """
        self.flat.module.train()
        self.key_module(turn.round, turn.client)
        turn.used = self.usage.begin(turn.client)
        turn.shuffle = torch.Generator().manual_seed(
            key_for(self.setup.seed, "shuffle", turn.round, turn.client) >> 1
        )
        turn.ctx = turn.context() if turn.context is not None else None
        turn.selection = (
            Selection(turn.data.trainable)
            if turn.ctx is None
            else self._selected(turn.ctx, turn.where)
        )

    def _selected(self, ctx: MemberContext, where: str) -> Selection:
        defense = self.setup.defense
        chosen = call_phase(defense, "select", ctx, where=where) if self.phases["select"] else None
        selection = Selection(ctx.data.trainable) if chosen is None else chosen
        if ctx.data.held_out is not None and bool(ctx.data.held_out[selection.index].any()):
            # held-out samples leave the audit: training on them would be a leak that is not
            # measured
            raise PhaseError(
                f"{type(defense).__name__}.select ({where}) selected samples that `prepare` held "
                "out"
            )
        self.flat.module.train()
        return selection

    def end(self, turn: Turn) -> None:
        """Count the client's samples, which are known unless a ``local_train`` changed the model
        without the standard batches.
        """
        known = (
            turn.used.seen
            or not self.phases["local_train"]
            or torch.equal(self.flat.params, turn.start)
        )
        self.usage.end(turn.round, turn.client, turn.used, known or turn.ctx is None)

    def key_module(self, round: int, client: int, purpose: str = "module") -> None:
        """Seed torch's global generators (dropout, third-party code), so that results do not depend
        on the order of clients.
        """
        key = key_for(self.setup.seed, purpose, round, client) >> 1
        torch.random.default_generator.manual_seed(key)
        if self.flat.params.is_cuda:
            torch.cuda.manual_seed_all(key)

    def context_of_epoch(self, turn: Turn, n: int, e: int) -> MemberContext | None:
        """Of epoch ``e`` of the ``n``-th pass over this round's epochs, which has draws of its own;
        None without phases of a batch.
        """
        if turn.ctx is None or not self.by_batch:
            return None
        purpose = f"defense:pass{n}:epoch{e}" if n else f"defense:epoch{e}"
        key = key_for(self.setup.seed, purpose, turn.round, turn.client)
        return replace(
            turn.ctx, key=key, epoch=(turn.round - 1) * self.setup.config.local_epochs + e
        )

    def drawn(self, turn: Turn) -> list[torch.Tensor]:
        """One epoch's batches, as positions in the selection, which count as used."""
        config, selection = self.setup.config, turn.selection
        if len(selection.index) == 0:
            return []
        most = [b for b in (selection.batches, config.local_batches) if b is not None]
        drawn = picks(selection, config.batch_size, turn.shuffle)[: min(most, default=None)]
        if drawn:
            pick = torch.cat(drawn)
            turn.used.add(
                selection.index[pick], None if selection.flag is None else selection.flag[pick]
            )
        return drawn

    def _epoch(self, turn: Turn, n: int, e: int) -> None:
        ctx, lr = self.context_of_epoch(turn, n, e), lr_at(self.setup.config, turn.round)
        # a `local_train` may have changed the model's layers for a while
        chain = Chain.of(self.flat, turn.data.x)
        for batch in _batches(self.flat.module, turn.data, turn.selection, self.drawn(turn)):
            if self._gradient(batch, ctx, chain, turn.where):
                self.optimizer.step(lr)

    def _gradient(
        self, batch: Batch, ctx: MemberContext | None, chain: Chain | None, where: str
    ) -> bool:
        """Fill ``flat.grad`` with that of a batch; False where there is nothing to learn from."""
        size, own = len(batch.index), None
        if ctx is not None:
            # a phase sees no gradients but its own, as in a group
            self.flat.bind_grad((None,) * len(self.flat.trainable))
        if ctx is not None and self.phases["transform"] and size:
            batch = call_phase(self.setup.defense, "transform", batch, ctx, where=where)
        if ctx is not None and self.phases["local_step"]:
            own = call_phase(self.setup.defense, "local_step", batch, ctx, where=where)
        lossy = ctx is not None and self.phases["loss"]
        if own is not None:
            self.flat.grad.copy_(own)
        elif not size:
            return False
        elif chain is None or (lossy and chain.draws) or has_graph(batch):
            self.by_autograd(batch, ctx, where, self.flat.grad, self.flat.gradients)
        elif ctx is None or not lossy:
            run_model(
                chain.gradient, batch.x, batch.y if batch.soft is None else batch.soft, where=where
            )
        else:
            at_logits, others = self.of_loss(
                run_model(chain.forward, batch.x, where=where), batch, ctx
            )
            chain.backward(at_logits)
            add_to(self.flat.gradients, others)
        return True

    def by_autograd(
        self,
        batch: Batch,
        ctx: MemberContext | None,
        where: str,
        grad: torch.Tensor,
        gradients: Sequence[torch.Tensor],
    ) -> None:
        """Fill ``grad`` [P], of which ``gradients`` are the views, through a graph of the module."""
        logits, defense = forward(self.flat.module, batch.x, where), self.setup.defense
        lossy = ctx is not None and self.phases["loss"]
        if lossy:
            loss = call_phase(defense, "loss", logits, batch, ctx, where=where)
        else:
            loss = cross_entropy(logits, batch.y if batch.soft is None else batch.soft)
        self.flat.bind_grad(gradients)  # a plugin may have used, or dropped, the gradients
        grad.zero_()
        if lossy:
            backward(loss, defense, where)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def of_loss(
        self, logits: torch.Tensor, batch: Batch, ctx: MemberContext
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """([B, C] the gradient of the defense's loss at ``logits``, and that of each parameter past
        the logits, if any).
        """
        defense, where, leaf = self.setup.defense, where_of(ctx), logits.detach().requires_grad_()
        graph = Graph(self.flat.module, self.flat.trainable, batch.x)
        loss = call_phase(defense, "loss", graph.through(leaf), batch, ctx, where=where)
        for p in self.flat.trainable:
            p.grad = None  # a plugin may have used it
        graph.cut = True
        backward(loss, defense, where)
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, [
            p.grad for p in self.flat.trainable
        ]

    def upload(
        self, update: torch.Tensor, context: Callable[[str], MemberContext], causes: Causes
    ) -> torch.Tensor:
        """The member's update [P] after every phase of stage ``upload``, each with its own context."""
        for name in self.of_upload:
            ctx, was = context(name), finite(update)
            changed = call_phase(self.setup.defense, name, update, ctx, where=where_of(ctx))
            update = changed.to(update)  # as it is uploaded: a larger float64 is no float32
            causes.watch([ctx.client], [was], update[None], name)
        return update


def has_graph(batch: Batch) -> bool:
    """Whether samples or soft targets of the batch require gradients, since a ``transform``
    computed them from the parameters or a ``loss`` differentiates with respect to them: only
    autograd does that.
    """
    return batch.x.requires_grad or (batch.soft is not None and batch.soft.requires_grad)


def add_to(gradients: Sequence[torch.Tensor], others: Sequence[torch.Tensor | None]) -> None:
    """Add each of ``others`` that is there to its one of ``gradients``."""
    for gradient, other in zip(gradients, others, strict=True):
        if other is not None:
            gradient += other


def _batches(
    module: torch.nn.Module, data: MemberData, selection: Selection, drawn: list[torch.Tensor]
) -> Iterator[Batch]:
    """One epoch's batches, of these positions in the selection; its samples are gathered once, as
    in the plain loop.
    """
    if not drawn:
        return
    sizes, pick = [len(part) for part in drawn], torch.cat(drawn)
    index = selection.index[pick]
    parts = (
        (None,) * len(sizes) if t is None else t[where].split(sizes)
        for t, where in (
            (data.x, index),
            (data.y, index),
            (data.soft, index),
            (selection.flag, pick),
        )
    )
    for x, y, soft, flag, own in zip(*parts, index.split(sizes), strict=True):
        yield Batch(as_floats(module, x), y, own, soft, flag)
