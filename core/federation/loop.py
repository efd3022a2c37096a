"""The round loop: what coordinator, server and adversary do around the training of clients. The
defaults are plain FedAvg.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.core.contract.contexts import MemberContext, ServerContext
from fedbench.core.contract.defense import FactValue, overrides
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.phases import phases
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.compose import merged, still_held_out
from fedbench.core.federation.diverged import Causes, finite
from fedbench.core.federation.guard import (
    PhaseError,
    call,
    call_for_rows,
    call_phase,
    require_nothing,
    where_of,
)
from fedbench.core.federation.setup import Parties, RoundResult, Setup, Uploads
from fedbench.core.federation.trainer import Trainer
from fedbench.core.federation.turn import Turn
from fedbench.core.numerics.flat import EVALUATION_CHUNK, ModelState, joined, mean_counts
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.numerics.wrappers import matmuls

Answer = Callable[[int, Tensor], Tensor]
"""(global model, logits [n, C] of a chunk) -> [n, C]"""


def answers(setup: Setup) -> bool:
    """Whether queries of a global model are answered by the defense; False in a federation without
    members.
    """
    return bool(setup.members) and overrides(setup.defense, "answer")


def answered(training: Training, j: int, logits: Tensor) -> Tensor:
    """Answers [n, C] to a query of global model ``j`` after the last finished round with ``logits``
    [n, C]; the same tensor if no defense answers. Raises ``PhaseError`` for an invalid answer.
    """
    if not answers(training.setup):
        return logits
    served = tuple(k for k in training.setup.members if training.assignment[k] == j)
    ctx = training.parties.answer_context(training.round, j, served)
    chunks = []
    with torch.no_grad():
        for chunk in logits.split(EVALUATION_CHUNK):
            answer = call_phase(training.defense, "answer", chunk, ctx, where=where_of(ctx))
            chunks.append(answer.to(logits))
        return torch.cat(chunks)


# --- rounds ---------------------------------------------------------------------------------------


def _check(setup: Setup) -> None:
    if overlap := set(setup.members) & set(setup.malicious):
        raise UserError(
            f"client {min(overlap)} cannot both defend and attack: shrink the coalition or the "
            "adversary"
        )
    reply = call(setup.defense, "check", setup.facts, where="before round 1")
    require_nothing(setup.defense, reply)


class Training:
    """Training round by round. ``state``: the global models after ``round``; ``assignment``:
    client -> model; ``complaints``: what is wrong with it, though it can be judged.
    """

    def __init__(self, setup: Setup) -> None:
        _check(setup)
        self.setup = setup
        self.defense = setup.defense
        self.round = 0
        self.complaints: list[str] = []
        self.trainer = Trainer(setup)
        fresh = setup.flat.state
        models = len(setup.initial)
        self.state = ModelState(
            params=setup.initial.clone(),
            buffers=fresh.buffers.repeat(models, 1),
            counts=fresh.counts.repeat(models, 1),
        )
        self.assignment = dict.fromkeys(range(len(setup.clients)), 0)
        if setup.defense.n_models == 0:  # a model for every client, whether it defends or not
            self.assignment = {k: k for k in self.assignment}
        self._past: deque[ModelState] = deque(maxlen=setup.config.max_delay + 1)
        self.parties = Parties(setup)
        self.causes = Causes(setup)
        self._rooms: dict[str, Tensor] = {}
        self._trained: dict[int, tuple[Tensor, ModelState]] = {}
        self._weighing = torch.tensor(setup.weighing, device=setup.device)
        self.clients = self._begin()

    @property
    def models(self) -> Tensor:
        """Parameters [s, P] of the global models."""
        return self.state.params

    def _call(self, phase: str, *args: Any) -> Any:
        """The answer of the defense's phase; the context is the last argument."""
        return call_phase(self.defense, phase, *args, where=where_of(args[-1]))

    def _begin(self) -> list[MemberData]:
        """The clients' data as members prepare it, once their coalitions have begun."""
        for group in self.setup.coalitions:  # the coordinator's key of round 0
            self._call("begin", self.parties.coalition("coordinate", 0, group, group))
        return [self._prepare(k) for k in range(len(self.setup.clients))]

    def _prepare(self, k: int) -> MemberData:
        data = self.setup.clients[k]
        if k not in self.setup.members or not overrides(self.defense, "prepare"):
            return data
        start = self.state[self.assignment[k]]
        ctx = self.parties.member("prepare", 0, k, data, start.params)
        self.setup.flat.load(start)
        prepared = self._call("prepare", data, ctx)
        if len(prepared.y) != len(data.y) or len(prepared.x) != len(data.y):
            # membership is by position: a sample dropped here would still count as a member
            raise PhaseError(
                f"{type(self.defense).__name__}.prepare (client {k}) returned {len(prepared.y)} "
                f"samples for {len(data.y)}; mark those kept out of training in `held_out`"
            )
        return still_held_out(prepared, data)

    def first_choice(self) -> list[int]:
        """The initial global model [members] that each member would choose."""
        return [self._assign(0, k) for k in self.setup.members]

    def rounds(self) -> Iterator[RoundResult]:
        """Train; yields after every round. The uploads of a round are valid until the next one:
        their matrix is reused.
        """
        for t in range(1, self.setup.config.rounds + 1):
            yield self._round(t)

    def _round(self, t: int) -> RoundResult:
        starts = self.state
        self.state = self.state.clone()
        self._past.append(starts)
        with matmuls(self.setup.config.precision):
            uploads = self._train_cohort(t, self._cohort(t))
        self._coordinate(t, uploads)
        self._attack(t, uploads)
        rejected = self._reject(uploads)
        self.causes.require_rows(uploads)
        steps = self._aggregate(t, uploads, len(rejected))
        self.state = replace(self.state, params=starts.params + steps)
        self.round = t
        self.causes.require_models(uploads, starts.params, self.models)
        self._after_round(t)
        return RoundResult(
            uploads=uploads,
            state=self.state,
            steps=steps,
            rejected=rejected,
            assignment=tuple(self.assignment[k] for k in range(len(self.clients))),
        )

    # -- clients -----------------------------------------------------------------------------------

    def _cohort(self, t: int) -> tuple[int, ...]:
        n = len(self.setup.clients)
        take = max(1, round(self.setup.config.participation * n))
        rng = numpy_rng(self.setup.seed, "cohort", t)
        cohort = rng.choice(n, take, replace=False)
        return tuple(sorted(map(int, cohort)))

    def _train_cohort(self, t: int, cohort: tuple[int, ...]) -> Uploads:
        for k in cohort:
            if k in self.setup.members and len(self.models) > 1:
                self.assignment[k] = self._assign(t, k)
        model_of = [self.assignment[k] for k in cohort]
        sent = [(self._delay(t, k), j) for k, j in zip(cohort, model_of, strict=True)]
        starts, start_of = self._starts(sent)
        fresh = self.setup.flat.state
        n = len(cohort)
        uploads = Uploads(
            round=t,
            participants=cohort,
            updates=self._room("updates", n),
            buffers=torch.empty(n, fresh.buffers.numel(), device=self.setup.device),
            counts=fresh.counts.repeat(n, 1),
            model_of=model_of,
            start_of=start_of,
            starts=starts,
            unprotected=self._room("unprotected", n) if self.setup.keep_unprotected else None,
        )
        turns = [self._turn(uploads, row) for row in range(n)]
        for turn in self.trainer.train(turns):
            self._upload(turn, uploads)
        return uploads

    def _starts(self, sent: list[tuple[int, int]]) -> tuple[ModelState, list[int]]:
        """The models that a round's clients start from, first the current global ones, and the
        index of each client's among them. ``sent``: each client's (age in rounds, global model).
        """
        current = [(0, j) for j in range(len(self.models))]
        models = list(dict.fromkeys([*current, *sent]))
        older = [self._past[-1 - age][[j]] for age, j in models[len(current) :]]
        start_of = [models.index(model) for model in sent]
        return joined([self._past[-1], *older]), start_of

    def _turn(self, uploads: Uploads, row: int) -> Turn:
        k = uploads.participants[row]
        start = uploads.starts[uploads.start_of[row]]
        turn = Turn(round=uploads.round, row=row, client=k, data=self.clients[k], start=start)
        if k in self.setup.members and self.trainer.of_training:
            turn.phases = self.trainer.of_training
            turn.context = partial(self._context, turn, "round")
        return turn

    def _context(self, turn: Turn, phase: str) -> MemberContext:
        return self.parties.member(phase, turn.round, turn.client, turn.data, turn.start.params)

    def _upload(self, turn: Turn, uploads: Uploads) -> None:
        """Put the update of a client that is just trained in its row, protected by its defense."""
        row = turn.row
        state = self.setup.flat.state
        torch.sub(state.params, turn.start.params, out=uploads.updates[row])
        uploads.buffers[row] = state.buffers
        uploads.counts[row] = state.counts
        if uploads.unprotected is not None:
            uploads.unprotected[row] = uploads.updates[row]
        if turn.client not in self.setup.members:
            return
        if "after_round" in self.trainer.acting:
            self._trained[turn.client] = turn.start.params.clone(), state.clone()
        if self.trainer.of_upload:
            update = uploads.updates[row].clone()
            context = partial(self._context, turn)
            uploads.updates[row] = self.trainer.upload(update, context, self.causes)

    def _delay(self, t: int, k: int) -> int:
        """Age of the client's global model in rounds: U{0..max_delay}, at most the rounds so far
        (Fang et al., ACSAC 2022; FedPoisonMIA, section 6.1.4). The adversary's clients have no
        delay.
        """
        longest = min(self.setup.config.max_delay, t - 1)
        if longest == 0 or k in self.setup.malicious:
            return 0
        rng = numpy_rng(self.setup.seed, "delay", t, k)
        return int(rng.integers(0, longest + 1))

    def _room(self, name: str, n: int) -> Tensor:
        """A buffer [n, P], reused in every round: allocating it anew costs more than a training
        step.
        """
        if name not in self._rooms or len(self._rooms[name]) != n:
            width = self.setup.flat.params.numel()
            self._rooms[name] = torch.empty(n, width, device=self.setup.device)
        return self._rooms[name]

    def _assign(self, t: int, k: int) -> int:
        start = self.state[self.assignment[k]]
        self.setup.flat.load(start)
        ctx = self.parties.member("assign", t, k, self.clients[k], start.params)
        return self._call("assign", self.models, ctx)

    # -- coordinator and adversary -----------------------------------------------------------------

    def _coordinate(self, t: int, uploads: Uploads) -> None:
        names = [name for name in phases(stage=("rows",)) if name in self.trainer.acting]
        for name, group in itertools.product(names, self.setup.coalitions):
            rows = uploads.rows_of(group)
            present = tuple(uploads.participants[r] for r in rows)
            if present:
                ctx = self.parties.coalition(name, t, group, present)
                was = [finite(uploads.updates[r]) for r in rows]
                answer = self._call(name, uploads.updates[rows], ctx)
                changed = answer.to(uploads.updates)
                self.causes.watch(present, was, changed, name)
                uploads.updates[rows] = changed

    def _attack(self, t: int, uploads: Uploads) -> None:
        insider = self.setup.insider
        rows = uploads.rows_of(self.setup.malicious)
        if insider is None or not rows or t < insider.start_round:
            return
        self.trainer.key_module(t, rows[0], "adversary module")
        j = uploads.model_of[rows[0]]
        bench = Bench(self.setup, uploads.starts[j], t)
        rule = partial(self._probe, t, uploads, j)
        knowledge = self.parties.knowledge(insider, uploads, rows, bench, rule)
        with matmuls(self.setup.config.precision):
            crafted = call_for_rows(
                insider.attack, "craft", uploads.updates[rows], t, knowledge, where=f"round {t}"
            )
        uploads.updates[rows] = crafted.to(uploads.updates)  # it may be float64

    def _reject(self, uploads: Uploads) -> tuple[int, ...]:
        """Drop malicious rows that are not finite: an adversary cannot stop the federation."""
        malicious = uploads.rows_of(self.setup.malicious)
        bad = [r for r in malicious if not finite(uploads.updates[r])]
        rejected = tuple(uploads.participants[r] for r in bad)
        if bad:
            rows = range(len(uploads.participants))
            uploads.keep([r for r in rows if r not in bad])
        return rejected

    # -- server ------------------------------------------------------------------------------------

    def _probe(
        self,
        t: int,
        uploads: Uploads,
        j: int,
        updates: Tensor,
    ) -> Tensor:
        """The server's rule for an adversary's trials: with another random key, and without
        changing the server's memory.
        """
        n = len(updates)
        weights = torch.full((n,), 1 / n, device=updates.device)
        if "aggregate" in self.trainer.acting:
            updates = updates.clone()  # a rule may write to its rows
        memory = deepcopy(self.parties.memory(("server", j)))
        ctx = self._server_context(t, uploads, j, "probe", memory)
        return self._call("aggregate", updates, weights, ctx)

    def _server_context(
        self,
        t: int,
        uploads: Uploads,
        j: int,
        purpose: str,
        memory: dict[str, Any],
        rejected: int = 0,
    ) -> ServerContext:
        model = self.state[j]
        ctx = self.parties.server(uploads, j, purpose, memory, rejected, model)

        def train(
            params: Tensor, x: Tensor, y: Tensor, epochs: int, batch_size: int | None = None
        ) -> Tensor:
            bench = Bench(self.setup, replace(model, params=params), t)
            self.trainer.key_module(t, j, "server module")
            return params + bench.train(x, y, epochs, ctx.generator, batch_size)

        ctx = replace(ctx, train=train)  # with the generator of the context that the rule gets
        return ctx

    def _aggregate(self, t: int, uploads: Uploads, rejected: int) -> Tensor:
        """Steps [s, P], zero for a model without clients. Weights are the setup's, renormalised
        over the clients present.
        """
        steps = torch.zeros_like(self.models)
        for j in range(len(self.models)):
            rows = uploads.rows_of_model(j)
            if not rows:
                continue
            weights = self._weights(t, uploads, rows)
            memory = self.parties.memory(("server", j))
            ctx = self._server_context(t, uploads, j, "aggregate", memory, rejected)
            updates = uploads.updates
            if len(rows) < len(updates) or "aggregate" in self.trainer.acting:
                updates = updates[rows]  # a copy, which a rule may write to
            # a copy of the weights: the buffers are averaged by them below
            steps[j] = self._call("aggregate", updates, weights.clone(), ctx)
            self.state.buffers[j] = weights @ uploads.buffers[rows]
            self.state.counts[j] = mean_counts(weights, uploads.counts[rows])
        return steps

    def _weights(
        self,
        t: int,
        uploads: Uploads,
        rows: list[int],
    ) -> Tensor:
        """Weights [rows] of FedAvg; with ``weight_order: shuffled`` those of other rows (released
        code).
        """
        if self.setup.config.weight_order != "clients":
            order = numpy_rng(self.setup.seed, "weight-order", t).permutation(len(rows))
            rows = [rows[i] for i in order]
        weights = self._weighing[[uploads.participants[r] for r in rows]]
        return weights / weights.sum()

    # -- after a round, and after the last one -----------------------------------------------------

    def _after_round(self, t: int) -> None:
        for k, (start, state) in self._trained.items():
            self.setup.flat.load(state)
            ctx = self.parties.member("after_round", t, k, self.clients[k], start)
            ctx = replace(ctx, ask_global=partial(self._ask_global, k))
            self._call("after_round", ctx)
        self._trained.clear()

    def _ask_global(self, k: int, x: Tensor) -> Tensor:
        """Logits of the global model that client ``k`` receives next; leaves the loaded model
        unchanged.
        """
        flat = self.setup.flat
        training_mode = flat.module.training
        before = flat.state.clone()
        try:
            return flat.logits(self.state[self.assignment[k]], x)
        finally:
            flat.load(before)
            flat.module.train(training_mode)

    def facts(self) -> dict[str, FactValue]:
        """The facts that the defense reports after the last round."""
        if "report" not in self.trainer.acting:
            return {}
        contexts = self.parties.reports(len(self.models))
        return merged([self._call("report", ctx) for ctx in contexts])
