"""Measure, in an audited round, every signal the attacks of a run need: for all rows a view can see, at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from fedbench.core.contract.signal import Signal
from fedbench.core.contract.threat import View
from fedbench.core.federation.answering import Answer
from fedbench.core.federation.setup import RoundResult, Uploads
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import why_one_by_one
from fedbench.core.process.library_state import kept
from fedbench.core.signals.ask import Asked, SignalError
from fedbench.core.signals.room import room_for
from fedbench.core.signals.rows import COALITION, coalition_of_row, coalition_row
from fedbench.core.words.explain import told

GLOBAL = -1  # id of the global model's row on the client axis; of several, see `global_row`, and of coalitions, `rows.py`
GRADIENT_SIGNALS = frozenset({"grad-dot", "grad-sq", "update-sq"})
# A signal measured on the local model as it was BEFORE its protection, which no server sees: FedMIA's released code
# does so for the loss (docs/methods/quirks.md#f4). Named `loss@pre-defense`; an attack that asks for it says so in its label.
PRE_DEFENSE = "@pre-defense"
_TRIED = 16  # samples that a vector signal is asked of before anything is trained
# Input bytes a chunk on the CPU: larger ones fall out of the caches and pay page faults (measured on a small CNN with
# 32x32 images: forward 2x, gradient features 1.9x slower at 2,048 and 512 samples than at 128 and 64).
_FORWARD_BYTES, GRADIENT_BYTES = 1_500_000, 800_000


def global_row(model: int) -> int:
    """Id of the row of a global model: -1 for the first, -1001, -1002, ... for the others."""
    return GLOBAL if model == 0 else -1000 - model


def model_of_row(row: int) -> int | None:
    """Which global model a row is, if any."""
    if row == GLOBAL:
        return 0
    return -1000 - row if row < -1000 and coalition_of_row(row) is None else None


def chunk_of(x: torch.Tensor, bytes_: int) -> int:
    """Samples a chunk: ``bytes_`` of float32 input on the CPU, 8 times that on an accelerator (ResNet18: under 4 GB)."""
    numel = max(1, x[0].numel()) if len(x) else 1
    return max(16, bytes_ * (1 if x.device.type == "cpu" else 8) // (4 * numel))


def rows_of(views: set[View], clients: int, members: tuple[int, ...], n_models: int = 1, coalitions: int = 0) -> list[int]:
    """Ids of the rows that these views see: the clients' uploads, the global models, the coalition's mean (of several, the mean
    of each). Beside the mean stand the uploads of the clients outside the coalition of ``members``."""
    seen = range(clients) if "server" in views else outside(clients, members) if "coalition" in views and members else ()
    rows = list(seen)
    if views & {"client", "external"}:
        rows += [global_row(j) for j in range(n_models)]
    if "coalition" in views and members:
        rows += [COALITION, *(coalition_row(g) for g in range(1, coalitions))]
    return rows


def outside(clients: int, members: Collection[int]) -> list[int]:
    """Ids of the clients that are not in the coalition of ``members``."""
    return [k for k in range(clients) if k not in members]


class Recorder:
    """Collects signals over the audited rounds as arrays with the axes (round, client, sample), of vectors (.., component).

    ``signals``: name -> :class:`Signal` for the forward signals wanted; ``gradients``: whether to measure the gradient
    features ``grad-dot`` = <g_i, I_k>, ``grad-sq`` = |g_i|^2, ``update-sq`` = |I_k|^2 with g_i the gradient of sample i
    at the model client k RECEIVED and I_k = received - uploaded parameters (docs/methods/signals.md#signals-of-the-gradient).
    ``x``, ``y``: the pool of samples. ``views``: which rows to measure; ``members``: whose mean is the coalition's, and
    ``coalitions``: the members of each, where there are several.
    ``one_start``: whether all clients receive the same model in every round, so that one row of ``grad-sq`` says it all.
    ``who``: a signal's name -> its name with its package. ``failed``: why a signal is not among the arrays; the first failure
    ends its part in the run, and nothing else's. ``notes``: what the records of cells that read a signal should say of it.
    ``rounds``: how many will be audited. A vector signal is asked once before the first, of a few samples: how long it is, and
    whether there is room for all of it (:func:`room_for`); ``refused`` says of which there is none.
    ``answer``: what whoever asks a global model is given for its logits; set by whoever trains, where a defense answers.
    """

    def __init__(
        self, flat: FlatModel, x: torch.Tensor, y: torch.Tensor, signals: Mapping[str, Signal], gradients: bool,
        clients: int, members: tuple[int, ...], views: Iterable[View], sizes: Sequence[float], one_start: bool = True,
        n_models: int = 1, who: Mapping[str, str] | None = None, on_failure: Callable[[Exception], None] = lambda error: None,
        rounds: int = 1, coalitions: Sequence[tuple[int, ...]] = (),
    ) -> None:  # fmt: skip
        self.flat, self.x, self.y, self._on_failure = flat, x, y, on_failure
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.answer: Answer | None = None
        self._who = {n: f"'{n}'" for n in (*signals, *GRADIENT_SIGNALS)} | dict(who or {})
        self.asked = {n: Asked(s, self._who[n], flat) for n, s in signals.items()}
        self.gradients, self.one_start = gradients, one_start
        self.coalitions, self.sizes = coalitions or (members,), sizes
        self.rows = rows_of(set(views), clients, members, n_models, len(self.coalitions))
        self.rounds: list[int] = []
        self._columns: dict[str, list[np.ndarray]] = {}
        for name in [n for n, asked in self.asked.items() if asked.vector]:
            self._try_out(name, rounds)

    def record(self, result: RoundResult) -> None:
        """Measure one round: on what the server really received, in eval mode, on un-augmented inputs."""
        uploads = result.uploads
        present = [
            r for r in self.rows
            if model_of_row(r) is not None or r in uploads.participants or self._coalition_present(r, uploads)
        ]  # fmt: skip
        if not present:  # nobody whom the views see took part
            self._blank(uploads.round)
            return
        updates, buffers, starts = self._rows(present, uploads, uploads.updates, result)
        where = [self.rows.index(r) for r in present]
        was_training = self.flat.module.training
        self.flat.module.eval()
        try:
            sent = {n: asked for n, asked in self.asked.items() if not n.endswith(PRE_DEFENSE)}
            self._forward(sent, where, updates, buffers, starts, uploads)
            unprotected = {n: asked for n, asked in self.asked.items() if n.endswith(PRE_DEFENSE)}
            if unprotected and uploads.unprotected is not None:
                before, _, _ = self._rows(present, uploads, uploads.unprotected, result)
                self._forward(unprotected, where, before, buffers, starts, uploads, answered=False)
                del before
            if self.gradients:
                self._try_gradients(where, updates, starts, uploads)
        finally:
            self.flat.module.train(was_training)
        self.rounds.append(uploads.round)

    def _blank(self, round: int) -> None:
        m, n = len(self.rows), len(self.y)
        shapes: dict[str, tuple[int, ...]] = {name: (m, n, *asked.width) for name, asked in self.asked.items()}
        if self.gradients:
            shapes |= {"grad-dot": (m, n), "update-sq": (m, 1), "grad-sq": (1 if self.one_start else m, n)}
        for name, shape in shapes.items() if m else ():
            self._columns.setdefault(name, []).append(np.full(shape, np.nan, np.float32))
        self.rounds.append(round)

    def arrays(self) -> dict[str, np.ndarray]:
        """name -> [R, M, N] float32, of vectors [R, M, N, d] (length 1 on an axis along which the signal does not vary)."""
        return {name: np.stack(column) for name, column in self._columns.items()}

    def _coalition_present(self, row: int, uploads: Uploads) -> bool:
        g = coalition_of_row(row)
        return g is not None and any(k in uploads.participants for k in self.coalitions[g])

    def _rows(
        self, present: list[int], uploads: Uploads, sent: torch.Tensor, result: RoundResult
    ) -> tuple[list[torch.Tensor], torch.Tensor, list[int]]:
        """(m updates [P], [m, B] buffers, [m] index of the model each starts from) of the present rows.

        ``sent``: [n, P] the clients' updates, as uploaded or before protection; the rows are views, not copies.
        """
        position = {k: i for i, k in enumerate(uploads.participants)}
        updates, buffers, starts = [], [], []
        for row in present:
            if (j := model_of_row(row)) is not None:
                updates.append(result.steps[j])
                buffers.append(result.buffers[j])
                starts.append(j)
            elif (g := coalition_of_row(row)) is not None:  # A_t = sum n_k L_k / sum n_k over it (docs/methods/signals.md#rows)
                mine = [k for k in self.coalitions[g] if k in position]
                n = torch.tensor([float(self.sizes[k]) for k in mine], device=self.x.device)
                share, at = n / n.sum(), [position[k] for k in mine]
                begun = [uploads.start_of[i] for i in at]
                mean = share @ sent[at]
                if len(set(begun)) > 1:  # they trained on different models: what is averaged is where they ended
                    mean += share @ uploads.starts[begun] - uploads.starts[begun[0]]
                updates.append(mean)
                buffers.append(share @ uploads.buffers[at])
                starts.append(begun[0])
            else:
                updates.append(sent[position[row]])
                buffers.append(uploads.buffers[position[row]])
                starts.append(uploads.start_of[position[row]])
        return updates, torch.stack(buffers), starts

    def _put(self, name: str, rows: int, where: list[int], values: torch.Tensor) -> None:
        column = np.full((rows, *values.shape[1:]), np.nan, np.float32)
        column[where] = values.to(torch.float32).cpu().numpy()
        self._columns.setdefault(name, []).append(column)

    @torch.no_grad()
    def _try_out(self, name: str, rounds: int) -> None:
        """Ask a vector signal of a few samples on the model as it stands."""
        x, y = self.x[:_TRIED], self.y[:_TRIED]
        was_training = self.flat.module.training
        self.flat.module.eval()
        try:
            with kept():
                logits = self.flat.module(x)
            self.asked[name].row(torch.zeros_like(self.flat.params), [(x, y)], [logits])
            if why := room_for(rounds, len(self.rows), len(self.y), self.asked[name].width):
                self._drop(name, "before round 1", why)
                self.refused[name] = self.failed[name]
        except SignalError as error:
            self._on_failure(error)
            self._drop(name, "before round 1", str(error))
        finally:
            self.flat.module.train(was_training)

    def _drop(self, name: str, when: str, why: str) -> None:
        """A signal that failed is not asked again, and what it said before does not count."""
        self.failed[name] = f"signal {self._who[name]}: {when}: {why}"
        self.asked.pop(name, None)
        self._columns.pop(name, None)

    @torch.no_grad()
    def _forward(
        self, signals: dict[str, Asked], where: list[int], updates: list[torch.Tensor], buffers: torch.Tensor,
        starts: list[int], uploads: Uploads, answered: bool = True,
    ) -> None:  # fmt: skip
        measured: dict[str, list[torch.Tensor]] = {name: [] for name in signals}
        chunk = chunk_of(self.x, _FORWARD_BYTES)
        samples = list(zip(self.x.split(chunk), self.y.split(chunk), strict=True))
        for row, update, buffer, j in zip(where, updates, buffers, starts, strict=True):
            if not measured:
                return
            torch.add(uploads.starts[j], update, out=self.flat.params)
            self.flat.buffers.copy_(buffer)  # running statistics are part of what was uploaded
            model, logits = model_of_row(self.rows[row]), [self.flat.module(x) for x, _ in samples]
            said = partial(self.answer, model) if answered and self.answer is not None and model is not None else None
            logits = logits if said is None else [said(z) for z in logits]
            for name in list(measured):
                try:
                    measured[name].append(signals[name].row(update, samples, logits, said))
                except SignalError as error:
                    self._on_failure(error)
                    self._drop(name, f"round {uploads.round}", str(error))
                    del measured[name]
        for name, rows in measured.items():
            self._put(name, len(self.rows), where, torch.stack(rows))

    def _try_gradients(self, where: list[int], updates: list[torch.Tensor], starts: list[int], uploads: Uploads) -> None:
        """A model whose gradients cannot be had for each sample costs the attacks that read them, and no training."""
        try:
            self._gradients(where, updates, starts, uploads)
        except Exception as error:
            self.gradients = False
            self._on_failure(error)
            for name in sorted(GRADIENT_SIGNALS):
                self._drop(name, f"round {uploads.round}", told(error))
        if why := why_one_by_one(self.flat.module, training=False):
            self.notes |= dict.fromkeys(("grad-dot", "grad-sq"), why)

    def _gradients(self, where: list[int], updates: list[torch.Tensor], starts: list[int], uploads: Uploads) -> None:
        groups: dict[int, list[int]] = {}
        for i, j in enumerate(starts):
            groups.setdefault(j, []).append(i)
        m, n = len(self.rows), len(self.y)
        dot = torch.full((len(updates), n), torch.nan, device=self.x.device)
        norm = torch.full((len(updates), 1), torch.nan, device=self.x.device)
        sq = torch.full((len(updates), n), torch.nan, device=self.x.device)
        for j, rows in groups.items():
            self.flat.params.copy_(uploads.starts[j])
            self.flat.buffers.copy_(uploads.start_buffers[j])
            # the pseudo-gradient is received minus uploaded: the sign is turned on the results, not on [m, P]
            features = gradient_features(
                self.flat.module, self.x, self.y, torch.stack([updates[r] for r in rows]), chunk_of(self.x, GRADIENT_BYTES)
            )
            dot[rows], sq[rows] = -features.dot.to(dot), features.sq.to(sq)  # a model may compute in float64
            norm[rows, 0] = features.update_sq.to(norm)
        self._put("grad-dot", m, where, dot)
        self._put("update-sq", m, where, norm)
        if self.one_start:
            self._put("grad-sq", 1, [0], sq[:1])
        else:
            self._put("grad-sq", m, where, sq)
