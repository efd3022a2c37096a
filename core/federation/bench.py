"""Training outside the clients' loop, with the federation's own optimiser: an adversary's updates,
a server's models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.core.contract.errors import UserError
from fedbench.core.federation.backend import backend_of
from fedbench.core.federation.optimizer import lr_at
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import ModelState
from fedbench.core.numerics.per_sample import gradient_rows
from fedbench.core.numerics.rng import key_for

_CHUNK = 128  # samples that go through the model at once
_MOST_BYTES = 4 * 2**30


class Bench:
    """Trainer from the model ``start`` in one round.

    Every update is parameters after minus before, with a fresh optimiser; the engine overwrites the
    module's parameters before the next client trains. The caller seeds torch's global generators
    (dropout).
    """

    def __init__(self, setup: Setup, start: ModelState, round: int) -> None:
        self._flat = setup.flat
        key = key_for(setup.seed, "bench", round) >> 1
        self._draws = torch.Generator().manual_seed(key)
        self.start = start
        self._batch_size = setup.config.batch_size
        self._lr = lr_at(setup.config, round)
        self._backend = backend_of(setup.config, setup.device)(setup.config, setup.flat)
        self._optimizer = self._backend.alone.optimizer

    def _load(self, x: Tensor, training: bool) -> None:
        self._flat.load(self.start)
        self._flat.module.train(training)
        self._backend.examine(x)
        self._optimizer.reset()

    def _update(self) -> Tensor:
        return self._flat.params - self.start.params

    def _rows(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self._flat.rows(x, y, "train", self._draws)

    def _step(self, x: Tensor, y: Tensor) -> None:
        self._backend.mean_gradient(*self._rows(x, y))
        self._optimizer.step(self._lr)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Update [P] of one step on the mean loss of all samples."""
        self._load(x, training=True)
        self._step(x, y)
        return self._update()

    def train(
        self,
        x: Tensor,
        y: Tensor,
        epochs: int = 1,
        shuffle: torch.Generator | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Update [P] of passes over the samples in batches (None: of the federation's size), in
        their order or shuffled.
        """
        self._load(x, training=True)
        order = torch.arange(len(y), device=y.device)
        for _ in range(epochs):
            if shuffle is not None:
                order = torch.randperm(len(y), generator=shuffle).to(y.device)
            for pick in order.split(batch_size or self._batch_size):
                self._step(x[pick], y[pick])
        return self._update()

    def sample_steps(self, x: Tensor, y: Tensor) -> Tensor:
        """Updates [n, P] of one step on every sample alone. Raises ``UserError`` beyond 4 GiB."""
        width = self.start.params.numel()
        if (size := 4 * len(y) * width) > _MOST_BYTES:
            raise UserError(
                f"one update for each of {len(y)} samples of {width} parameters takes "
                f"{size / 2**30:.0f} GiB: lower adversary.mask_set or take a smaller model"
            )
        self._load(x, training=False)
        gradients = []
        for samples, labels in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            inputs, target = self._rows(samples, labels)
            task = self._flat.task
            gradients.append(gradient_rows(self._flat.module, inputs, target, task))
        return self._optimizer.first_steps(torch.cat(gradients), self._lr)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [n, C] of the received model in eval mode."""
        return self._flat.logits(self.start, x)
