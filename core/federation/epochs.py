"""A member's local epochs, handed out one at a time, and the batches of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedbench.core.contract.samples import Selection


class Epochs:
    """The standard local training of one member in one round (``contract.contexts.LocalTraining``).

    ``run(n, e)`` trains epoch ``e`` of ``count`` in the ``n``-th pass; ``restart()`` loads what the round began with. Between
    two epochs nothing is half done, so whoever stops there leaves a trained model. Open only while ``local_train`` runs, and
    not while an epoch does: the phases of a batch cannot train.
    """

    def __init__(self, count: int, run: Callable[[int, int], None], restart: Callable[[], None]) -> None:
        self._count, self._run, self._restart = count, run, restart
        self._pass, self._next, self._open = 0, 0, False

    @contextmanager
    def open(self) -> Iterator[None]:
        """While ``local_train`` runs."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def epochs(self) -> Iterator[int]:
        """As :meth:`MemberContext.epochs` says; raises ``RuntimeError`` outside of ``local_train``."""
        self._require_open("epochs")
        return self._iterate()

    def restart(self) -> None:
        """As :meth:`MemberContext.restart` says; raises ``RuntimeError`` outside of ``local_train``."""
        self._require_open("restart")
        self._restart()
        self._begin_pass()

    def _iterate(self) -> Iterator[int]:
        if self._next == self._count:
            self._begin_pass()
        mine = self._pass
        while self._pass == mine and self._next < self._count:
            self._require_open("epochs")
            e, self._open = self._next, False
            self._run(mine, e)  # what it raises ends the member's training: half an epoch is not gone on from
            self._open, self._next = True, e + 1
            yield e

    def _begin_pass(self) -> None:
        if self._next:
            self._pass, self._next = self._pass + 1, 0

    def _require_open(self, asked: str) -> None:
        if not self._open:
            raise RuntimeError(f"ctx.{asked}() is available in local_train only, between its epochs")


def picks(selection: Selection, size: int, shuffle: torch.Generator) -> list[torch.Tensor]:
    """One epoch's batches of about ``size``, as positions in ``selection.index``.

    Shuffled: every sample once, the last batch may be smaller. Poisson: ceil(n / size) batches, each holding every sample
    independently with probability size / n, in ascending order; a batch may be empty.
    """
    n, device = len(selection.index), selection.index.device
    if not selection.poisson:
        return list(torch.randperm(n, generator=shuffle).to(device).split(size))
    drawn = (torch.rand(n, generator=shuffle) < size / n for _ in range(-(-n // size)))
    return [torch.nonzero(mask).reshape(-1).to(device) for mask in drawn]
