"""The round loop. Every phase of a defense is called here or in ``local``; the defaults are plain
FedAvg.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch

from fedbench.core.contract.attack import LEVELS, Knowledge
from fedbench.core.contract.contexts import MemberContext, ServerContext
from fedbench.core.contract.defense import FactValue, overrides
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.phases import phases
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.cohort import Cohort
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
from fedbench.core.federation.local import Turn
from fedbench.core.federation.setup import Parties, RoundResult, Setup, Uploads
from fedbench.core.numerics.flat import EVALUATION_CHUNK, mean_counts
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.numerics.wrappers import matmuls

Answer = Callable[[int, torch.Tensor], torch.Tensor]
"""(global model, logits [n, C] of a chunk) -> [n, C]"""


def answers(setup: Setup) -> bool:
    """Whether queries of a global model are answered by the defense; False in a federation without
    members.
    """
    return bool(setup.members) and overrides(setup.defense, "answer")


def answered(training: Training, j: int, logits: torch.Tensor) -> torch.Tensor:
    """[n, C]: the answer to a query of global model ``j`` after the last finished round with
    ``logits`` [n, C]; the same tensor if no defense answers. Raises ``PhaseError`` for an invalid
    answer.
    """
    if not answers(training.setup):
        return logits
    served = tuple(k for k in training.setup.members if training.assignment[k] == j)
    ctx = training.parties.answer_context(training.round, j, served)
    with torch.no_grad():
        chunks = logits.split(EVALUATION_CHUNK)
        found = [
            call_phase(training.defense, "answer", chunk, ctx, where=where_of(ctx))
            for chunk in chunks
        ]
        return torch.cat([part.to(logits) for part in found])


def global_logits(training: Training, k: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function x -> logits of the global model that client ``k`` receives next; it leaves the
    loaded model unchanged.
    """
    flat = training.setup.flat

    def ask(x: torch.Tensor) -> torch.Tensor:
        j, training_mode = training.assignment[k], flat.module.training
        before = flat.params.clone(), flat.buffers.clone(), flat.counts
        try:
            return flat.logits(training.models[j], training.buffers[j], x, training.counts[j])
        finally:
            flat.load(*before)
            flat.module.train(training_mode)

    return ask


# --- delayed models -------------------------------------------------------------------------------


class StaleModels:
    """The models a round's clients start from. ``past``: (models [s, P], buffers [s, B], counts [s,
    I]) of the last rounds, newest last.

    ``of``: [n] index among ``stacked()`` for every client in the order of ``pick``.
    """

    def __init__(self, past: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
        self._past = past
        self._n_models = len(past[-1][0])
        self._older: list[tuple[int, int]] = []
        self.of: list[int] = []

    def pick(self, delay: int, model: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """([P], [B], [I]) of the global model ``model`` as it was ``delay`` rounds ago."""
        if delay == 0:
            self.of.append(model)
        else:
            if (delay, model) not in self._older:
                self._older.append((delay, model))
            self.of.append(self._n_models + self._older.index((delay, model)))
        models, buffers, counts = self._past[-1 - delay]
        return models[model], buffers[model], counts[model]

    def stacked(self) -> list[torch.Tensor]:
        """[S, P], [S, B] and [S, I]: the current models first, then the older ones in use."""
        stacked = list(self._past[-1])
        if self._older:
            for kind, current in enumerate(self._past[-1]):
                older = [self._past[-1 - delay][kind][model] for delay, model in self._older]
                stacked[kind] = torch.cat([current, torch.stack(older)])
        return stacked


# --- rounds ---------------------------------------------------------------------------------------


class Training:
    """One training, round by round. ``models``: [s, P] the global models after ``round``;
    ``assignment``: client -> model.
    """

    def __init__(self, setup: Setup) -> None:
        if overlap := set(setup.members) & set(setup.malicious):
            raise UserError(
                f"client {min(overlap)} cannot both defend and attack: shrink the coalition or the "
                "adversary"
            )
        require_nothing(
            setup.defense, call(setup.defense, "check", setup.facts, where="before round 1")
        )
        self.setup = setup
        self.defense = setup.defense
        self.cohort = Cohort(setup)
        self.trainer = self.cohort.trainer
        self.models, self.round = setup.initial.clone(), 0
        self.buffers = setup.flat.buffers.repeat(len(self.models), 1)
        self.counts = setup.flat.counts.repeat(len(self.models), 1)
        own = setup.defense.n_models == 0  # a model for every client, whether it defends or not
        self.assignment = {k: k if own else 0 for k in range(len(setup.clients))}
        self._past: deque[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = deque(
            maxlen=setup.config.max_delay + 1
        )
        self.parties, self.causes = Parties(setup), Causes(setup)
        self._rooms: dict[str, torch.Tensor] = {}
        self._trained: dict[int, tuple[torch.Tensor, ...]] = {}
        self._weighing = torch.tensor(setup.weighing, device=setup.device)
        for group in setup.coalitions:  # the coordinator's key of round 0
            call_phase(
                self.defense,
                "begin",
                self.parties.coalition("coordinate", 0, group, group),
                where="before round 1",
            )
        self.clients = [self._prepare(k) for k in range(len(setup.clients))]

    def _prepare(self, k: int) -> MemberData:
        data = self.setup.clients[k]
        if k not in self.setup.members or not overrides(self.defense, "prepare"):
            return data
        ctx = self.parties.member("prepare", 0, k, data, self.models[0])
        self.setup.flat.load(self.models[0], self.buffers[0], self.counts[0])
        prepared = call_phase(
            self.defense, "prepare", data, ctx, where=f"client {k}, before round 1"
        )
        if len(prepared.y) != len(data.y) or len(prepared.x) != len(data.y):
            # membership is by position: a sample dropped here would still count as a member
            raise PhaseError(
                f"{type(self.defense).__name__}.prepare (client {k}) returned {len(prepared.y)} "
                "samples for "
                f"{len(data.y)}; mark those kept out of training in `held_out`"
            )
        return still_held_out(prepared, data)

    def first_choice(self) -> list[int]:
        """[members] the initial global model that each member would choose."""
        return [self._assign(0, k, self.models) for k in self.setup.members]

    # -- the round ---------------------------------------------------------------------------------

    def rounds(self) -> Iterator[RoundResult]:
        """Train; yields after every round. The uploads of a round are valid until the next one:
        their matrix is reused.
        """
        for t in range(1, self.setup.config.rounds + 1):
            yield self._round(t)

    def _round(self, t: int) -> RoundResult:
        cohort = self._cohort(t)
        starts = self.models.clone()
        self._past.append((starts, self.buffers.clone(), self.counts.clone()))
        with matmuls(self.setup.config.precision):
            uploads = self._train_cohort(t, cohort, starts)
        self._coordinate(t, uploads)
        self._attack(t, uploads)
        rejected = self._reject(uploads)
        self.causes.require_rows(uploads)
        steps = self._aggregate(t, uploads, len(rejected))
        self.models, self.round = starts + steps, t
        self.causes.require_models(uploads, starts, self.models)
        self._after_round(t)
        assignment = tuple(self.assignment[k] for k in range(len(self.clients)))
        return RoundResult(
            uploads=uploads,
            models=self.models,
            buffers=self.buffers.clone(),
            counts=self.counts.clone(),
            steps=steps,
            rejected=rejected,
            assignment=assignment,
        )

    def _cohort(self, t: int) -> tuple[int, ...]:
        n = len(self.setup.clients)
        take = max(1, round(self.setup.config.participation * n))
        if take == n:
            return tuple(range(n))
        return tuple(
            sorted(
                int(k)
                for k in numpy_rng(self.setup.seed, "cohort", t).choice(n, take, replace=False)
            )
        )

    def _train_cohort(self, t: int, cohort: tuple[int, ...], starts: torch.Tensor) -> Uploads:
        flat, trainer = self.setup.flat, self.trainer
        updates = self._room("updates", len(cohort), flat.params.numel())
        buffers = torch.empty(len(cohort), flat.buffers.numel(), device=self.setup.device)
        counts = flat.counts.repeat(len(cohort), 1)
        keep = self.setup.keep_unprotected
        unprotected = self._room("unprotected", len(cohort), flat.params.numel()) if keep else None
        sent = StaleModels(self._past)
        turns = [self._turn(t, row, k, starts, sent) for row, k in enumerate(cohort)]
        for turn in self.cohort.train(turns):
            row, k, start = turn.row, turn.client, turn.start
            torch.sub(flat.params, start, out=updates[row])
            buffers[row], counts[row] = flat.buffers, flat.counts
            if unprotected is not None:
                unprotected[row] = updates[row]
            if k in self.setup.members:
                if trainer.phases["after_round"]:
                    self._trained[k] = (
                        start.clone(),
                        flat.params.clone(),
                        flat.buffers.clone(),
                        flat.counts,
                    )
                if trainer.of_upload:
                    updates[row] = trainer.upload(
                        updates[row].clone(), partial(self._context, t, k, start), self.causes
                    )
        model_of = [self.assignment[k] for k in cohort]
        stacked, stacked_buffers, stacked_counts = sent.stacked()
        return Uploads(
            round=t,
            participants=cohort,
            updates=updates,
            buffers=buffers,
            counts=counts,
            model_of=model_of,
            start_of=sent.of,
            starts=stacked,
            start_buffers=stacked_buffers,
            start_counts=stacked_counts,
            unprotected=unprotected,
        )

    def _turn(self, t: int, row: int, k: int, starts: torch.Tensor, sent: StaleModels) -> Turn:
        defends = k in self.setup.members
        if defends and len(starts) > 1:
            self.assignment[k] = self._assign(t, k, starts)
        start, buffer, counts = sent.pick(self._delay(t, k), self.assignment[k])
        context = (
            partial(self._context, t, k, start, "round")
            if defends and self.trainer.defended
            else None
        )
        return Turn(
            round=t,
            row=row,
            client=k,
            data=self.clients[k],
            start=start,
            buffers=buffer,
            counts=counts,
            context=context,
        )

    def _context(self, t: int, k: int, start: torch.Tensor, phase: str) -> MemberContext:
        return self.parties.member(phase, t, k, self.clients[k], start)

    def _delay(self, t: int, k: int) -> int:
        """Age of the client's global model in rounds: U{0..max_delay}, at most the rounds so far
        (Fang et al., ACSAC 2022; FedPoisonMIA, section 6.1.4). The adversary's clients have no
        delay.
        """
        longest = min(self.setup.config.max_delay, t - 1)
        if longest == 0 or k in self.setup.malicious:
            return 0
        return int(numpy_rng(self.setup.seed, "delay", t, k).integers(0, longest + 1))

    def _room(self, name: str, n: int, width: int) -> torch.Tensor:
        """[n, width] buffer, reused in every round: allocating it anew costs more than a training
        step.
        """
        room = self._rooms.get(name)
        if room is None or len(room) != n:
            room = self._rooms[name] = torch.empty(n, width, device=self.setup.device)
        return room

    def _assign(self, t: int, k: int, starts: torch.Tensor) -> int:
        j = self.assignment[k]
        self.setup.flat.load(starts[j], self.buffers[j], self.counts[j])
        ctx = self.parties.member("assign", t, k, self.clients[k], starts[j])
        return call_phase(self.defense, "assign", starts, ctx, where=where_of(ctx))

    def _coordinate(self, t: int, uploads: Uploads) -> None:
        for name in phases(stage=("rows",)):
            for group in self.setup.coalitions if self.trainer.phases[name] else ():
                rows = [r for r, k in enumerate(uploads.participants) if k in group]
                if present := tuple(uploads.participants[r] for r in rows):
                    ctx = self.parties.coalition(name, t, group, present)
                    was = [finite(uploads.updates[r]) for r in rows]
                    changed = call_phase(
                        self.defense, name, uploads.updates[rows], ctx, where=f"round {t}"
                    ).to(uploads.updates)
                    self.causes.watch(present, was, changed, name)
                    uploads.updates[rows] = changed

    def _attack(self, t: int, uploads: Uploads) -> None:
        insider = self.setup.insider
        rows = [r for r, k in enumerate(uploads.participants) if k in self.setup.malicious]
        if insider is None or not rows or t < insider.start_round:
            return
        honest = [r for r in range(len(uploads.participants)) if r not in rows]
        level = LEVELS.index(insider.knowledge)
        j = uploads.model_of[rows[0]]
        # a copy: the adversary may write to it
        start, key = uploads.starts[j].clone(), key_for(self.setup.seed, "adversary", t)
        bench = Bench(
            self.setup, uploads.starts[j], uploads.start_buffers[j], t, uploads.start_counts[j]
        )
        self.trainer.key_module(t, rows[0], "adversary module")
        knowledge = Knowledge(
            key=key,
            device=self.setup.device,
            federation=self.setup.facts,
            round=t,
            clients=tuple(uploads.participants[r] for r in rows),
            start=start,
            model=self.setup.flat.module,
            x=insider.x,
            y=insider.y,
            mask_x=insider.mask_x,
            mask_y=insider.mask_y,
            memory=self.parties.memory("adversary"),
            step=bench.step,
            train=bench.train,
            sample_steps=bench.sample_steps,
            logits=bench.logits,
            own=uploads.updates[rows] if level >= LEVELS.index("own") else None,
            honest=uploads.updates[honest] if level >= LEVELS.index("honest") else None,
            rule=(lambda u: self._probe(t, u, uploads, j))
            if level >= LEVELS.index("rule")
            else None,
        )
        with matmuls(self.setup.config.precision):
            crafted = call_for_rows(
                insider.attack, "craft", uploads.updates[rows], t, knowledge, where=f"round {t}"
            )
        uploads.updates[rows] = crafted.to(uploads.updates)  # it may be float64

    def _reject(self, uploads: Uploads) -> tuple[int, ...]:
        """Drop malicious rows that are not finite, so that an adversary cannot stop the federation."""
        rows = [r for r, k in enumerate(uploads.participants) if k in self.setup.malicious]
        bad = [r for r in rows if not bool(torch.isfinite(uploads.updates[r]).all())]
        rejected = tuple(uploads.participants[r] for r in bad)
        if bad:
            uploads.keep([r for r in range(len(uploads.participants)) if r not in bad])
        return rejected

    def _probe(self, t: int, updates: torch.Tensor, uploads: Uploads, j: int) -> torch.Tensor:
        """The server's rule for an adversary's trials: with another random key, and without
        changing the server's memory.
        """
        weights = torch.full((len(updates),), 1 / len(updates), device=updates.device)
        if self.trainer.phases["aggregate"]:
            updates = updates.clone()  # a rule may write to its rows
        return self._rule(
            t, updates, weights, uploads, j, "probe", deepcopy(self.parties.memory(("server", j)))
        )

    def _rule(
        self,
        t: int,
        updates: torch.Tensor,
        weights: torch.Tensor,
        uploads: Uploads,
        j: int,
        purpose: str,
        memory: dict,
        rejected: int = 0,
    ) -> torch.Tensor:
        rows, facts = (
            tuple(k for k, m in zip(uploads.participants, uploads.model_of, strict=True) if m == j),
            self.setup.facts,
        )
        ctx = ServerContext(
            key=self.parties.key(f"{purpose}{j}", t),
            device=self.setup.device,
            federation=facts,
            round=t,
            params=uploads.starts[j],
            participants=rows,
            memory=memory,
            model_index=j,
            assumed_malicious=max(0, facts.assumed_malicious - rejected),
            layers=self.setup.flat.layers,
            input_shape=self.setup.clients[0].x.shape[1:],
            root=self.setup.root,
            logits=lambda params, x: self.setup.flat.logits(
                params, self.buffers[j], x, self.counts[j]
            ),
        )
        ctx = replace(
            ctx, train=lambda params, x, y, epochs: self._server_train(ctx, params, x, y, epochs)
        )
        return call_phase(self.defense, "aggregate", updates, weights, ctx, where=where_of(ctx))

    def _server_train(
        self,
        ctx: ServerContext,
        params: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        epochs: int,
    ) -> torch.Tensor:
        j = ctx.model_index
        bench = Bench(self.setup, params, self.buffers[j], ctx.round, self.counts[j])
        self.trainer.key_module(ctx.round, j, "server module")
        return params + bench.train(x, y, epochs, ctx.generator)

    def _aggregate(self, t: int, uploads: Uploads, rejected: int) -> torch.Tensor:
        """[s, P] steps, zero for a model without clients. Weights are the setup's, renormalised
        over the clients present.
        """
        steps = torch.zeros_like(self.models)
        for j in range(len(self.models)):
            rows = [r for r, m in enumerate(uploads.model_of) if m == j]
            if not rows:
                continue
            weights = self._weighing[[uploads.participants[r] for r in self._weight_order(t, rows)]]
            weights = weights / weights.sum()
            everyone = len(rows) == len(uploads.model_of)
            mine = uploads.updates if everyone else uploads.updates[rows]
            if everyone and overrides(self.defense, "aggregate"):
                # a rule may write to its rows; the received ones are measured later
                mine = mine.clone()
            # a copy of the weights: the buffers are averaged by them below
            steps[j] = self._rule(
                t,
                mine,
                weights.clone(),
                uploads,
                j,
                "aggregate",
                self.parties.memory(("server", j)),
                rejected,
            )
            self.buffers[j] = weights @ uploads.buffers[rows]
            self.counts[j] = mean_counts(weights, uploads.counts[rows])
        return steps

    def _weight_order(self, t: int, rows: list[int]) -> list[int]:
        """The row that each row takes its weight from: itself, or with ``weight_order: shuffled``
        another one (released code).
        """
        if self.setup.config.weight_order == "clients":
            return rows
        return [
            rows[i] for i in numpy_rng(self.setup.seed, "weight-order", t).permutation(len(rows))
        ]

    def _after_round(self, t: int) -> None:
        for k, (start, *trained) in self._trained.items():
            self.setup.flat.load(*trained)
            ctx = self.parties.member("after_round", t, k, self.clients[k], start)
            call_phase(
                self.defense,
                "after_round",
                replace(ctx, ask_global=global_logits(self, k)),
                where=where_of(ctx),
            )
        self._trained.clear()

    def facts(self) -> dict[str, FactValue]:
        """The facts that the defense reports after the last round."""
        if not self.trainer.phases["report"]:
            return {}
        return merged(
            [
                call_phase(self.defense, "report", c, where=where_of(c))
                for c in self.parties.reports(len(self.models))
            ]
        )
