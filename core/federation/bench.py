"""Training outside the clients' loop, with the federation's own optimiser: an adversary's updates,
a server's models.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from fedbench.core.contract.errors import UserError
from fedbench.core.federation.optimizer import lr_at, make_optimizer
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.per_sample import gradient_rows

_CHUNK = 128  # samples that go through the model at once
_MOST_BYTES = 4 * 2**30


class Bench:
    """Trainer from the parameters ``start`` [P], ``buffers`` [B] and ``counts`` [I] in one round,
    by default the present counts.

    Every update is parameters after minus ``start``, with a fresh optimiser; the engine overwrites
    the module's parameters before the next client trains. The caller seeds torch's global
    generators (dropout).
    """

    def __init__(
        self,
        setup: Setup,
        start: torch.Tensor,
        buffers: torch.Tensor,
        round: int,
        counts: torch.Tensor | None = None,
    ) -> None:
        self._setup, self._flat, self._start, self._buffers = setup, setup.flat, start, buffers
        self._counts = setup.flat.counts if counts is None else counts
        self._lr = lr_at(setup.config, round)
        self._optimizer = make_optimizer(
            setup.config.optimizer, setup.flat.params[None], setup.flat.grad[None]
        )

    def _load(self, training: bool) -> None:
        self._flat.load(self._start, self._buffers, self._counts)
        self._flat.bind_grad()
        self._flat.module.train(training)
        self._optimizer.reset()

    def _descend(self, chain: Chain | None, x: torch.Tensor, y: torch.Tensor) -> None:
        if chain is not None:
            chain.gradient(x, y)
        else:
            self._flat.grad.zero_()
            cross_entropy(self._flat.module(x), y).backward()
        self._optimizer.step(self._lr)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[P]: one step on the mean loss of all samples."""
        self._load(training=True)
        self._descend(Chain.of(self._flat, x), x, y)
        return self._flat.params - self._start

    def train(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        epochs: int = 1,
        shuffle: torch.Generator | None = None,
    ) -> torch.Tensor:
        """[P]: passes over the samples in batches of the federation's size, in their order or
        shuffled.
        """
        self._load(training=True)
        chain = Chain.of(self._flat, x)
        size, order = self._setup.config.batch_size, torch.arange(len(y), device=y.device)
        for _ in range(epochs):
            if shuffle is not None:
                order = torch.randperm(len(y), generator=shuffle).to(y.device)
            for pick in order.split(size):
                self._descend(chain, x[pick], y[pick])
        return self._flat.params - self._start

    def sample_steps(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[n, P]: one step on every sample alone. Raises ``UserError`` beyond 4 GiB."""
        width = self._start.numel()
        if (size := 4 * len(y) * width) > _MOST_BYTES:
            raise UserError(
                f"one update for each of {len(y)} samples of {width} parameters takes "
                f"{size / 2**30:.0f} GiB: "
                "lower adversary.mask_set or take a smaller model"
            )
        self._load(training=False)
        rows = [
            gradient_rows(self._flat.module, a, b)
            for a, b in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True)
        ]
        return self._optimizer.first_steps(rows[0] if len(rows) == 1 else torch.cat(rows), self._lr)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[n, C] of the received model in eval mode."""
        return self._flat.logits(self._start, self._buffers, x, self._counts)
