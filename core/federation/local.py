"""Local training: the plain loop every undefended client runs, and the member's loop with a defense's phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.contract.samples import Batch, MemberData, Selection
from fedbench.core.federation.diverged import Causes, finite
from fedbench.core.federation.epochs import Epochs, picks
from fedbench.core.federation.guard import PhaseError, act, backward, blaming_the_model, forward, where_of
from fedbench.core.federation.optimizer import make_optimizer
from fedbench.core.federation.schedule import lr_at
from fedbench.core.federation.setup import Setup
from fedbench.core.federation.usage import Usage
from fedbench.core.numerics.chain import Chain, unfilled
from fedbench.core.numerics.normalise import as_floats
from fedbench.core.numerics.rng import key_for


class LocalTrainer:
    """Trains clients one after the other in the one module; nothing but the flat vectors changes hands."""

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
        """The received model, of which nobody may change a number."""
        start, buffers = self._received
        self.flat.params.copy_(start)
        self.flat.buffers.copy_(buffers)

    def _restart(self) -> None:
        self._load()
        self.optimizer.restart()

    def key_module(self, round: int, client: int, purpose: str = "module") -> None:
        """Dropout and third-party code may draw from torch's own generators: key those too, so that order never matters."""
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
            blaming_the_model(self.chain.gradient, x, target, where=where)
            return
        self.flat.grad.zero_()
        cross_entropy(forward(self.flat.module, x, where), target).backward()

    def member(self, ctx: MemberContext, shuffle: torch.Generator) -> None:
        """A coalition member's training: select, then local_train around the standard loop."""
        defense, where = self.setup.defense, where_of(ctx)
        if not self.defended:
            self.plain(ctx.data, shuffle, ctx.round)
            return
        selection = act(defense, "select", ctx, where=where) if self.phases["select"] else None
        if selection is None:
            selection = Selection(ctx.data.trainable)
        if len(selection.index) == 0:
            return
        if ctx.data.held_out is not None and bool(ctx.data.held_out[selection.index].any()):
            # held-out samples leave the audit: training on them would be a leak that nobody measures
            raise PhaseError(f"{type(defense).__name__}.select ({where}) selected samples that `prepare` held out")
        self.flat.module.train()

        epochs = Epochs(
            self.setup.config.local_epochs, lambda n, e: self._epoch(ctx, selection, n, e, shuffle), lambda: self._restart()
        )
        key = key_for(self.setup.seed, "defense:local_train", ctx.round, ctx.client)
        with epochs.open():
            act(defense, "local_train", replace(ctx, key=key, training=epochs), where=where)

    def knows_batches(self) -> bool:
        """Whether what the client at work trained on went through here: a ``local_train`` may move the model in its own way."""
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
            index, flag, size = batch.index, batch.flag, len(batch.index)  # as drawn, whatever a defense makes of the batch
            if phases["transform"] and size:
                batch = act(defense, "transform", batch, epoch_ctx, where=where)
            gradient = act(defense, "local_step", batch, epoch_ctx, where=where) if phases["local_step"] else None
            if gradient is None and not size:
                continue  # nothing to learn from
            self.usage.add(index, flag)
            if gradient is None and not phases["loss"]:
                self._descend(batch.x, batch.y if batch.soft is None else batch.soft, where)
            elif gradient is None:
                loss = act(defense, "loss", forward(self.flat.module, batch.x, where), batch, epoch_ctx, where=where)
                self.flat.bind_grad()  # a plugin may have used, or dropped, the gradients on the way to its loss
                self.flat.grad.zero_()
                backward(loss, defense, where)
            else:
                self.flat.grad.copy_(gradient)
            self.optimizer.step(lr)

    def upload(self, update: torch.Tensor, context: Callable[[str], MemberContext], causes: Causes) -> torch.Tensor:
        """The member's update [P] as it will be uploaded: through every phase on its way out, each with a context of its own."""
        for name in phases(stage=("upload",)):
            if self.phases[name]:
                ctx, was = context(name), finite(update)
                changed = act(self.setup.defense, name, update, ctx, where=where_of(ctx))
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
