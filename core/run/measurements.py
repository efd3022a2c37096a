"""Measurements of a training: signals of the audited rounds, utility and loss of the global models,
and the samples that were used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.loop import Training, answered
from fedbench.core.federation.setup import RoundResult
from fedbench.core.federation.turn import UNKNOWN, Usage
from fedbench.core.numerics.wrappers import matmuls
from fedbench.core.run.scene import Scene
from fedbench.core.signals.measure import Recorder

_MOST_LOSSES = 200  # samples of a client that the training loss is averaged over


class Audits:
    """The audited rounds of a training so far."""

    def __init__(
        self,
        scene: Scene,
        training: Training,
        recorder: Recorder,
        precision: str = "fp32",
    ) -> None:
        self._precision = precision
        self._scene = scene
        self._training = training
        self._recorder = recorder
        device = training.setup.device
        self._test_x = torch.from_numpy(scene.data.test_x).to(device)
        self._test_y = torch.from_numpy(scene.data.test_y).to(device)
        self.history: list[dict[str, Any]] = []
        self.assignments: list[tuple[int, ...]] = []
        self.values = np.zeros(0, bool)
        self.predicted = np.zeros(0, np.int64)
        self.seconds = np.zeros(2)  # as of :func:`now`

    def add(self, result: RoundResult) -> None:
        """Measure the signals of a round, and the utility of its global models."""
        began = now()
        with matmuls(self._precision):
            self._recorder.record(result)
        self.values, self.predicted = evaluated(self._training, self._test_x, self._test_y)
        row = {"round": result.uploads.round, **self._utility(), **self._clusters(result)}
        self.history.append(row)
        self.assignments.append(result.assignment)
        self.seconds += now() - began

    def _utility(self) -> dict[str, Any]:
        scene = self._scene
        values = self.values
        row: dict[str, Any] = {
            "accuracy": float(values.mean()),
            "train_loss": train_loss(self._training),
        }
        if scene.groups is not None:
            groups = range(len(scene.groups.names))
            row["group_accuracy"] = [float(values[scene.test_group == g].mean()) for g in groups]
        return row

    def _clusters(self, result: RoundResult) -> dict[str, Any]:
        """Return the sizes of the clusters, and how many clients moved since the last audited
        round; nothing with one model, or one a client.
        """
        n_models = len(self._training.models)
        assignment = result.assignment
        if n_models in (1, len(assignment)):
            return {}
        moved = 0
        if self.assignments:
            pairs = zip(assignment, self.assignments[-1], strict=True)
            moved = sum(now != before for now, before in pairs)
        return {"clusters": np.bincount(assignment, minlength=n_models).tolist(), "moved": moved}


def now() -> np.ndarray:
    """Return [2] seconds of this process's CPU, and of the clock."""
    return np.array([time.process_time(), time.perf_counter()])


# --- evaluation of the global models --------------------------------------------------------------


def final_logits(training: Training, x: torch.Tensor) -> np.ndarray:
    """Return [s, n, C] answers of each of the global models."""
    logits = [_answers(training, j, x) for j in range(len(training.models))]
    return np.stack([answer.float().cpu().numpy() for answer in logits])


def evaluated(
    training: Training, x: torch.Tensor, y: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Return (utility, prediction), each [n_test], of the global models on the test samples.

    With several global models, sample i is put to the model of client i mod K: the mean is then the
    clients' mean utility, and a sample still has one answer, which paired tests need. The
    prediction is empty where the task's is not one number a sample.
    """
    flat = training.setup.flat
    clients = torch.arange(len(x), device=x.device) % len(training.assignment)
    positions = []
    values = []
    predicted = []
    for j, served in _clients_of_models(training):
        of_model = torch.isin(clients, torch.tensor(served, device=x.device)).nonzero()[:, 0]
        if len(of_model):
            labels = y[of_model]
            rows, target = flat.rows(x[of_model], labels, "test")
            outputs = _answers(training, j, rows)
            positions.append(of_model)
            values.append(flat.task.utilities[0].values(outputs, target, labels))
            prediction = flat.task.predict(outputs)
            predicted.append(prediction if prediction.shape == labels.shape else labels[:0])
    order = torch.cat(positions).argsort()
    utility = torch.cat(values)
    classes = torch.cat(predicted)
    if utility.is_floating_point():
        utility = utility.double()
    if len(classes):
        classes = classes[order]
    return utility[order].cpu().numpy(), classes.cpu().numpy()


def train_loss(training: Training) -> float:
    """Return the mean loss of each client's global model on (up to 200 of) its training samples.

    Raises:
        Diverged: where it is not finite.
    """
    clients = training.setup.clients
    flat = training.setup.flat
    losses = torch.zeros(len(clients))
    not_finite: list[int] = []
    for j, served in _clients_of_models(training):
        picks = [clients[k].trainable[:_MOST_LOSSES] for k in served]
        x = torch.cat([clients[k].x[pick] for k, pick in zip(served, picks, strict=True)])
        y = torch.cat([clients[k].y[pick] for k, pick in zip(served, picks, strict=True)])
        rows, target = flat.rows(x, y, "audit")
        values = flat.task.sample_losses(_logits(training, j, rows), target)
        means = [part.mean() for part in values.split([len(pick) for pick in picks])]
        losses[served] = torch.stack(means).float().cpu()
        if not bool(torch.isfinite(losses[served]).all()):
            not_finite.append(j)
    loss = float(losses.mean())
    if not math.isfinite(loss):
        training.causes.blame_losses(loss, not_finite)
    return loss


def _clients_of_models(training: Training) -> list[tuple[int, list[int]]]:
    """Return (global model, the clients that it serves) of each model that serves any."""
    served: dict[int, list[int]] = {}
    for k, j in training.assignment.items():
        served.setdefault(j, []).append(k)
    return sorted(served.items())


def _answers(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return answered(training, j, _logits(training, j, x))


def _logits(training: Training, j: int, x: torch.Tensor) -> torch.Tensor:
    return training.setup.flat.logits(training.state[j], x)


# --- samples that were used -----------------------------------------------------------------------


def held_out(scene: Scene, clients: Sequence[MemberData]) -> np.ndarray:
    """Return the sorted ids of what clients keep out of training, and so out of the audit: not
    their test parts, which are non-members even where the released code's clients validate on them.
    """
    ids = [np.zeros(0, np.int64)]
    for k, data in enumerate(clients):
        if data.held_out is not None:
            ids.append(scene.split.own(k)[data.held_out.cpu().numpy()])
    return np.setdiff1d(np.concatenate(ids), np.concatenate(scene.split.test))


@dataclass(frozen=True)
class UsedSamples:
    """Counts of what was trained on, int32: 0 for non-members and absent clients, -1 where it is
    not known.
    """

    used: np.ndarray
    """[N] in how many rounds each sample of the pool was used, by its owner"""
    flagged: np.ndarray
    """[N] in how many of them with a true flag"""
    used_in_round: np.ndarray
    """[T, K] how many samples each client used"""
    flagged_in_round: np.ndarray
    """[T, K] how many of them with a true flag"""


def used_samples(
    scene: Scene,
    usage: Usage,
    malicious: Collection[int],
) -> UsedSamples:
    """Return the counts over the scene's pool. What ``malicious`` clients train on is not known:
    they send what an adversary makes.
    """
    pool = scene.pool
    in_rounds = usage.of_rounds()
    counts = np.zeros((2, len(pool)), np.int32)
    for k in range(len(scene.shards)):
        ids = scene.split.own(k)
        positions = np.flatnonzero(np.isin(pool, ids))
        if k in malicious:
            counts[:, positions] = UNKNOWN
        else:
            in_data = np.searchsorted(ids, pool[positions])
            counts[:, positions] = [values[in_data] for values in usage.of_client(k)]
    for values in in_rounds:
        values[:, sorted(malicious)] = UNKNOWN
    return UsedSamples(counts[0], counts[1], *in_rounds)
