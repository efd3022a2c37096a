"""A client's turn in a round: its epochs and batches, and the samples that it used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.contract.samples import MemberData, Selection
from fedbench.core.federation.guard import where_of
from fedbench.core.numerics.flat import ModelState

UNKNOWN = -1
"""stands for an unknown count"""


@dataclass(kw_only=True, eq=False)
class Turn:
    """The local training of one client in one round."""

    round: int
    row: int
    """its row among the round's updates"""
    client: int
    data: MemberData
    start: ModelState
    """the model that it received"""
    phases: frozenset[str] = frozenset()
    """of its defense, those that act in its training; none for a client that trains plainly"""
    context: Callable[[], MemberContext] | None = None
    """makes its context for phases of the round, where it has some"""

    # when its training begins, the trainer sets:
    ctx: MemberContext | None = None
    """what phases of the round and of its batches are handed"""
    selection: Selection = field(init=False)
    """the samples that it trains on"""
    shuffle: torch.Generator = field(init=False)
    """generator of its batches"""
    draws: torch.Generator = field(init=False)
    """generator of what the task draws for its rows"""
    used: Tensor = field(init=False)
    """[n] bool, which of its samples were in a batch"""
    flagged: Tensor = field(init=False)
    """[n] bool, which of them were there with a true flag"""

    @property
    def place(self) -> str:
        """The place of its phases, for messages."""
        return f"round {self.round}" if self.ctx is None else where_of(self.ctx)


class Usage:
    """Counts of used samples in one training. A sample is used in a round if it was in at least one
    batch, and flagged if it was there with a true flag of its ``Selection``.
    """

    def __init__(self, clients: Sequence[MemberData]) -> None:
        self._used = [torch.zeros(len(d.y), dtype=torch.int32, device=d.y.device) for d in clients]
        self._flagged = [torch.zeros_like(used) for used in self._used]
        self._rounds: list[tuple[int, int, int, int]] = []  # round, client, used, flagged

    def begin(self, turn: Turn) -> None:
        """Note that the client has used no sample in this round."""
        turn.used = torch.zeros_like(self._used[turn.client], dtype=torch.bool)
        turn.flagged = turn.used.clone()

    def add(self, turn: Turn, pick: Tensor) -> None:
        """Note the samples of batches: ``pick`` [m] positions in the client's selection."""
        index = turn.selection.index[pick]
        flag = turn.selection.flag
        turn.used[index] = True
        if flag is not None and len(pick):
            flags = flag[pick].reshape(len(pick), -1).bool()
            turn.flagged[index] |= flags.any(1)

    def end(self, turn: Turn, known: bool) -> None:
        """Count what the client used. ``known``: False where it trained on other samples, too."""
        self._used[turn.client] += turn.used
        self._flagged[turn.client] += turn.flagged
        used = flagged = UNKNOWN
        if known:
            used = int(turn.used.sum())
            flagged = int(turn.flagged.sum())
        self._rounds.append((turn.round, turn.client, used, flagged))

    def skip(self, round: int, client: int) -> None:
        """Note that it is not known what a client used."""
        self._rounds.append((round, client, UNKNOWN, UNKNOWN))

    def of_client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """([n_k] rounds in which each sample was used, [n_k] flagged), int32; ``UNKNOWN``
        throughout where one round is.
        """
        used = self._used[k].cpu().numpy()
        flagged = self._flagged[k].cpu().numpy()
        if any(client == k and n == UNKNOWN for _, client, n, _ in self._rounds):
            return np.full_like(used, UNKNOWN), np.full_like(flagged, UNKNOWN)
        return used, flagged

    def of_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """([T, K] how many samples each client used in each round, [T, K] flagged), int32; 0 for an
        absent client.
        """
        rounds = max((t for t, *_ in self._rounds), default=0)
        counts = np.zeros((2, rounds, len(self._used)), np.int32)
        for t, k, *sums in self._rounds:
            counts[:, t - 1, k] = sums
        return counts[0], counts[1]


# --- local epochs and batches ---------------------------------------------------------------------


class Epochs:
    """The standard local training of one member in one round (``contract.contexts.LocalTraining``).

    ``run(n, e)`` trains epoch ``e`` of ``count`` in the ``n``-th pass; ``restart()`` loads what the
    round began with. The caller may stop after any epoch. Open only while ``local_train`` runs, and
    not during an epoch: the phases of a batch cannot train.
    """

    def __init__(
        self,
        count: int,
        run: Callable[[int, int], None],
        restart: Callable[[], None],
    ) -> None:
        self._count = count
        self._run = run
        self._restart = restart
        self._pass = 0
        self._next = 0
        self._open = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Allow training inside: ``local_train`` runs."""
        self._open = True
        yield
        self._open = False

    def epochs(self) -> Iterator[int]:
        """See :meth:`MemberContext.epochs`; raises ``RuntimeError`` outside of ``local_train``."""
        self._require_open("epochs")
        return self._iterate()

    def restart(self) -> None:
        """See :meth:`MemberContext.restart`; raises ``RuntimeError`` outside of ``local_train``."""
        self._require_open("restart")
        self._restart()
        self._begin_pass()

    def _iterate(self) -> Iterator[int]:
        if self._next == self._count:
            self._begin_pass()
        number = self._pass
        while self._pass == number and self._next < self._count:
            self._require_open("epochs")
            e = self._next
            self._open = False
            self._run(number, e)  # an exception ends the member's training
            self._open = True
            self._next = e + 1
            yield e

    def _begin_pass(self) -> None:
        if self._next:
            self._pass += 1
            self._next = 0

    def _require_open(self, method: str) -> None:
        if not self._open:
            raise RuntimeError(
                f"ctx.{method}() is available in local_train only, between its epochs"
            )


def picks(selection: Selection, size: int, shuffle: torch.Generator) -> list[Tensor]:
    """Draw an epoch's batches of about ``size``, as positions in ``selection.index``.

    Shuffled: every sample once, the last batch may be smaller. Poisson: ceil(n / size) batches,
    each holding every sample independently with probability size / n, in ascending order; a batch
    may be empty.
    """
    n = len(selection.index)
    device = selection.index.device
    if not selection.poisson:
        order = torch.randperm(n, generator=shuffle).to(device)
        return list(order.split(size))
    batches = []
    for _ in range(-(-n // size)):
        mask = torch.rand(n, generator=shuffle) < size / n
        batches.append(torch.nonzero(mask).reshape(-1).to(device))
    return batches
