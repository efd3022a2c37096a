"""Measure every signal that the attacks of a run need, for all rows a view can see, and cut out
what one view sees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from fedbench.core.contract.attack import Observations, View
from fedbench.core.contract.components import Signal
from fedbench.core.contract.errors import SkipCell
from fedbench.core.federation.loop import Answer
from fedbench.core.federation.setup import RoundResult, Uploads
from fedbench.core.numerics.flat import FlatModel, ModelState, mean_counts
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import why_one_by_one
from fedbench.core.process.library_state import kept
from fedbench.core.signals.probes import SignalCall, SignalError
from fedbench.core.words import describe_error

MOST_BYTES = 4 * 2**30  # of one vector signal; while a run packs it, it is in memory twice


def room_for(rounds: int, rows: int, samples: int, width: tuple[int, ...]) -> str:
    """Why a signal of so many components is not measured of so many audited rounds, rows of its
    views and samples of the pool; empty where it fits into ``MOST_BYTES`` of float32.
    """
    size = 4 * rounds * rows * samples
    for d in width:
        size *= d
    if size <= MOST_BYTES:
        return ""
    each = "x".join(map(str, width)) or "1"
    return (
        f"{rounds:,} audited rounds x {rows:,} rows x {samples:,} samples x {each} components of 4 "
        "bytes are "
        f"{size / 2**20:,.1f} MiB, at most {MOST_BYTES / 2**20:,.1f} MiB are kept of one signal: "
        "raise audit.every, lower "
        "audit.nonmembers or audit.references, name fewer clients in audit.targets, or ask with a "
        "view of fewer rows"
    )


# of all that defend or, of several coalitions, the first; the others are far below the rows of
# global models
COALITION = -2
_SEVERAL = -1_000_000


def coalition_row(g: int) -> int:
    """Id of the row of the ``g``-th coalition: -2 for the first, -1000001, -1000002, ... for the
    others.
    """
    return COALITION if g == 0 else _SEVERAL - g


def coalition_of_row(row: int) -> int | None:
    """Which coalition a row is the mean of, if any."""
    if row == COALITION:
        return 0
    return _SEVERAL - row if row < _SEVERAL else None


def seen_from(
    target: int | None, rows: Sequence[int], coalitions: Sequence[tuple[int, ...]]
) -> list[int]:
    """``rows`` as seen through ``target``'s own coalition: the mean of that coalition gets the id
    -2, as with a single coalition, and exchanges its id with the first one's.

    Raises ``SkipCell`` if there are several ``coalitions`` and the target is in none of them, or is
    many clients.
    """
    if len(coalitions) < 2:
        return list(rows)
    own = next((g for g, members in enumerate(coalitions) if target in members), None)
    if own is None:
        target_words = (
            "many clients together"
            if target is None
            else f"client {target}, which is in none of them"
        )
        raise SkipCell(
            f"it follows the target's own coalition; there are {len(coalitions)}, and the target "
            f"is {target_words}"
        )
    exchanged = {coalition_row(own): COALITION, COALITION: coalition_row(own)}
    return [exchanged.get(row, row) for row in rows]


# id of the global model's row on the client axis; of several, see `global_row`, and of coalitions,
# `rows.py`
GLOBAL = -1
GRADIENT_SIGNALS = frozenset({"grad-dot", "grad-sq", "update-sq"})
# A signal measured on the local model as it was BEFORE its protection, which no server sees:
# FedMIA's released code does so for the loss (docs/methods/quirks.md#f4). Named `loss@pre-defense`;
# an attack that needs it has it in its label.
PRE_DEFENSE = "@pre-defense"
_TRIED = 16  # samples that a vector signal is tested on before training
# Input bytes a chunk on the CPU: larger chunks miss the caches (measured on a small CNN with 32x32
# images: forward 2x, gradient features 1.9x slower at 2,048 and 512 samples than at 128 and 64).
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
    """Samples a chunk: ``bytes_`` of float32 input on the CPU, 8 times that on an accelerator
    (ResNet18: under 4 GB).
    """
    numel = max(1, x[0].numel()) if len(x) else 1
    return max(16, bytes_ * (1 if x.device.type == "cpu" else 8) // (4 * numel))


def rows_of(
    views: set[View], clients: int, members: tuple[int, ...], n_models: int = 1, coalitions: int = 0
) -> list[int]:
    """Ids of the rows that these views see: the clients' uploads, the global models, the
    coalition's mean (of several, the mean of each). Beside the mean stand the uploads of the
    clients outside the coalition of ``members``.
    """
    seen = (
        range(clients)
        if "server" in views
        else outside(clients, members)
        if "coalition" in views and members
        else ()
    )
    rows = list(seen)
    if views & {"client", "external"}:
        rows += [global_row(j) for j in range(n_models)]
    if "coalition" in views and members:
        rows += [COALITION, *(coalition_row(g) for g in range(1, coalitions))]
    return rows


def outside(clients: int, members: Collection[int]) -> list[int]:
    """Ids of the clients that are not in the coalition of ``members``."""
    return [k for k in range(clients) if k not in members]


# --- measuring a round ----------------------------------------------------------------------------


class Recorder:
    """Collects signals over the audited rounds as arrays with the axes (round, client, sample), of
    vectors (.., component).

    ``signals``: name -> :class:`Signal` for the forward signals wanted; ``gradients``: whether to
    measure the gradient features ``grad-dot`` = <g_i, I_k>, ``grad-sq`` = |g_i|^2, ``update-sq`` =
    |I_k|^2 with g_i the gradient of sample i at the model client k RECEIVED and I_k = received -
    uploaded parameters (docs/methods/signals.md#signals-of-the-gradient). ``x``, ``y``: the pool of
    samples. ``rows``: ids of those to measure (:func:`rows_of`, or some of them); ``coalitions``:
    the members of each. ``one_start``: whether all clients receive the same model in every round,
    so that ``grad-sq`` needs one row. ``who``: a signal's name -> its name with its package.
    ``failed``: why a signal is not among the arrays; the first failure ends its part in the run,
    and nothing else's. ``notes``: what the records of cells that read a signal should say of it.
    ``rounds``: how many will be audited. A vector signal is called once before the first, of a few
    samples: how long it is, and whether there is room for all of it (:func:`room_for`); ``refused``
    says of which there is none. ``answer``: what a defense makes of a global model's logits, if it
    does.
    """

    def __init__(
        self,
        flat: FlatModel,
        x: torch.Tensor,
        y: torch.Tensor,
        signals: Mapping[str, Signal],
        gradients: bool,
        rows: Sequence[int],
        coalitions: Sequence[tuple[int, ...]],
        sizes: Sequence[float],
        one_start: bool = True,
        who: Mapping[str, str] | None = None,
        on_failure: Callable[[Exception], None] = lambda error: None,
        rounds: int = 1,
    ) -> None:
        self.flat, self.x, self.y, self._on_failure = flat, x, y, on_failure
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.answer: Answer | None = None
        self._who = {n: f"'{n}'" for n in (*signals, *GRADIENT_SIGNALS)} | dict(who or {})
        self.calls = {n: SignalCall(s, self._who[n], flat) for n, s in signals.items()}
        self.gradients, self.one_start = gradients, one_start
        self.coalitions, self.sizes, self.rows = coalitions, sizes, list(rows)
        self.rounds: list[int] = []
        self._columns: dict[str, list[np.ndarray]] = {}
        for name in [n for n, call in self.calls.items() if call.vector]:
            self._try_out(name, rounds)

    def record(self, result: RoundResult) -> None:
        """Measure one round: on the received uploads, in eval mode, on un-augmented inputs."""
        uploads = result.uploads
        present = [
            r
            for r in self.rows
            if model_of_row(r) is not None
            or r in uploads.participants
            or self._coalition_present(r, uploads)
        ]
        if not present:  # no client that the views see took part
            self._blank(uploads.round)
            return
        updates, buffers, starts = self._rows(present, uploads, uploads.updates, result)
        where = [self.rows.index(r) for r in present]
        was_training = self.flat.module.training
        self.flat.module.eval()
        try:
            sent = {n: call for n, call in self.calls.items() if not n.endswith(PRE_DEFENSE)}
            self._forward(sent, where, updates, buffers, starts, uploads)
            unprotected = {n: call for n, call in self.calls.items() if n.endswith(PRE_DEFENSE)}
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
        shapes: dict[str, tuple[int, ...]] = {
            name: (m, n, *call.width) for name, call in self.calls.items()
        }
        if self.gradients:
            shapes |= {
                "grad-dot": (m, n),
                "update-sq": (m, 1),
                "grad-sq": (1 if self.one_start else m, n),
            }
        for name, shape in shapes.items() if m else ():
            self._columns.setdefault(name, []).append(np.full(shape, np.nan, np.float32))
        self.rounds.append(round)

    def arrays(self) -> dict[str, np.ndarray]:
        """name -> [R, M, N] float32, of vectors [R, M, N, d] (length 1 on an axis along which the
        signal does not vary).
        """
        return {name: np.stack(column) for name, column in self._columns.items()}

    def _coalition_present(self, row: int, uploads: Uploads) -> bool:
        g = coalition_of_row(row)
        return g is not None and any(k in uploads.participants for k in self.coalitions[g])

    def _rows(
        self, present: list[int], uploads: Uploads, sent: torch.Tensor, result: RoundResult
    ) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]], list[int]]:
        """(m updates [P], m pairs of buffers [B] and counts [I], [m] index of the model each starts
        from) of the present rows.

        ``sent``: [n, P] the clients' updates, as uploaded or before protection; the rows are views,
        not copies.
        """
        position = {k: i for i, k in enumerate(uploads.participants)}
        updates, buffers, starts = [], [], []
        for row in present:
            if (j := model_of_row(row)) is not None:
                updates.append(result.steps[j])
                buffers.append((result.state.buffers[j], result.state.counts[j]))
                starts.append(j)
            # A_t = sum n_k L_k / sum n_k over it (docs/methods/signals.md#rows)
            elif (g := coalition_of_row(row)) is not None:
                mine = [k for k in self.coalitions[g] if k in position]
                n = torch.tensor([float(self.sizes[k]) for k in mine], device=self.x.device)
                share, at = n / n.sum(), [position[k] for k in mine]
                begun = [uploads.start_of[i] for i in at]
                mean = share @ sent[at]
                # they trained on different models: what is averaged is where they ended
                if len(set(begun)) > 1:
                    starting = uploads.starts.params
                    mean += share @ starting[begun] - starting[begun[0]]
                updates.append(mean)
                buffers.append(
                    (share @ uploads.buffers[at], mean_counts(share, uploads.counts[at]))
                )
                starts.append(begun[0])
            else:
                updates.append(sent[position[row]])
                buffers.append((uploads.buffers[position[row]], uploads.counts[position[row]]))
                starts.append(uploads.start_of[position[row]])
        return updates, buffers, starts

    def _put(self, name: str, rows: int, where: list[int], values: torch.Tensor) -> None:
        column = np.full((rows, *values.shape[1:]), np.nan, np.float32)
        column[where] = values.to(torch.float32).cpu().numpy()
        self._columns.setdefault(name, []).append(column)

    @torch.no_grad()
    def _try_out(self, name: str, rounds: int) -> None:
        """Call a vector signal on a few samples with the present model."""
        x, y = self.x[:_TRIED], self.y[:_TRIED]
        was_training = self.flat.module.training
        self.flat.module.eval()
        try:
            with kept():
                logits = self.flat.module(x)
            self.calls[name].row(torch.zeros_like(self.flat.params), [(x, y)], [logits])
            if why := room_for(rounds, len(self.rows), len(self.y), self.calls[name].width):
                self._drop(name, "before round 1", why)
                self.refused[name] = self.failed[name]
        except SignalError as error:
            self._on_failure(error)
            self._drop(name, "before round 1", str(error))
        finally:
            self.flat.module.train(was_training)

    def _drop(self, name: str, when: str, why: str) -> None:
        """Drop a failed signal with its values of earlier rounds."""
        self.failed[name] = f"signal {self._who[name]}: {when}: {why}"
        self.calls.pop(name, None)
        self._columns.pop(name, None)

    @torch.no_grad()
    def _forward(
        self,
        signals: dict[str, SignalCall],
        where: list[int],
        updates: list[torch.Tensor],
        buffers: list[tuple[torch.Tensor, torch.Tensor]],
        starts: list[int],
        uploads: Uploads,
        answered: bool = True,
    ) -> None:
        measured: dict[str, list[torch.Tensor]] = {name: [] for name in signals}
        chunk = chunk_of(self.x, _FORWARD_BYTES)
        samples = list(zip(self.x.split(chunk), self.y.split(chunk), strict=True))
        for row, update, of_row, j in zip(where, updates, buffers, starts, strict=True):
            if not measured:
                return
            torch.add(uploads.starts.params[j], update, out=self.flat.params)
            # running statistics are part of what was uploaded
            self.flat.load(ModelState(self.flat.params, *of_row))
            model, logits = model_of_row(self.rows[row]), [self.flat.module(x) for x, _ in samples]
            answer = (
                partial(self.answer, model)
                if answered and self.answer is not None and model is not None
                else None
            )
            logits = logits if answer is None else [answer(z) for z in logits]
            for name in list(measured):
                try:
                    measured[name].append(signals[name].row(update, samples, logits, answer))
                except SignalError as error:
                    self._on_failure(error)
                    self._drop(name, f"round {uploads.round}", str(error))
                    del measured[name]
        for name, rows in measured.items():
            self._put(name, len(self.rows), where, torch.stack(rows))

    def _try_gradients(
        self, where: list[int], updates: list[torch.Tensor], starts: list[int], uploads: Uploads
    ) -> None:
        """Measure the gradient signals; where the model gives no per-sample gradients, drop them
        and keep the training.
        """
        try:
            self._gradients(where, updates, starts, uploads)
        except Exception as error:
            self.gradients = False
            self._on_failure(error)
            for name in sorted(GRADIENT_SIGNALS):
                self._drop(name, f"round {uploads.round}", describe_error(error))
        if why := why_one_by_one(self.flat.module, training=False):
            self.notes |= dict.fromkeys(("grad-dot", "grad-sq"), why)

    def _gradients(
        self, where: list[int], updates: list[torch.Tensor], starts: list[int], uploads: Uploads
    ) -> None:
        groups: dict[int, list[int]] = {}
        for i, j in enumerate(starts):
            groups.setdefault(j, []).append(i)
        m, n = len(self.rows), len(self.y)
        dot = torch.full((len(updates), n), torch.nan, device=self.x.device)
        norm = torch.full((len(updates), 1), torch.nan, device=self.x.device)
        sq = torch.full((len(updates), n), torch.nan, device=self.x.device)
        for j, rows in groups.items():
            self.flat.load(uploads.starts[j])
            # the pseudo-gradient is received minus uploaded: the sign is turned on the results, not
            # on [m, P]
            features = gradient_features(
                self.flat.module,
                self.x,
                self.y,
                torch.stack([updates[r] for r in rows]),
                chunk_of(self.x, GRADIENT_BYTES),
            )
            # a model may compute in float64
            dot[rows], sq[rows] = -features.dot.to(dot), features.sq.to(sq)
            norm[rows, 0] = features.update_sq.to(norm)
        self._put("grad-dot", m, where, dot)
        self._put("update-sq", m, where, norm)
        if self.one_start:
            self._put("grad-sq", 1, [0], sq[:1])
        else:
            self._put("grad-sq", m, where, sq)


# --- what a view sees -----------------------------------------------------------------------------


def observe(
    view: View,
    target: int | None,
    rows: list[int],
    rounds: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    pick: np.ndarray,
    served: np.ndarray | None = None,
    shown: Collection[int] | None = None,
) -> Observations:
    """What ``view`` sees of the samples at positions ``pick`` of the pool; the target's row where
    it has one.

    ``pick``: [n], or [R, M, n] where every round and row seen has candidates of its own (the
    released code's quirk). ``target`` is a client id (None for views without client rows).
    ``served``: [R, n] which of several global models serves each candidate's client: the global
    views see the candidate through that one. ``shown``: the clients with rows that the view shows,
    by default all; ``coalition`` has the members' mean before them. Signals a view does not contain
    are not there.
    """
    kept = set(rows if shown is None else shown)
    clients = [i for i, r in enumerate(rows) if r >= 0 and r in kept]
    models = [i for i, r in enumerate(rows) if model_of_row(r) is not None]
    keep = {"server": clients, "client": models, "external": models}
    if COALITION in rows:  # this view also has the uploads of the clients outside the coalition
        keep["coalition"] = [rows.index(COALITION), *clients]
    chosen = keep.get(view, [])
    last = slice(-1, None) if view == "external" else slice(None)
    through = (
        served[last]
        if served is not None and view in ("client", "external") and len(models) > 1
        else None
    )

    def cut(a: np.ndarray) -> np.ndarray:
        seen = a[last]
        seen = seen[:, chosen] if a.shape[1] > 1 or len(rows) == 1 else seen
        if a.shape[2] > 1 and pick.ndim == 1:
            seen = seen[:, :, pick]
        elif a.shape[2] > 1:
            mine = pick[last][:, : len(chosen)]
            wide = np.broadcast_to(seen, (*mine.shape[:2], *a.shape[2:]))
            seen = np.take_along_axis(wide, mine.reshape(mine.shape + (1,) * (a.ndim - 3)), axis=2)
        if through is not None and seen.shape[1] > 1:
            wide = np.broadcast_to(seen, (*seen.shape[:2], through.shape[1], *seen.shape[3:]))
            seen = np.take_along_axis(
                wide, through.reshape(len(through), 1, -1, *(1,) * (a.ndim - 3)), axis=1
            )
        # attacks may write to their arrays
        return seen.copy() if np.may_share_memory(seen, a) else seen

    # The external view has the final model, not the update that led to it.
    hidden = GRADIENT_SIGNALS if view == "external" else frozenset()
    signals = {name: cut(a) for name, a in arrays.items() if name not in hidden} if chosen else {}
    ids = np.array([rows[i] for i in (chosen if through is None else chosen[:1])], dtype=np.int64)
    mine = np.flatnonzero(ids == target)
    if view == "server" and len(mine) == 0:
        raise SkipCell("it follows one client's rows, but the target is many clients together")
    position = int(mine[0]) if view == "server" else 0
    return Observations(
        view=view,
        rounds=rounds[last].copy(),
        clients=ids,
        target=position,
        signals=signals,
        hidden=frozenset(arrays.keys() - signals.keys()),
    )
