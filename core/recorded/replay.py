"""Recorded rounds in place of training: the models that were sent and the uploads that came back,
as the round loop hands them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.contract.errors import UserError
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import RoundResult, Setup, Uploads
from fedbench.core.numerics.flat import FlatModel, ModelState, mean_counts, norm
from fedbench.core.recorded.folder import Recording, Reply
from fedbench.core.recorded.tensors import tensors

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class RecordedRound:
    """The files of a round."""

    received: Path
    after: Path | None
    """the model after the round, where it was recorded"""
    replies: Sequence[Reply]
    weights: Sequence[float]
    """what the server weighed each reply by, to be divided by their sum"""
    is_mean: bool = True
    """whether the next model is the weighted mean of the uploads"""


def rounds_of(recording: Recording, sizes: Sequence[int]) -> Iterator[RecordedRound]:
    """Yield the rounds of a folder. ``sizes``: number of training samples of each client."""
    rule = recording.description.weights
    for number in recording.numbers:
        after = recording.model_after(number)
        replies = recording.replies(number)
        weights = [_weight(reply, rule, sizes) for reply in replies]
        if recording.is_aggregate and after is not None:
            replies = [Reply(0, None, False, after)]
            weights = [1.0]
        yield RecordedRound(
            received=recording.received(number),
            after=after,
            replies=replies,
            weights=weights,
            is_mean=rule != "other",
        )


def _weight(reply: Reply, rule: str, sizes: Sequence[int]) -> float:
    if rule == "samples":
        return float(sizes[reply.client])
    if rule == "equal" or reply.weight is None:
        return 1.0
    return float(reply.weight)


# --- from tensors by name to the engine's vectors -------------------------------------------------


@dataclass
class StateReader:
    """Reads models in the order of the module's own parameters, whatever that of a file is."""

    flat: FlatModel
    optional: frozenset[str] = frozenset()
    """buffers that every file may lack"""
    coarsest: float = 0.0
    """relative precision of the coarsest floating-point type of a parameter so far"""
    converted: set[torch.dtype] = field(default_factory=set)
    """types of parameters so far that are coarser than the model's"""

    def __post_init__(self) -> None:
        module = self.flat.module
        self._params = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self._floats = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        self._counts = {n: b for n, b in module.named_buffers() if not b.is_floating_point()}
        self._known = module.state_dict()
        self._fresh = self.flat.state.clone()
        buffers = self._floats.keys() | self._counts.keys()
        self.optional |= buffers - self._known.keys()

    def require(self, shapes: Mapping[str, tuple[int, ...]], place: str, is_delta: bool) -> None:
        """Raise ``UserError`` unless tensors of these names and shapes are a model's."""
        needed = {*self._params}
        if not is_delta:
            needed |= (self._floats.keys() | self._counts.keys()) - self.optional
        unknown = sorted(shapes.keys() - self._known.keys())
        if missing := sorted(needed - shapes.keys()):
            others = f"; {listed(unknown)} unknown to it" if unknown else ""
            raise UserError(
                f"{place}: {listed(missing)} missing, which the model has{others}: correct "
                "`model`, or put what all rounds leave out into base.safetensors"
            )
        if unknown:
            raise UserError(
                f"{place}: {listed(unknown)} unknown to the model, which has "
                f"{listed(list(self._known))}: correct `model`, or leave them out"
            )
        for name, shape in shapes.items():
            expected = tuple(self._known[name].shape)
            if expected != shape:
                raise UserError(
                    f"{place}: '{name}' is {list(shape)}, the model's is {list(expected)}: correct "
                    "`model`"
                )

    def read(self, values: Tensors, place: str, start: ModelState | None = None) -> ModelState:
        """Return a model; ``start``: the received one, of which ``values`` are the change.

        Raises:
            UserError: for other names, shapes or values than a model has.
        """
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        self.require(shapes, place, start is not None)
        _require_finite(values, place)
        for name, param in self._params.items():
            dtype = values[name].dtype
            self.coarsest = max(self.coarsest, _precision(dtype))
            if _precision(dtype) > _precision(param.dtype):
                self.converted.add(dtype)
        if start is None:
            with torch.no_grad():
                for name in self._frozen.keys() & values.keys():
                    self._frozen[name].copy_(values[name])
        return self._flattened(values, start)

    def _flattened(self, values: Tensors, start: ModelState | None) -> ModelState:
        state = (self._fresh if start is None else start).clone()
        vectors = (state.params, state.buffers, state.counts)
        kinds: tuple[Tensors, ...] = (self._params, self._floats, self._counts)
        for vector, named in zip(vectors, kinds, strict=True):
            parts = vector.split([tensor.numel() for tensor in named.values()])
            for name, part in zip(named, parts, strict=True):
                if name not in values:
                    continue
                value = values[name].reshape(-1).to(part)
                if start is None:
                    part.copy_(value)
                else:
                    part += value
        return state


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    words = ", ".join(f"'{name:.80}'" for name in names[:3])
    return f"{words} and {len(names) - 3} more" if len(names) > 3 else words


def _precision(dtype: torch.dtype) -> float:
    """Return the relative rounding error of a type; of integers that of eight bits."""
    if dtype.is_floating_point:
        return torch.finfo(dtype).eps
    return 1 / 127


def _conversion(dtypes: set[torch.dtype]) -> str:
    """Return the remark on parameters of types that are coarser than the model's."""
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
    text = f"parameters of type {names} were converted to the model's type as they are"
    if any(not dtype.is_floating_point for dtype in dtypes):
        text += ": integers have no scale, so record what they decode to"
    return text


def _require_finite(values: Tensors, place: str) -> None:
    for name, value in values.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(
                f"{place}: '{name}' holds values that are not finite: mark the reply as failed in "
                "round.json, or leave the round out of `rounds`"
            )


def _row(state: ModelState) -> ModelState:
    """Return a model as the only row."""
    return ModelState(state.params[None], state.buffers[None], state.counts[None])


# --- the rounds -----------------------------------------------------------------------------------


class Replay(Training):
    """Yields recorded rounds as a training yields its own."""

    def __init__(
        self,
        setup: Setup,
        recorded: Iterable[RecordedRound],
        optional: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(setup)
        self._recorded = recorded
        self._reader = StateReader(setup.flat, optional)
        self._misses: list[str] = []
        self._compared = 0
        self._is_mean = True

    def rounds(self) -> Iterator[RoundResult]:
        """Yield every recorded round; the uploads are valid until the next one."""
        for t, recorded in enumerate(self._recorded, 1):
            self.round = t
            yield self._replayed(t, recorded)

    def _replayed(self, t: int, recorded: RecordedRound) -> RoundResult:
        self._reader.coarsest = 0.0
        start = self._reader.read(tensors(recorded.received), str(recorded.received))
        uploads, weights = self._uploads(t, recorded, start)
        after, steps = self._next(recorded, start, uploads, weights)
        self.state = _row(after)
        return RoundResult(
            uploads=uploads,
            state=self.state,
            steps=steps[None],
            assignment=(0,) * len(self.clients),
        )

    def _next(
        self,
        recorded: RecordedRound,
        start: ModelState,
        uploads: Uploads,
        weights: Tensor,
    ) -> tuple[ModelState, Tensor]:
        """Return the model after the round, and the step [P] that leads to it: the recorded one, or
        the weighted mean of the uploads.
        """
        steps = torch.zeros_like(start.params)
        after = start
        if len(weights):
            steps = weights @ uploads.updates
            counts = mean_counts(weights, uploads.counts)
            after = ModelState(start.params + steps, weights @ uploads.buffers, counts)
        if recorded.after is None:
            return after, steps
        mean = after.params
        place = f"the model after {recorded.received}"
        after = self._reader.read(tensors(recorded.after), place)
        self._compare(recorded, start.params, mean, after.params, len(weights))
        if not torch.equal(mean, after.params):
            steps = after.params - start.params
        return after, steps

    def _uploads(
        self,
        t: int,
        recorded: RecordedRound,
        start: ModelState,
    ) -> tuple[Uploads, Tensor]:
        """Return the uploads of a round, and their weights [n], which sum to 1."""
        n = len(recorded.replies)
        participants = tuple(reply.client for reply in recorded.replies)
        uploads = Uploads(
            round=t,
            participants=participants,
            updates=self._room("updates", n),
            buffers=start.buffers.repeat(n, 1),
            counts=start.counts.repeat(n, 1),
            model_of=[0] * n,
            start_of=[0] * n,
            starts=_row(start),
        )
        weights = torch.tensor(recorded.weights, device=self.setup.device)
        of_clients = torch.zeros(len(self.clients), device=self.setup.device)
        of_clients[list(participants)] = weights
        uploads.weights = tuple(of_clients.tolist())
        for row, reply in enumerate(recorded.replies):
            base = start if reply.is_delta else None
            state = self._reader.read(tensors(reply.path), str(reply.path), base)
            torch.sub(state.params, start.params, out=uploads.updates[row])
            uploads.buffers[row] = state.buffers
            uploads.counts[row] = state.counts
            self.trainer.usage.skip(t, reply.client)
        if n and not bool(weights.sum() > 0):
            raise UserError(
                f"{recorded.received}: all weights of the round are 0: correct round.json"
            )
        return uploads, weights / weights.sum()

    def _compare(
        self,
        recorded: RecordedRound,
        start: Tensor,
        mean: Tensor,
        after: Tensor,
        n: int,
    ) -> None:
        """Compare the weighted mean of ``n`` uploads with the next model [P], to rounding: of the
        types of the files, and of sums in float32 in another order.
        """
        self._is_mean = recorded.is_mean
        if not recorded.is_mean or not n:
            return
        self._compared += 1
        rounding = self._reader.coarsest + 4 * n**0.5 * torch.finfo(torch.float32).eps
        distance = float(norm(mean - after))
        if distance <= rounding * float(norm(after)):
            return
        step = float(norm(after - start))
        share = f"{distance / step:.2f} times the step" if step else f"{distance:.2g} without step"
        self._misses.append(f"{recorded.received} by {share}")

    def facts(self) -> dict[str, FactValue]:
        """Return what is odd about the recording, after the last round."""
        remarks = []
        if self._misses:
            remarks.append(
                f"this recording is doubtful: in {len(self._misses)} of {self._compared} rounds "
                "the weighted mean of the uploads is not the next received model (first the one "
                f"after {self._misses[0]}): check `uploads`, `weights`, and that every reply was "
                "recorded"
            )
        if not self._is_mean:
            remarks.append(
                "the uploads were not compared with the next received models, since the server's "
                "rule is no weighted mean"
            )
        if self._reader.converted:
            remarks.append(_conversion(self._reader.converted))
        self.complaints = list(remarks)
        return {REMARKS: remarks} if remarks else {}
