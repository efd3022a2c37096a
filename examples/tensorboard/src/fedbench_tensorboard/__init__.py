"""Runs as event files of TensorBoard, while they are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbench.core import CellFinished, RoundFinished, RunFinished, RunStarted, hookimpl

_writers: dict[str, Any] = {}


@hookimpl
def fedbench_events(event: Any) -> None:
    """Write RESULTS/leaderboard/tensorboard, a folder a run: accuracy and training loss by round,
    and the AUC of each attack.
    """
    if isinstance(event, RunStarted):
        from torch.utils.tensorboard import SummaryWriter  # kept out of the announcement

        folder = Path(event.run.results) / "leaderboard" / "tensorboard" / event.run.key
        _writers[event.run.key] = SummaryWriter(str(folder))
    elif isinstance(event, RoundFinished) and event.accuracy is not None:
        writer = _writers[event.run.key]
        writer.add_scalar("accuracy", event.accuracy, event.round)
        if event.train_loss is not None:
            writer.add_scalar("training loss", event.train_loss, event.round)
    elif isinstance(event, CellFinished):
        for group, scores in event.scores.items():  # ofl, ifl, mix
            auc, _ = scores["auc"]
            _writers[event.run.key].add_scalar(f"AUC {group}/{event.attack}", auc)
    elif isinstance(event, RunFinished):
        _writers.pop(event.run.key).close()
