"""Measure the signals that the attacks of a run need, and select what one view sees of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from fedbench.core.contract.attack import View
from fedbench.core.contract.components import Signal
from fedbench.core.contract.errors import SkipCell
from fedbench.core.contract.samples import evaluating
from fedbench.core.federation.loop import Answer
from fedbench.core.federation.setup import RoundResult, Uploads
from fedbench.core.numerics.chain import is_own, unfilled
from fedbench.core.numerics.flat import FlatModel, ModelState, mean_counts
from fedbench.core.numerics.gpu import raise_fault
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import why_one_by_one
from fedbench.core.process.library_state import kept
from fedbench.core.signals.probes import Answers, SignalCall, SignalError
from fedbench.core.words import describe_error

GRADIENT_SIGNALS = frozenset({"grad-dot", "grad-sq", "update-sq"})
# Suffix of a signal measured on the local model BEFORE its protection, which no server sees, e.g.
# `loss@pre-defense`: so does FedMIA's released code (docs/methods/quirks.md#f4).
PRE_DEFENSE = "@pre-defense"
MOST_BYTES = 4 * 2**30  # of one vector signal in a run

# --- rows of the client axis ----------------------------------------------------------------------
# A row is a client's id, or negative: global models are -1, -1001, -1002, ..., and the means of
# coalitions -2, -1000001, -1000002, ...

GLOBAL = -1
COALITION = -2
_MORE_MODELS = -1_000
_MORE_COALITIONS = -1_000_000


def global_row(model: int) -> int:
    """Id of the row of a global model."""
    return GLOBAL if model == 0 else _MORE_MODELS - model


def coalition_row(g: int) -> int:
    """Id of the row of the mean of the ``g``-th coalition."""
    return COALITION if g == 0 else _MORE_COALITIONS - g


def model_of_row(row: int) -> int | None:
    """Index of the global model in a row; None for other rows."""
    if row == GLOBAL:
        return 0
    return _MORE_MODELS - row if _MORE_COALITIONS <= row < _MORE_MODELS else None


def coalition_of_row(row: int) -> int | None:
    """Index of the coalition with its mean in a row; None for other rows."""
    if row == COALITION:
        return 0
    return _MORE_COALITIONS - row if row < _MORE_COALITIONS else None


def rows_of(
    views: set[View],
    clients: int,
    members: tuple[int, ...],
    n_models: int = 1,
    coalitions: int = 0,
) -> list[int]:
    """Ids of the rows that these views see: clients' uploads, global models, means of coalitions.

    The view ``coalition`` also sees the uploads of clients that are not among ``members``.
    """
    rows: list[int] = []
    if "server" in views:
        rows += range(clients)
    elif "coalition" in views and members:
        rows += [k for k in range(clients) if k not in members]
    if views & {"client", "external"}:
        rows += [global_row(j) for j in range(n_models)]
    if "coalition" in views and members:
        rows += [coalition_row(g) for g in range(max(1, coalitions))]
    return rows


def seen_from(
    target: int | None, rows: Sequence[int], coalitions: Sequence[tuple[int, ...]]
) -> list[int]:
    """``rows`` with the mean of ``target``'s own coalition as -2, exchanged with the first one's.

    Raises:
        SkipCell: there are several ``coalitions`` and the target is in none of them, or is many
            clients.
    """
    if len(coalitions) < 2:
        return list(rows)
    for g, members in enumerate(coalitions):
        if target in members:
            exchanged = {coalition_row(g): COALITION, COALITION: coalition_row(g)}
            return [exchanged.get(row, row) for row in rows]
    place = "many clients together"
    if target is not None:
        place = f"client {target}, which is in none of them"
    raise SkipCell(
        f"it follows the target's own coalition; there are {len(coalitions)}, and the target is "
        f"{place}"
    )


# --- measuring a round ----------------------------------------------------------------------------

_TRIED = 16  # samples that a vector signal is called with before training
# Input bytes a chunk on the CPU: larger chunks miss the caches (measured on a small CNN with 32x32
# images: forward 2x, gradient features 1.9x slower at 2,048 and 512 samples than at 128 and 64).
_FORWARD_BYTES = 1_500_000
GRADIENT_BYTES = 800_000


def chunk_of(x: Tensor, bytes_: int) -> int:
    """Samples a chunk: ``bytes_`` of float32 input on the CPU, 8 times that on an accelerator
    (ResNet18: under 4 GB).
    """
    if x.device.type != "cpu":
        bytes_ *= 8
    return max(16, bytes_ // (4 * max(1, prod(x.shape[1:]))))


class RowModel(NamedTuple):
    """The model of one row in one round: ``update`` [P] is added to the global model ``start``."""

    start: int
    update: Tensor
    buffers: Tensor
    counts: Tensor
    model: int | None = None
    """index, if it is a global model"""


@dataclass
class Recorder:
    """Collects signals over the audited rounds.

    A signal that fails, or finds no room, is dropped with the values of earlier rounds; the others
    are measured on.
    """

    flat: FlatModel
    x: Tensor
    """[N, *input] pool of samples"""
    y: Tensor
    signals: Mapping[str, Signal]
    """forward signals by name"""
    gradients: bool
    """measure ``grad-dot`` = <g_i, I_k>, ``grad-sq`` = |g_i|^2 and ``update-sq`` = |I_k|^2, g_i
    being the gradient of sample i at the model that client k RECEIVED and I_k = received - uploaded
    parameters (docs/methods/signals.md#signals-of-the-gradient)
    """
    rows: list[int]
    """ids of the rows to measure (:func:`rows_of`)"""
    coalitions: Sequence[tuple[int, ...]]
    """members of each"""
    sizes: Sequence[float]
    """[K] weights of the clients in a coalition's mean"""
    one_start: bool = True
    """all clients receive one model in every round, so that ``grad-sq`` has one row"""
    names: Mapping[str, str] = field(default_factory=dict)
    """signal -> its name with its package, in messages"""
    own: Collection[str] = ()
    """signals that are fedbench's own"""
    on_failure: Callable[[Exception], None] = lambda error: None
    n_rounds: int = 1
    """audited rounds of the run"""
    unserved: dict[str, str] = field(default_factory=dict)
    """signal that does not serve the task -> the reason"""

    def __post_init__(self) -> None:
        self.failed: dict[str, str] = {}
        """signal -> why it was dropped"""
        self.refused: dict[str, str] = {}
        """those of ``failed`` that find no room"""
        self.notes: dict[str, str] = {}
        """signal -> remark for the records of cells that read it"""
        self.answer: Answer | None = None
        """a defense's answer to a query of a global model"""
        self.rounds: list[int] = []
        """audited rounds so far"""
        self.shares = np.zeros((len(self.coalitions), self.n_rounds, len(self.sizes)))
        """each client's share in the mean of each coalition"""
        self._values: dict[str, ndarray] = {}
        self.calls = {
            name: SignalCall(signal, self._name(name), self.flat, name in self.own)
            for name, signal in self.signals.items()
        }
        for name in [name for name, call in self.calls.items() if call.vector]:
            self._try_out(name)
        if self.rows:
            for name, shape in self._shapes().items():
                self._values[name] = np.full((self.n_rounds, *shape), np.nan, np.float32)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each signal in one round."""
        m = len(self.rows)
        n = len(self.y)
        shapes = {name: (m, n, *call.width) for name, call in self.calls.items()}
        if self.gradients:
            shapes |= {"grad-dot": (m, n), "update-sq": (m, 1)}
            shapes["grad-sq"] = (1, n) if self.one_start else (m, n)
        return shapes

    def arrays(self) -> dict[str, ndarray]:
        """name -> [R, M, N] float32, of a vector signal [R, M, N, d].

        An axis along which a signal does not vary has length 1. NaN: the client was absent.
        """
        return {name: values[: len(self.rounds)] for name, values in self._values.items()}

    def record(self, result: RoundResult) -> None:
        """Measure one round: on the received uploads, in eval mode, on un-augmented inputs."""
        uploads = result.uploads
        if uploads.weights is not None:
            self.sizes = uploads.weights
        models = self._models(result, uploads.updates)
        if models:
            sent = [name for name in self.calls if not name.endswith(PRE_DEFENSE)]
            unprotected = [name for name in self.calls if name.endswith(PRE_DEFENSE)]
            with evaluating(self.flat.module):
                self._forward(sent, models, uploads)
                if unprotected and uploads.unprotected is not None:
                    before = self._models(result, uploads.unprotected)
                    self._forward(unprotected, before, uploads, answered=False)
                if self.gradients:
                    self._try_gradients(models, uploads)
        self.rounds.append(uploads.round)

    def _models(self, result: RoundResult, updates: Tensor) -> dict[int, RowModel]:
        """Position of a row -> its model, of the rows that are present.

        ``updates``: [n, P] of the clients, as uploaded or before protection.
        """
        uploads = result.uploads
        models = {}
        index_of = {client: i for i, client in enumerate(uploads.participants)}
        for position, row in enumerate(self.rows):
            j = model_of_row(row)
            g = coalition_of_row(row)
            if j is not None:
                step = result.steps[j]
                buffers = result.state.buffers[j]
                counts = result.state.counts[j]
                models[position] = RowModel(j, step, buffers, counts, model=j)
            elif g is not None:
                present = [k for k in self.coalitions[g] if k in index_of]
                if present:
                    indices = [index_of[k] for k in present]
                    weights = np.array([self.sizes[k] for k in present])
                    self.shares[g, len(self.rounds), present] = weights / weights.sum()
                    models[position] = self._mean(present, indices, uploads, updates)
            elif row in index_of:
                i = index_of[row]
                models[position] = RowModel(
                    uploads.start_of[i], updates[i], uploads.buffers[i], uploads.counts[i]
                )
        return models

    def _mean(
        self,
        clients: list[int],
        indices: list[int],
        uploads: Uploads,
        updates: Tensor,
    ) -> RowModel:
        """Weighted mean A_t = sum n_k L_k / sum n_k (docs/methods/signals.md#rows)."""
        n = torch.tensor([float(self.sizes[k]) for k in clients], device=self.x.device)
        share = n / n.sum()
        starts = [uploads.start_of[i] for i in indices]
        update = share @ updates[indices]
        if len(set(starts)) > 1:  # trained on different models: the mean is of where they ended
            starting = uploads.starts.params
            update += share @ starting[starts] - starting[starts[0]]
        counts = mean_counts(share, uploads.counts[indices])
        return RowModel(starts[0], update, share @ uploads.buffers[indices], counts)

    def _put(
        self,
        name: str,
        positions: int | list[int],
        values: Tensor,
    ) -> None:
        self._values[name][len(self.rounds), positions] = values.to(torch.float32).cpu().numpy()

    @torch.no_grad()
    def _try_out(self, name: str) -> None:
        """Call a vector signal with a few samples: how long it is, and whether there is room."""
        x = self.x[:_TRIED]
        y = self.y[:_TRIED]
        call = self.calls[name]
        try:
            with evaluating(self.flat.module):
                with kept():
                    logits = self._outputs(x, y)
                call.row(torch.zeros_like(self.flat.params), [(x, y)], [logits])
        except SignalError as error:
            raise_fault(error)
            self.on_failure(error)
            self._drop(name, "before round 1", str(error))
        else:
            self._require_room(name, call.width)

    def _require_room(self, name: str, width: tuple[int, ...]) -> None:
        shape = self.n_rounds, len(self.rows), len(self.y), *width
        if 4 * prod(shape) > MOST_BYTES:
            self._drop(name, "before round 1", _no_room(shape))
            self.refused[name] = self.failed[name]

    def _name(self, signal: str) -> str:
        return self.names.get(signal, f"'{signal}'")

    def _drop(self, name: str, when: str, why: str) -> None:
        self.failed[name] = f"signal {self._name(name)}: {when}: {why}"
        self.calls.pop(name, None)
        self._values.pop(name, None)

    @torch.no_grad()
    def _forward(
        self,
        names: list[str],
        models: Mapping[int, RowModel],
        uploads: Uploads,
        answered: bool = True,
    ) -> None:
        chunk = max(1, chunk_of(self.x, _FORWARD_BYTES) // self.flat.task.views)
        samples = list(zip(self.x.split(chunk), self.y.split(chunk), strict=True))
        for position, row in models.items():
            names = [name for name in names if name in self.calls]
            if not names:
                return
            received = uploads.starts.buffers[row.start]
            torch.add(uploads.starts.params[row.start], row.update, out=self.flat.params)
            # running statistics are part of what was uploaded
            self.flat.load(ModelState(self.flat.params, row.buffers, row.counts))
            logits = [self._outputs(x, y) for x, y in samples]
            answer = self._answer_of(row.model) if answered else None
            if answer is not None:
                logits = [answer(z) for z in logits]
            for name in names:
                try:
                    call = self.calls[name]
                    values = call.row(row.update, samples, logits, answer, received)
                    self._put(name, position, values)
                except SignalError as error:
                    raise_fault(error)
                    self.on_failure(error)
                    self._drop(name, f"round {uploads.round}", str(error))

    def _outputs(self, x: Tensor, y: Tensor) -> Tensor:
        """Outputs of the present model on the audit's rows of these samples."""
        inputs = self.flat.rows(x, y, "audit")[0]
        with unfilled(is_own(self.flat.module, self.flat.task)):
            return self.flat.module(inputs)

    def _answer_of(self, model: int | None) -> Answers | None:
        if self.answer is None or model is None:
            return None
        return partial(self.answer, model)

    def _try_gradients(self, models: Mapping[int, RowModel], uploads: Uploads) -> None:
        """Measure the gradient signals; drop them for a model without per-sample gradients."""
        try:
            self._gradients(models, uploads)
        except Exception as error:
            raise_fault(error)
            self.gradients = False
            self.on_failure(error)
            for name in sorted(GRADIENT_SIGNALS):
                self._drop(name, f"round {uploads.round}", describe_error(error))
        if why := why_one_by_one(self.flat.module, training=False):
            self.notes |= dict.fromkeys(("grad-dot", "grad-sq"), why)

    def _gradients(self, models: Mapping[int, RowModel], uploads: Uploads) -> None:
        flat = self.flat
        by_start: dict[int, list[int]] = {}
        for position, row in models.items():
            by_start.setdefault(row.start, []).append(position)
        for j, positions in by_start.items():
            flat.load(uploads.starts[j])
            updates = _stacked([models[position].update for position in positions], uploads)
            chunk = chunk_of(self.x, GRADIENT_BYTES)
            x, target = flat.rows(self.x, self.y, "audit")
            features = gradient_features(flat.module, x, target, updates, chunk, flat.task)
            # the pseudo-gradient is received minus uploaded: the negative update
            self._put("grad-dot", positions, -features.dot)
            self._put("update-sq", positions, features.update_sq[:, None])
            self._put("grad-sq", 0 if self.one_start else positions, features.sq)


def _stacked(updates: Sequence[Tensor], uploads: Uploads) -> Tensor:
    """Return updates as rows; those of all clients as they are, since a copy is as large as all
    uploads.
    """
    rows = list(uploads.updates)
    if len(rows) == len(updates) and all(map(torch.Tensor.is_set_to, updates, rows)):
        return uploads.updates
    return torch.stack(list(updates))


def _no_room(shape: Sequence[int]) -> str:
    """Message for a vector signal of too many rounds, rows, samples and components."""
    rounds, rows, samples, width = shape
    size = 4 * prod(shape) / 2**20
    most = MOST_BYTES / 2**20
    return (
        f"{rounds:,} audited rounds x {rows:,} rows x {samples:,} samples x {width} components of "
        f"4 bytes are {size:,.1f} MiB, at most {most:,.1f} MiB are kept of one signal: raise "
        "audit.every, lower audit.nonmembers or audit.references, name fewer clients in "
        "audit.targets, or ask with a view of fewer rows"
    )
