"""Local training of a client: the plain loop, a member's loop with a defense's phases, and counts of the samples used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection
from fedbench.core.federation.diverged import Causes, finite
from fedbench.core.federation.guard import PhaseError, backward, call_phase, forward, run_model, where_of
from fedbench.core.federation.optimizer import lr_at, make_optimizer
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.chain import Chain, unfilled
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.wrappers import as_floats

UNKNOWN = -1
"""stands for an unknown count"""


class Usage:
    """Counts of used samples in one training. A sample is used in a round if it was in at least one batch, and flagged if
    it was there with a true flag of its ``Selection``."""

    def __init__(self, clients: Sequence[MemberData]) -> None:
        self._used = [torch.zeros(len(d.y), dtype=torch.int32, device=d.y.device) for d in clients]
        self._flagged = [torch.zeros_like(used) for used in self._used]
        self._unknown: set[int] = set()
        self._rounds: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor] | None]] = {}
        self.seen = False
        """whether the client at work has had a batch in this round"""

    def begin(self, round: int, client: int) -> None:
        """A client's round begins."""
        self._at, self.seen = (round, client), False
        self._now, self._hot = (torch.zeros(len(self._used[client]), dtype=torch.bool, device=self._used[client].device)
                                for _ in range(2))  # fmt: skip

    def add(self, index: torch.Tensor, flag: torch.Tensor | None = None) -> None:
        """Samples of a batch, or of many: ``index`` [m] positions in the client's data; ``flag`` [m, ...] or None."""
        if len(index):
            self.seen = True
            self._now[index] = True
            if flag is not None:
                self._hot[index] |= flag.reshape(len(flag), -1).bool().any(1)

    def end(self, known: bool = True) -> None:
        """The client's round ends. ``known``: False where it trained on samples that were not recorded."""
        t, k = self._at
        self._used[k] += self._now
        self._flagged[k] += self._hot
        self._rounds.setdefault(t, {})[k] = (self._now.sum(), self._hot.sum()) if known else None
        if not known:
            self._unknown.add(k)

    def of_client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """([n_k] rounds in which each sample was used, [n_k] flagged), int32; ``UNKNOWN`` throughout where one round is."""
        counts = self._used[k].cpu().numpy(), self._flagged[k].cpu().numpy()
        return counts if k not in self._unknown else (np.full_like(counts[0], UNKNOWN), np.full_like(counts[1], UNKNOWN))

    def of_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """([T, K] how many samples each client used in each round, [T, K] flagged), int32; 0 of who was absent."""
        found = np.zeros((2, max(self._rounds, default=0), len(self._used)), np.int32)
        for t, clients in self._rounds.items():
            for k, counts in clients.items():
                found[:, t - 1, k] = UNKNOWN if counts is None else [int(n) for n in counts]
        return found[0], found[1]


# --- local epochs and batches -----------------------------------------------------------------------------------------


class Epochs:
    """The standard local training of one member in one round (``contract.contexts.LocalTraining``).

    ``run(n, e)`` trains epoch ``e`` of ``count`` in the ``n``-th pass; ``restart()`` loads what the round began with. The
    caller may stop after any epoch. Open only while ``local_train`` runs, and not during an epoch: the phases of a batch
    cannot train."""

    def __init__(self, count: int, run: Callable[[int, int], None], restart: Callable[[], None]) -> None:
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
        """As :meth:`MemberContext.restart` says; raises ``RuntimeError`` outside of ``local_train``."""
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
            raise RuntimeError(f"ctx.{asked}() is available in local_train only, between its epochs")


def picks(selection: Selection, size: int, shuffle: torch.Generator) -> list[torch.Tensor]:
    """One epoch's batches of about ``size``, as positions in ``selection.index``.

    Shuffled: every sample once, the last batch may be smaller. Poisson: ceil(n / size) batches, each holding every sample
    independently with probability size / n, in ascending order; a batch may be empty.
    """
    n, device = len(selection.index), selection.index.device
    if not selection.poisson:
        return list(torch.randperm(n, generator=shuffle).to(device).split(size))
    drawn = (torch.rand(n, generator=shuffle) < size / n for _ in range(-(-n // size)))
    return [torch.nonzero(mask).reshape(-1).to(device) for mask in drawn]


# --- training ---------------------------------------------------------------------------------------------------------


class LocalTrainer:
    """Trains clients one after the other in one module, through its flat vectors."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.flat = setup.flat
        self.optimizer = make_optimizer(setup.flat, setup.config.optimizer)
        self.usage = Usage(setup.clients)
        self.phases = {name: overrides(setup.defense, name) for name in PHASES}
        self.defended = any(self.phases[name] for name in phases(party=("member",), stage=("round", "batch")))

    def begin(self, start: torch.Tensor, buffers: torch.Tensor, round: int, client: int) -> torch.Generator:
        """Load the received model, start the client's optimiser, and give the client's shuffling generator of this round."""
        self._received = start, buffers
        self._load()
        self.flat.bind_grad()
        self.optimizer.reset(client)
        self.flat.module.train()
        self.key_module(round, client)
        self.chain = Chain.of(self.flat)
        self.usage.begin(round, client)
        return torch.Generator().manual_seed(key_for(self.setup.seed, "shuffle", round, client) >> 1)

    def _load(self) -> None:
        """Load the received model, which stays unchanged."""
        start, buffers = self._received
        self.flat.params.copy_(start)
        self.flat.buffers.copy_(buffers)

    def _restart(self) -> None:
        self._load()
        self.optimizer.restart()

    def key_module(self, round: int, client: int, purpose: str = "module") -> None:
        """Seed torch's global generators (dropout, third-party code), so that results do not depend on the order of
        clients."""
        key = key_for(self.setup.seed, purpose, round, client) >> 1
        torch.random.default_generator.manual_seed(key)
        if self.flat.params.is_cuda:
            torch.cuda.manual_seed_all(key)

    def plain(self, data: MemberData, shuffle: torch.Generator, round: int) -> None:
        """SGD on cross-entropy over shuffled batches; the last one of an epoch may be smaller."""
        config, optimizer = self.setup.config, self.optimizer
        lr, size = lr_at(config, round), config.batch_size
        index = data.trainable
        target = data.y if data.soft is None else data.soft
        for _ in range(config.local_epochs):
            order = index[torch.randperm(len(index), generator=shuffle).to(index.device)]
            if config.local_batches is not None:
                order = order[: config.local_batches * size]
            self.usage.add(order)
            with unfilled() if self.chain is not None else nullcontext():
                for x, y in zip(data.x[order].split(size), target[order].split(size), strict=True):
                    self._descend(x, y, f"round {round}")
                    optimizer.step(lr)

    def _descend(self, x: torch.Tensor, target: torch.Tensor, where: str) -> None:
        """The gradient of the mean cross-entropy, into ``flat.grad``."""
        if self.chain is not None:
            run_model(self.chain.gradient, x, target, where=where)
            return
        self.flat.grad.zero_()
        cross_entropy(forward(self.flat.module, x, where), target).backward()

    def member(self, ctx: MemberContext, shuffle: torch.Generator) -> None:
        """A coalition member's training: select, then local_train around the standard loop."""
        defense, where = self.setup.defense, where_of(ctx)
        if not self.defended:
            self.plain(ctx.data, shuffle, ctx.round)
            return
        selection = call_phase(defense, "select", ctx, where=where) if self.phases["select"] else None
        if selection is None:
            selection = Selection(ctx.data.trainable)
        if len(selection.index) == 0:
            return
        if ctx.data.held_out is not None and bool(ctx.data.held_out[selection.index].any()):
            # held-out samples leave the audit: training on them would be a leak that is not measured
            raise PhaseError(f"{type(defense).__name__}.select ({where}) selected samples that `prepare` held out")
        self.flat.module.train()

        epochs = Epochs(
            self.setup.config.local_epochs, lambda n, e: self._epoch(ctx, selection, n, e, shuffle), lambda: self._restart()
        )
        key = key_for(self.setup.seed, "defense:local_train", ctx.round, ctx.client)
        with epochs.open():
            call_phase(defense, "local_train", replace(ctx, key=key, training=epochs), where=where)

    def knows_batches(self) -> bool:
        """Whether the current client's training used the standard batches only: a ``local_train`` may change the model
        otherwise."""
        return self.usage.seen or not self.phases["local_train"] or torch.equal(self.flat.params, self._received[0])

    def _epoch(self, ctx: MemberContext, selection: Selection, n: int, e: int, shuffle: torch.Generator) -> None:
        """Epoch ``e`` of the ``n``-th pass over this round's epochs, which has draws of its own."""
        config, defense, phases = self.setup.config, self.setup.defense, self.phases
        where = where_of(ctx)
        key = key_for(self.setup.seed, f"defense:pass{n}:epoch{e}" if n else f"defense:epoch{e}", ctx.round, ctx.client)
        epoch_ctx = replace(ctx, key=key, epoch=(ctx.round - 1) * config.local_epochs + e)
        lr, self.chain = lr_at(config, ctx.round), Chain.of(self.flat)  # a phase before may have changed the model's layers
        most = [b for b in (selection.batches, config.local_batches) if b is not None]
        drawn = picks(selection, config.batch_size, shuffle)[: min(most, default=None)]
        for batch in _batches(self.flat.module, ctx.data, selection, drawn):
            index, flag, size = batch.index, batch.flag, len(batch.index)  # as drawn, before ``transform``
            if phases["transform"] and size:
                batch = call_phase(defense, "transform", batch, epoch_ctx, where=where)
            gradient = call_phase(defense, "local_step", batch, epoch_ctx, where=where) if phases["local_step"] else None
            if gradient is None and not size:
                continue  # nothing to learn from
            self.usage.add(index, flag)
            if gradient is None and not phases["loss"]:
                self._descend(batch.x, batch.y if batch.soft is None else batch.soft, where)
            elif gradient is None:
                loss = call_phase(defense, "loss", forward(self.flat.module, batch.x, where), batch, epoch_ctx, where=where)
                self.flat.bind_grad()  # a plugin may have used, or dropped, the gradients
                self.flat.grad.zero_()
                backward(loss, defense, where)
            else:
                self.flat.grad.copy_(gradient)
            self.optimizer.step(lr)

    def upload(self, update: torch.Tensor, context: Callable[[str], MemberContext], causes: Causes) -> torch.Tensor:
        """The member's update [P] after every phase of stage ``upload``, each with its own context."""
        for name in phases(stage=("upload",)):
            if self.phases[name]:
                ctx, was = context(name), finite(update)
                changed = call_phase(self.setup.defense, name, update, ctx, where=where_of(ctx))
                update = changed.to(update)  # as it is uploaded: a larger float64 is no float32
                causes.watch([ctx.client], [was], update[None], name)
        return update


def _batches(
    module: torch.nn.Module, data: MemberData, selection: Selection, drawn: list[torch.Tensor]
) -> Iterator[Batch]:
    """One epoch's batches, of these positions in the selection; its samples are gathered once, as in the plain loop."""
    if not drawn:
        return
    sizes, pick = [len(part) for part in drawn], torch.cat(drawn)
    index = selection.index[pick]
    parts = (
        (None,) * len(sizes) if t is None else t[where].split(sizes)
        for t, where in ((data.x, index), (data.y, index), (data.soft, index), (selection.flag, pick))
    )
    for x, y, soft, flag, own in zip(*parts, index.split(sizes), strict=True):
        yield Batch(as_floats(module, x), y, own, soft, flag)
