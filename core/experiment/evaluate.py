"""What a training's global models say: to whoever asks them, and of their clients' own samples."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.core.federation.answering import answered
from fedbench.core.federation.loop import Training


def final_logits(training: Training, x: torch.Tensor) -> np.ndarray:
    """[s, n, C]: what each of the global models answers."""
    return np.stack([_answers(training, j, x).float().cpu().numpy() for j in range(len(training.models))])


def predicted_by(training: Training, x: torch.Tensor) -> np.ndarray:
    """[n_test] the class that the global model gives each sample.

    With several global models, sample i is put to the model of client i mod K: the mean is then the clients' mean
    accuracy, and a sample still has one answer, which paired tests need.
    """
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    clients = torch.arange(len(x), device=x.device) % len(training.assignment)
    for j in sorted(set(training.assignment.values())):
        mine = torch.isin(clients, torch.tensor([k for k, m in training.assignment.items() if m == j], device=x.device))
        if bool(mine.any()):
            out[mine] = _answers(training, j, x[mine]).argmax(1)
    return out.cpu().numpy()


def train_loss(training: Training) -> float:
    """Mean cross-entropy of each client's global model on (up to 200 of) its training samples."""
    losses = []
    for k, data in enumerate(training.setup.clients):
        some = data.trainable[:200]
        logits = _logits(training, training.assignment[k], data.x[some])
        losses.append(torch.nn.functional.cross_entropy(logits, data.y[some]))
    return float(torch.stack(losses).mean())


def _answers(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return answered(training, j, _logits(training, j, x))


def _logits(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return training.setup.flat.logits(training.models[j], training.buffers[j], x)
