"""Which global models went out in a round: with delays, clients still train on older ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class StaleModels:
    """The models a round's clients start from. ``past``: (models [s, P], buffers [s, B]) of the last rounds, newest last.

    ``of``: [n] index among ``stacked()`` for every client in the order of ``pick``.
    """

    def __init__(self, past: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._past = past
        self._n_models = len(past[-1][0])
        self._older: list[tuple[int, int]] = []
        self.of: list[int] = []

    def pick(self, delay: int, model: int) -> tuple[torch.Tensor, torch.Tensor]:
        """([P], [B]) of the global model ``model`` as it was ``delay`` rounds ago."""
        if delay == 0:
            self.of.append(model)
        else:
            if (delay, model) not in self._older:
                self._older.append((delay, model))
            self.of.append(self._n_models + self._older.index((delay, model)))
        models, buffers = self._past[-1 - delay]
        return models[model], buffers[model]

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """([S, P], [S, B]): the current models first, then the older ones in use."""
        models, buffers = self._past[-1]
        if not self._older:
            return models, buffers
        old = [[self._past[-1 - d][kind][m] for d, m in self._older] for kind in (0, 1)]
        return torch.cat([models, torch.stack(old[0])]), torch.cat([buffers, torch.stack(old[1])])
