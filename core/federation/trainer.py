"""Trainer of clients: groups of one or more in lock step, every phase of their defense, and
their optimisers. What computes the gradients is a backend.

A client's shuffle, random numbers, optimiser and phases are its own, so that its result depends on
who is in its group by rounding alone, and on the number of workers not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.contract.samples import Batch, Selection
from fedbench.core.federation.backend import GradientRequest, Group, backend_of
from fedbench.core.federation.diverged import Causes, finite
from fedbench.core.federation.guard import PhaseError, backward, call_phase, where_of
from fedbench.core.federation.optimizer import lr_at
from fedbench.core.federation.setup import Setup
from fedbench.core.federation.turn import Epochs, Turn, Usage, picks
from fedbench.core.numerics.rng import key_for

BATCH = frozenset(phases(party=("member",), stage=("batch",)))
ROUND = frozenset(phases(party=("member",), stage=("round",)))


class Trainer:
    """Trains the clients of each round of one training. ``acting``: phases of its defense that act;
    ``of_training``, ``of_upload``: those of them that act in a member's training, and on its
    upload; ``usage``: samples used.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.flat = setup.flat
        self.defense = setup.defense
        self.acting = frozenset(name for name in PHASES if overrides(setup.defense, name))
        self.of_training = self.acting & (BATCH | ROUND)
        self.of_upload = [name for name in phases(stage=("upload",)) if name in self.acting]
        self.usage = Usage(setup.clients)
        make_backend = backend_of(setup.config, setup.device)
        self.backend = make_backend(setup.config, setup.flat, len(setup.clients), {})

    @property
    def note(self) -> str:
        """A sentence on why clients train slower than they could; or empty."""
        return self.backend.note(self.setup.clients[0].x)

    def train(self, turns: Sequence[Turn]) -> Iterator[Turn]:
        """Train all, in any order. Yields each client when it is trained: the module then holds its
        model, and torch's global generator its state.
        """
        for group, members in self.backend.groups(turns):
            group.turns = members
            try:
                self._train(group)
                for i, turn in enumerate(group.turns):
                    group.show(i)
                    self._end(turn)
                    yield turn
            finally:
                group.close()

    def _train(self, group: Group) -> None:
        first = group.turns[0]
        restarts = "local_train" in group.turns[0].phases
        group.receive()
        group.optimizer.reset([turn.client for turn in group.turns], again=restarts)
        for i, turn in enumerate(group.turns):
            group.work_as(i, self._begin, turn)
        if restarts and len(first.selection.index):
            group.work_as(0, self._local_train, group, first)
        else:
            for e in range(self.setup.config.local_epochs):
                self._epoch(group, 0, e)

    # -- a client's round --------------------------------------------------------------------------

    def _begin(self, turn: Turn) -> None:
        """Key the client's random numbers, and ask a member for its selection."""
        self.flat.module.train()
        self.key_module(turn.round, turn.client)
        self.usage.begin(turn)
        turn.shuffle = self._generator("shuffle", turn)
        turn.draws = self._generator("task", turn)
        if turn.context is not None:
            turn.ctx = turn.context()
        turn.selection = self._selected(turn)
        self.flat.module.train()

    def _selected(self, turn: Turn) -> Selection:
        selection = None
        if "select" in turn.phases:
            selection = call_phase(self.defense, "select", turn.ctx, where=turn.place)
        if selection is None:
            return Selection(turn.data.trainable)
        held_out = turn.data.held_out
        if held_out is not None and bool(held_out[selection.index].any()):
            # they leave the audit: training on them would be a leak that is not measured
            raise PhaseError(
                f"{type(self.defense).__name__}.select ({turn.place}) selected samples that "
                "`prepare` held out"
            )
        return selection

    def _local_train(self, group: Group, turn: Turn) -> None:
        def restart() -> None:
            group.receive()
            group.optimizer.restart()

        epochs = Epochs(
            self.setup.config.local_epochs, lambda n, e: self._epoch(group, n, e), restart
        )
        with epochs.open():
            assert turn.ctx is not None  # of a member
            key = self._key("defense:local_train", turn)
            ctx = replace(turn.ctx, key=key, training=epochs)
            call_phase(self.defense, "local_train", ctx, where=turn.place)

    def _end(self, turn: Turn) -> None:
        """Count the client's samples, which are known unless a ``local_train`` changed the model
        without the standard batches.
        """
        standard = "local_train" not in turn.phases or bool(turn.used.any())
        self.usage.end(turn, standard or torch.equal(self.flat.params, turn.start.params))

    def key_module(
        self,
        round: int,
        client: int,
        purpose: str = "module",
    ) -> None:
        """Seed torch's global generators (dropout, third-party code), so that results do not depend
        on the order of clients.
        """
        key = key_for(self.setup.seed, purpose, round, client) >> 1
        torch.random.default_generator.manual_seed(key)
        if self.flat.params.is_cuda:
            torch.cuda.manual_seed_all(key)

    def _generator(self, purpose: str, turn: Turn) -> torch.Generator:
        return torch.Generator().manual_seed(self._key(purpose, turn) >> 1)

    def _key(self, purpose: str, turn: Turn) -> int:
        return key_for(self.setup.seed, purpose, turn.round, turn.client)

    # -- an epoch and a step -----------------------------------------------------------------------

    def _epoch(self, group: Group, n: int, e: int) -> None:
        """Train epoch ``e`` of the ``n``-th pass over this round's epochs."""
        lr = lr_at(self.setup.config, group.turns[0].round)
        drawn = [self._drawn(turn) for turn in group.turns]
        contexts = {
            i: self._context(turn, n, e, group)
            for i, turn in enumerate(group.turns)
            if turn.phases & BATCH
        }
        for sizes in group.steps(drawn):
            clients = self._step(group, sizes, contexts)
            if clients:
                group.optimizer.step(lr, clients)

    def _context(
        self,
        turn: Turn,
        n: int,
        e: int,
        group: Group,
    ) -> MemberContext:
        """The context of an epoch, which has draws of its own in each pass."""
        assert turn.ctx is not None  # of a member
        key = self._key(f"defense:pass{n}:epoch{e}" if n else f"defense:epoch{e}", turn)
        epoch = (turn.round - 1) * self.setup.config.local_epochs + e
        return replace(turn.ctx, key=key, epoch=epoch, tools=group.tools or turn.ctx.tools)

    def _drawn(self, turn: Turn) -> list[Tensor]:
        """Draw an epoch's batches, as positions in the selection, which count as used."""
        config = self.setup.config
        selection = turn.selection
        if len(selection.index) == 0:
            return []
        limits = [b for b in (selection.batches, config.local_batches) if b is not None]
        drawn = picks(selection, config.batch_size, turn.shuffle)
        drawn = drawn[: min(limits, default=None)]
        if drawn:
            self.usage.add(turn, torch.cat(drawn))
        return drawn

    def _step(
        self,
        group: Group,
        sizes: dict[int, int],
        contexts: dict[int, MemberContext],
    ) -> list[int]:
        """Fill the gradients of one step. Returns the clients that have one.

        ``sizes``: samples of each client with a batch.
        """
        batches = {i: group.batch(i) for i in sizes if i in contexts}
        if batches and "transform" in self.acting:
            for i in batches:
                if sizes[i]:
                    batches[i] = self._call(group, i, "transform", batches[i], contexts[i])
            group.replace(batches)
        requests = {i: self._request(group, i, batch, contexts[i]) for i, batch in batches.items()}
        gradients = {}
        if requests and "local_step" in self.acting:
            group.share(requests)
            for i, request in requests.items():
                gradient = self._call(group, i, "local_step", request.batch, contexts[i])
                if gradient is not None:
                    gradients[i] = gradient
        rest = [i for i in sizes if sizes[i] and i not in gradients]
        if rest:
            group.fill({i: requests[i] for i in rest if i in requests})
        for i, gradient in gradients.items():
            group.grads[i].copy_(gradient)
        return [*gradients, *rest]

    def _call(
        self,
        group: Group,
        i: int,
        name: str,
        batch: Batch,
        ctx: MemberContext,
    ) -> Any:
        """The answer of client ``i``'s phase of a batch."""
        place = group.turns[i].place
        return group.work_as(i, call_phase, self.defense, name, batch, ctx, where=place)

    def _request(
        self,
        group: Group,
        i: int,
        batch: Batch,
        ctx: MemberContext,
    ) -> GradientRequest:
        defense = self.defense
        place = group.turns[i].place
        if "loss" not in self.acting:
            return GradientRequest(batch, place)
        return GradientRequest(
            batch,
            place,
            loss=lambda outputs: call_phase(defense, "loss", outputs, batch, ctx, where=place),
            backward=lambda loss: backward(loss, defense, place),
        )

    # -- an upload ---------------------------------------------------------------------------------

    def upload(
        self,
        update: Tensor,
        context: Callable[[str], MemberContext],
        causes: Causes,
    ) -> Tensor:
        """The member's update [P] after every phase of stage ``upload``."""
        for name in self.of_upload:
            ctx = context(name)
            was = finite(update)
            changed = call_phase(self.defense, name, update, ctx, where=where_of(ctx))
            update = changed.to(update)  # as it is uploaded: a larger float64 is no float32
            causes.watch([ctx.client], [was], update[None], name)
        return update
