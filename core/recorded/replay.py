"""Recorded rounds in place of training: the models that were sent and the uploads that came back,
as the round loop hands them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.contract.errors import UserError
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import RoundResult, Setup, Uploads
from fedbench.core.numerics.flat import FlatModel, ModelState, mean_counts, norm
from fedbench.core.recorded.folder import Recording
from fedbench.core.recorded.tensors import tensors

Tensors = Mapping[str, Tensor]
Load = Callable[[], Tensors]


@dataclass(frozen=True, kw_only=True)
class RecordedUpload:
    """Upload of one client."""

    client: int
    weight: float
    """what the server weighed it by, to be divided by the sum over the round"""
    is_delta: bool
    """whether it holds uploaded minus received parameters"""
    load: Load
    place: str
    """for messages"""


@dataclass(frozen=True, kw_only=True)
class RecordedRound:
    """A round, its models not loaded yet."""

    place: str
    """for messages"""
    received: Load
    after: Load | None
    """the model after the round, where it was recorded"""
    uploads: Sequence[RecordedUpload]
    is_mean: bool = True
    """whether the next model is the weighted mean of the uploads"""


def rounds_of(recording: Recording, sizes: Sequence[int]) -> Iterator[RecordedRound]:
    """Yield the rounds of a folder. ``sizes``: number of training samples of each client."""

    def loader(path: Path) -> Load:
        return lambda: tensors(path)

    rule = recording.description.weights
    for number in recording.numbers:
        uploads = []
        for reply in recording.replies(number):
            weight = reply.weight
            if rule == "samples":
                weight = sizes[reply.client]
            elif rule == "equal" or weight is None:
                weight = 1.0
            uploads.append(
                RecordedUpload(
                    client=reply.client,
                    weight=float(weight),
                    is_delta=reply.is_delta,
                    load=loader(reply.path),
                    place=str(reply.path),
                )
            )
        after = recording.model_after(number)
        if recording.is_aggregate and after is not None:
            whole = RecordedUpload(
                client=0, weight=1.0, is_delta=False, load=loader(after), place=str(after)
            )
            uploads = [whole]
        yield RecordedRound(
            place=str(recording.received(number)),
            received=loader(recording.received(number)),
            after=None if after is None else loader(after),
            uploads=uploads,
            is_mean=rule != "other",
        )


# --- from tensors by name to the engine's vectors -------------------------------------------------


@dataclass
class StateReader:
    """Reads models in the order of the module's own parameters, whatever that of a file is."""

    flat: FlatModel
    optional: frozenset[str] = frozenset()
    """buffers that every file may lack"""
    coarsest: float = 0.0
    """relative precision of the coarsest floating-point type of a parameter so far"""

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
        unknown = sorted(shapes.keys() - self._known.keys())
        needed = self._params.keys()
        if not is_delta:
            needed |= (self._floats.keys() | self._counts.keys()) - self.optional
        missing = sorted(needed - shapes.keys())
        if unknown or missing:
            text = f"has no tensor '{missing[0]}'" if missing else f"has a tensor '{unknown[0]}'"
            more = f" (and {len(missing or unknown) - 1} more)" * (len(missing or unknown) > 1)
            remedy = "put it into base.safetensors if rounds leave it out" if missing else "drop it"
            raise UserError(
                f"{place}: {text}{more}, unlike the model, which has {', '.join(self._known)[:200]}"
                f": {remedy}, or correct `model`"
            )
        for name, shape in shapes.items():
            if tuple(self._known[name].shape) != shape:
                raise UserError(
                    f"{place}: '{name}' is {list(shape)}, the model's is "
                    f"{list(self._known[name].shape)}: correct `model`"
                )

    def read(self, values: Tensors, place: str, start: ModelState | None = None) -> ModelState:
        """Return a model; ``start``: the received one, of which ``values`` are the change.

        Raises:
            UserError: for other names, shapes or values than a model has.
        """
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        self.require(shapes, place, start is not None)
        for name, value in values.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UserError(
                    f"{place}: '{name}' holds values that are not finite: mark the reply as failed "
                    "in round.json, or leave the round out of `rounds`"
                )
        for name in self._params:
            self.coarsest = max(self.coarsest, _precision(values[name].dtype))
        if start is None:
            with torch.no_grad():
                for name in self._frozen.keys() & values.keys():
                    self._frozen[name].copy_(values[name])
        return self._flattened(values, start)

    def _flattened(self, values: Tensors, start: ModelState | None) -> ModelState:
        like = self._fresh if start is None else start
        kinds = (
            (self._params, like.params),
            (self._floats, like.buffers),
            (self._counts, like.counts),
        )
        vectors = []
        for named, present in kinds:
            vector = present.clone()
            parts = vector.split([tensor.numel() for tensor in named.values()])
            for name, part in zip(named, parts, strict=True):
                if name in values and start is None:
                    part.copy_(values[name].reshape(-1))
                elif name in values:
                    part += values[name].reshape(-1).to(part)
            vectors.append(vector)
        return ModelState(*vectors)


def _precision(dtype: torch.dtype) -> float:
    """Return the relative rounding error of a type; of integers that of eight bits."""
    if dtype.is_floating_point:
        return torch.finfo(dtype).eps
    return 1 / 127


# --- the rounds -----------------------------------------------------------------------------------


class Replay(Training):
    """Yields recorded rounds as a training yields its own. ``remarks``: what is odd about them."""

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
        reader = self._reader
        reader.coarsest = 0.0
        start = reader.read(recorded.received(), recorded.place)
        uploads, weights = self._uploads(t, recorded, start)
        after = start
        steps = torch.zeros_like(start.params)
        if len(weights):
            steps = weights @ uploads.updates
            counts = mean_counts(weights, uploads.counts)
            after = ModelState(start.params + steps, weights @ uploads.buffers, counts)
        if recorded.after is not None:
            mean = after.params
            after = reader.read(recorded.after(), f"the model after {recorded.place}")
            self._compare(recorded, start.params, mean, after.params, len(weights))
            if not torch.equal(mean, after.params):
                steps = after.params - start.params
        rows = (after.params[None], after.buffers[None], after.counts[None])
        self.state = ModelState(*rows)
        return RoundResult(
            uploads=uploads,
            state=self.state,
            steps=steps[None],
            assignment=(0,) * len(self.clients),
        )

    def _uploads(
        self,
        t: int,
        recorded: RecordedRound,
        start: ModelState,
    ) -> tuple[Uploads, Tensor]:
        """Return the uploads of a round, and their weights [n], which sum to 1."""
        n = len(recorded.uploads)
        device = self.setup.device
        participants = tuple(upload.client for upload in recorded.uploads)
        of_clients = torch.zeros(len(self.clients), device=device)
        uploads = Uploads(
            round=t,
            participants=participants,
            updates=self._room("updates", n),
            buffers=start.buffers.repeat(n, 1),
            counts=start.counts.repeat(n, 1),
            model_of=[0] * n,
            start_of=[0] * n,
            starts=ModelState(start.params[None], start.buffers[None], start.counts[None]),
        )
        for row, upload in enumerate(recorded.uploads):
            values = upload.load()
            base = start if upload.is_delta else None
            state = self._reader.read(values, upload.place, base)
            torch.sub(state.params, start.params, out=uploads.updates[row])
            uploads.buffers[row] = state.buffers
            uploads.counts[row] = state.counts
            of_clients[upload.client] = upload.weight
            self.trainer.usage.skip(t, upload.client)
        weights = of_clients[list(participants)]
        if n and not bool(weights.sum() > 0):
            raise UserError(f"{recorded.place}: all weights of the round are 0: correct round.json")
        uploads.weights = tuple(of_clients.tolist())
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
        self._misses.append(f"{recorded.place} by {share}")

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
        self.complaints = list(remarks)
        return {REMARKS: remarks} if remarks else {}
