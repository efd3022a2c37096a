"""Local epochs as replays of a recorded step: on CUDA one launch a step instead of some hundreds.

An epoch's samples are gathered into buffers that stay where they are; the recorded step takes its batch from them by an index
that it moves on itself, and leaves the gradient in the flat vector. The optimiser steps after each replay, as in the other
loop and by the same kernels, since the learning rate and Adam's step count are numbers of the step. Order and draws are those
of the other loop: every generator is keyed and advanced as there.

A recording is accepted on trial: from one state, a replay must give the bits that the step itself gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedbench.core.contract.contexts import Federation
from fedbench.core.contract.defense import CAPTURABLE, Defense, acting, declared_capturable, overrides
from fedbench.core.contract.samples import Batch, MemberData
from fedbench.core.federation.coalitions import Coalitions
from fedbench.core.federation.guard import act, call, forward
from fedbench.core.federation.optimizer import FlatAdam, FlatSGD
from fedbench.core.federation.setup import Setup
from fedbench.core.federation.trial import on_trial
from fedbench.core.numerics.normalise import as_floats
from fedbench.core.numerics.replay import CudaGraphs, Recorder, Step
from fedbench.core.words.explain import told

MOST_STEPS = 8  # recordings of one training: each holds a step's activations; clients of many sizes have many last batches


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a capturable phase may know: it is recorded once and replayed for every member, epoch and round."""

    federation: Federation
    device: torch.device

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"ctx.{name} is not there for a phase that is declared capturable: it may change from step to step")


class CapturedSteps:
    """The recorded steps of one training. ``note``: why there are none, where recording did not work; ``replays``: how many
    there were."""

    def __init__(self, setup: Setup, optimizer: FlatSGD | FlatAdam, recorder: Recorder) -> None:
        self._setup, self._flat, self._optimizer, self._recorder = setup, setup.flat, optimizer, recorder
        self._at = torch.zeros(setup.config.batch_size, dtype=torch.int64, device=setup.device)
        self._first = torch.arange(setup.config.batch_size, device=setup.device)
        self._rooms: dict[Any, _Room] = {}
        self._ctx = StepContext(federation=setup.facts, device=setup.device)
        self._serves = _capturable(setup.defense)
        self._defended = any(overrides(setup.defense, name) for name in CAPTURABLE)
        self.note, self.replays = "", 0

    def epoch(self, data: MemberData, order: torch.Tensor, lr: float, where: str) -> bool:
        """An undefended client's local epoch over its samples ``order`` [m]; False where nothing was done, since it cannot be
        replayed: the caller trains."""
        return self._epoch(data, order, None, False, lr, where)

    def member_epoch(self, data: MemberData, order: torch.Tensor, flag: torch.Tensor | None, lr: float, where: str) -> bool:
        """The same of a member; ``flag`` [m, ...] of its selection. False, too, where a phase of a batch is not capturable."""
        return self._serves and self._epoch(data, order, flag, self._defended, lr, where)

    def _epoch(
        self, data: MemberData, order: torch.Tensor, flag: torch.Tensor | None, defended: bool, lr: float, where: str
    ) -> bool:
        size, n = self._setup.config.batch_size, len(order)
        sizes = [size] * (n // size) + [n % size] * (n % size > 0)
        if self.note or not n:
            return False
        room = self._filled(data, order, flag, defended)
        steps: dict[int, Step] = {}
        for s in dict.fromkeys(sizes):
            step = self._step_of(room, s, where)
            if step is None:
                return False
            steps[s] = step
        self._at.copy_(self._first)
        for s in sizes:
            steps[s]()
            self._optimizer.step(lr)
        self.replays += len(sizes)
        return True

    def _filled(self, data: MemberData, order: torch.Tensor, flag: torch.Tensor | None, defended: bool) -> _Room:
        """The room for such samples, with these in it."""
        sources = {"x": data.x, "y": data.y, "soft": data.soft}
        kinds = {n: t if t is None else (t.dtype, t.shape[1:]) for n, t in {**sources, "flag": flag}.items()}
        key = (*kinds.values(), defended)
        room = self._rooms.get(key)
        if room is None or len(room.samples.y) < len(order):
            most = max(len(order), *(len(d.y) for d in self._setup.clients))
            room = self._rooms[key] = _Room(_empty(kinds, most, self._setup.device), defended, {})
        for name, t in sources.items():
            if t is not None:
                torch.index_select(t, 0, order, out=getattr(room.samples, name)[: len(order)])
        room.samples.index[: len(order)] = order
        if flag is not None and room.samples.flag is not None:
            room.samples.flag[: len(order)] = flag
        return room

    def _step_of(self, room: _Room, size: int, where: str) -> Step | None:
        """What runs one step of this size; None where it cannot be recorded, or where enough are."""
        if size not in room.steps and not self.note:
            if sum(len(r.steps) for r in self._rooms.values()) == MOST_STEPS:
                return None
            step, checked = (partial(self._step, room, size, how, where) for how in (call, act))
            try:
                self._at.copy_(self._first)
                room.steps[size] = on_trial(self._flat, self._at, step, checked, self._recorder)
            except Exception as error:  # whatever it is, the other loop meets it again or does without
                self.note = f"local steps were not captured, and ran operation by operation, with the same result: {told(error)}"
                self._rooms.clear()
        return room.steps.get(size)

    def _step(self, room: _Room, size: int, how: Callable[..., Any], where: str) -> None:
        """One batch up to its gradient, as it is recorded."""
        batch = room.take(self._at[:size])
        self._flat.grad.zero_()
        loss = self._defended_loss(batch, how, where) if room.defended else self._loss(batch, where)
        loss.backward()  # type: ignore[no-untyped-call]
        self._at.add_(len(self._at))

    def _loss(self, batch: Batch, where: str) -> torch.Tensor:
        return cross_entropy(forward(self._flat.module, batch.x, where), batch.y if batch.soft is None else batch.soft)

    def _defended_loss(self, batch: Batch, how: Callable[..., Any], where: str) -> torch.Tensor:
        """Through the capturable phases of whoever acts in them."""
        defense, ctx = self._setup.defense, self._ctx
        batch = replace(batch, x=as_floats(self._flat.module, batch.x))
        for part in acting(defense, "transform"):
            batch = how(part, "transform", batch, ctx, where=where)
        logits = forward(self._flat.module, batch.x, where)
        for part in acting(defense, "loss"):  # exclusive: one at most
            loss: torch.Tensor = how(part, "loss", logits, batch, ctx, where=where)
            return loss
        return Defense().loss(logits, batch, ctx)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Room:
    """Where an epoch's samples of one kind lie, and the steps that were recorded there, by their batch's size."""

    samples: Batch
    defended: bool
    steps: dict[int, Step]

    def take(self, pick: torch.Tensor) -> Batch:
        """The batch at the positions ``pick``."""
        found = {f.name: getattr(self.samples, f.name) for f in fields(Batch)}
        taken: dict[str, Any] = {name: None if t is None else t.index_select(0, pick) for name, t in found.items()}
        return Batch(**taken)


def _empty(kinds: dict[str, Any], n: int, device: torch.device) -> Batch:
    def make(kind: tuple[torch.dtype, Sequence[int]] | None) -> Any:
        return None if kind is None else torch.zeros(n, *kind[1], dtype=kind[0], device=device)

    index = torch.zeros(n, dtype=torch.int64, device=device)
    return Batch(index=index, **{name: make(kind) for name, kind in kinds.items()})


def _capturable(defense: Defense) -> bool:
    """Whether every phase of a batch that a member goes through is declared to be."""
    if overrides(defense, "local_step"):
        return False
    acts = [(part, name) for name in CAPTURABLE for part in acting(defense, name)]
    if acts and isinstance(defense, Coalitions):
        return False  # each coalition's instance would need recordings of its own
    return all(declared_capturable(part, name) for part, name in acts)


def captured_steps(setup: Setup, optimizer: FlatSGD | FlatAdam) -> CapturedSteps | None:
    """Recorded steps where they pay: on CUDA."""
    return CapturedSteps(setup, optimizer, CudaGraphs(setup.device)) if setup.device.type == "cuda" else None
