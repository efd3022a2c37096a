"""Which of its samples each client trains on, round by round: noted where the batches are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedbench.core.contract.samples import MemberData

UNKNOWN = -1
"""stands for a count that nobody can tell"""


class Usage:
    """Counts of one training. A sample is used in a round where it was in at least one of its batches, and flagged where it was
    with a flag of its ``Selection`` that is true. What it costs is one index a batch."""

    def __init__(self, clients: Sequence[MemberData]) -> None:
        self._used = [torch.zeros(len(d.y), dtype=torch.int32, device=d.y.device) for d in clients]
        self._flagged = [torch.zeros_like(used) for used in self._used]
        self._unknown: set[int] = set()
        self._rounds: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor] | None]] = {}
        self.seen = False
        """whether the client at work has had a batch in this round"""

    def begin(self, round: int, client: int) -> None:
        """A client's round begins."""
        self._at, self.seen = (round, client), False
        self._now, self._hot = (torch.zeros(len(self._used[client]), dtype=torch.bool, device=self._used[client].device)
                                for _ in range(2))  # fmt: skip

    def add(self, index: torch.Tensor, flag: torch.Tensor | None = None) -> None:
        """Samples of a batch, or of many: ``index`` [m] positions in the client's data; ``flag`` [m, ...] or None."""
        if len(index):
            self.seen = True
            self._now[index] = True
            if flag is not None:
                self._hot[index] |= flag.reshape(len(flag), -1).bool().any(1)

    def end(self, known: bool = True) -> None:
        """The client's round ends. ``known``: False where it trained, and nobody can tell on what."""
        t, k = self._at
        self._used[k] += self._now
        self._flagged[k] += self._hot
        self._rounds.setdefault(t, {})[k] = (self._now.sum(), self._hot.sum()) if known else None
        if not known:
            self._unknown.add(k)

    def of_client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """([n_k] rounds in which each sample was used, [n_k] flagged), int32; ``UNKNOWN`` throughout where one round is."""
        counts = self._used[k].cpu().numpy(), self._flagged[k].cpu().numpy()
        return counts if k not in self._unknown else (np.full_like(counts[0], UNKNOWN), np.full_like(counts[1], UNKNOWN))

    def of_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """([T, K] how many samples each client used in each round, [T, K] flagged), int32; 0 of who was absent."""
        found = np.zeros((2, max(self._rounds, default=0), len(self._used)), np.int32)
        for t, clients in self._rounds.items():
            for k, counts in clients.items():
                found[:, t - 1, k] = UNKNOWN if counts is None else [int(n) for n in counts]
        return found[0], found[1]
