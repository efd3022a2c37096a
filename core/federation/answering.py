"""Asking a global model: what its members see of it, and what a defense's ``answer`` makes of it for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedbench.core.contract.defense import overrides
from fedbench.core.federation.guard import act, where_of
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import EVALUATION_CHUNK

if TYPE_CHECKING:
    from fedbench.core.federation.loop import Training

Answer = Callable[[int, torch.Tensor], torch.Tensor]
"""(global model, logits [n, C] of a chunk) -> [n, C]"""


def answers(setup: Setup) -> bool:
    """Whether somebody who asks a global model gets the defense's answer: where nobody defends, nobody answers."""
    return bool(setup.members) and overrides(setup.defense, "answer")


def answered(training: Training, j: int, logits: torch.Tensor) -> torch.Tensor:
    """[n, C]: what whoever asks global model ``j`` after the last finished round is given for ``logits`` [n, C]; the very
    tensor where no defense answers. Raises ``PhaseError`` for what is no answer."""
    if not answers(training.setup):
        return logits
    served = tuple(k for k in training.setup.members if training.assignment[k] == j)
    ctx = training.parties.asked(training.round, j, served)
    with torch.no_grad():
        said = [act(training.defense, "answer", chunk, ctx, where=where_of(ctx)) for chunk in logits.split(EVALUATION_CHUNK)]
        return torch.cat([part.to(logits) for part in said])


def global_logits(training: Training, k: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Client ``k``'s way to ask the global model that it will receive next; what is loaded at the moment stays loaded."""
    flat = training.setup.flat

    def ask(x: torch.Tensor) -> torch.Tensor:
        j, training_mode = training.assignment[k], flat.module.training
        params, buffers = flat.params.clone(), flat.buffers.clone()
        try:
            return flat.logits(training.models[j], training.buffers[j], x)
        finally:
            flat.params.copy_(params)
            flat.buffers.copy_(buffers)
            flat.module.train(training_mode)

    return ask
